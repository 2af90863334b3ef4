"""Servers for property tests, started when first asked for, one of each kind a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from clients.servers import Server, hubsub_node, redis_server

IDLE_MS = 3_600_000
"""The model knows no time: a room without records must not be forgotten, and made anew, in an example."""

CLASSES = [
    {"name": "short", "match": ["short*"], "history": {"messages": 3}, "idle_ms": IDLE_MS},
    {"name": "long", "match": ["long*"], "history": {"messages": 10_000}, "idle_ms": IDLE_MS},
    {
        "name": "devices",
        "match": ["dev/#"],
        "room": "dev/+",
        "history": {"messages": 20},
        "idle_ms": IDLE_MS,
    },
]


@pytest.fixture(scope="session")
def start(needs: Callable[..., None]) -> Iterator[Callable[[str], Server]]:
    """`start("redis-server")`, `start("hubsub-2")`: that server, running."""
    started: dict[str, Server] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> Server:
            if kind not in started:
                needs("redis-server" if kind == "redis-server" else "hubsub-core")
                server = (
                    redis_server() if kind == "redis-server" else hubsub_node(int(kind[-1]), classes=CLASSES)
                )
                started[kind] = stack.enter_context(server)
            return started[kind]

        yield get
