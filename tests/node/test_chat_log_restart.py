"""The chat log with a restart in its middle: subscribers resume by position and receive each event once, in
order."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S, encode

from node.crowd import Member
from node.home import Home, home
from node.test_chat_log import (
    COPIES,
    PUBLISHERS,
    SUBSCRIBERS,
    Event,
    Rooms,
    chat_log,
    history_is,
    of_each_publisher,
    seqs_without_gap,
)


class Subscriber(Member):
    """Subscribes to rooms on one run of the node."""

    @classmethod
    async def of(cls, one: Home, rooms: list[bytes], seen: Rooms) -> Subscriber:
        """Subscribes to each room after its last received record, or from the first record if none was
        received."""
        subscriber = await cls.join(one.server.host, one.server.port, ("HUBSUB", "POSITIONS", "ON"))
        for room in rooms:
            start = ("FROM", seen[room][-1][0]) if room in seen else ("LAST", 1_000_000)
            subscriber.transport.write(encode("HUBSUB", "SUBSCRIBE", room, *start))
        await subscriber.call("PING")  # Its reply follows the confirmations.
        return subscriber

    def move_to(self, seen: Rooms) -> None:
        """Moves received records to `seen`; asserts that each subscription recovered and had no gap."""
        for kind, room, *fields in self.pushes:
            if kind == b"subscribe":
                assert fields[2] == 1, f"{room!r} was not recovered"
            else:
                assert kind == b"message", kind
                payload, position = fields
                seen[room].append((position, payload))
        self.pushes.clear()


async def publish(one: Home, events: list[Event]) -> None:
    """Publishes all events, each publisher's in order, and awaits every acknowledgement."""

    async def by(who: int) -> None:
        publisher = await Member.join(one.server.host, one.server.port)
        replies = await publisher.pipeline(("PUBLISH", room, text) for room, text, by in events if by == who)
        assert set(replies) <= {COPIES}
        publisher.leave()

    await asyncio.gather(*(by(who) for who in range(PUBLISHERS)))


async def run(one: Home, events: list[Event], end: Callable[[], None]) -> Rooms:
    """Publishes all events with `end` in the middle; returns what the subscribers received, the same for all,
    each once."""
    sizes = Counter(room for room, _, _ in events)
    mine = [[r for r in sizes if (zlib.crc32(r) + n) % SUBSCRIBERS < COPIES] for n in range(SUBSCRIBERS)]
    seen: list[Rooms] = [defaultdict(list) for _ in mine]

    subscribers = [await Subscriber.of(one, *held) for held in zip(mine, seen, strict=True)]
    await publish(one, events[: len(events) // 2])
    end()  # Some records are still in flight to some subscribers.
    for subscriber, before in zip(subscribers, seen, strict=True):
        await subscriber.until_closed()
        subscriber.move_to(before)
    one.start()

    subscribers = [await Subscriber.of(one, *held) for held in zip(mine, seen, strict=True)]
    await publish(one, events[len(events) // 2 :])
    for subscriber, rooms, before in zip(subscribers, mine, seen, strict=True):
        due = sum(sizes[room] - len(before[room]) for room in rooms) + len(rooms)
        await subscriber.until(lambda s=subscriber, due=due: len(s.pushes) >= due)  # type: ignore[misc]
        subscriber.move_to(before)
        subscriber.leave()

    agreed = {room: records for rooms in seen for room, records in rooms.items()}
    assert agreed.keys() == sizes.keys()
    assert all(records == agreed[room] for rooms in seen for room, records in rooms.items()), "one order"
    of_each_publisher(events, agreed)
    seqs_without_gap(agreed)
    await history_is(agreed, one.server)
    return agreed


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_chat_log_is_complete_in_order_and_once_through_a_restart_in_its_middle(
    needs: Callable[..., None], repository: Path, data: Path, end: str
) -> None:
    needs("hubsub-core")

    async def bounded() -> None:
        async with asyncio.timeout(4 * TIMEOUT_S):
            await run(one, chat_log(repository), getattr(one, end))

    with home(data, shards=3, limits={"log_tail_bytes_max": "256KiB"}) as one:
        asyncio.run(bounded())
