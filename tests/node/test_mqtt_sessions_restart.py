"""MQTT sessions that outlive their process: a node that ended cleanly or by SIGKILL and restarts on the same
data restores them, and everything acknowledged to a client still holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import (
    DISCONNECT,
    PINGRESP,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    UNSUBACK,
    V5,
    V31,
    V311,
    Packet,
    Paho,
    Wire,
    packet,
    text,
)
from clients.mqtt_sessions import acknowledge, may_resume, payload, say
from clients.servers import Server, until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from node.home import Home
from node.test_mqtt import client, wire
from node.test_mqtt_sessions import come, leave, nothing_more

KILLS = pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
WAYS = [(V31, True), (V311, False), (V5, True)]
"""MQTT version, and whether the node is killed. Each version runs once, since a node takes time to start."""


@contextmanager
def home_of(directory: Path, shards: int = 2, store: str = "log", **options: Any) -> Iterator[Home]:
    """An MQTT node, and its successors on the same data; `store`: its `inflight_store`."""
    config = {"mqtt": "127.0.0.1:0", "redis": "127.0.0.1:0", "inflight_store": store}
    home = Home(directory, shards, config, **options)
    home.start()
    try:
        yield home
    finally:
        home.kill()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """As `home_of`, with two shards."""
    with home_of(tmp_path / "data") as home:
        yield home


def sessions(server: Server) -> dict[str, dict[str, Any]]:
    """The entries of /v1/sessions, by client id."""
    return {row["client_id"]: row for row in json.loads(server.get("/v1/sessions"))["sessions"]}


def unsubscribe(one: Wire, name: str) -> None:
    """Sends UNSUBSCRIBE and awaits UNSUBACK."""
    one.send(packet(0xA2, b"\x00\x07" + (b"\x00" if one.version == V5 else b"") + text(name)))
    one.read(UNSUBACK)


# --- restored state


@pytest.mark.parametrize(("version", "kills"), WAYS)
def test_a_session_is_there_after_a_restart_with_what_it_subscribes_to(
    home: Home, version: int, kills: bool
) -> None:
    one, present = come(home.server, "a/b%c", version=version)
    assert not present
    assert one.subscribe(("chat:a", 1), ("w/#", 2), ("gone", 1)) == [1, 2, 1]
    unsubscribe(one, "gone")
    server = home.restart(kills)
    row = sessions(server)["a/b%c"]
    assert (row["client"], row["subscriptions"]) == (None, 2)
    with client(server, "publisher") as publisher:
        for topic in ("chat:a", "w/1", "gone"):
            say(publisher, topic, topic.encode(), 1)
        one, present = come(server, "a/b%c", version=version)
        assert present == (version != V31), "3.1 has no word for it"
        came = [one.read(PUBLISH), one.read(PUBLISH)]
        assert sorted(payload(one, message) for message in came) == [b"chat:a", b"w/1"]
        for message in came:
            acknowledge(one, message)
        nothing_more(one)
        say(publisher, "chat:a", b"live", 1)
        assert payload(one, one.read(PUBLISH)) == b"live"


@KILLS
def test_a_session_that_ended_is_not_there_after_a_restart(home: Home, kills: bool) -> None:
    for name in ("ended", "cleaned", "kept"):
        one, _ = come(home.server, name)
        one.subscribe(("a", 1))
        leave(home.server, one)
    one, _ = come(home.server, "ended", expiry_s=0)
    one.send(b"\xe0\x00")
    one.read_all()
    until(lambda: "ended" not in sessions(home.server), "it has ended")
    one, present = come(home.server, "cleaned", clean=True, expiry_s=0)
    assert not present, "it was told so once the old one's row was gone"
    for _ in range(2):
        server = home.restart(kills)
        assert set(sessions(server)) - {"cleaned", "ended"} == {"kept"}
        until(lambda: set(sessions(home.server)) == {"kept"}, "what was left without a time has ended")


def test_what_a_session_cannot_subscribe_to_as_it_is_taken_in_it_asks_for_until_it_has_it(
    tmp_path: Path,
) -> None:
    names, topics, limits = ("first", "second"), 40, {"rooms_max": 10_000}
    with home_of(tmp_path / "data", limits=limits) as home:
        for name in names:
            one, _ = come(home.server, name)
            one.subscribe(*((f"{name}/{topic}", 1) for topic in range(topics)))
            leave(home.server, one)
        limits["rooms_max"] = 60
        server = home.restart()
        until(lambda: server.metric("mqtt_sessions_incomplete") > 0, "there is no room for all")
        assert set(sessions(server)) == set(names)
        # The last accepted session lacks some subscriptions.
        refused = []
        for name in names:
            with wire(server) as one:
                if may_resume(one, name) is None:
                    refused.append(name)
        assert refused, "its client is not told that it goes on with what it does not have"
        lacks = refused[-1]
        for name in set(names) - {lacks}:
            come(server, name, clean=True, expiry_s=0)[0].close()
        until(lambda: server.metric("mqtt_sessions_incomplete") == 0, "there is room")
        with client(server, "publisher") as publisher:
            for topic in range(topics):
                say(publisher, f"{lacks}/{topic}", b"%d" % topic, 1)
            one, present = come(server, lacks)
            assert present
            assert sorted(int(payload(one, one.read(PUBLISH))) for _ in range(topics)) == list(range(topics))
    assert home.log.count("mqtt session lacks a subscription") <= len(names), "it is said once of each"


def test_a_new_session_takes_the_place_of_the_old_one(home: Home) -> None:
    one, _ = come(home.server)
    one.subscribe(("old", 1))
    new, present = come(home.server, clean=True)
    assert not present
    assert one.read(DISCONNECT).body[0] == 0x8E
    new.subscribe(("new/#", 1))
    server = home.restart(kills=True)
    with client(server, "publisher") as publisher:
        say(publisher, "old", b"old", 1)
        say(publisher, "new/1", b"new", 1)
        one, present = come(server)
        assert present
        assert payload(one, one.read(PUBLISH)) == b"new"


def test_many_restarts_leave_one_session_as_it_was(home: Home) -> None:
    one, _ = come(home.server, version=V311)
    one.subscribe(("a/+", 1))
    for round_ in range(4):
        server = home.restart(kills=round_ % 2 == 1)
        one, present = come(server, version=V311)
        assert present
        with client(server, "publisher") as publisher:
            say(publisher, "a/b", b"%d" % round_, 1)
        message = one.read(PUBLISH)
        assert payload(one, message) == b"%d" % round_
        acknowledge(one, message)
        nothing_more(one)


# --- time


def test_what_waits_for_a_time_waits_for_it_over_restarts(home: Home) -> None:
    """Session expiry and will delay use wall time; clients of a killed process count as offline since it
    died."""
    with client(home.server, "listener") as listener:
        listener.subscribe(("will", 1))
        one, _ = come(home.server, "short", expiry_s=1)
        leave(home.server, one)
        come(home.server, "long", expiry_s=3600, will=("will", 3000))
    server = home.restart(kills=True)
    until(lambda: set(sessions(home.server)) == {"long"}, "one's time is over, if it was not before")
    assert 0 < sessions(server)["long"]["ends_in_s"] <= 3600


def test_a_will_is_published_once_whoever_dies(home: Home) -> None:
    one, _ = come(home.server, "dying", expiry_s=3600, will=("chat:will", 0))
    one.ping()
    server = home.restart(kills=True)
    with server.connect() as redis:
        until(lambda: len(history(redis, "chat:will")) == 1, "its process died, and it with it")
    until(lambda: server.metric("mqtt_session_snapshots_total") >= 1, "that is recorded")
    server = home.restart()
    with server.connect() as redis:
        assert history(redis, "chat:will") == [b"gone"]


def history(redis: Any, room: str) -> list[bytes]:
    """The payloads of a room."""
    rows = redis.ask("HUBSUB", "HISTORY", room, "COUNT", 100)
    return [row[4] for row in rows]


# --- real clients


@pytest.mark.parametrize("version", [V311, V5])
def test_paho_finds_its_session_after_a_kill(home: Home, version: int) -> None:
    with paho(home.server, version) as one:
        assert not one.session_present
        assert one.subscribe(("chat:p", 1)) == [1]
    server = home.restart(kills=True)
    with client(server, "publisher") as publisher:
        say(publisher, "chat:p", b"while it was away", 1)
    with paho(server, version) as one:
        assert one.session_present
        assert one.message().payload == b"while it was away"


def paho(server: Server, version: int) -> Paho:
    """A client with a persistent session."""
    properties = Properties(PacketTypes.CONNECT) if version == V5 else None  # type: ignore[no-untyped-call]
    if properties is not None:
        properties.SessionExpiryInterval = 3600
    assert server.node
    return Paho(server.node.mqtt, version, "paho", properties=properties, clean=False)


# --- messages


@pytest.mark.parametrize(("version", "kills"), [(V311, True), (V5, False)])
def test_what_waited_for_an_absent_client_comes_after_a_restart(
    home: Home, version: int, kills: bool
) -> None:
    """Messages arrive in order, once."""
    one, _ = come(home.server, version=version)
    one.subscribe(("a/#", 2))
    leave(home.server, one)
    sent = [(1 + number % 2, b"%d" % number) for number in range(20)]
    with client(home.server, "publisher") as publisher:
        for qos, said in sent:
            say(publisher, "a/b", said, qos)
    recorded(home.server, len(sent))
    server = home.restart(kills)
    assert sessions(server)["device"]["queued"] == len(sent)
    one, present = come(server, version=version)
    assert present
    came = [one.read(PUBLISH) for _ in sent]
    assert [(it.qos, it.flags & 8, payload(one, it)) for it in came] == [(qos, 0, it) for qos, it in sent]
    for message in came:
        acknowledge(one, message)
    nothing_more(one)
    leave(server, one)
    server = home.restart(kills)
    one, _ = come(server, version=version)
    nothing_more(one)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_under_way_comes_again_under_its_id(home: Home, qos: int) -> None:
    """With QoS 2 whichever process dies; with QoS 1 if the connection ended before the process did."""
    one, _ = come(home.server)
    one.subscribe(("a", qos))
    with client(home.server, "publisher") as publisher:
        for number in range(3):
            say(publisher, "a", b"%d" % number, qos)
    came = [one.read(PUBLISH) for _ in range(3)]
    acknowledge(one, came[1])
    if qos == 1:
        leave(home.server, one)
        recorded(home.server, 0)
    one, present = come(home.restart(kills=True))
    assert present
    messages = []
    for packet_ in said(one):
        if packet_.kind == PUBREL:
            # The node may have lost the client's last reply for the middle message, so it sends PUBREL again.
            assert (qos, packet_.id) == (2, came[1].id)
            one.answer(PUBCOMP, packet_.id)
        else:
            messages.append(packet_)
    assert [(it.kind, it.id, payload(one, it)) for it in messages] == [
        (PUBLISH, it.id, payload(one, it)) for it in (came[0], came[2])
    ]
    assert all(message.flags & 8 for message in messages), "DUP"
    for message in messages:
        acknowledge(one, message)
    nothing_more(one)


def said(one: Wire) -> list[Packet]:
    """The packets that the server sends before its ping reply."""
    one.ping()
    packets = []
    while (one_more := one.read()).kind != PINGRESP:
        packets.append(one_more)
    return packets


def test_what_a_client_has_received_is_never_sent_again(home: Home) -> None:
    """PUBREL follows the record of the PUBREC."""
    one, _ = come(home.server)
    one.subscribe(("a", 2))
    with client(home.server, "publisher") as publisher:
        say(publisher, "a", b"once", 2)
    message = one.read(PUBLISH)
    one.answer(PUBREC, message.id)
    assert one.read(PUBREL).id == message.id
    server = home.restart(kills=True)
    one, _ = come(server)
    assert one.read(PUBREL).id == message.id
    one.answer(PUBCOMP, message.id)
    nothing_more(one)


def test_a_message_of_qos_2_is_in_the_log_once_however_often_it_is_sent(home: Home) -> None:
    """The session stores the message's number: either the killed node has published it or the next one
    does."""
    one, _ = come(home.server)
    one.publish("chat:x", b"first", 2, 5)
    one.read(PUBREC)
    one, present = come(home.restart(kills=True))
    assert present
    one.publish("chat:x", b"first", 2, 5, flags=8)
    one.read(PUBREC)
    one.answer(PUBREL, 5)
    one.read(PUBCOMP)
    one, _ = come(home.restart(kills=True))
    say(one, "chat:x", b"second", 2, 5)
    one.publish("chat:x", b"third", 2, 6)
    # The node may have processed it or not.
    one, _ = come(home.restart(kills=True))
    one.publish("chat:x", b"third", 2, 6, flags=8)
    one.read(PUBREC)
    one.answer(PUBREL, 6)
    one.read(PUBCOMP)
    with home.server.connect() as redis:
        assert history(redis, "chat:x") == [b"first", b"second", b"third"]


def recorded(server: Server, queued: int) -> None:
    """Waits until `queued` messages are queued for the offline client and the session's entries are in the
    log."""
    for _ in range(2):
        # The second request is answered in another turn; by then the entries are counted.
        until(lambda: sessions(server)["device"]["queued"] == queued, "all of it came")
    entries = server.metric("mqtt_session_entries_total")
    url = "/v1/hubs?class=%24queue"
    until(lambda: json.loads(server.get(url))["hubs"][0]["committed"] >= entries, "all is safe")
