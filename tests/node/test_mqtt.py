"""MQTT on one node, packet by packet: keep-alive, wills, takeover, slow clients, bad input."""

from __future__ import annotations

import socket
from typing import Any

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
    UNSUBACK,
    V5,
    V31,
    V311,
    VERSIONS,
    Packet,
    Wire,
    packet,
    text,
)
from clients.raw import TIMEOUT_S
from clients.servers import Server, until

from node.conftest import Start

LOSSY = [
    {"name": "oldest", "match": ["oldest/#"], "on_slow": "drop-oldest", "on_gap": "continue"},
    {"name": "latest", "match": ["latest/#"], "on_slow": "conflate", "on_gap": "continue"},
    {"name": "past", "match": ["past/#"], "history": {"messages": 100_000}},
]


def begin(start: Start, shards: int = 1, **more: Any) -> Server:
    """A node with an MQTT listener."""
    config = {"mqtt": "127.0.0.1:0", **more.pop("config", {})}
    return start(shards, config, **more)


def wire(server: Server, **more: Any) -> Wire:
    """A connection to the MQTT listener."""
    assert server.node is not None
    return Wire(server.node.mqtt, **more)


def client(server: Server, client_id: str = "c", version: int = V311, **more: Any) -> Wire:
    """A client that has completed CONNECT."""
    one = wire(server, receive_bytes=more.pop("receive_bytes", None))
    answer = one.connect(client_id, version, **more)
    assert (answer.kind, answer.body[1]) == (CONNACK, 0)
    return one


def ended(one: Wire) -> Packet | None:
    """The last packet that the server sent before it closed the connection."""
    return (one.read_all() or [None])[-1]


def reason(one: Wire) -> int:
    """The reason code with which the server disconnected an MQTT 5.0 client."""
    last = ended(one)
    assert last is not None and last.kind == DISCONNECT
    return last.body[0]


# --- sessions


def test_who_cannot_be_served_is_told_why(start: Start) -> None:
    server = begin(start)
    for version, flags, client_id, rest, answer in (
        (V31, 2, "", b"", 2),
        (V31, 2, "x" * 24, b"", 2),
        (V311, 0x82, "c", text("stranger"), 4),
        (V5, 0x82, "c", text("stranger"), 0x86),
    ):
        with wire(server) as one:
            assert one.connect(client_id, version, flags=flags, rest=rest).body[1] == answer
            assert one.read_all() == []
    long_ids = begin(start, config={"mqtt_long_ids": True})
    with client(long_ids, "x" * 24, V31), client(long_ids, "default", flags=0x82, rest=text("default")):
        pass


@pytest.mark.parametrize("shards", [1, 3])
def test_a_client_id_has_one_connection(start: Start, shards: int) -> None:
    server = begin(start, shards)
    with client(server, "watch") as watch:
        watch.subscribe(("w", 0))
        twins: list[Wire] = []
        for i in range(10):
            will = b"\x00" + text("w") + text(str(i))
            twins.append(client(server, "twin", V5, flags=6, rest=will))
        for twin in twins[:-1]:
            assert reason(twin) == 0x8E
            twin.close()
        assert sorted(int(watch.read(PUBLISH).rest) for _ in range(9)) == list(range(9))
        twins[-1].ping()
        twins[-1].read(PINGRESP)
        twins[-1].close()
        assert watch.read(PUBLISH).rest == b"9"
    until(lambda: server.metric("mqtt_connections") == 0, "all are gone")
    assert server.metric("mqtt_taken_over_total") == 9


def test_a_client_that_is_silent_is_closed_and_its_will_published(start: Start) -> None:
    server = begin(start)
    with client(server, "watch") as watch, client(server, "loud", keep_alive_s=1) as loud:
        watch.subscribe(("w", 1))
        with client(server, "quiet", V311, keep_alive_s=1, flags=6, rest=text("w") + text("gone")) as quiet:
            while not (got := watch_or_ping(watch, loud)):
                pass
            assert got.rest == b"gone" and ended(quiet) is None
        loud.ping()
        loud.read(PINGRESP)


def watch_or_ping(watch: Wire, loud: Wire) -> Packet | None:
    """The next message if it arrives before the ping reply, else None; the other client is pinged as well."""
    for one in (loud, watch):
        one.ping()
    loud.read(PINGRESP)
    got = watch.read()
    if got.kind == PINGRESP:
        return None
    watch.read(PINGRESP)
    return got


FAILURES = (0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
"""Reason codes of a client's DISCONNECT that are no clean end."""


def test_a_goodbye_with_will_publishes_it_and_one_without_does_not(start: Start) -> None:
    server = begin(start)
    will = b"\x05\x18\x00\x00\x00\x09" + text("w") + text("gone")
    with client(server, "watch", V5) as watch:
        watch.subscribe(("w", 0))
        with client(server, "polite", V5, flags=6, rest=will) as polite:
            polite.send(b"\xe0\x00")
            assert polite.read_all() == []
        with client(server, "last", V5, flags=6, rest=will) as last:
            last.send(b"\xe0\x01\x04")
            assert last.read_all() == []
        assert watch.read(PUBLISH).rest == b"\x00gone", "the delay is the server's alone"
        for reason in FAILURES:
            with client(server, "failed", V5, flags=6, rest=will) as failed:
                failed.send(b"\xe0\x01", bytes([reason]))
                assert failed.read_all() == []
            assert watch.read(PUBLISH).rest == b"\x00gone", f"{reason:#04x}"
        # Before 5.0 DISCONNECT carries no reason code.
        with client(server, "polite", V311, flags=6, rest=text("w") + text("gone")) as polite:
            polite.send(b"\xe0\x00")
            assert polite.read_all() == []
        watch.ping()
        watch.read(PINGRESP)
    assert server.metric("mqtt_wills_total") == 1 + len(FAILURES)


def test_a_message_of_qos_2_is_published_once_however_often_it_is_sent(start: Start) -> None:
    server = begin(start)
    with client(server) as one, server.connect() as redis:
        redis.ask("SUBSCRIBE", "t")
        one.publish("t", b"1", 2, 9)
        assert one.read(PUBREC).id == 9
        one.publish("t", b"1", 2, 9, flags=8)
        assert one.read(PUBREC).id == 9
        one.answer(PUBREL, 9)
        assert one.read(PUBCOMP).id == 9
        one.answer(PUBREL, 9)
        assert one.read(PUBCOMP).id == 9
        one.publish("t", b"2", 2, 9)
        assert one.read(PUBREC).id == 9
        assert [redis.read().plain() for _ in "12"] == [[b"message", b"t", b"1"], [b"message", b"t", b"2"]]


@pytest.mark.parametrize("shards", [1, 3])
def test_own_messages_stay_away_where_the_client_wants_it(start: Start, shards: int) -> None:
    server = begin(start, shards, classes=LOSSY)
    with client(server, "me", V5) as me, client(server, "other", V5) as other:
        assert me.subscribe(("mine/#", 4), ("past/mine", 5)) == [0, 1]
        assert other.subscribe(("#", 0)) == [0]
        for topic in ("mine/a", "past/mine", "mine/b"):
            me.publish(topic, b"own", 1, 1)
            assert me.read(PUBACK).rest == b""
            other.publish(topic, b"strange", 0)
            assert [other.read(PUBLISH).rest for _ in "12"] == [b"\x00own", b"\x00strange"]
            assert me.read(PUBLISH).rest == b"\x00strange"


def test_subscription_identifiers_come_with_what_they_brought(start: Start) -> None:
    server = begin(start)
    with client(server, version=V5) as one:
        one.subscribe(("a/+", 0), number=1, properties=b"\x0b\x07")
        one.subscribe(("a/b", 0), number=2, properties=b"\x0b\xc8\x01")
        one.publish("a/b", b"x")
        assert one.read(PUBLISH).rest == b"\x05\x0b\xc8\x01\x0b\x07x"
        one.send(packet(0xA2, b"\x00\x03\x00" + text("a/b") + text("nothing")))
        assert one.read(UNSUBACK).rest == b"\x00\x00\x11"
        one.publish("a/b", b"y")
        assert one.read(PUBLISH).rest == b"\x02\x0b\x07y"


def test_a_message_longer_than_the_client_takes_is_passed_over(start: Start) -> None:
    server = begin(start)
    with client(server, version=V5, properties=b"\x27\x00\x00\x00\x64") as one, server.connect() as redis:
        one.subscribe(("t", 1))
        for payload in (b"x" * 90, b"y" * 100, b"z"):
            redis.ask("PUBLISH", "t", payload)
        came = [one.read(PUBLISH) for _ in "12"]
        assert [p.rest for p in came] == [b"\x00" + b"x" * 90, b"\x00z"]
        assert [p.id for p in came] == [1, 3]
    assert server.metric("mqtt_unsent_total") == 1


def test_large_messages_reach_all_versions(start: Start) -> None:
    server = begin(start, 2)
    payload = bytes(range(256)) * 1000
    with client(server, "a", V311) as a, client(server, "b", V5) as b, client(server, "c", V31) as c:
        for one in (a, b, c):
            one.subscribe(("t", 2))
        for qos in (0, 1, 2):
            a.publish("t", payload, qos, 5)
            for one in (a, b, c):
                while (got := one.read()).kind != PUBLISH:
                    pass
                assert got.qos == qos
                assert got.rest == (b"\x00" if one is b else b"") + payload
                if qos:
                    one.answer(PUBACK if qos == 1 else PUBREC, got.id)


def test_the_node_says_that_it_stops(start: Start) -> None:
    server = begin(start)
    with client(server, version=V5) as one, client(server, "old") as old:
        assert server.node is not None
        server.node.process.terminate()
        assert reason(one) == 0x8B
        assert ended(old) is None


# --- slow clients


def test_a_client_that_never_acknowledges_fills_its_own_window_only(start: Start) -> None:
    server = begin(start, limits={"mqtt_inflight_max": 10, "output_bytes_max": 100_000})
    with client(server, "mute") as mute, client(server, "well") as well, server.connect() as redis:
        mute.subscribe(("t", 1))
        well.subscribe(("t", 1))
        for i in range(300):
            redis.ask("PUBLISH", "t", b"%03d" % i + b"." * 1000)
            got = well.read(PUBLISH)
            assert got.rest[:3] == b"%03d" % i
            well.answer(PUBACK, got.id)
        assert [p.rest[:3] for p in mute.read_all()] == [b"%03d" % i for i in range(10)]
    assert server.metric("slow_closed_total") == 1


def test_a_client_that_is_behind_reads_on_from_history_without_gap_or_double(start: Start) -> None:
    server = begin(start, 2, limits={"output_bytes_max": 50_000}, classes=LOSSY)
    with client(server, "slow", receive_bytes=4096) as slow, server.connect() as redis:
        slow.subscribe(("past/#", 1), ("past/room", 0))
        count = 20_000
        for i in range(count):
            redis.command("PUBLISH", "past/room", b"%05d" % i + b"." * 200)
        assert [frame.plain() for frame in redis.read_many(count)] == [2] * count
        for i in range(count):
            got = slow.read(PUBLISH)
            assert got.rest[:5] == b"%05d" % i
            slow.answer(PUBACK, got.id)
    until(lambda: server.metric("catch_ups_total") > 0, "it has read on from history")
    assert server.metric("dropped_total") == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_the_oldest_give_way_and_5_0_is_told(start: Start, version: int) -> None:
    server = begin(start, limits={"mqtt_inflight_max": 1, "output_bytes_max": 20_000}, classes=LOSSY)
    with client(server, version=version) as one, server.connect() as redis:
        one.subscribe(("oldest/#", 1))
        for i in range(100):
            redis.ask("PUBLISH", "oldest/x", b"%03d" % i + b"." * 500)
        came = []
        while not came or came[-1][0] != 99:
            got = one.read(PUBLISH)
            length = got.rest[0] if version == V5 else -1
            if version == V5 and length & 128:
                length = (length & 127 | got.rest[1] << 7) + 1
            own, payload = got.rest[: length + 1], got.rest[length + 1 :]
            came.append((int(payload[:3]), own))
            one.answer(PUBACK, got.id)
        numbers = [i for i, _ in came]
        assert numbers[0] == 0 and numbers[1:] == list(range(numbers[1], 100)) and 50 < numbers[1] < 95
        if version == V5:
            assert b"hubsub-gap" in came[1][1] and not any(b"hubsub-gap" in own for _, own in came[2:])
    assert server.metric("dropped_total") == numbers[1] - 1


def test_the_latest_of_each_topic_stays(start: Start) -> None:
    server = begin(start, limits={"mqtt_inflight_max": 1, "output_bytes_max": 20_000}, classes=LOSSY)
    with client(server) as one, server.connect() as redis:
        one.subscribe(("latest/+", 1))
        for i in range(200):
            redis.ask("PUBLISH", f"latest/{i % 4}", b"%03d" % i + b"." * 500)
        came = []
        while not came or came[-1] != 199:
            got = one.read(PUBLISH)
            came.append(int(got.rest[:3]))
            one.answer(PUBACK, got.id)
    assert came[0] == 0 and came == sorted(came) and set(came[-4:]) == {196, 197, 198, 199}
    assert len(came) < 60


def test_above_the_soft_limit_for_its_time_a_client_is_closed(start: Start) -> None:
    limits = {"mqtt_inflight_max": 1, "output_soft_bytes": 2_000, "output_soft_ms": 200}
    server = begin(start, limits=limits)
    with client(server) as one, server.connect() as redis:
        one.subscribe(("t", 1))
        for _ in range(4):
            redis.ask("PUBLISH", "t", b"." * 1000)
        assert len(one.read_all()) == 1
    assert server.metric("slow_closed_total") == 1


# --- bad input


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\x00\x00", 0x81),
        (b"\x36\x05\x00\x01t\x00\x01", 0x81),
        (packet(0x30, text("a/#") + b"\x00"), 0x90),
        (packet(0x82, b"\x00\x01\x00" + text("a#") + b"\x00"), None),
        (packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text("c")), 0x82),
        (b"\x20\x02\x00\x00", 0x82),
        (b"\x30\xff\xff\xff\xff\x7f", 0x81),
    ],
)
def test_what_is_wrong_closes_that_one_client(
    start: Start, version: int, bad: bytes, code: int | None
) -> None:
    server = begin(start)
    with client(server, "good") as good, client(server, "bad", version) as one:
        one.send(bad)
        if version == V5 and code is not None:
            assert reason(one) == code
        else:
            one.read_all()
        good.ping()
        good.read(PINGRESP)
    assert server.metric("protocol_errors_total") == 1


def test_another_protocol_gets_its_own_answer(start: Start) -> None:
    server = begin(start)
    assert server.node is not None
    for first, answer in (
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"*1\r\n$4\r\nPING\r\n", b"-ERR this is HubSub's MQTT port"),
        (b"\x16\x03\x01\x02\x00", b"\x15\x03\x01"),
    ):
        with socket.create_connection(server.node.mqtt, timeout=TIMEOUT_S) as stranger:
            stranger.sendall(first)
            said = b""
            while data := stranger.recv(1000):
                said += data
            assert said.startswith(answer)
    assert server.metric("protocol_errors_total") == 3


def test_who_never_sends_a_whole_connect_is_closed(start: Start) -> None:
    server = begin(start, limits={"handshake_ms": 100})
    with wire(server) as one:
        one.send(b"\x10\x20\x00\x04MQ")
        assert one.read_all() == []
    until(lambda: server.metric("handshake_timeouts_total") == 1, "it is counted")


def test_bytes_one_by_one_are_the_same_packets(start: Start) -> None:
    server = begin(start)
    with client(server) as one:
        wanted = packet(0x82, b"\x00\x01" + text("t") + b"\x01") + packet(
            0x32, text("t") + b"\x00\x07" + b"x" * 200
        )
        for byte in wanted:
            one.send(bytes([byte]))
        kinds = {one.read().kind for _ in range(3)}
        assert kinds == {9, PUBLISH, PUBACK}
