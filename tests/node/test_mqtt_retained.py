"""Retained messages for later subscribers: entries, order, removal, limits, restarts."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clients.mqtt import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    V5,
    V311,
    VERSIONS,
    Packet,
    Paho,
    Wire,
    varying,
)
from clients.servers import Server, until

from node.conftest import Start
from node.test_mqtt import begin, client, ended

RETAIN = 1
NO_LOCAL, AS_PUBLISHED, IF_NEW, NEVER = 0x04, 0x08, 0x10, 0x20

FENCE = "fence"
"""A topic with a retained message of QoS 2. The server sends retained messages in the order of subscriptions:
once a subscription of QoS 2 has delivered this message, all messages of earlier subscriptions have arrived.
"""

DURABLE = [{"name": "kept", "match": ["kept/#"], "durability": "durable", "history": {"bytes": "64MiB"}}]


class Kept(NamedTuple):
    """A message as a client received it."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = True


def keep(one: Wire, topic: str, payload: bytes, qos: int = 1, props: bytes = b"") -> int:
    """Publishes a retained message; returns the reason code of its PUBACK, 0 before 5.0."""
    one.publish(topic, payload, qos, 9, RETAIN, props)
    answer = one.read(PUBACK)
    return answer.rest[0] if answer.rest else 0


def served(start: Start, shards: int = 2, **more: Any) -> Server:
    """A node that retains the fence message."""
    server = begin(start, shards, **more)
    with client(server, "fence-maker") as one:
        one.publish(FENCE, b".", 2, 1, RETAIN)
        one.read(PUBREC)
        one.answer(PUBREL, 1)
        one.read(PUBCOMP)
    return server


def message(one: Wire) -> Kept:
    while (packet := one.read()).kind == PUBREL:
        one.answer(PUBCOMP, packet.id)
    return said(one, packet)


def said(one: Wire, packet: Packet) -> Kept:
    """Decodes and acknowledges a PUBLISH."""
    assert packet.kind == PUBLISH, packet
    if packet.qos:
        one.answer(PUBACK if packet.qos == 1 else PUBREC, packet.id)
    body = packet.rest[1 + packet.rest[0] :] if one.version == V5 else packet.rest
    return Kept(packet.topic, body, packet.qos, bool(packet.flags & 1))


def until_answered(one: Wire) -> list[Kept]:
    """The messages before the next SUBACK; retained messages may precede it."""
    came = []
    while (packet := one.read()).kind != SUBACK:
        if packet.kind == PUBREL:
            one.answer(PUBCOMP, packet.id)
        else:
            came.append(said(one, packet))
    return came


def kept(one: Wire, *filters: tuple[str, int], props: bytes = b"") -> list[Kept]:
    """Subscribes; returns all retained messages that this delivers, except the fence."""
    one.ask(*filters, number=2, properties=props)
    came = until_answered(one)
    # All filters are subscribed: the retained message of the next one arrives after theirs.
    one.ask((FENCE, 2), number=3)
    came += until_answered(one)
    end = Kept(FENCE, b".", 2)
    while end not in came:
        came.append(message(one))
    return [one for one in came if one.topic != FENCE]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_keeps_its_last_message_until_it_is_deleted(start: Start, version: int) -> None:
    server = served(start)
    with client(server, "p", version) as one, client(server, "s", version) as other:
        one.publish("a/b", b"passes", 1, 1)
        one.read(PUBACK)
        assert kept(other, ("a/b", 1)) == []
        assert keep(one, "a/b", b"first") in (0, 0x10)
        keep(one, "a/b", b"last")
        assert [message(other), message(other)] == [
            Kept("a/b", b"first", 1, retain=False),
            Kept("a/b", b"last", 1, retain=False),
        ], "RETAIN is 0 for who subscribed before"
        with client(server, "late", version) as late:
            assert kept(late, ("a/b", 1)) == [Kept("a/b", b"last", 1)]
            assert kept(late, ("a/b", 0)) == [Kept("a/b", b"last")], "and once more with each SUBSCRIBE"
        keep(one, "a/b", b"")
        assert message(other) == Kept("a/b", b"", 1, retain=False), "who is there gets that, too"
        with client(server, "later", version) as late:
            assert kept(late, ("a/b", 1), ("a/#", 1)) == []
    until(lambda: server.metric("retained_messages") == 1, "that of the fence alone is left")


def test_the_message_of_qos_0_is_kept_and_comes_with_the_lower_qos(start: Start) -> None:
    server = served(start)
    with client(server, "p") as one, client(server, "s") as other:
        one.publish("zero", b"0", 0, 0, RETAIN)
        keep(one, "one", b"1")
        assert kept(other, ("zero", 1), ("one", 0), ("+", 1)).count(Kept("zero", b"0")) == 2
        assert Kept("one", b"1", 1) in kept(other, ("+", 1))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_wildcard_gets_each_kept_message_that_matches_once(start: Start, shards: int) -> None:
    server = served(start, shards, limits={"retained_page_bytes": 1_024})
    topics = [f"w/{i % 7}/{i}" for i in range(100)]
    with client(server, "p") as one, client(server, "s") as other:
        for topic in topics:
            one.publish(topic, topic.encode(), 0, 0, RETAIN)
        keep(one, "other", b"x")
        expected = sorted(Kept(topic, topic.encode()) for topic in topics)
        assert sorted(kept(other, ("w/#", 1))) == expected
        assert sorted(kept(other, ("w/3/+", 1))) == [one for one in expected if one.topic.startswith("w/3/")]
        assert kept(other, ("w/+", 1)) == []
        assert len(kept(other, ("#", 0))) == 101


def test_retain_handling_says_what_a_subscription_begins_with(start: Start) -> None:
    server = served(start)
    with client(server, "p") as one, client(server, "s", V5) as other:
        keep(one, "t", b"x")
        assert kept(other, ("t", NEVER)) == []
        assert kept(other, ("t", IF_NEW)) == [], "it stands"
        assert kept(other, ("t", 0)) == [Kept("t", b"x")]
        assert kept(other, ("+/#", IF_NEW)) == [Kept("t", b"x")]
        assert kept(other, ("+/#", IF_NEW)) == []


def test_retain_as_published_keeps_the_flag_of_live_messages(start: Start) -> None:
    server = served(start)
    with client(server, "p") as one, client(server, "s", V5) as other, client(server, "r", V5) as plain:
        other.subscribe(("t", AS_PUBLISHED))
        plain.subscribe(("t", 0))
        one.publish("t", b"1", 0, 0, RETAIN)
        one.publish("t", b"2")
        assert [message(other), message(other)] == [Kept("t", b"1"), Kept("t", b"2", retain=False)]
        assert [message(plain), message(plain)] == [
            Kept("t", b"1", retain=False),
            Kept("t", b"2", retain=False),
        ]


def test_no_local_holds_for_what_is_kept_and_shared_subscriptions_get_none(start: Start) -> None:
    server = served(start)
    with client(server, "c", V5) as one:
        one.subscribe(("other", NO_LOCAL))
        keep(one, "mine", b"x")
        assert kept(one, ("mine", NO_LOCAL)) == []
        assert kept(one, ("mine", 0)) == [Kept("mine", b"x")]
        assert kept(one, ("$share/g/mine", 0)) == []


def test_a_will_that_is_to_be_kept_is(start: Start) -> None:
    server = served(start)
    one = client(server, "dies", flags=0x26, rest=b"\x00\x04will\x00\x04gone")
    one.close()
    until(lambda: server.metric("mqtt_wills_total") == 1, "its will is published")
    with client(server, "s") as other:
        until(lambda: kept(other, ("will", 0)) == [Kept("will", b"gone")], "it is kept")


def test_properties_are_kept_and_expiry_counts_down_and_ends_the_message(start: Start) -> None:
    server = served(start)
    with client(server, "p", V5) as one, Paho(server.node.mqtt, V5) as other:  # type: ignore[union-attr]
        long = b"\x02\x00\x00\x03\xe8" + b"\x03\x00\x04text" + b"\x26\x00\x01k\x00\x01v"
        keep(one, "long", b"x", props=long)
        keep(one, "short", b"x", props=b"\x02\x00\x00\x00\x01")
        keep(one, "short/wild", b"x", props=b"\x02\x00\x00\x00\x01")
        other.subscribe(("long", 1))
        came = other.message()
        assert came.retain and came.properties is not None
        assert (came.properties.ContentType, came.properties.UserProperty) == ("text", [("k", "v")])
        assert 990 <= came.properties.MessageExpiryInterval <= 1000
        until(lambda: server.metric("retained_messages") == 2, "the sweep has deleted those of a second")
    with client(server, "s", V5) as late:
        assert [one.topic for one in kept(late, ("#", 0))] == ["long"]


def test_a_subscription_identifier_comes_with_what_is_kept(start: Start) -> None:
    server = served(start)
    with client(server, "p") as one, client(server, "s", V5) as other:
        keep(one, "t", b"x")
        other.subscribe(("t", 0), properties=b"\x0b\x07")
        assert other.read(PUBLISH).rest == varying(2) + b"\x0b\x07" + b"x"


def test_a_publish_of_redis_passes_by_what_is_kept(start: Start) -> None:
    server = served(start)
    with client(server, "p") as one, client(server, "s") as other, server.connect() as redis:
        keep(one, "t", b"kept")
        redis.ask("PUBLISH", "t", "said")
        redis.ask("PUBLISH", "t", "")
        assert kept(other, ("t", 0)) == [Kept("t", b"kept")]
        for command in (("PUBLISH", "$system/retained/t", "x"), ("HUBSUB", "HISTORY", "$system/retained/t")):
            assert bytes(redis.call(*command).value).startswith(b"NOPERM")  # type: ignore[arg-type]


# --- slow readers


def test_a_client_that_reads_nothing_fills_its_window_and_reads_on_from_there(start: Start) -> None:
    server = served(start, 2, limits={"mqtt_inflight_max": 5, "retained_page_bytes": 1_024})
    with client(server, "p") as one, client(server, "slow") as slow:
        for i in range(200):
            one.publish(f"s/{i:03}", b"x" * 100, 1, i + 1, RETAIN)
        for _ in range(200):
            one.read(PUBACK)
        slow.subscribe(("s/#", 1))
        got = [slow.read(PUBLISH) for _ in range(5)]
        # Other clients have queues of their own.
        with client(server, "quick") as quick:
            assert len(kept(quick, ("s/#", 1))) == 200
        while len(got) < 200:
            slow.answer(PUBACK, got[len(got) - 5].id)
            got.append(slow.read(PUBLISH))
        assert len({one.topic for one in got}) == 200


def test_who_subscribes_while_a_topic_is_told_knows_its_last_message(start: Start) -> None:
    server = served(start, 3)
    last = b"%06d" % 3_000
    known: dict[int, list[Kept]] = {}
    rise = threading.Event()

    def publish() -> None:
        with client(server, "p") as one:
            for i in range(1, 3_001):
                one.publish("hot/t", b"%06d" % i, 1, i % 60_000 + 1, RETAIN)
                if i == 100:
                    rise.set()
                one.read(PUBACK)

    def follow(number: int) -> None:
        # Exact and wildcard filters in turn, each as often as time allows.
        with client(server, f"s{number}", V5) as one:
            one.subscribe(("hot/t" if number % 2 else "hot/#", 0))
            seen = known.setdefault(number, [])
            while not seen or seen[-1].payload != last:
                seen.append(message(one))

    publisher = threading.Thread(target=publish)
    publisher.start()
    rise.wait()
    followers = [threading.Thread(target=follow, args=(number,)) for number in range(24)]
    for one in followers:
        one.start()
    publisher.join()
    for one in followers:
        one.join()
    assert len(known) == 24
    for seen in known.values():
        live = [int(one.payload) for one in seen if not one.retain]
        assert live == list(range(live[0], 3_001)) if live else seen[-1].payload == last
        rows = [(at, int(one.payload)) for at, one in enumerate(seen) if one.retain]
        assert len(rows) <= 1, "it comes once, or is passed over for what came live"
        for at, row in rows:
            assert not live or row >= live[0] - 1, (
                "nothing is missing between what was kept and what came live"
            )
            assert at == 0 or row > live[at - 1], "it is not older than what came before it"


def test_thousands_of_kept_messages_come_once_each(start: Start) -> None:
    server = served(start, 2)
    topics = {f"many/{i % 100}/{i}" for i in range(20_000)}
    with client(server, "p") as one, client(server, "s") as other:
        for topic in topics:
            one.publish(topic, b"0123456789", 0, 0, RETAIN)
        keep(one, "many/last", b"x")
        until(lambda: server.metric("retained_messages") == 20_002, "all are kept")
        came = kept(other, ("#", 0))
        assert len(came) == 20_001 and {one.topic for one in came} == topics | {"many/last"}


# --- restarts


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_with_data_keeps_what_topics_keep(start: Start, data: Path, end: signal.Signals) -> None:
    config = {"data": str(data)}
    server = served(start, 2, config=config, classes=DURABLE)
    with client(server, "p", V5) as one:
        for i in range(50):
            keep(one, f"a/{i}", b"old")
            keep(one, f"kept/{i}", b"old")
        for i in range(50):
            keep(one, f"a/{i}", b"new" if i % 2 else b"")
            keep(one, f"kept/{i}", b"new" if i % 2 else b"")
        keep(one, "with", b"x", props=b"\x02\x00\x00\x03\xe8\x03\x00\x04text")
    assert server.node is not None
    server.node.stop(end)
    again = begin(start, 3, config=config, classes=DURABLE)
    until(lambda: again.metric("retained_messages") == 52, "those that were not deleted")
    with client(again, "s", V5) as other:
        assert {one.topic for one in kept(other, ("a/+", 0))} == {f"a/{i}" for i in range(1, 50, 2)}
        assert {one.payload for one in kept(other, ("kept/#", 0))} == {b"new"}
    with client(again, "t", V5) as other:
        other.subscribe(("with", 0))
        assert b"text" in other.read(PUBLISH).rest


# --- limits


def test_one_retained_message_too_many_is_refused(start: Start) -> None:
    server = served(start, 2, limits={"retained_messages_max": 3})
    with client(server, "p", V5) as one, client(server, "s", V5) as other:
        other.subscribe(("#", NEVER))
        keep(one, "a", b"x")
        keep(one, "b", b"x")
        assert keep(one, "c", b"x") == 0x97
        assert [message(other).topic for _ in range(3)] == ["a", "b", "c"], "it is told all the same"
        keep(one, "a", b"other")
        keep(one, "a", b"")
        assert keep(one, "c", b"y") == 0
        with client(server, "late") as late:
            assert sorted(kept(late, ("+", 0))) == [Kept("b", b"x"), Kept("c", b"y")]
    until(lambda: server.metric("retained_refused_total") == 1, "it is counted")
    with client(server, "old", V311) as old:
        old.publish("d", b"x", 1, 1, RETAIN)
        assert ended(old) is None, "its version has no word for it"


def test_too_long_retained_messages_are_refused(start: Start) -> None:
    server = served(start, 2, limits={"retained_bytes_max": 10_000})
    with client(server, "p", V5) as one, client(server, "s", V5) as other:
        assert keep(one, "a", b"x" * 8_000) == 0x10
        assert keep(one, "b", b"x" * 8_000) == 0x97
        assert keep(one, "a", b"x" * 9_000) == 0x10, "in place of the one before"
        assert keep(one, "a", b"x" * 20_000) == 0x97
        assert [len(one.payload) for one in kept(other, ("a", 0))] == [9_000]


def test_what_is_kept_is_read_page_by_page(start: Start) -> None:
    """A page holds the minimum: a client that reads nothing occupies no more of the node's memory."""
    server = served(start, 1, limits={"retained_page_bytes": 1_024})
    with client(server, "p") as one, client(server, "slow", receive_bytes=4_096) as slow:
        for i in range(500):
            one.publish(f"p/{i:03}", b"x" * 10_000, 0, 0, RETAIN)
        keep(one, "p/last", b"x")
        slow.subscribe(("p/#", 0))
        with client(server, "quick") as quick:
            assert len(kept(quick, ("p/#", 0))) == 501
        assert server.metric("output_bytes") < 1 << 20
        assert len([message(slow) for _ in range(501)]) == 501
