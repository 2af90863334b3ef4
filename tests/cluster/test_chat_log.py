"""The chat log of a real channel through three nodes: nothing lost, duplicated, changed or reordered.

Publishers, subscribers and leaders of rooms are on all three nodes, and history is the same from each. Given
each room's order, the model computes what each subscriber must receive.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S
from clients.servers import Server
from model.broker import Broker, RoomClass
from node.test_chat_log import COPIES, PATTERNS, Rooms, Subscriber, chat_log, run

from cluster.cluster import CHAT, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

RECEIVERS = COPIES + len(PATTERNS)

SAMPLE = 12_000
"""Most events with an external coordinator, which takes no part in delivery; with the embedded one as many as for a
single node."""


def test_every_event_arrives_once_unchanged_and_in_one_order_at_all_nodes(
    repository: Path, three: Cluster
) -> None:
    events = chat_log(repository)[: None if three.coordinator is None else SAMPLE]
    three.settled()
    servers = [Server(*node.redis, node.pid, node) for node in three.nodes.values()]
    before = {
        name: sum(server.metric(name) for server in servers)
        for name in ("published_total", "delivered_total")
    }

    async def bounded() -> list[tuple[Subscriber, Rooms]]:
        async with asyncio.timeout(4 * TIMEOUT_S):
            return await run(servers, events)

    heard = asyncio.run(bounded())
    after = {name: sum(server.metric(name) for server in servers) - count for name, count in before.items()}
    assert after == {"published_total": len(events), "delivered_total": len(events) * RECEIVERS}
    is_as_the_model_says(heard)


def is_as_the_model_says(heard: list[tuple[Subscriber, Rooms]]) -> None:
    """Checks that each subscriber received what the model computes: only its rooms, with the same seqs."""
    classes = [RoomClass(pattern.encode(), CHAT["history"]["messages"]) for pattern in CHAT["match"]]
    model = Broker(classes)
    clients = [model.connect() for _ in heard]
    for client, (subscriber, _) in zip(clients, heard, strict=True):
        for channel in subscriber.channels:
            model.subscribe(client, channel)
        for pattern in subscriber.patterns:
            model.psubscribe(client, pattern)
    everything = heard[-1][1]
    for room, records in everything.items():
        for _, payload in records:
            assert model.publish(room, payload) == RECEIVERS
    for client, (_, rooms) in zip(clients, heard, strict=True):
        due: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        for delivery in client.got:
            record = delivery.record
            due[record.topic].append((record.position[1], record.payload))
        assert due == {
            room: [(int(position.partition(b"-")[2]), payload) for position, payload in records]
            for room, records in rooms.items()
        }
