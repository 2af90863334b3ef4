"""The chat log of a real channel through 50 publishers: no message lost, duplicated, changed or reordered.

The test uses the first of its 60,282 events, or CHAT_EVENTS of them (`make soak`), from `../shared/data/irc`
beside the repository. Without that directory the seeded generator of `hubsub demo generate` makes the events.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, redis_server

from hubsub.cli import demo
from node.crowd import Member

EVENTS = int(os.environ.get("CHAT_EVENTS", 12_000))
PUBLISHERS = 50
SUBSCRIBERS = 12
COPIES = 2
"""Number of subscribers that subscribe to each room by its channel."""
PATTERNS = [b"[ci]*:*", b"???*[0-9]", b"*"]

Event = tuple[bytes, bytes, int]
"""Room, payload, publisher. One publisher sends all messages of a user."""

Rooms = dict[bytes, list[tuple[bytes, bytes]]]
"""Room to (position, payload) in order of arrival; the position is empty if the server has none."""


def chat_log(repository: Path) -> list[Event]:
    """The first `EVENTS` events of the log, in order."""
    recorded = repository.parent / "shared" / "data" / "irc" / "messages.jsonl.gz"
    if recorded.exists():
        lines = gzip.decompress(recorded.read_bytes()).splitlines()
    else:
        lines = [json.dumps(event).encode() for event in demo.events(60_282, rooms=2_485, users=7_439)]
    lines = lines[:EVENTS]
    rows = [json.loads(line) for line in lines]
    return [
        (row["room"].encode(), line, zlib.crc32(row["user"].encode()) % PUBLISHERS)
        for row, line in zip(rows, lines, strict=True)
    ]


@pytest.fixture(scope="module")
def events(repository: Path) -> list[Event]:
    """The log, read once and cached."""
    return chat_log(repository)


class Subscriber(Member):
    """A member that groups its messages by room after `due` of them have arrived."""

    channels: Sequence[bytes] = ()
    patterns: Sequence[bytes] = ()
    due = 0

    async def rooms(self) -> Rooms:
        """The received messages, after all expected ones have arrived."""
        await self.until(lambda: len(self.pushes) >= self.due)
        assert len(self.pushes) == self.due
        rooms: Rooms = defaultdict(list)
        for push in self.pushes:
            topic_at = {b"message": 1, b"pmessage": 2}[push[0]]
            topic, payload, *position = push[topic_at:]
            rooms[topic].append((position[0] if position else b"", payload))
        return rooms


async def run(servers: Sequence[Server], events: list[Event]) -> list[tuple[Subscriber, Rooms]]:
    """Publishes the events through one server, or through several of one cluster in turn.

    Returns:
        Each subscriber and what it received; the last subscriber receives all rooms.
    """
    addresses = [(server.host, server.port) for server in servers]
    in_turn = cycle(addresses)
    is_node = servers[0].node is not None
    sizes = Counter(room for room, _, _ in events)
    positions = [("HUBSUB", "POSITIONS", "ON")] if is_node else []
    subscribers: list[Subscriber] = []
    for i in range(SUBSCRIBERS):
        mine = [room for room in sizes if (zlib.crc32(room) + i) % SUBSCRIBERS < COPIES]
        subscribers.append(await Subscriber.join(*next(in_turn), *positions, ("SUBSCRIBE", *mine)))
        subscribers[-1].channels, subscribers[-1].due = mine, sum(sizes[room] for room in mine)
    for pattern in PATTERNS:
        subscribers.append(await Subscriber.join(*next(in_turn), *positions, ("PSUBSCRIBE", pattern)))
        subscribers[-1].patterns, subscribers[-1].due = [pattern], len(events)

    async def publish(who: int) -> None:
        publisher = await Member.join(*addresses[who % len(addresses)])
        mine = [("PUBLISH", room, payload) for room, payload, by in events if by == who]
        assert set(await publisher.pipeline(mine)) <= {COPIES + len(PATTERNS)}
        publisher.leave()

    await asyncio.gather(*(publish(who) for who in range(PUBLISHERS)))
    seen = [await subscriber.rooms() for subscriber in subscribers]

    agreed = seen[-1]
    assert agreed.keys() == sizes.keys()
    for rooms in seen:
        for room, records in rooms.items():
            assert records == agreed[room], f"the subscribers of {room!r} saw different orders"
    of_each_publisher(events, agreed)
    if is_node:
        seqs_without_gap(agreed)
        for server in servers:
            await history_is(agreed, server)
    for subscriber in subscribers:
        subscriber.leave()
    return list(zip(subscribers, seen, strict=True))


def of_each_publisher(events: list[Event], agreed: Rooms) -> None:
    """Each publisher's events arrived once each, unchanged, in the publisher's order."""
    published: dict[bytes, list[list[bytes]]] = defaultdict(lambda: [[] for _ in range(PUBLISHERS)])
    publisher_of = {}
    for room, payload, by in events:
        published[room][by].append(payload)
        publisher_of[payload] = by
    for room, records in agreed.items():
        of_publisher: list[list[bytes]] = [[] for _ in range(PUBLISHERS)]
        for _, payload in records:
            of_publisher[publisher_of[payload]].append(payload)
        assert of_publisher == published[room]


def seqs_without_gap(agreed: Rooms) -> None:
    """The common order is that of the seqs: from 1, without gaps, in one epoch."""
    for records in agreed.values():
        positions = [position.split(b"-") for position, _ in records]
        assert len({epoch for epoch, _ in positions}) == 1
        assert [int(seq) for _, seq in positions] == list(range(1, len(records) + 1))


async def history_is(agreed: Rooms, server: Server) -> None:
    """A room's history equals what subscribers received."""
    reader = await Member.join(server.host, server.port)
    histories = await reader.pipeline(("HUBSUB", "HISTORY", room, "COUNT", 10_000) for room in agreed)
    for (room, records), history in zip(agreed.items(), histories, strict=True):
        assert [(row[0], row[4]) for row in history] == records
        assert {row[2] for row in history} == {room}
    reader.leave()


@pytest.mark.parametrize("kind", ["redis-server", "hubsub-1", "hubsub-3"])
def test_every_event_arrives_once_unchanged_and_in_one_order(
    needs: Callable[..., None], events: list[Event], kind: str
) -> None:
    """The same test passes on Redis, so it asserts only what Redis also does."""

    async def bounded(server: Server) -> None:
        async with asyncio.timeout(4 * TIMEOUT_S):
            await run([server], events)

    if kind == "redis-server":
        needs("redis-server")
        with redis_server() as server:
            return asyncio.run(bounded(server))
    needs("hubsub-core")
    classes = [{"name": "chat", "match": ["irc:*", "chat:*"], "history": {"messages": 100_000}}]
    with hubsub_node(int(kind[-1]), classes=classes) as server:
        asyncio.run(bounded(server))
        assert server.metric("published_total") == len(events)
        assert server.metric("delivered_total") == len(events) * (COPIES + len(PATTERNS))
    return None
