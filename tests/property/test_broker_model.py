"""A real server behaves as the model: any sequence of commands, on several connections.

Hypothesis draws the commands. The model and the server both run them, and after each the replies, the
deliveries of every connection, counts, positions and history must agree. A real Redis runs the subset of
commands that it supports, so Redis validates the model itself. Order is compared per connection and room,
with the exact match before the patterns; the order among patterns is unspecified.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from clients.raw import Connection, Frame
from clients.servers import Server, until
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from model.broker import Broker, Client, Delivery, NotRecovered, Position, RoomClass

CLASSES = [
    RoomClass(b"short*", history=3),
    RoomClass(b"long*", history=10_000),
    RoomClass(b"dev/*", history=20, template=b"dev/+"),
]
EXAMPLES = 40 if os.environ.get("HYPOTHESIS_PROFILE", "default") == "default" else 1_000
UNKNOWN_EPOCH = b"77"
KINDS = (b"message", b"pmessage", b"smessage")
_runs = itertools.count()

T = TypeVar("T")
PEERS = 4
peers = st.integers(0, PEERS - 1)
topics = st.integers(0, 9)
patterns = st.integers(0, 6)
payloads = st.binary(max_size=6)


def by_pattern(messages: list[tuple[list[Any], Any]]) -> list[tuple[list[Any], Any]]:
    """Sorts neighbouring pattern deliveries of one record by pattern; their order is unspecified."""
    ordered = []
    for key, group in itertools.groupby(messages, lambda m: m[0][2:] if m[0][0] == b"pmessage" else None):
        of_record = list(group)
        ordered += of_record if key is None else sorted(of_record, key=lambda m: m[0][1])
    return ordered


def several(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
    """A list of one to four values."""
    return st.lists(strategy, min_size=1, max_size=4)


class Peer:
    """A connection and its counterpart in the model."""

    def __init__(self, connection: Connection, client: Client, resp: int) -> None:
        self.connection, self.client, self.resp = connection, client, resp
        self.positions = False

    @property
    def is_subscribed(self) -> bool:
        """Whether the connection uses RESP2 and is subscribed, so that other commands are refused."""
        return self.resp == 2 and bool(self.client.count or self.client.shard_topics)


class Machine(RuleBasedStateMachine):
    """`server` is set by the test."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        run = b"%d" % next(_runs)
        self.topics = [
            b"p%b.a",
            b"p%b.b",
            b"{p%b.a}x",
            b"short%b.a",
            b"{short%b.a}t",
            b"long%b.a",
            b"{long%b.a}u",
        ]
        self.topics += [b"dev/%b.a", b"dev/%b.a/on", b"dev/%b.a/off"]
        self.topics = [topic.replace(b"%b", run) for topic in self.topics]
        self.patterns = [b"p%b.*", b"*%b.[ab]", b"short%b.?", b"{*%b*", b"*", b"long%b.[^b]", b"dev/*/o*"]
        self.patterns = [pattern.replace(b"%b", run) for pattern in self.patterns]
        self.model = Broker(CLASSES)
        self.is_hubsub = self.server.kind == "hubsub"
        self.epochs: dict[int, bytes] = {0: b"0"}
        self.peers = [self.open(2 + i % 2) for i in range(PEERS)]
        self.observer = self.server.connect()

    def open(self, resp: int) -> Peer:
        """Connects a new peer to the server and to the model."""
        return Peer(self.server.connect(resp), self.model.connect(), resp)

    # --- comparison

    def is_at(self, position: Position, text: object) -> bool:
        """Whether the server's position equals the model's. The first position of an epoch maps the model's
        epoch to the server's."""
        assert isinstance(text, bytes), text
        epoch, _, seq = text.partition(b"-")
        if position[0] not in self.epochs:
            assert epoch not in self.epochs.values(), f"epoch {epoch!r} is used twice"
            self.epochs[position[0]] = epoch
        return (self.epochs[position[0]], b"%d" % position[1]) == (epoch, seq)

    def text_of(self, position: Position) -> bytes:
        """A position as the server writes it."""
        return b"%b-%d" % (self.epochs.get(position[0], UNKNOWN_EPOCH), position[1])

    def step(self, actor: Peer, commands: list[tuple[Any, ...]], replies: list[object]) -> list[Frame]:
        """Sends commands that the model has run already. Compares deliveries and replies.

        A reply of Ellipsis is not compared. Returns the actor's replies.
        """
        for command in commands:
            actor.connection.command(*command)
        answered: list[Frame] = []
        for peer in self.peers:
            due = peer.client.got
            peer.client.got = []
            frames = peer.connection.read_many(len(due) + (len(replies) if peer is actor else 0))
            delivered = [f for f in frames if self.kind(f) in KINDS]
            others = [f for f in frames if self.kind(f) not in KINDS]
            self.compare(peer, due, delivered)
            if peer is actor:
                answered = others
            else:
                assert not others, others
        assert len(answered) == len(replies), answered
        for reply, expected in zip(answered, replies, strict=True):
            assert expected is ... or reply.plain() == expected
        return answered

    @staticmethod
    def kind(frame: Frame) -> object:
        """First item of an array or push."""
        return frame.value[0].value if isinstance(frame.value, tuple) and frame.value else None

    def compare(self, peer: Peer, due: list[Delivery], delivered: list[Frame]) -> None:
        """A peer got exactly the model's deliveries, per room in the model's order."""
        expected: dict[bytes, list[tuple[list[Any], Position]]] = defaultdict(list)
        for delivery in due:
            record = delivery.record
            items = [b"smessage" if record.shard else b"message"]
            if delivery.pattern is not None:
                items = [b"pmessage", delivery.pattern]
            items += [record.topic, record.payload]
            expected[self.model.room_of(record.topic)].append((items, record.position))
        got: dict[bytes, list[tuple[list[Any], bytes]]] = defaultdict(list)
        for frame in delivered:
            assert frame.kind == (">" if peer.resp == 3 else "*")
            items = frame.plain()  # type: ignore[assignment]
            position = items.pop() if peer.positions else b""
            got[self.model.room_of(items[-2])].append((items, position))
        assert got.keys() == expected.keys()
        for room, wanted in expected.items():
            for ours, theirs in zip(by_pattern(wanted), by_pattern(got[room]), strict=True):
                assert theirs[0] == ours[0]
                assert not peer.positions or self.is_at(ours[1], theirs[1])

    # --- subscriptions

    def subscribed(
        self, who: int, verb: str, names: list[bytes], change: Callable[[Client, bytes], int]
    ) -> None:
        """Runs one of the six (un)subscribe commands with names."""
        peer = self.peers[who]
        replies = [[verb.lower().encode(), name, change(peer.client, name)] for name in names]
        self.step(peer, [(verb, *names)], replies)  # type: ignore[arg-type]

    @rule(who=peers, which=several(topics))
    def subscribe(self, who: int, which: list[int]) -> None:
        self.subscribed(who, "SUBSCRIBE", [self.topics[i] for i in which], self.model.subscribe)

    @rule(who=peers, which=several(topics))
    def unsubscribe(self, who: int, which: list[int]) -> None:
        self.subscribed(who, "UNSUBSCRIBE", [self.topics[i] for i in which], self.model.unsubscribe)

    @rule(who=peers, which=several(patterns))
    def psubscribe(self, who: int, which: list[int]) -> None:
        self.subscribed(who, "PSUBSCRIBE", [self.patterns[i] for i in which], self.model.psubscribe)

    @rule(who=peers, which=several(patterns))
    def punsubscribe(self, who: int, which: list[int]) -> None:
        self.subscribed(who, "PUNSUBSCRIBE", [self.patterns[i] for i in which], self.model.punsubscribe)

    @rule(who=peers, which=several(topics))
    def ssubscribe(self, who: int, which: list[int]) -> None:
        names = [self.topics[i] for i in which]
        self.subscribed(who, "SSUBSCRIBE", names, lambda c, t: self.model.subscribe(c, t, shard=True))

    @rule(who=peers, which=several(topics))
    def sunsubscribe(self, who: int, which: list[int]) -> None:
        names = [self.topics[i] for i in which]
        self.subscribed(who, "SUNSUBSCRIBE", names, lambda c, t: self.model.unsubscribe(c, t, shard=True))

    @rule(who=peers)
    def unsubscribe_all(self, who: int) -> None:
        peer = self.peers[who]
        names = list(peer.client.topics)
        counts = [self.model.unsubscribe(peer.client, name) for name in names] or [peer.client.count]
        frames = self.step(peer, [("UNSUBSCRIBE",)], [...] * len(counts))
        got = [frame.plain() for frame in frames]
        assert sorted(g[1] for g in got if g[1]) == sorted(names)  # type: ignore[index]
        assert [g[2] for g in got] == counts  # type: ignore[index]

    # --- records

    @rule(who=peers, which=topics, payload=payloads, shard=st.booleans())
    def publish(self, who: int, which: int, payload: bytes, shard: bool) -> None:
        peer, topic = self.peers[who], self.topics[which]
        verb = "SPUBLISH" if shard else "PUBLISH"
        if peer.is_subscribed:
            (reply,) = self.step(peer, [(verb, topic, payload)], [...])
            assert reply.kind == "-" and b"only (P|S)SUBSCRIBE" in reply.value  # type: ignore[operator]
        else:
            self.step(peer, [(verb, topic, payload)], [self.model.publish(topic, payload, shard)])

    @rule(who=peers, what=several(st.tuples(topics, payloads)), in_transaction=st.booleans())
    def publish_several_at_once(self, who: int, what: list[tuple[int, bytes]], in_transaction: bool) -> None:
        peer = self.peers[who]
        if peer.is_subscribed or (in_transaction and peer.client.count and not self.is_hubsub):
            return  # Redis 7.0 puts a push to the publisher itself inside EXEC's array.
        commands: list[tuple[Any, ...]] = [("PUBLISH", self.topics[i], payload) for i, payload in what]
        counts: list[object] = [self.model.publish(self.topics[i], payload) for i, payload in what]
        if in_transaction:
            commands = [("MULTI",), *commands, ("EXEC",)]
            counts = [b"OK", *[b"QUEUED"] * len(what), counts]
        self.step(peer, commands, counts)

    # --- introspection

    @rule(who=peers, which=several(topics), shard=st.booleans())
    def numsub(self, who: int, which: list[int], shard: bool) -> None:
        names = [self.topics[i] for i in which]
        expected = [item for name in names for item in (name, self.model.subscribers(name, shard))]
        assert self.observer.ask("PUBSUB", "SHARDNUMSUB" if shard else "NUMSUB", *names) == expected

    @rule(which=patterns)
    def channels(self, which: int) -> None:
        answer = self.observer.ask("PUBSUB", "CHANNELS", self.patterns[which])
        assert sorted(answer) == self.model.channels(self.patterns[which])  # type: ignore[call-overload]

    @rule()
    def numpat(self) -> None:
        assert self.observer.ask("PUBSUB", "NUMPAT") == len(
            {p for c in self.model.clients for p in c.patterns}
        )

    # --- connections

    @rule(who=peers)
    def quit(self, who: int) -> None:
        peer = self.peers[who]
        peer.connection.command("QUIT")
        assert [f.plain() for f in peer.connection.read_to_end()] == [b"OK"]
        peer.connection.close()
        self.model.disconnect(peer.client)
        self.settle()
        self.peers[who] = self.open(peer.resp)

    @rule(who=peers)
    def reset(self, who: int) -> None:
        peer = self.peers[who]
        self.model.disconnect(peer.client)
        peer.client, peer.positions, peer.resp = self.model.connect(), False, 2
        self.step(peer, [("RESET",)], [b"RESET"])

    def settle(self) -> None:
        """Waits until the server has also removed disconnected clients; there is no notification of that."""
        count = len({p for c in self.model.clients for p in c.patterns})
        until(lambda: self.observer.ask("PUBSUB", "NUMPAT") == count)
        for shard, verb in ((False, "NUMSUB"), (True, "SHARDNUMSUB")):
            wanted = [n for topic in self.topics for n in (topic, self.model.subscribers(topic, shard))]
            until(lambda v=verb, w=wanted: self.observer.ask("PUBSUB", v, *self.topics) == w)  # type: ignore[misc]

    # --- HubSub commands

    @precondition(lambda self: self.is_hubsub)
    @rule(who=peers, on=st.booleans())
    def positions(self, who: int, on: bool) -> None:
        peer = self.peers[who]
        if not peer.is_subscribed:
            peer.positions = on
            self.step(peer, [("HUBSUB", "POSITIONS", "ON" if on else "OFF")], [b"OK"])

    @precondition(lambda self: self.is_hubsub)
    @rule(who=peers, which=topics, count=st.integers(0, 5))
    def subscribe_last(self, who: int, which: int, count: int) -> None:
        peer, topic = self.peers[who], self.topics[which]
        attached = self.model.subscribe_last(peer.client, topic, count)
        self.attached(peer, topic, ("LAST", count), attached)

    @precondition(lambda self: self.is_hubsub)
    @rule(who=peers, which=topics, epoch=st.integers(-2, 0), seq=st.integers(0, 12))
    def subscribe_from(self, who: int, which: int, epoch: int, seq: int) -> None:
        peer, topic = self.peers[who], self.topics[which]
        position = self.some_position(topic, epoch, seq)
        attached = self.model.subscribe_from(peer.client, topic, position)
        self.attached(peer, topic, ("FROM", self.text_of(position)), attached)

    def some_position(self, topic: bytes, epoch: int, seq: int) -> Position:
        """A position of the current epoch of the topic's room, or of an unknown epoch."""
        room = self.model.rooms.get(self.model.room_of(topic))
        if room is None or room.epoch not in self.epochs or epoch == -2:
            return (-1, seq)
        return (room.epoch, max(0, room.seq - seq))

    def attached(self, peer: Peer, topic: bytes, start: tuple[Any, ...], attached: Any) -> None:
        """HUBSUB SUBSCRIBE: the confirmation comes first, then the replayed records."""
        (frame,) = self.step(peer, [("HUBSUB", "SUBSCRIBE", topic, *start)], [...])
        parts = frame.plain()
        assert isinstance(parts, list)
        assert parts[:3] == [b"subscribe", topic, attached.count]
        assert self.is_at(attached.position, parts[3])
        assert parts[4] == int(attached.recovered)

    @precondition(lambda self: self.is_hubsub)
    @rule(
        which=topics,
        count=st.none() | st.integers(1, 8),
        after=st.none() | st.tuples(st.integers(-2, 0), st.integers(0, 12)),
    )
    def history(self, which: int, count: int | None, after: tuple[int, int] | None) -> None:
        room = self.model.room_of(self.topics[which])
        position = self.some_position(self.topics[which], *after) if after else None
        command: list[Any] = ["HUBSUB", "HISTORY", room]
        command += ["COUNT", count] if count else []
        command += ["AFTER", self.text_of(position)] if position else []
        reply = self.observer.call(*command)
        try:
            records = self.model.history(room, count or 100, position)
        except NotRecovered:
            assert reply.kind == "-" and reply.value.startswith(b"NOTRECOVERED ")  # type: ignore[union-attr]
            return
        rows = reply.plain()
        assert isinstance(rows, list) and len(rows) == len(records)
        times = [row[1] for row in rows]
        assert times == sorted(times)
        for row, record in zip(rows, records, strict=True):
            assert self.is_at(record.position, row[0])
            assert (row[2], row[4]) == (record.topic, record.payload)

    # --- teardown

    def teardown(self) -> None:
        """No unexpected deliveries are left."""
        try:
            for peer in self.peers:
                peer.connection.command("PING", "the end")
                assert peer.connection.read().plain() in (b"the end", [b"pong", b"the end"])
        finally:
            for peer in self.peers:
                peer.connection.close()
                self.model.disconnect(peer.client)
            self.settle()
            self.observer.close()


@pytest.mark.parametrize("kind", ["redis-server", "hubsub-1", "hubsub-2", "hubsub-3"])
def test_the_server_does_what_the_model_says(kind: str, start: Callable[[str], Server]) -> None:
    class OnServer(Machine):
        server = start(kind)

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
