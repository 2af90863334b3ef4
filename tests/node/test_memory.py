"""A node's memory: the pools add up to the total, and idle memory is released."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.raw import Connection, encode
from clients.servers import Server, until

Start = Callable[..., Server]

MIB = 1 << 20

CLASSES: list[dict[str, Any]] = [
    {"name": "log", "match": ["log:*"], "durability": "replicated", "history": {"bytes": "1GiB"}},
    {"name": "kept", "match": ["kept:*"], "history": {"bytes": "1GiB"}},
]


def pools(server: Server) -> dict[str, int]:
    """Bytes by pool, and the resident size as `rss`."""
    page = server.get("/metrics").decode()
    of = {
        m[1]: int(m[2])
        for m in re.finditer(r'^hubsub_memory_bytes\{pool="(\w+)"\} (\d+)$', page, re.MULTILINE)
    }
    rss = re.search(r"^process_resident_memory_bytes (\d+)$", page, re.MULTILINE)
    assert rss and of
    return {**of, "rss": int(rss[1])}


def fill(connection: Connection, prefix: str, records: int, bytes_max: int) -> None:
    """Publishes records of many lengths into a hundred rooms."""
    lengths = random.Random(7)
    for first in range(0, records, 500):
        orders = [
            encode("PUBLISH", f"{prefix}:{n % 100}", "x" * lengths.randrange(bytes_max))
            for n in range(first, first + 500)
        ]
        connection.send(b"".join(orders))
        assert {reply.kind for reply in connection.read_many(500)} == {":"}


def subscribe(connection: Connection, thousands: int, name: str) -> None:
    """Subscribes to `thousands` thousand rooms of its own."""
    for n in range(thousands):
        connection.command("SUBSCRIBE", *(f"room:{name}:{n}:{at}" for at in range(1_000)))
        connection.read_many(1_000)


def rooms(server: Server) -> int:
    return server.metric("rooms")


def test_what_memory_is_used_for_is_told_and_adds_up(start: Start, data: Path) -> None:
    server = start(config={"data": str(data)}, classes=CLASSES, limits={"log_tail_idle_ms": 0})
    start_bytes = pools(server)["rss"]
    with server.connect() as publisher, server.connect() as slow, server.connect() as many:
        assert slow.call("SUBSCRIBE", "slow:1")
        fill(publisher, "log", 40_000, 3_000)
        fill(publisher, "kept", 40_000, 3_000)
        subscribe(many, 100, "many")
        until(lambda: rooms(server) >= 100_000)
        until(lambda: pools(server)["mail"] == 0)
        of = pools(server)
    rss = of.pop("rss")
    assert rss > start_bytes + 100 * MIB, "there is something to tell"
    assert abs(sum(of.values()) - rss) <= rss / 10
    # The allocator's size classes waste up to a sixth of a history, and it keeps up to an eighth for reuse.
    assert of["other"] + of["rest"] <= rss / 4, of
    assert of["history"] > 80 * MIB and of["rooms"] + of["topics"] > 10 * MIB


def test_memory_of_many_rooms_is_given_back_when_they_are_gone(start: Start) -> None:
    server = start()
    before = pools(server)["rss"]
    clients = []
    for at in range(100):
        clients.append(server.connect())
        subscribe(clients[-1], 3, str(at))
    until(lambda: rooms(server) == 300_000)
    full = pools(server)["rss"]
    for client in clients:
        client.close()
    until(lambda: rooms(server) == 0)
    until(lambda: pools(server)["rss"] - before < (full - before) / 3)
