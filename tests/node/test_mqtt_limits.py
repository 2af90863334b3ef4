"""Limits of MQTT clients on one node, packet by packet: lengths, windows, aliases, keep-alive, subscriptions,
lingering closes."""

from __future__ import annotations

import contextlib

import pytest
from clients.mqtt import (
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V311,
    Packet,
    Wire,
    packet,
    text,
)
from clients.servers import Server, until

from node.conftest import Start
from node.test_mqtt import begin, client, ended, reason, wire


def test_a_packet_that_is_too_long_closes(start: Start) -> None:
    server = begin(start, limits={"mqtt_packet_bytes_max": 2000})
    with client(server, version=V5) as one:
        one.publish("t", b"x" * 1900)
        one.publish("t", b"x" * 2000)
        assert reason(one) == 0x95
    with client(server) as one:
        one.publish("t", b"x" * 2000)
        assert ended(one) is None
    assert server.metric("protocol_errors_total") == 2


def test_a_connect_that_is_too_long_closes_without_a_word(start: Start) -> None:
    server = begin(start, limits={"mqtt_connect_bytes_max": 200})
    with wire(server) as one:
        assert one.connect("x" * 100).body[1] == 0
    with wire(server) as one:
        one.send(b"\x10\xc9\x01")
        assert one.read_all() == []


def test_one_message_unanswered_too_many_is_told_or_counted(start: Start) -> None:
    # Messages wait because their room's class commits late.
    late = [{"name": "late", "match": ["late"], "commit_delay_ms": 60_000}]
    limits = {"mqtt_receive_max": 3, "drain_ms": 100}
    server = begin(start, limits=limits, classes=late)
    with client(server, version=V5) as one:
        for i in (1, 2, 3):
            one.publish("late", b"x", 1, i)
        one.publish("late", b"x", 0)
        one.publish("late", b"x", 2, 4)
        assert reason(one) == 0x93
    lenient = begin(start, limits=limits, classes=late, config={"mqtt_strict": False})
    with client(lenient, version=V5) as one:
        for i in range(1, 6):
            one.publish("late", b"x", 1, i)
        until(lambda: lenient.metric("mqtt_receive_exceeded_total") == 2, "two are counted")
        one.ping()
        one.read(PINGRESP)


@pytest.mark.parametrize("version", [V311, V5])
def test_no_more_than_the_window_is_unacknowledged_and_the_rest_comes_in_order(
    start: Start, version: int
) -> None:
    server = begin(start, limits={"mqtt_inflight_max": 4})
    own = b"\x21\x00\x03" if version == V5 else b""
    window = 3 if version == V5 else 4
    with client(server, version=version, properties=own) as one, server.connect() as redis:
        assert one.subscribe(("t/#", 2), ("u", 1), ("v", 0)) == [2, 1, 0]
        topics = ["t/a", "u", "v"]
        for i in range(30):
            assert redis.ask("PUBLISH", topics[i % 3], i) == 1
        due = [(topics[i % 3], str(i).encode()) for i in range(30)]
        out: list[Packet] = []
        came: list[tuple[str, bytes]] = []
        while len(came) < len(due):
            one.ping()
            while (got := one.read()).kind != PINGRESP:
                came.append((got.topic, got.rest[1:] if version == V5 else got.rest))
                if got.qos:
                    out.append(got)
            assert len(out) <= window and len({p.id for p in out}) == len(out)
            assert len(out) == window or len(came) == len(due)
            acknowledged = out.pop()
            if acknowledged.qos == 1:
                one.answer(PUBACK, acknowledged.id)
            else:
                one.answer(PUBREC, acknowledged.id)
                one.read(PUBREL)
                one.answer(PUBCOMP, acknowledged.id)
        assert came == due


def test_a_topic_alias_stands_for_a_topic_both_ways(start: Start) -> None:
    server = begin(start, limits={"mqtt_topic_aliases_max": 2})
    with client(server, "sub", V5, properties=b"\x22\x00\x05") as sub, client(server, "pub", V5) as pub:
        sub.subscribe(("#", 0))
        pub.publish("a", b"1", properties=b"\x23\x00\x01")
        pub.publish("", b"2", properties=b"\x23\x00\x01")
        pub.publish("b", b"3")
        pub.publish("c", b"4")
        pub.publish("b", b"5")
        said = [(p.topic, p.rest) for p in (sub.read(PUBLISH) for _ in range(5))]
        alias = [b"\x03\x23\x00" + bytes([i]) for i in range(3)]
        assert said == [
            ("a", alias[1] + b"1"),
            ("", alias[1] + b"2"),
            ("b", alias[2] + b"3"),
            ("c", b"\x004"),
            ("", alias[2] + b"5"),
        ]
        pub.publish("d", b"6", properties=b"\x23\x00\x03")
        assert reason(pub) == 0x94


def test_the_longest_keep_alive_is_the_servers(start: Start) -> None:
    server = begin(start, limits={"mqtt_keep_alive_s_max": 1})
    with wire(server) as one:
        connack = one.connect("c", V5, keep_alive_s=100)
        assert b"\x13\x00\x01" in connack.body
        assert reason(one) == 0x8D
    until(lambda: server.metric("mqtt_silent_total") == 1, "it is counted")


def test_a_filter_with_a_wildcard_that_is_too_long_is_refused(start: Start) -> None:
    server = begin(start, limits={"pattern_bytes_max": 100, "topic_bytes_max": 200})
    with client(server) as one:
        assert one.subscribe(("x" * 99 + "/#", 0), ("x" * 200, 0), ("y" * 201, 1)) == [0x80, 0, 0x80]
    with client(server, version=V5) as one:
        assert one.subscribe(("x" * 99 + "/#", 0), ("x", 0)) == [0x97, 0]
        one.publish("y" * 201, b"x", 1, 7)
        assert one.read(PUBACK).rest == b"\x90"


def test_one_subscription_too_many_is_refused(start: Start) -> None:
    server = begin(start, limits={"subscriptions_per_client_max": 3})
    with client(server, version=V5) as one:
        assert one.subscribe(("a", 0), ("b/#", 1), ("c", 2), ("d", 0), ("+", 0)) == [0, 1, 2, 0x97, 0x97]
        assert one.subscribe(("a", 2)) == [2]


def test_names_of_subscriptions_that_are_too_long_together_are_refused(start: Start) -> None:
    server = begin(start, limits={"subscription_bytes_per_client_max": 100})
    with client(server, version=V5) as one:
        long = [("a" * 60, 0), ("b" * 41, 1), ("c" * 40, 1), ("d", 0), ("a" * 60, 2), ("e/#", 0)]
        assert one.subscribe(*long) == [0, 0x97, 1, 0x97, 2, 0x97]
    with client(server, version=V5) as one:
        rooms = [f"$presence/{'x' * length}" for length in (30, 51, 50)]
        assert one.subscribe(*((room, 0) for room in rooms)) == [0, 0x97, 0]


def test_names_that_clients_keep_themselves_are_too_long_together_each_of_them(start: Start) -> None:
    server = begin(start, limits={"subscription_bytes_shard_max": 100})
    topic, error = "a" * 20, "ERR max bytes of names of subscriptions reached"
    with client(server, "one", V5) as one, client(server, "two", V5) as two, server.connect() as redis:
        assert one.subscribe((topic, 0)) == [0]
        assert two.subscribe((topic, 0)) == [0], "the room's name counts once, and the copy of each client"
        assert redis.ask("SUBSCRIBE", topic) == [b"subscribe", topic.encode(), 1], "it keeps none"
        assert one.subscribe((f"$share/g/{'c' * 40}", 0)) == [0x97]
        mark = len("\0mqtt:")  # The mark of a filter among patterns.
        assert one.subscribe((f"{'b' * (39 - mark)}/#", 0)) == [0x97]
        assert one.subscribe((f"{'b' * (38 - mark)}/#", 0)) == [0], "all that there may be"
        assert two.subscribe(("d", 0)) == [0x97]
        assert bytes(redis.call("SUBSCRIBE", "d").value).startswith(error.encode())  # type: ignore[arg-type]
        one.send(packet(UNSUBSCRIBE << 4 | 2, b"\0\x02\0" + text(topic)))
        one.read(UNSUBACK)
        assert two.subscribe(("d", 0), number=3) == [0]
    until(lambda: server.metric("connections") == 0)
    with client(server, "one", V5) as one:
        assert one.subscribe(("e" * 50, 0)) == [0], "nothing is left of those"


def test_a_filter_is_as_long_as_a_pattern_may_be_whatever_marks_it(start: Start) -> None:
    server = begin(start, limits={"patterns_per_client_max": 4})
    with client(server, version=V5) as one:
        long = [("x" * (length - 2) + "/#", 0) for length in (1_023, 1_024, 1_025)]
        assert one.subscribe(*long) == [0, 0, 0x97]
        shared = [(f"$share/g/{'x' * (length - 3)}/#", 0) for length in (1_023, 1_024, 1_025)]
        assert one.subscribe(*shared) == [0, 0, 0x97]
        assert one.subscribe(("a/+", 0), ("b/+", 1), ("c/+", 0)) == [0, 1, 0x97]
    assert server.metric("subscriptions_refused_total") == 3


def test_who_asks_of_one_room_too_many_who_is_there_is_refused(start: Start) -> None:
    server = begin(start, limits={"subscriptions_per_client_max": 2})
    rooms = [f"$presence/{number}" for number in range(3)]
    with client(server, version=V5) as one:
        assert one.subscribe(*((room, 0) for room in rooms)) == [0, 0, 0x97]
        assert sorted(one.read(PUBLISH).topic for _ in "12") == rooms[:2]
        one.send(packet(UNSUBSCRIBE << 4 | 2, b"\0\x02\0" + text(rooms[0])))
        one.read(UNSUBACK)
        assert one.subscribe((rooms[2], 0), ("a", 0), number=3) == [0, 0]


def told_its_end(server: Server, number: int) -> Wire:
    """A client that sent a bad packet, received DISCONNECT and does not close its side."""
    one = client(server, f"c{number}", V5)
    one.send(b"\xf0\x00")
    assert reason(one) == 0x82
    return one


def test_of_too_many_clients_that_were_told_their_end_the_oldest_are_closed(start: Start) -> None:
    server = begin(start, limits={"mqtt_lingering_max": 2, "mqtt_lingering_ms": 3_600_000})
    with contextlib.ExitStack() as stack:
        for number in range(5):
            stack.enter_context(told_its_end(server, number))
        until(lambda: server.metric("mqtt_lingering_closed_total") == 3, "two are left")


def test_a_client_that_was_told_its_end_is_closed_after_its_time(start: Start) -> None:
    server = begin(start, limits={"mqtt_lingering_ms": 1})
    with told_its_end(server, 1) as one:
        until(lambda: is_reset(one), "nobody reads any more what it sends")
    assert server.metric("mqtt_lingering_closed_total") == 0


def is_reset(one: Wire) -> bool:
    """Whether the server has closed the other direction, too."""
    try:
        one.ping()
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False
