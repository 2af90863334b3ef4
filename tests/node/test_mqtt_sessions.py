"""MQTT sessions that outlive their connections, on one node: what they retain and how long; no message is
lost or duplicated when a client reconnects."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any, Literal

import pytest
from clients.mqtt import (
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
    Paho,
    Wire,
    packet,
    properties,
    text,
)
from clients.mqtt_sessions import acknowledge, expiry, payload, resume, say
from clients.servers import Server, until
from paho.mqtt.packettypes import PacketTypes

from node.conftest import Start
from node.test_mqtt import begin, client, wire

FOREVER = 0xFFFFFFFF
PAST = {"name": "past", "match": ["past/#"], "history": {"messages": 10_000}}


def come(server: Server, client_id: str = "device", version: int = V5, **more: Any) -> tuple[Wire, bool]:
    """Connects a client with a persistent session; returns the session-present flag, too. `more`: see
    `resume`."""
    one = wire(server)
    return one, resume(one, client_id, version, **more)


def leave(server: Server, one: Wire) -> None:
    """Disconnects; returns once the session is offline."""
    before = server.metric("mqtt_sessions_offline")
    one.send(b"\xe0\x00")
    one.read_all()
    until(lambda: server.metric("mqtt_sessions_offline") == before + 1, "it is absent")


def nothing_more(one: Wire) -> None:
    """Asserts that the server has sent everything."""
    one.ping()
    one.read(PINGRESP)


# --- session state


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shards", [1, 4])
def test_a_session_goes_on_with_what_came_meanwhile(start: Start, version: int, shards: int) -> None:
    server = begin(start, shards, classes=[PAST])
    with client(server, "publisher") as publisher:
        one, present = come(server, version=version)
        assert not present
        assert one.subscribe(("a/b", 1), ("past/c", 2), ("w/#", 2), ("zero", 0)) == [1, 2, 2, 0]
        # Each reconnect probably reaches another shard.
        for round_ in range(4):
            leave(server, one)
            sent = []
            for number, topic in enumerate(("a/b", "w/1", "past/c", "w/2", "zero", "a/b")):
                for qos in (0, 1, 2):
                    said = b"%d %d %d" % (round_, number, qos)
                    say(publisher, topic, said, qos, 9)
                    granted = min(qos, {"a/b": 1, "zero": 0}.get(topic, 2))
                    if granted:
                        sent.append((topic, said, granted))
            one, present = come(server, version=version)
            assert present == (version != V31), "3.1 has no word for it"
            messages = [one.read(PUBLISH) for _ in sent]
            assert not any(message.flags & 8 for message in messages), "they come for the first time"
            got = [(message.topic, payload(one, message), message.qos) for message in messages]
            for message in messages:
                acknowledge(one, message)
            for room in {topic for topic, _, _ in sent}:
                assert [row for row in got if row[0] == room] == [row for row in sent if row[0] == room]
            say(publisher, "zero", b"live", 0)
            message = one.read(PUBLISH)
            assert (message.topic, payload(one, message)) == ("zero", b"live")
            nothing_more(one)
        assert server.metric("mqtt_session_queued") == 0


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("shards", [1, 4])
def test_what_is_not_acknowledged_comes_again_in_its_order_with_its_id(
    start: Start, version: int, shards: int
) -> None:
    server = begin(start, shards)
    with client(server, "publisher") as publisher:
        one, _ = come(server, version=version)
        one.subscribe(("a", 2))
        for number in range(6):
            say(publisher, "a", b"%d" % number, 2 - number % 2)
        first = [one.read(PUBLISH) for _ in range(6)]
        acknowledge(one, first[1])
        one.answer(PUBREC, first[2].id)
        one.read(PUBREL)
        nothing_more(one)
        one.close()
        for _ in range(2):
            one, present = come(server, version=version, receive_max=3 if version == V5 else 0)
            assert present
            again: list[Packet] = []
            while len(again) < (3 if version == V5 else 5):
                again.append(one.read())
            left = [first[0], first[2], first[3], first[4], first[5]][: len(again)]
            rows = [(p.kind, p.id, p.flags & 8 if p.kind == PUBLISH else 8) for p in again]
            kinds = [PUBREL if p is first[2] else PUBLISH for p in left]
            assert rows == [(kind, p.id, 8) for kind, p in zip(kinds, left, strict=True)]
            if version == V311:
                nothing_more(one)
            one.close()
        # As the client acknowledges those, the rest arrives, and no acknowledged message comes twice.
        one, _ = come(server, version=version)
        assert [one.read().id for _ in range(5)] == [first[i].id for i in (0, 2, 3, 4, 5)]
        one.answer(PUBCOMP, first[2].id)
        for message in (first[0], first[3], first[4], first[5]):
            acknowledge(one, message)
        nothing_more(one)
        leave(server, one)
        one, _ = come(server, version=version)
        nothing_more(one)


def test_what_was_sent_does_not_expire(start: Start) -> None:
    server = begin(start)
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server)
        one.subscribe(("a", 2))
        publisher.publish("a", b"x", 2, 1, properties=b"\x02\x00\x00\x00\x01")
        publisher.read(PUBREC)
        sent = one.read(PUBLISH)
        one.close()
        until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is gone")
        # A message that was queued and never sent does expire; another session's expiry measures the time.
        publisher.publish("a", b"y", 2, 2, properties=b"\x02\x00\x00\x00\x01")
        publisher.read(PUBREC)
        come(server, "other", expiry_s=1)[0].close()
        until(lambda: server.metric("mqtt_sessions_expired_total") == 1, "a second has passed")
        one, _ = come(server)
        again = one.read(PUBLISH)
        assert (again.id, again.flags & 8, again.rest[-1:]) == (sent.id, 8, b"x")
        acknowledge(one, again)
        nothing_more(one)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_message_of_qos_2_is_published_once_over_connections(start: Start, shards: int) -> None:
    server = begin(start, shards)
    with client(server, "reader") as reader:
        reader.subscribe(("a", 2))
        one, _ = come(server)
        one.publish("a", b"once", 2, 7)
        one.read(PUBREC)
        one.close()
        for _ in range(3):
            one, present = come(server)
            assert present
            one.publish("a", b"once", 2, 7, flags=8)
            one.read(PUBREC)
            one.close()
        one, _ = come(server)
        one.answer(PUBREL, 7)
        answer = one.read(PUBCOMP)
        assert answer.rest in (b"", b"\x00")
        say(one, "a", b"next", 2, 7)
        assert [payload(reader, reader.read(PUBLISH)) for _ in range(2)] == [b"once", b"next"]
        nothing_more(reader)


def test_subscriptions_of_a_session_change_as_they_did(start: Start) -> None:
    server = begin(start, 2)
    with client(server, "publisher") as publisher:
        one, _ = come(server)
        one.subscribe(("a", 1), ("b/+", 1), properties=b"\x0b\x05")
        leave(server, one)
        one, _ = come(server)
        one.send(packet(0xA2, b"\x00\x07\x00" + text("b/+")))
        assert one.read(UNSUBACK).rest[-1:] == b"\x00"
        leave(server, one)
        for topic in ("b/1", "a"):
            say(publisher, topic, b"x", 1)
        one, _ = come(server)
        message = one.read(PUBLISH)
        assert (message.topic, message.rest) == ("a", b"\x02\x0b\x05x"), "with its identifier"
        nothing_more(one)


# --- takeover


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("filters", [["a"], ["a", "w/#"], ["#"]])
def test_nothing_is_lost_while_a_session_goes_from_connection_to_connection(
    start: Start, shards: int, filters: list[str]
) -> None:
    rooms, each = ["a", "w/1", "past/1"], 400
    server = begin(start, shards, classes=[PAST])
    with client(server, "publisher") as publisher:
        one, _ = come(server)
        one.subscribe(*((name, 1) for name in filters))

        def publish() -> None:
            for number in range(each):
                for room in rooms:
                    say(publisher, room, b"%d" % number, 1)

        thread = threading.Thread(target=publish)
        thread.start()
        wanted = {
            room for room in rooms if "#" in filters or room == "a" or ("w/#" in filters and room == "w/1")
        }
        got: dict[str, list[int]] = {room: [] for room in wanted}
        reads = 0
        while any(not numbers or numbers[-1] < each - 1 for numbers in got.values()):
            message = one.read()
            assert message.kind == PUBLISH, message
            number = int(payload(one, message))
            if not message.flags & 8 or number not in got[message.topic]:
                got[message.topic].append(number)
            one.answer(PUBACK, message.id)
            reads += 1
            if reads % 50 == 0:
                before, (one, present) = one, come(server)
                assert present
                before.close()
        thread.join()
        for numbers in got.values():
            assert numbers == list(range(each))
        assert server.metric("mqtt_session_dropped_total") == 0


def test_who_is_taken_over_is_told_and_its_session_goes_on(start: Start) -> None:
    server = begin(start, 4)
    with client(server, "publisher") as publisher:
        before, _ = come(server)
        before.subscribe(("a", 1))
        for number in range(12):
            after, present = come(server)
            assert present
            last = before.read_all()[-1]
            assert (last.kind, last.body[0]) == (DISCONNECT, 0x8E)
            say(publisher, "a", b"%d" % number, 1)
            message = after.read(PUBLISH)
            assert payload(after, message) == b"%d" % number
            acknowledge(after, message)
            nothing_more(after)
            before = after
        until(lambda: server.metric("mqtt_sessions") == 1, "there is one")


def test_many_that_want_one_session_have_it_in_turn(start: Start) -> None:
    server = begin(start, 4)
    with client(server, "publisher") as publisher:
        one, _ = come(server)
        one.subscribe(("a", 1))
        leave(server, one)
        say(publisher, "a", b"kept", 1)
        results: list[tuple[Wire, Packet]] = []

        def rush() -> None:
            other = wire(server)
            results.append((other, other.connect("device", V5, expiry(3600), flags=0)))

        threads = [threading.Thread(target=rush) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(list(answer.body[:2]) == [1, 0] for _, answer in results)
        one, present = come(server)
        assert present
        message = one.read(PUBLISH)
        assert payload(one, message) == b"kept"
        acknowledge(one, message)
        nothing_more(one)
        until(lambda: server.metric("mqtt_sessions") == 1, "there is one")
        for other, _ in results:
            other.close()


# --- expiry and limits


@pytest.mark.parametrize("version", [V311, V5])
def test_who_begins_anew_has_nothing_of_the_session_before(start: Start, version: int) -> None:
    server = begin(start, 4)
    with client(server, "publisher") as publisher:
        one, _ = come(server, version=version)
        one.subscribe(("a", 1))
        leave(server, one)
        say(publisher, "a", b"old", 1)
        one, present = come(server, version=version, clean=True)
        assert not present
        nothing_more(one)
        say(publisher, "a", b"new", 1)
        nothing_more(one)
        leave_clean = version == V311
        one.send(b"\xe0\x00")
        one.read_all()
        until(lambda: server.metric("mqtt_connections") == 1, "it is gone")
        _, present = come(server, version=version)
        assert present == (not leave_clean), "in 5.0 the new one stays"


def test_a_session_ends_at_its_time_and_at_once_where_its_goodbye_says_so(start: Start) -> None:
    server = begin(start, 2)
    one, _ = come(server, expiry_s=1)
    one.subscribe(("a", 1))
    leave(server, one)
    until(lambda: server.metric("mqtt_sessions_expired_total") == 1, "its time is over")
    one, present = come(server, expiry_s=1000)
    assert not present
    one.subscribe(("a", 1))
    one.send(packet(0xE0, b"\x00\x05" + expiry(0)))
    one.read_all()
    until(lambda: server.metric("mqtt_sessions") == 0, "it is over")
    one, present = come(server, expiry_s=0)
    assert not present
    one.close()
    # A session that began without an expiry can get one.
    one, _ = come(server, expiry_s=FOREVER)
    one.send(packet(0xE0, b"\x00\x05" + expiry(1)))
    one.read_all()
    until(lambda: server.metric("mqtt_sessions_expired_total") == 2, "its time is over, too")
    until(lambda: server.metric("channels") == 0, "nothing of them is left")


def test_the_longest_that_a_session_stays_is_the_servers(start: Start) -> None:
    server = begin(start, limits={"mqtt_session_expiry_s_max": 60})
    with wire(server) as one:
        answer = one.connect("device", V5, expiry(3600), flags=0)
        assert expiry(60) in answer.body
    server = begin(start, limits={"mqtt_session_expiry_s_max": 0})
    with wire(server) as one:
        assert expiry(0) in one.connect("device", V5, expiry(3600), flags=0).body
        assert wire(server).connect("old", V311, flags=0).body == b"\x00\x03"


def test_before_5_0_a_session_stays_as_long_as_the_server_says(start: Start) -> None:
    server = begin(start, limits={"mqtt_session_expiry_s": 1})
    one, _ = come(server, version=V311)
    leave(server, one)
    until(lambda: server.metric("mqtt_sessions_expired_total") == 1, "its time is over")


def test_one_session_too_many_is_refused(start: Start) -> None:
    server = begin(start, limits={"mqtt_sessions_max": 2})
    for name in ("1", "2"):
        leave(server, come(server, name)[0])
    third = wire(server)
    answer = third.connect("3", V5, expiry(60), flags=0)
    assert answer.body[1] == 0x97
    assert third.read_all() == []
    with client(server, "clean", V5):
        one, present = come(server, "1")
        assert present, "who comes back is not one more"
        one.close()


@pytest.mark.parametrize(
    "limits", [{"mqtt_session_queue_messages_max": 10}, {"mqtt_session_queue_bytes_max": 3_000}]
)
def test_of_too_many_messages_for_an_absent_client_the_oldest_give_way(
    start: Start, limits: dict[str, Any]
) -> None:
    server = begin(start, limits=limits)
    with client(server, "publisher") as publisher:
        one, _ = come(server)
        one.subscribe(("a", 1))
        leave(server, one)
        for number in range(50):
            say(publisher, "a", b"%d" % number, 1)
        kept = server.metric("mqtt_session_queued")
        assert 0 < kept <= 20
        assert server.metric("mqtt_session_dropped_total") == 50 - kept
        one, _ = come(server)
        got = [int(payload(one, one.read(PUBLISH))) for _ in range(kept)]
        assert got == list(range(50 - kept, 50))
        nothing_more(one)


# --- wills


def test_a_will_waits_for_its_delay_and_for_nobody_who_comes_back(start: Start) -> None:
    server = begin(start, 2)
    with client(server, "watcher") as watcher:
        watcher.subscribe(("will/+", 0))
        one, _ = come(server, will=("will/1", 1))
        one.close()
        until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is gone")
        # The client reconnects in time, and so does the next one: no will is published.
        one, _ = come(server, will=("will/2", 3600))
        one.close()
        until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is gone again")
        one, _ = come(server, will=("will/3", 1))
        one.close()
        assert watcher.read(PUBLISH).topic == "will/3", "nobody came"
        # When the session ends, the delay ends, too.
        one, _ = come(server, will=("will/4", 3600), expiry_s=1)
        one.close()
        assert watcher.read(PUBLISH).topic == "will/4"
        one, _ = come(server, will=("will/5", 3600))
        one.close()
        until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is gone")
        come(server, clean=True)
        assert watcher.read(PUBLISH).topic == "will/5", "who begins anew ends it"
        assert server.metric("mqtt_wills_total") == 3


# --- Paho


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_paho_comes_back_to_its_session(
    start: Start, version: int, transport: Literal["tcp", "websockets"]
) -> None:
    # The session is probably on another shard each time, and the socket moves there.
    server = begin(start, 4, config={"ws": "127.0.0.1:0"})
    with client(server, "publisher") as publisher:
        assert server.node is not None
        address = server.node.mqtt if transport == "tcp" else server.node.ws
        kept = properties(PacketTypes.CONNECT, {"SessionExpiryInterval": 600}) if version == V5 else None
        more: dict[str, Any] = {"clean": False, "client_id": "paho", "properties": kept}
        for round_ in range(5):
            with Paho(address, version, transport=transport, **more) as paho:
                assert paho.session_present == (round_ > 0)
                paho.subscribe(("a/#", 2))
                if round_:
                    got = [paho.next() for _ in range(6)]
                    # Paho delivers QoS 2 messages when they are released.
                    assert sorted((one.payload, one.qos) for one in got) == [
                        (b"%d" % number, 1 + number % 2) for number in range(6)
                    ]
            until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is gone")
            for number in range(6):
                say(publisher, "a/1", b"%d" % number, 1 + number % 2)


def test_who_comes_and_goes_is_silent_for_its_time_only_since_it_came_last(start: Start) -> None:
    server = begin(start)
    one, _ = come(server)
    for _ in range(20):
        leave(server, one)
        one = wire(server)
        assert one.connect("device", V5, expiry(3600), keep_alive_s=1, flags=0).body[:2] == b"\x01\x00"
    assert one.read_all()[-1].body[0] == 0x8D
    assert server.metric("mqtt_silent_total") == 1
    until(lambda: server.metric("mqtt_sessions_offline") == 1, "its session is kept")


# --- administration


@pytest.mark.parametrize("shards", [1, 3])
def test_sessions_are_shown_and_ended_by_hand(start: Start, shards: int) -> None:
    server = begin(start, shards)
    assert server.node is not None
    url = f"{server.node.http_url}/v1/sessions"

    def end(name: str) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="DELETE")) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with client(server, "publisher") as publisher:
        publisher.subscribe(("will/+", 0))
        here, _ = come(server, "lamp/1")
        away, _ = come(server, "lamp/2", expiry_s=FOREVER, will=("will/2", 60))
        here.subscribe(("a", 1), ("b/#", 1))
        away.subscribe(("a", 2))
        away.close()
        until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is away")
        say(publisher, "a", b"x", 2)
        here.read(PUBLISH)
        rows = json.loads(server.get("/v1/sessions"))["sessions"]
        keys = ("client_id", "subscriptions", "unacknowledged", "queued", "expiry_s")
        assert [tuple(row[key] for key in keys) for row in rows] == [
            ("lamp/1", 2, 1, 0, 3600),
            ("lamp/2", 1, 0, 1, 7 * 86_400),
        ]
        assert [row["client"] is None for row in rows] == [False, True]
        assert [row["ends_in_s"] is None for row in rows] == [True, False]
        assert json.loads(server.get("/v1/sessions?limit=1"))["next"] == "lamp/1"
        for name in ("lamp%2F1", "lamp%2F2"):
            assert [end(name), end(name)] == [204, 404]
        last = here.read_all()[-1]
        assert (last.kind, last.body[0]) == (DISCONNECT, 0x98)
        message = publisher.read(PUBLISH)
        assert (message.topic, payload(publisher, message)) == ("will/2", b"gone")
        for name in ("lamp/1", "lamp/2"):
            assert not come(server, name)[1]
