"""A subscriber that does not read: each policy works as documented, and other clients notice nothing.

The kernel buffers an unknown amount before the node's output grows, so these tests publish until a counter
shows that the limit was reached.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clients.raw import Connection, Frame
from clients.servers import Server, until

Start = Callable[..., Server]

PAYLOAD = b"." * 1000
BATCH = 500
BATCHES_MAX = 200
"""100 MB: more than a kernel buffers for one peer."""
LIMITS = {"output_bytes_max": 64 * 1024, "output_soft_bytes": 0}


def slow(policy: str, history: int = 0, **more: Any) -> dict[str, Any]:
    """A class of rooms `r*` with that slow-subscriber policy."""
    row: dict[str, Any] = {"name": "slow", "match": ["r*"], "on_slow": policy, **more}
    return row | ({"history": {"messages": history}} if history else {})


class Publisher:
    """Publishes numbered payloads in batches."""

    def __init__(self, server: Server, *topics: str) -> None:
        self.server, self.connection = server, server.connect()
        self.topics = topics or ("room",)
        self.sent = 0

    def publish(self, count: int = BATCH) -> None:
        """Publishes `count` more, to the topics in turn."""
        for _ in range(count):
            topic = self.topics[self.sent % len(self.topics)]
            self.connection.command("PUBLISH", topic, b"%d " % self.sent + PAYLOAD)
            self.sent += 1
        for frame in self.connection.read_many(count):
            assert frame.kind == ":"

    def until(self, metric: str, value: int = 1) -> None:
        """Publishes until a counter, which shards report once a second, has reached `value`."""
        for _ in range(BATCHES_MAX):
            if self.server.metric(metric) >= value:
                return
            self.publish()
        until(lambda: self.server.metric(metric) >= value, f"{metric} reaches {value}")


def number(message: list[Any]) -> int:
    """The number in a published payload."""
    return int(message[2].split(b" ")[0])


def subscribe(server: Server, *topics: str, positions: bool = False, is_slow: bool = True) -> Connection:
    """A subscriber. A slow one has a small receive buffer, and the test does not read from it."""
    connection = server.connect(3, 4096 if is_slow else None)
    if positions:
        assert connection.ask("HUBSUB", "POSITIONS", "ON") == b"OK"
    connection.command("SUBSCRIBE", *topics)
    connection.read_many(len(topics))
    return connection


def read_until(connection: Connection, last: int) -> Iterator[list[Any]]:
    """Frames as Python values, up to the message with number `last`."""
    while True:
        item = connection.read().plain()
        assert isinstance(item, list)
        yield item
        if item[0] == b"message" and number(item) == last:
            return


@pytest.mark.parametrize("shards", [1, 3])
def test_disconnect_closes_the_slow_one_only_and_says_why(start: Start, shards: int) -> None:
    server = start(shards, limits=LIMITS, classes=[slow("disconnect")])
    stalled, reading = subscribe(server, "room"), subscribe(server, "room", is_slow=False)
    publisher = Publisher(server)
    for _ in range(BATCHES_MAX):
        publisher.publish()
        for n in range(publisher.sent - BATCH, publisher.sent):
            assert number(reading.read().plain()) == n, "another subscriber gets each one"  # type: ignore[arg-type]
        if server.metric("slow_closed_total"):
            break
    until(lambda: server.metric("slow_closed_total") == 1)
    received = stalled.read_to_end()
    assert [number(f.plain()) for f in received] == list(range(len(received))), "whole, up to the close"  # type: ignore[arg-type]
    assert len(received) < publisher.sent
    assert "output limit" in server.log_line("slow subscriber closed")
    until(lambda: publisher.connection.ask("PUBSUB", "NUMSUB", "room") == [b"room", 1])


@pytest.mark.parametrize("shards", [1, 3])
def test_drop_oldest_keeps_the_latest_and_tells_what_is_missing(start: Start, shards: int) -> None:
    server = start(shards, limits=LIMITS, classes=[slow("drop-oldest")])
    told, plain = subscribe(server, "room", positions=True), subscribe(server, "room")
    publisher = Publisher(server)
    publisher.until("dropped_total", 1000)
    items = list(read_until(told, publisher.sent - 1))
    covered = list(itertools.chain.from_iterable(map(seqs, items)))
    assert covered == list(range(1, publisher.sent + 1)), "each record is there or in a gap that is told"
    missing = sum(len(seqs(item)) for item in items if item[0] == b"gap")
    numbers = [number(item) for item in read_until(plain, publisher.sent - 1)]
    assert numbers == sorted(set(numbers)), "in order, none twice"
    assert server.metric("dropped_total") == missing + publisher.sent - len(numbers)
    publisher.publish(1)
    assert number(told.read().plain()) == number(plain.read().plain()) == publisher.sent - 1  # type: ignore[arg-type]


def seqs(item: list[Any]) -> range:
    """The seqs that a message or a gap push covers."""
    at = [int(position.partition(b"-")[2]) for position in (item[2:4] if item[0] == b"gap" else item[3:4])]
    return range(at[0], at[-1] + 1)


def test_conflate_keeps_the_latest_of_each_topic(start: Start) -> None:
    server = start(2, limits=LIMITS, classes=[slow("conflate")])
    topics = ["{r}a", "{r}b", "{r}c"]
    stalled = subscribe(server, *topics, positions=True)
    publisher = Publisher(server, *topics)
    publisher.until("dropped_total", 1000)
    last = {topic.encode(): n for n in range(publisher.sent) for topic in [topics[n % 3]]}
    got: dict[bytes, int] = {}
    while got != last:
        item = stalled.read().plain()
        assert isinstance(item, list)
        if item[0] == b"message":
            assert got.get(item[1], -1) < number(item), "of a topic in order, none twice"
            got[item[1]] = number(item)
        else:
            assert item[0] == b"gap"
    assert stalled.ask("ECHO", "nothing more") == b"nothing more"


@pytest.mark.parametrize("shards", [1, 3])
def test_catch_up_reads_on_from_history_without_gap_or_double(start: Start, shards: int) -> None:
    server = start(shards, limits=LIMITS, classes=[slow("catch-up", history=1_000_000)])
    stalled, pattern = subscribe(server, "room"), server.connect(3, 4096)
    pattern.ask("PSUBSCRIBE", "r*")
    publisher = Publisher(server)
    publisher.until("catch_ups_total", 2)
    publisher.publish()
    assert [number(m) for m in read_until(stalled, publisher.sent - 1)] == list(range(publisher.sent))
    for n in range(publisher.sent):
        item = pattern.read().plain()
        assert isinstance(item, list) and item[0] == b"pmessage" and number(item[1:]) == n
    publisher.publish(1)
    assert number(stalled.read().plain()) == publisher.sent - 1  # type: ignore[arg-type]
    assert server.metric("slow_closed_total") == 0
    until(lambda: server.metric("cursors") == 0)


def test_catch_up_tells_the_gap_that_a_short_history_leaves(start: Start) -> None:
    server = start(2, limits=LIMITS, classes=[slow("catch-up", history=100)])
    stalled = subscribe(server, "room", positions=True)
    publisher = Publisher(server)
    publisher.until("catch_ups_total")
    publisher.publish(1000)
    items = list(read_until(stalled, publisher.sent - 1))
    covered = list(itertools.chain.from_iterable(map(seqs, items)))
    assert covered == list(range(1, publisher.sent + 1))
    gaps = [item for item in items if item[0] == b"gap"]
    assert gaps and all(item[1] == b"room" for item in gaps)
    assert server.metric("gap_records_total") == sum(len(seqs(item)) for item in gaps)


@pytest.mark.parametrize(
    ("policy", "history", "met"),
    [("drop-oldest", 0, "dropped_total"), ("catch-up", 100, "gap_records_total")],
)
def test_on_gap_disconnect_closes_who_cannot_be_told(
    start: Start, policy: str, history: int, met: str
) -> None:
    server = start(2, limits=LIMITS, classes=[slow(policy, history=history, on_gap="disconnect")])
    plain = subscribe(server, "room")
    publisher = Publisher(server)
    for _ in range(BATCHES_MAX):
        if server.log_lines("slow subscriber closed", "would miss records"):
            break
        publisher.publish()
        if policy == "catch-up" and server.metric("catch_ups_total"):
            publisher.publish(1000)
            break
    received = [f.plain() for f in plain.read_to_end()]
    assert [number(m) for m in received] == list(range(len(received)))  # type: ignore[arg-type]
    assert len(received) < publisher.sent
    server.log_line("slow subscriber closed", "would miss records")


def test_on_gap_disconnect_spares_who_is_told(start: Start) -> None:
    server = start(2, limits=LIMITS, classes=[slow("drop-oldest", on_gap="disconnect")])
    told = subscribe(server, "room", positions=True)
    publisher = Publisher(server)
    publisher.until("dropped_total", 100)
    assert any(item[0] == b"gap" for item in read_until(told, publisher.sent - 1))
    assert server.metric("slow_closed_total") == 0


def test_above_the_soft_limit_for_its_time_is_as_slow_as_the_hard_one(start: Start) -> None:
    soft = {"output_bytes_max": "256MiB", "output_soft_bytes": 32 * 1024, "output_soft_ms": 200}
    server = start(limits=soft, classes=[slow("disconnect")])
    stalled = subscribe(server, "room")
    publisher = Publisher(server)

    def is_closed() -> bool:
        publisher.publish(BATCH if publisher.sent < BATCHES_MAX * BATCH else 0)
        return server.metric("slow_closed_total") == 1

    until(is_closed)
    assert len(stalled.read_to_end()) < publisher.sent
    server.log_line("slow subscriber closed", "output limit")


def test_the_soft_limit_looks_at_the_classes_of_what_waits_and_not_at_topics(start: Start) -> None:
    """The pattern matches records of a class that closes slow clients; the topic's class does not."""
    soft = {"output_bytes_max": "256MiB", "output_soft_bytes": 32 * 1024, "output_soft_ms": 1000}
    kept = {"name": "kept", "match": ["kept"], "on_slow": "drop-oldest"}
    server = start(limits=soft, classes=[kept, slow("disconnect")])
    stalled = subscribe(server, "kept")
    assert stalled.ask("PSUBSCRIBE", "r*") == [b"psubscribe", b"r*", 2]
    publisher = Publisher(server)
    while all(row["pending_bytes"] <= 64 * 1024 for row in json.loads(server.get("/v1/clients"))["clients"]):
        assert publisher.sent < BATCHES_MAX * BATCH
        publisher.publish()
    # No further record arrives, so only time closes it.
    until(lambda: server.metric("slow_closed_total") == 1)
    assert stalled.read_to_end()
    server.log_line("slow subscriber closed", "output limit")


def test_output_of_all_clients_of_a_shard_is_bounded(start: Start) -> None:
    limits = {"output_bytes_max": "1MiB", "output_soft_bytes": 0, "output_shard_bytes_max": "1MiB"}
    server = start(limits=limits, classes=[slow("disconnect")])
    stalled = [subscribe(server, "room") for _ in range(8)]
    publisher = Publisher(server)
    publisher.until("slow_closed_total", 1)
    closed = json.loads(server.log_line("slow subscriber closed"))
    assert int(closed["pending_bytes"]) < 1 << 19, "none was at its own limit"
    for connection in stalled:
        connection.close()


def test_a_stalled_subscriber_delays_no_other(start: Start) -> None:
    server = start(limits=LIMITS, classes=[slow("drop-oldest")])
    stalled = [subscribe(server, "room") for _ in range(5)]
    reading = [subscribe(server, "room", is_slow=False) for _ in range(5)]
    publisher = Publisher(server)
    for _ in range(40):
        publisher.publish(250)
        for connection in reading:
            expected = range(publisher.sent - 250, publisher.sent)
            assert [number(f.plain()) for f in connection.read_many(250)] == list(expected)  # type: ignore[arg-type]
    for connection in stalled:
        assert connection.read().kind == ">"
        connection.close()


def test_replies_come_although_messages_wait(start: Start) -> None:
    server = start(limits=LIMITS, classes=[slow("drop-oldest")])
    stalled = subscribe(server, "room")
    publisher = Publisher(server)
    publisher.until("dropped_total")
    stalled.command("ECHO", "here")
    frames: list[Frame] = []
    while not frames or frames[-1].kind != "$":
        frames.append(stalled.read())
    assert frames[-1].value == b"here"
