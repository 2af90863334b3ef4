"""The chat log of a real channel through three nodes: nothing lost, doubled, changed or swapped.

Publishers and subscribers are on all three, rooms are led by all three, and history is the same from each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S
from clients.servers import Server
from node.test_chat_log import COPIES, PATTERNS, chat_log, run

from cluster.cluster import Cluster

pytestmark = pytest.mark.needs("hubsub-core")

EVENTS = 12_000
"""Of the log: what a store does, it does before."""


def test_every_event_arrives_once_unchanged_and_in_one_order_at_all_nodes(
    repository: Path, three: Cluster
) -> None:
    events = chat_log(repository)[:EVENTS]
    three.settled()
    servers = [Server(*node.redis, node.pid, node) for node in three.nodes.values()]
    before = {
        name: sum(server.metric(name) for server in servers)
        for name in ("published_total", "delivered_total")
    }

    async def bounded() -> None:
        async with asyncio.timeout(4 * TIMEOUT_S):
            await run(servers, events)

    asyncio.run(bounded())
    after = {name: sum(server.metric(name) for server in servers) - count for name, count in before.items()}
    assert after == {
        "published_total": len(events),
        "delivered_total": len(events) * (COPIES + len(PATTERNS)),
    }
