"""A reference broker in plain Python: which records each client gets, in which order.

It has one thread, no sockets and no shards. Rooms have epochs and seqs, subscribers have topics and patterns,
classes have a history. It is the oracle of the delivery tests, so it is written to be read.

A client gets a record first for its exact subscription, then for its patterns, here sorted by name. It gets
the records of a room in the order of their seq. Epochs are numbered from 1 in the order in which they begin.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from model.glob import matches

Position = tuple[int, int]
NOWHERE: Position = (0, 0)
"""Position of a record that was not stored in a room."""


@dataclass(frozen=True)
class RoomClass:
    """A policy. `history` is the number of records that a room retains; with 0 a room without subscribers is
    forgotten.

    `template`, such as `devices/+`, keeps as many levels of a topic as it has itself.
    """

    pattern: bytes = b"*"
    history: int = 0
    template: bytes | None = None

    def matches(self, name: bytes) -> bool:
        """Whether a topic or room belongs to this class."""
        return self.pattern == b"*" or matches(self.pattern, name)

    def room_of(self, topic: bytes) -> bytes:
        """The room that the template yields, or the topic itself if it does not fit."""
        assert self.template is not None
        wanted, levels = self.template.split(b"/"), topic.split(b"/")
        fits = len(levels) >= len(wanted) and all(
            w in (b"+", has) for w, has in zip(wanted, levels, strict=False)
        )
        return b"/".join(levels[: len(wanted)]) if fits else topic


@dataclass(frozen=True)
class Record:
    topic: bytes
    payload: bytes
    position: Position
    shard: bool = False


@dataclass
class Room:
    """One epoch of a room."""

    name: bytes
    epoch: int
    kept: deque[Record]
    seq: int = 0

    @property
    def first(self) -> int:
        """Seq of the oldest retained record, or of the next one if none is retained."""
        return self.kept[0].position[1] if self.kept else self.seq + 1


@dataclass(frozen=True)
class Delivery:
    """A record that a client gets, by its topic or by a pattern."""

    record: Record
    pattern: bytes | None = None


@dataclass(eq=False)
class Client:
    """A client's subscriptions and deliveries. Dicts keep the order of subscription."""

    topics: dict[bytes, None] = field(default_factory=dict)
    patterns: dict[bytes, None] = field(default_factory=dict)
    shard_topics: dict[bytes, None] = field(default_factory=dict)
    got: list[Delivery] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of subscriptions that (P)SUBSCRIBE confirms."""
        return len(self.topics) + len(self.patterns)


@dataclass(frozen=True)
class Attached:
    """The confirmation of HUBSUB SUBSCRIBE."""

    count: int
    position: Position
    recovered: bool


class NotRecovered(Exception):
    """The position has an unknown epoch, or history no longer contains the records after it."""


class Broker:
    def __init__(self, classes: list[RoomClass]) -> None:
        self.classes = [*classes, RoomClass()]
        self.rooms: dict[bytes, Room] = {}
        self.clients: list[Client] = []
        self._epochs = itertools.count(1)

    # --- rooms

    def room_of(self, topic: bytes) -> bytes:
        """A topic's room: its hash tag, else the result of a class's template, else the topic."""
        tag, end, _ = topic.partition(b"{")[2].partition(b"}")
        if tag and end:
            return tag
        templates = (c for c in self.classes if c.template and c.matches(topic))
        return next((c.room_of(topic) for c in templates), topic)

    def class_of(self, room: bytes) -> RoomClass:
        """The first class that matches."""
        return next(c for c in self.classes if c.matches(room))

    def _open(self, name: bytes) -> Room:
        if name not in self.rooms:
            kept: deque[Record] = deque(maxlen=self.class_of(name).history)
            self.rooms[name] = Room(name, next(self._epochs), kept)
        return self.rooms[name]

    def _forget_if_unused(self, topic: bytes) -> None:
        name = self.room_of(topic)
        used = any(self.room_of(t) == name for c in self.clients for t in (*c.topics, *c.shard_topics))
        if not used and not self.class_of(name).history:
            self.rooms.pop(name, None)

    # --- clients

    def connect(self) -> Client:
        self.clients.append(Client())
        return self.clients[-1]

    def disconnect(self, client: Client) -> None:
        """Removes a client and all its subscriptions."""
        for topic in list(client.topics):
            self.unsubscribe(client, topic)
        for topic in list(client.shard_topics):
            self.unsubscribe(client, topic, shard=True)
        self.clients.remove(client)

    def subscribe(self, client: Client, topic: bytes, shard: bool = False) -> int:
        """Subscribes. Returns the number of subscriptions that the server confirms."""
        self._open(self.room_of(topic))
        (client.shard_topics if shard else client.topics)[topic] = None
        return len(client.shard_topics) if shard else client.count

    def unsubscribe(self, client: Client, topic: bytes, shard: bool = False) -> int:
        """Unsubscribes. Returns the number of subscriptions that the server confirms."""
        (client.shard_topics if shard else client.topics).pop(topic, None)
        self._forget_if_unused(topic)
        return len(client.shard_topics) if shard else client.count

    def psubscribe(self, client: Client, pattern: bytes) -> int:
        """Subscribes to a pattern. Returns the number of subscriptions that the server confirms."""
        client.patterns[pattern] = None
        return client.count

    def punsubscribe(self, client: Client, pattern: bytes) -> int:
        """Unsubscribes from a pattern. Returns the number of subscriptions that the server confirms."""
        client.patterns.pop(pattern, None)
        return client.count

    def subscribe_last(self, client: Client, topic: bytes, count: int) -> Attached:
        """Subscribes and replays the topic's last `count` records."""
        self.subscribe(client, topic)
        room = self._open(self.room_of(topic))
        records = [r for r in room.kept if r.topic == topic and not r.shard]
        client.got += [Delivery(r) for r in records[max(0, len(records) - count) :]]
        return Attached(client.count, (room.epoch, room.seq), True)

    def subscribe_from(self, client: Client, topic: bytes, after: Position) -> Attached:
        """Subscribes after a position and replays the retained records that follow it."""
        self.subscribe(client, topic)
        room = self._open(self.room_of(topic))
        epoch, seq = after
        known = epoch == room.epoch and seq <= room.seq
        if known:
            records = [r for r in room.kept if r.position[1] > seq and r.topic == topic and not r.shard]
            client.got += [Delivery(r) for r in records]
        return Attached(client.count, (room.epoch, room.seq), known and seq + 1 >= room.first)

    # --- records

    def publish(self, topic: bytes, payload: bytes, shard: bool = False) -> int:
        """Delivers a record. Returns the number of receivers."""
        name = self.room_of(topic)
        if self.class_of(name).history:
            self._open(name)
        room = self.rooms.get(name)
        if room:
            room.seq += 1
        record = Record(topic, payload, (room.epoch, room.seq) if room else NOWHERE, shard)
        if room:
            room.kept.append(record)
        receivers = 0
        for client in self.clients:
            deliveries = list(self._deliveries(client, record))
            client.got += deliveries
            receivers += len(deliveries)
        return receivers

    @staticmethod
    def _deliveries(client: Client, record: Record) -> Iterator[Delivery]:
        if record.topic in (client.shard_topics if record.shard else client.topics):
            yield Delivery(record)
        if not record.shard:
            for pattern in sorted(client.patterns):
                if matches(pattern, record.topic):
                    yield Delivery(record, pattern)

    def history(self, room: bytes, count: int = 100, after: Position | None = None) -> list[Record]:
        """The last `count` records, or the first `count` after a position."""
        life = self.rooms.get(room)
        if after is None:
            return list(life.kept)[max(0, len(life.kept) - count) :] if life else []
        if not life or after[0] != life.epoch or not life.first - 1 <= after[1] <= life.seq:
            raise NotRecovered
        return [r for r in life.kept if r.position[1] > after[1]][:count]

    # --- introspection

    def channels(self, pattern: bytes = b"*") -> list[bytes]:
        """Topics that have subscribers and match the pattern, sorted."""
        topics = {topic for client in self.clients for topic in client.topics}
        return sorted(t for t in topics if pattern == b"*" or matches(pattern, t))

    def subscribers(self, topic: bytes, shard: bool = False) -> int:
        """Number of exact subscribers of a topic."""
        return sum(topic in (c.shard_topics if shard else c.topics) for c in self.clients)
