"""The chat log of a real channel. Half of its users publish by MQTT with QoS 1 and 2, half by Redis, to
subscribers of both. No message is lost, duplicated, changed or reordered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V311, Wire
from clients.raw import Connection
from clients.servers import Server

from node.conftest import Start
from node.test_chat_log import Event, chat_log

EVENTS_MAX = 20_000
USERS = 8
BATCH = 200
"""Maximum number of unanswered messages per publisher."""


def batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events in batches."""
    rest = iter(events)
    while batch := list(islice(rest, BATCH)):
        yield batch


Rooms = dict[str, list[bytes]]
"""Payloads per room in order of arrival."""


def by_mqtt(server: Server, who: int, events: Iterable[Event]) -> None:
    """Publishes with QoS 1 or 2 and awaits all replies."""
    assert server.node is not None
    qos = 1 + who % 4 // 2
    with Wire(server.node.mqtt) as wire:
        wire.connect(f"user-{who}", V5 if who % 4 else V311)
        for batch in batches(events):
            for i, (room, payload, _) in enumerate(batch, 1):
                wire.publish(room.decode(), payload, qos, i)
            for i in range(1, len(batch) + 1):
                assert wire.read(PUBACK if qos == 1 else PUBREC).id == i
            if qos == 2:
                for i in range(1, len(batch) + 1):
                    wire.answer(PUBREL, i)
                for i in range(1, len(batch) + 1):
                    assert wire.read(PUBCOMP).id == i


def by_redis(server: Server, events: Iterable[Event]) -> None:
    """Publishes in pipelined batches."""
    with server.connect() as connection:
        for batch in batches(events):
            for room, payload, _ in batch:
                connection.command("PUBLISH", room, payload)
            assert {frame.kind for frame in connection.read_many(len(batch))} == {":"}


def heard_by_mqtt(wire: Wire, count: int) -> Rooms:
    """Reads `count` messages and acknowledges each as it arrives; replies to each PUBREL with PUBCOMP."""
    rooms: Rooms = defaultdict(list)
    while count:
        one = wire.read()
        if one.kind == PUBREL:
            wire.answer(PUBCOMP, one.id)
            continue
        assert one.kind == PUBLISH
        rooms[one.topic].append(one.rest[1:] if wire.version == V5 else one.rest)
        count -= 1
        if one.qos:
            wire.answer(PUBACK if one.qos == 1 else PUBREC, one.id)
    return rooms


def heard_by_redis(connection: Connection, count: int) -> Rooms:
    """Reads `count` messages; returns payloads by topic."""
    rooms: Rooms = defaultdict(list)
    for _ in range(count):
        _, _, topic, payload = connection.read().plain()  # type: ignore[misc]
        rooms[topic.decode()].append(payload)
    return rooms


@pytest.mark.parametrize("durability", ["ephemeral", "durable"])
def test_the_chat_log_through_mqtt_and_redis_to_both(
    start: Start, repository: Path, tmp_path: Path, durability: str, needs: Callable[..., None]
) -> None:
    events = chat_log(repository)[:EVENTS_MAX]
    room_class = {"name": "chat", "match": ["irc:*", "chat:*"], "durability": durability}
    if durability == "durable":
        room_class |= {"history": {"bytes": "64MiB"}}  # type: ignore[dict-item]
    server = start(2, {"mqtt": "127.0.0.1:0", "data": str(tmp_path)}, classes=[room_class])
    assert server.node is not None
    users: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        users[event[2] % USERS].append(event)
    with (
        Wire(server.node.mqtt) as lossy,
        Wire(server.node.mqtt) as once,
        Wire(server.node.mqtt) as twice,
        server.connect() as redis,
        ThreadPoolExecutor(USERS + 4) as pool,
    ):
        for i, (wire, version) in enumerate(((lossy, V311), (once, V5), (twice, V311))):
            wire.connect(f"subscriber-{i}", version)
            assert wire.subscribe(("#", i)) == [i]
        redis.ask("PSUBSCRIBE", "*")
        heard = [pool.submit(heard_by_mqtt, wire, len(events)) for wire in (lossy, once, twice)]
        heard.append(pool.submit(heard_by_redis, redis, len(events)))
        said = [
            pool.submit(by_mqtt, server, who, mine) if who % 2 == 0 else pool.submit(by_redis, server, mine)
            for who, mine in users.items()
        ]
        for publisher in said:
            publisher.result()
        rooms, *others = [subscriber.result() for subscriber in heard]
    assert all(other == rooms for other in others)
    for who, mine in users.items():
        # One connection publishes all messages of a user, so they arrive in order.
        own = {payload for _, payload, _ in mine}
        ordered: Rooms = defaultdict(list)
        for room, payload, _ in mine:
            ordered[room.decode()].append(payload)
        assert {room: [p for p in rooms[room] if p in own] for room in ordered} == ordered, who
    assert sum(map(len, rooms.values())) == len(events)
