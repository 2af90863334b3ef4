"""Normative statements of MQTT 5.0 and 3.1.1 without another test, packet by packet
(docs/mqtt-conformance.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clients.mqtt import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    V5,
    V31,
    V311,
    VERSIONS,
    Packet,
    Wire,
    packet,
    text,
    varying,
)
from clients.servers import Server, hubsub_node, until

from node.conftest import Start
from node.test_mqtt import client, wire


@pytest.fixture(scope="module")
def server(needs: Callable[..., None]) -> Iterator[Server]:
    """A node with an MQTT listener for all tests of this file; no test depends on other tests' clients."""
    needs("hubsub-core")
    with hubsub_node(2, {"mqtt": "127.0.0.1:0"}) as server:
        yield server


def quiet(one: Wire) -> None:
    """Asserts that no unread packet has arrived."""
    one.ping()
    one.read(PINGRESP)


def message(got: Packet, version: int) -> bytes:
    """The payload without the properties before it."""
    return got.rest[1:] if version == V5 else got.rest


# --- messages


@pytest.mark.parametrize("version", VERSIONS)
def test_dup_of_a_publisher_is_not_dup_of_a_subscriber(server: Server, version: int) -> None:
    with client(server, "sub", version) as sub, client(server, "pub", version) as pub:
        assert sub.subscribe(("t", 2)) == [2]
        for qos in (1, 2):
            pub.publish("t", b"x", qos, 5, flags=8)
            got = sub.read(PUBLISH)
            assert (got.flags, message(got, version)) == (qos << 1, b"x")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_message_has_an_id_of_its_own_until_its_last_answer(server: Server, version: int) -> None:
    with client(server, "sub", version) as sub, server.connect() as redis:
        assert sub.subscribe(("one", 1), ("two", 2)) == [1, 2]
        for i in range(6):
            redis.ask("PUBLISH", ("one", "two")[i % 2], i)
        came = [sub.read(PUBLISH) for _ in range(6)]
        assert len({p.id for p in came} - {0}) == 6
        assert [p.flags for p in came] == [2, 4] * 3, "none is said to come again"
        for got in reversed(came):
            if got.qos == 1:
                sub.answer(PUBACK, got.id)
                continue
            sub.answer(PUBREC, got.id)
            assert sub.read(PUBREL).id == got.id
            # The message is not sent again, and a repeated PUBREC gets the same reply.
            sub.answer(PUBREC, got.id)
            assert sub.read(PUBREL).id == got.id
            sub.answer(PUBCOMP, got.id)
        quiet(sub)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unsubscribe_does_not_cut_off_what_is_under_way(server: Server, version: int) -> None:
    with client(server, "sub", version) as sub, server.connect() as redis:
        assert sub.subscribe(("t", 2)) == [2]
        redis.ask("PUBLISH", "t", "1")
        got = sub.read(PUBLISH)
        sub.send(packet(0xA2, b"\x00\x09" + (b"\x00" if version == V5 else b"") + text("t")))
        assert sub.read(UNSUBACK).id == 9
        assert redis.ask("PUBLISH", "t", "2") == 0
        sub.answer(PUBREC, got.id)
        assert sub.read(PUBREL).id == got.id
        sub.answer(PUBCOMP, got.id)
        quiet(sub)


def test_what_has_expired_is_answered_all_the_same(server: Server) -> None:
    expired = b"\x02\x00\x00\x00\x00"
    with client(server, "sub", V5) as sub, client(server, "pub", V5) as pub:
        sub.subscribe(("t", 2))
        pub.publish("t", b"x", 2, 3, properties=expired)
        assert pub.read(PUBREC).rest == b""
        pub.answer(PUBREL, 3)
        assert pub.read(PUBCOMP).rest == b""
        pub.publish("t", b"y", 1, 4, properties=expired)
        assert pub.read(PUBACK).rest == b""
        quiet(sub)


def test_a_message_that_its_receiver_refuses_is_over(server: Server) -> None:
    # A window of one: the next message arrives because the last one has ended, not beside it.
    with client(server, "sub", V5, properties=b"\x21\x00\x01") as sub, server.connect() as redis:
        sub.subscribe(("one", 1), ("two", 2))
        for topic in ("one", "two", "one"):
            redis.ask("PUBLISH", topic, "x")
        sub.answer(PUBACK, sub.read(PUBLISH).id, b"\x97")
        refused = sub.read(PUBLISH)
        assert refused.qos == 2
        sub.answer(PUBREC, refused.id, b"\x97")
        last = sub.read(PUBLISH)
        assert last.qos == 1, "there was no PUBREL"
        sub.answer(PUBACK, last.id)
        quiet(sub)


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_compared_byte_by_byte(server: Server, version: int) -> None:
    composed, decomposed = "\u00e9t\u00e9", "e\u0301te\u0301"
    near = [
        "a/b",
        "A/b",
        "a//b",
        "/a/b",
        "a/b/",
        "a/ b",
        composed,
        decomposed,
        "\ufeffa/b",
        "a/%62",
        "a/\ufffd",
    ]
    with client(server, "sub", version) as sub, client(server, "pub", version) as pub:

        def publish_all() -> None:
            for number, topic in enumerate(near, 1):
                pub.publish(topic, b"x", 1, number)
            for _ in near:
                pub.read(PUBACK)

        for topic in near:
            assert sub.subscribe((topic, 0)) == [0]
            publish_all()
            assert sub.read(PUBLISH).topic == topic
            sub.send(packet(0xA2, b"\x00\x09" + (b"\x00" if version == V5 else b"") + text(topic)))
            assert sub.read(UNSUBACK).id == 9
        assert sub.subscribe(("+/b", 0)) == [0]
        publish_all()
        assert [sub.read(PUBLISH).topic for _ in range(3)] == ["a/b", "A/b", "\ufeffa/b"]
        quiet(sub)


def test_user_properties_keep_their_order(server: Server) -> None:
    pairs = [("b", "2"), ("a", "1"), ("b", "3"), ("", "")]
    own = b"".join(b"\x26" + text(name) + text(value) for name, value in pairs)
    will = varying(len(own)) + own + text("w") + text("gone")
    with client(server, "sub", V5) as sub, client(server, "pub", V5) as pub:
        sub.subscribe(("#", 0))
        pub.publish("t", b"x", properties=own)
        assert sub.read(PUBLISH).rest == varying(len(own)) + own + b"x"
        client(server, "lost", V5, flags=6, rest=will).close()
        assert sub.read(PUBLISH).rest == varying(len(own)) + own + b"gone"


# --- requests


@pytest.mark.parametrize("version", VERSIONS)
def test_one_packet_with_many_filters_is_answered_once_and_in_order(server: Server, version: int) -> None:
    own = b"\x00" if version == V5 else b""
    with client(server, "c", version) as one:
        filters = [(f"t/{i}" if i % 3 else f"w/{i}/+", i % 3) for i in range(100)]
        assert one.subscribe(*filters, number=0x1234) == [qos for _, qos in filters]
        one.send(packet(0xA2, b"\x43\x21" + own + b"".join(text(name) for name, _ in filters) + text("none")))
        answer = one.read(UNSUBACK)
        assert (answer.id, answer.rest) == (0x4321, b"\x00" + bytes(100) + b"\x11" if own else b"")


def test_problems_are_not_explained_to_who_does_not_ask(server: Server) -> None:
    # Request Problem Information 0: reason strings and user properties only in PUBLISH, CONNACK and
    # DISCONNECT.
    with client(server, "c", V5, properties=b"\x17\x00") as one:
        one.send(packet(0x82, b"\x00\x01\x00" + text("$none/#") + b"\x00" + text("t") + b"\x00"))
        assert one.read(SUBACK).rest[0] == 0
        one.publish("$none", b"x", 1, 2)
        assert len(one.read(PUBACK).rest) <= 1, "a reason and nothing else"
        one.answer(PUBREL, 9)
        assert one.read(PUBCOMP).rest == b"\x92"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_behind_a_subscription_reaches_it_without_waiting_for_suback(
    server: Server, version: int
) -> None:
    own = b"\x00" if version == V5 else b""
    with client(server, "c", version) as one:
        for i in range(1, 101):
            name = f"own/{i}" if i % 4 else f"own/{i}/#"
            subscribe = packet(0x82, i.to_bytes(2, "big") + own + text(name) + b"\x01")
            one.send(subscribe, packet(0x30, text(f"own/{i}") + own + b"%d" % i), b"\xc0\x00")
        seen = [one.read() for _ in range(300)]
        assert [p.id for p in seen if p.kind == SUBACK] == list(range(1, 101))
        # Rooms have no order relative to each other.
        came = sorted(int(message(p, version)) for p in seen if p.kind == PUBLISH)
        assert came == list(range(1, 101))


# --- connect and disconnect


def test_no_disconnect_comes_before_connack(server: Server) -> None:
    wrong = [
        b"\xc0\x00",
        packet(0x30, text("t") + b"\x00"),
        b"\xe0\x00",
        packet(0xF0, b"\x18\x00"),
        packet(0x10, text("MQTT") + b"\x05\x02\x00\x00\x05\x17\x00\x17\x00" + text("c")),
        packet(0x10, text("MQTT") + b"\x05\x06\x00\x00\x00" + text("c") + b"\x00" + text("a/#") + text("")),
    ]
    for data in wrong:
        with wire(server) as one:
            one.send(data)
            said = one.read_all()
            assert [p.kind for p in said] in ([], [CONNACK]), data
            assert all(p.body[1] >= 0x80 for p in said)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_follows_the_end_and_what_comes_behind_it_is_not_looked_at(
    server: Server, version: int
) -> None:
    with client(server, "sub", V5) as sub:
        sub.subscribe(("#", 0))
        with client(server, "pub", version) as pub:
            pub.subscribe(("#", 0))
            # A second CONNECT is a protocol error; the message after it is never published.
            behind = packet(0x30, text("t") + (b"\x00" if version == V5 else b"") + b"late")
            name = "MQIsdp" if version == V31 else "MQTT"
            again = packet(
                0x10, text(name) + bytes([version, 2, 0, 0]) + b"\x00" * (version == V5) + text("x")
            )
            pub.send(again, behind)
            said = pub.read_all()
            assert [(p.kind, p.body[:1]) for p in said] == ([(DISCONNECT, b"\x82")] if version == V5 else [])
        with client(server, "polite", version) as polite:
            polite.send(b"\xe0\x00", behind)
            assert polite.read_all() == []
        quiet(sub)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_behind_a_connect_that_is_refused_is_looked_at(server: Server, version: int) -> None:
    with client(server, "sub", V5) as sub, wire(server) as one:
        sub.subscribe(("#", 0))
        name = "MQIsdp" if version == V31 else "MQTT"
        own = b"\x00" if version == V5 else b""
        refused = packet(0x10, text(name) + bytes([version, 0x82, 0, 0]) + own + text("c") + text("stranger"))
        one.send(refused, packet(0x30, text("t") + own + b"late"))
        said = one.read_all()
        assert [p.kind for p in said] == [CONNACK]
        assert said[0].body[:2] == (b"\x00\x86" if version == V5 else b"\x00\x04"), "no session is present"
        quiet(sub)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_client_that_goes_on_writing_reads_why_it_was_ended(start: Start, shards: int) -> None:
    server = start(shards, {"mqtt": "127.0.0.1:0"}, limits={"mqtt_receive_max": 5})
    with client(server, "c", V5) as one:
        for number in range(1, 7):
            one.publish("t", b"x", 2, number)
        until(lambda: server.metric("mqtt_connections") == 0, "it is none of the node's clients any more")
        for _ in range(20):
            one.answer(PUBREL, 1)
        assert one.read_all()[-1].body[0] == 0x93


def test_authentication_that_was_not_agreed_on_ends_the_connection(server: Server) -> None:
    with wire(server) as one:
        method = b"\x15" + text("SCRAM-SHA-1")
        assert one.connect("c", V5, properties=method).body[:2] == b"\x00\x8c"
        assert one.read_all() == []
    with client(server, "c", V5) as one:
        one.send(packet(0xF0, b"\x19" + varying(len(method)) + method))
        said = one.read_all()
        assert [(p.kind, p.body[0]) for p in said] == [(DISCONNECT, 0x82)]


def test_a_client_that_asks_for_more_than_it_was_told_is_ended(start: Start) -> None:
    limits = {"mqtt_packet_bytes_max": 1024, "mqtt_topic_aliases_max": 2}
    server = start(1, {"mqtt": "127.0.0.1:0"}, limits=limits)
    long, alias = b"x" * 1024, b"\x23\x00\x03"
    for qos in (0, 1, 2):
        for payload, properties, reason in ((long, b"", 0x95), (b"", alias, 0x94), (b"", b"\x0b\x01", 0x82)):
            with client(server, "c", V5) as one:
                one.publish("t", payload, qos, 1, properties=properties)
                assert [(p.kind, p.body[0]) for p in one.read_all()] == [(DISCONNECT, reason)]


@pytest.mark.parametrize("version", [V311, V5])
def test_an_empty_id_is_an_id_of_its_own(server: Server, version: int) -> None:
    with client(server, "", version) as one, client(server, "", version) as two:
        for _ in "12":
            quiet(one)
            quiet(two)


@pytest.mark.parametrize("version", [V31, V311])
def test_before_5_0_a_message_that_may_not_be_published_is_answered_and_goes_nowhere(
    server: Server, version: int
) -> None:
    with client(server, "sub") as sub, client(server, "pub", version) as pub:
        assert sub.subscribe(("#", 0), ("$other/t", 0)) == [0, 0x80]
        pub.publish("$other/t", b"x", 1, 1)
        assert pub.read(PUBACK).id == 1
        pub.publish("$other/t", b"x", 2, 2)
        assert pub.read(PUBREC).id == 2
        pub.answer(PUBREL, 2)
        assert pub.read(PUBCOMP).id == 2
        pub.publish("$other/t", b"x")
        quiet(pub)
        quiet(sub)


@pytest.mark.parametrize("version", [V31, V311])
def test_before_5_0_a_malformed_connect_is_closed_without_a_word(server: Server, version: int) -> None:
    name = "MQIsdp" if version == V31 else "MQTT"
    head = text(name) + bytes([version])
    wrong = [
        head + b"\x02\x00\x00",
        head + b"\x02\x00\x00" + text("c") + b"x",
        head + b"\x1e\x00\x00" + text("c") + text("t") + text("x"),
        head + b"\x42\x00\x00" + text("c") + text("password"),
        head + b"\x02\x00\x00" + text(b"\xff"),
        head + b"\x06\x00\x00" + text("c") + text("a/#") + text(""),
    ]
    for body in wrong:
        with wire(server) as one:
            one.send(packet(0x10, body))
            assert one.read_all() == [], body


@pytest.mark.parametrize("has_begun", [False, True], ids=["sent", "received"])
def test_a_shared_message_of_qos_2_is_brought_to_its_end_with_who_was_sent_it(
    server: Server, has_begun: bool
) -> None:
    lasting = b"\x11\x00\x00\x02\x58"
    one = client(server, "shares", V5, properties=lasting)
    assert one.subscribe(("$share/g/shared", 2)) == [2]
    with client(server, "pub", V5) as pub, client(server, "other", V5) as other:
        pub.publish("shared", b"x", 2, 1)
        assert pub.read(PUBREC).id == 1
        sent = one.read(PUBLISH)
        if has_begun:
            one.answer(PUBREC, sent.id)
            assert one.read(PUBREL).id == sent.id
        assert other.subscribe(("$share/g/shared", 2)) == [2]
        one.close()
        with wire(server) as back:
            assert back.connect("shares", V5, properties=lasting, flags=0).body[:2] == b"\x01\x00"
            if has_begun:
                assert back.read(PUBREL).id == sent.id
            else:
                again = back.read(PUBLISH)
                assert (again.id, again.flags & 8, message(again, V5)) == (sent.id, 8, b"x")
                back.answer(PUBREC, sent.id)
                assert back.read(PUBREL).id == sent.id
            back.answer(PUBCOMP, sent.id)
            quiet(back)
            # The session ends with this DISCONNECT.
            back.send(packet(0xE0, b"\x00\x05\x11\x00\x00\x00\x00"))
            assert back.read_all() == []
        quiet(other)
