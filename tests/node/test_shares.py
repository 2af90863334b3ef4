"""Shared subscriptions: each record goes to one member of a group (docs/protocol/groups.md)."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from clients.mqtt import CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V31, V311, Wire
from clients.mqtt_sessions import resume
from clients.servers import Server, until

from node.conftest import Start
from node.test_mqtt import begin, client, reason, wire

STRATEGIES = [
    {"name": name, "match": [f"{name}/#"], "share_strategy": strategy}
    for name, strategy in [
        ("sticky", "sticky"),
        ("random", "random"),
        ("hash", "hash:topic"),
        ("by", "hash:header:k"),
    ]
]


@contextmanager
def members(
    server: Server, count: int, name: str, qos: int = 1, prefix: str = "m", **more: int
) -> Iterator[list[Wire]]:
    """`count` clients that subscribe to the filter `name`."""
    with ExitStack() as stack:
        wires = [stack.enter_context(client(server, f"{prefix}{i}", **more)) for i in range(count)]
        for one in wires:
            assert one.subscribe((name, qos)) == [qos]
        yield wires


class Got(NamedTuple):
    """A PUBLISH as a client received it."""

    qos: int
    id: int
    topic: str
    properties: bytes
    payload: bytes


def came(one: Wire, answers: bool = True) -> list[Got]:
    """The messages that a client has received so far, acknowledged on arrival."""
    got: list[Got] = []
    one.ping()
    while (packet := one.read()).kind != PINGRESP:
        if packet.kind != PUBLISH:
            continue
        number = packet.id if packet.qos else 0
        # The properties are few: their length is one byte.
        end = 1 + packet.rest[0] if one.version == V5 else 0
        got.append(Got(packet.qos, number, packet.topic, packet.rest[1:end], packet.rest[end:]))
        if answers and packet.qos:
            one.answer(PUBACK if packet.qos == 1 else PUBREC, number)
    return got


def payloads(got: list[Got]) -> list[bytes]:
    return [one.payload for one in got]


@pytest.mark.parametrize(
    ("version", "name"), [(V31, "$share/g/t/a"), (V311, "$share/g/t/+"), (V5, "$share/g/t/a")]
)
def test_members_take_turns_and_others_get_all(start: Start, version: int, name: str) -> None:
    server = begin(start, 2)
    with (
        members(server, 3, name, version=version) as group,
        members(server, 1, "$share/other/#", prefix="o") as [other],
        client(server, "all") as everything,
        server.connect() as redis,
    ):
        assert everything.subscribe(("t/#", 0)) == [0]
        due = [str(i).encode() for i in range(30)]
        for text in due:
            # One per group with members, and the client that subscribes for itself.
            assert redis.ask("PUBLISH", "t/a", text) == 3
        until(lambda: server.metric("shares_delivered_total") == 60, "all are on their way")
        parts = [came(one) for one in group]
        assert sorted(map(len, parts)) == [10, 10, 10]
        assert sorted((got.payload for part in parts for got in part), key=int) == due
        for part in parts:
            assert payloads(part) == sorted(payloads(part), key=int)
            assert all(got.qos == 1 for got in part)
        assert [payloads(came(one)) for one in (other, everything)] == [due, due]
        assert server.metric("shares_redelivered_total") == 0


def test_who_subscribes_and_shares_gets_both_and_each_has_its_qos(start: Start) -> None:
    server = begin(start)
    with client(server, version=V5) as one, server.connect() as redis:
        assert one.subscribe(("t", 0), number=1, properties=b"\x0b\x01") == [0]
        assert one.subscribe(("$share/g/t", 2), number=2, properties=b"\x0b\x02") == [2]
        assert redis.ask("PUBLISH", "t", "x") == 2
        assert sorted((got.qos, got.properties, got.payload) for got in came(one)) == [
            (0, b"\x0b\x01", b"x"),
            (2, b"\x0b\x02", b"x"),
        ]


@pytest.mark.parametrize("version", [V311, V5])
def test_what_a_member_that_is_gone_has_not_acknowledged_goes_to_another(start: Start, version: int) -> None:
    server = begin(start, 2, limits={"mqtt_inflight_max": 4})
    with members(server, 2, "$share/g/t", version=version) as [lost, stays], server.connect() as redis:
        for i in range(20):
            assert redis.ask("PUBLISH", "t", i) == 1
        until(lambda: server.metric("shares_delivered_total") == 20, "all are on their way")
        # Four are in flight; the rest of its half waits for its window.
        had = came(lost, answers=False)
        assert len(had) == 4
        lost.answer(PUBACK, had[0].id)
        assert len(came(lost, answers=False)) == 1
        lost.close()
        got: list[bytes] = []

        def has_all() -> bool:
            got.extend(payloads(came(stays)))
            return len(got) == 19

        until(has_all, "all others are its own")
        assert sorted([*got, had[0].payload], key=int) == [str(i).encode() for i in range(20)]
        assert server.metric("shares_lost_total") == 0


def test_a_message_of_qos_2_that_was_sent_is_no_other_members(start: Start) -> None:
    server = begin(start)
    with members(server, 2, "$share/g/t", 2) as [lost, stays], server.connect() as redis:
        for i in range(4):
            assert redis.ask("PUBLISH", "t", i) == 1
        assert len(came(lost, answers=False)) == 2
        lost.close()
        until(lambda: server.metric("mqtt_connections") == 1, "it is gone")
        assert len(came(stays)) == 2
        assert redis.ask("PUBLISH", "t", 4) == 1
        assert payloads(came(stays)) == [b"4"]


def test_a_message_that_a_member_refuses_is_nobodys(start: Start) -> None:
    server = begin(start)
    with members(server, 2, "$share/g/t", 1, version=V5) as [refuses, stays], server.connect() as redis:
        for i in range(4):
            assert redis.ask("PUBLISH", "t", i) == 1
        for packet in came(refuses, answers=False):
            refuses.answer(PUBACK, packet.id, b"\x83")
        assert came(refuses) == []
        refuses.close()
        until(lambda: server.metric("mqtt_connections") == 1, "it is gone")
        assert len(came(stays)) == 2
        assert server.metric("shares_redelivered_total") == 0


def test_who_ends_its_subscription_gets_no_more(start: Start) -> None:
    server = begin(start, 2)
    with members(server, 2, "$share/g/t/#") as [goes, stays], server.connect() as redis:
        goes.send(b"\xa2\x10\x00\x07\x00\x0c$share/g/t/#")
        assert goes.read().kind == 11
        for i in range(6):
            assert redis.ask("PUBLISH", "t/a", i) == 1
        until(lambda: server.metric("shares_delivered_total") == 6, "all are given")
        assert (len(came(goes)), len(came(stays))) == (0, 6)
        stays.close()
        until(lambda: server.metric("groups") == 0, "nobody is left")
        assert redis.ask("PUBLISH", "t/a", 6) == 0


def test_a_class_says_who_gets_what(start: Start) -> None:
    server = begin(start, 2, classes=STRATEGIES)
    with (
        members(server, 3, "$share/g/+/+") as group,
        client(server, "p", version=V5) as publisher,
    ):
        for i in range(40):
            # One room: each leader has its own preferred member.
            publisher.publish("sticky/0", b"x")
            for name in ("random", "hash"):
                publisher.publish(f"{name}/{i % 8}", b"x")
            key = b"\x26\x00\x01k\x00\x01" + str(i % 8).encode()
            publisher.publish("by/all", str(i % 8).encode(), properties=key)
        came(publisher)
        until(lambda: server.metric("shares_delivered_total") == 160, "all are given")
        counts = [Counter((got.topic, got.payload) for got in came(one)) for one in group]
    of = [Counter[str]() for _ in group]
    for count, by_class in zip(counts, of, strict=True):
        for (topic, _), times in count.items():
            by_class[topic.split("/")[0]] += times
    assert sorted(part["sticky"] for part in of) == [0, 0, 40]
    assert all(part["random"] > 0 for part in of)
    # Records with the same topic or header go to the same member.
    for wanted in ("hash/", "by/"):
        keys = [{key for key in count if key[0].startswith(wanted)} for count in counts]
        assert sum(map(len, keys)) == len(set.union(*keys)) == 8
        assert sum(1 for key in keys if key) > 1


def test_no_local_and_names_with_wildcards_are_refused(start: Start) -> None:
    server = begin(start)
    with client(server, version=V5) as one:
        one.send(b"\x82\x0e\x00\x01\x00\x00\x08$share/g\x01")
        assert reason(one) == 0x8F
    with client(server, version=V5) as one:
        one.send(b"\x82\x10\x00\x01\x00\x00\x0a$share/g/t\x05")
        assert reason(one) == 0x82


def test_connack_denies_no_shared_subscription(start: Start) -> None:
    server = begin(start)
    with Wire(server.node.mqtt if server.node else ("", 0)) as one:
        answer = one.connect("c", V5)
        assert answer.kind == CONNACK
        # Property 42 with value 0 would deny them.
        assert b"\x2a\x00" not in answer.body


def test_a_member_of_qos_2_gets_each_once(start: Start) -> None:
    server = begin(start, 2)
    with members(server, 2, "$share/g/t", 2) as group, server.connect() as redis:
        for i in range(10):
            assert redis.ask("PUBLISH", "t", i) == 1
        until(lambda: server.metric("shares_delivered_total") == 10, "all are given")
        for one in group:
            one.ping()
            came_first = [one.read(PUBLISH) for _ in range(5)]
            one.read(PINGRESP)
            for packet in came_first:
                assert packet.qos == 2
                one.answer(PUBREC, packet.id)
                assert one.read(PUBREL).id == packet.id
                one.answer(PUBCOMP, packet.id)
            assert came(one) == []


# --- offline members


def leave(server: Server, one: Wire) -> None:
    """Disconnects; returns once the session is offline."""
    before = server.metric("mqtt_sessions_offline")
    one.send(b"\xe0\x00")
    one.read_all()
    until(lambda: server.metric("mqtt_sessions_offline") == before + 1, "it is absent")


def say_all(publisher: Wire, topic: str, *payloads: bytes) -> None:
    for said in payloads:
        publisher.publish(topic, said, 1, 7)
        publisher.read(PUBACK)


def said_to(one: Wire, count: int) -> list[bytes]:
    """Reads and acknowledges `count` messages; asserts that there are no more."""
    got = []
    while len(got) < count:
        packet = one.read(PUBLISH)
        got.append(packet.rest[1 + packet.rest[0] :])
        one.answer(PUBACK, packet.id)
    assert came(one) == []
    return got


SHARE = "$share/g/t/+"


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_comes_while_the_only_member_is_away_waits_for_it(
    start: Start, tmp_path: Path, shards: int, keeps: bool
) -> None:
    data = {"data": str(tmp_path)} if keeps else {}
    limits = {"mqtt_session_queue_messages_max": 5}
    server = begin(start, shards, config=data, limits=limits)
    with client(server, "publisher") as publisher, wire(server) as one:
        assert not resume(one, "away")
        assert one.subscribe((SHARE, 1)) == [1]
        say_all(publisher, "t/a", b"0")
        one.read(PUBLISH)
        leave(server, one)
        # It was not acknowledged, whether or not it was sent.
        publisher.publish("t/a", b"qos 0")
        say_all(publisher, "t/a", b"1", b"2", b"3", b"4")
        with wire(server) as back:
            assert resume(back, "away")
            assert said_to(back, 5) == [b"0", b"1", b"2", b"3", b"4"], "as many as there is room for"
            leave(server, back)
        say_all(publisher, "t/b", *(str(number).encode() for number in range(6)))
        assert server.metric("mqtt_session_dropped_total") == 1
        with wire(server) as back:
            assert resume(back, "away")
            assert said_to(back, 5) == [b"1", b"2", b"3", b"4", b"5"], "the oldest gave way"


@pytest.mark.parametrize("shards", [1, 3])
def test_what_waits_for_a_member_that_is_away_is_given_to_one_that_joins(start: Start, shards: int) -> None:
    server = begin(start, shards)
    with client(server, "publisher") as publisher, wire(server) as one:
        resume(one, "away")
        one.subscribe((SHARE, 1), ("own", 1))
        leave(server, one)
        say_all(publisher, "t/a", b"1", b"2")
        say_all(publisher, "own", b"3")
        until(lambda: server.metric("mqtt_session_queued") == 3)
        with client(server, "late", V5) as late:
            assert late.subscribe((SHARE, 1)) == [1]
            assert said_to(late, 2) == [b"1", b"2"]
            # While one member is connected, nothing is queued for the others.
            say_all(publisher, "t/a", b"4", b"5", b"6")
            assert said_to(late, 3) == [b"4", b"5", b"6"]
        assert server.metric("mqtt_session_queued") == 1
        with wire(server) as back:
            assert resume(back, "away")
            assert said_to(back, 1) == [b"3"]


def test_what_waits_for_a_member_whose_session_ends_is_given_to_another_that_is_away(start: Start) -> None:
    server = begin(start, 2)
    with client(server, "publisher") as publisher, ExitStack() as stack:
        for name in ("first", "second"):
            one = stack.enter_context(wire(server))
            resume(one, name)
            one.subscribe((SHARE, 1))
            leave(server, one)
        say_all(publisher, "t/a", b"1", b"2", b"3", b"4")
        until(lambda: server.metric("mqtt_session_queued") == 4)
        with client(server, "first", V5):
            # It starts a clean session.
            pass
        with wire(server) as back:
            assert resume(back, "second")
            assert sorted(said_to(back, 4)) == [b"1", b"2", b"3", b"4"]
