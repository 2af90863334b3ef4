"""Nodes in this process that know only the peers that a test gives them, for cluster clients.

They have no links: a publish on a node reaches only that node's subscribers.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.crc import key_slot

from clients.raw import Connection
from hubsub.config import resolve, split_address
from hubsub.node import Node

SLOTS = 16_384

Nodes = list[Node]


@contextlib.asynccontextmanager
async def started(*names: str, **config: Any) -> AsyncIterator[Nodes]:
    """Starts nodes with these names in this process; each knows only itself."""
    free = "127.0.0.1:0"
    table = {"redis": free, "redis_cluster": free, "shards": 2, "limits": {"drain_ms": 100}, **config}
    nodes: Nodes = []
    try:
        for name in names:
            nodes.append(Node(resolve({"node": name, **table}, {}, {})))
            await nodes[-1].start()
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def deal(nodes: Nodes, to: Sequence[Node] | None = None) -> None:
    """Gives the nodes `to` (all of them by default) a cluster map that consists of `nodes`."""
    roster = [node.redis_cluster_node("test") for node in nodes]
    for node in to or nodes:
        node.redis_cluster_nodes([row for row in roster if row])


def address(node: Node) -> tuple[str, int]:
    return split_address(node.addresses["redis_cluster"] or "")


def connect(node: Node, resp: int = 2) -> Connection:
    return Connection(*address(node), resp)


def map_of(node: Node) -> list[int]:
    """The port of each slot's owner, as a node reports it."""
    with connect(node) as connection:
        return slots_of(connection)


def slots_of(connection: Connection) -> list[int]:
    """The port of each slot's owner, as the node of this connection reports it."""
    rows = connection.ask("CLUSTER", "SLOTS")
    assert isinstance(rows, list)
    owners: list[int] = []
    for first, last, (_, port, *_rest) in rows:
        assert first == len(owners), "ranges follow each other"
        owners += [port] * (last - first + 1)
    assert len(owners) == SLOTS
    return owners


def split(nodes: Nodes) -> list[list[str]]:
    """For each node, 40 channels whose slots it owns."""
    owners, ports = map_of(nodes[0]), [address(node)[1] for node in nodes]
    channels: list[list[str]] = [[] for _ in nodes]
    for number in range(10_000):
        own = channels[ports.index(owners[key_slot(b"c%d" % number)])]
        own.extend([f"c{number}"] if len(own) < 40 else [])
    assert all(len(own) == 40 for own in channels)
    return channels
