"""Sessions of MQTT that outlive their process: a node that ended, cleanly or by SIGKILL, and starts again on the same
data has them as they were, and what was said of them to a client holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import DISCONNECT, PUBLISH, UNSUBACK, V5, V31, V311, Paho, Wire, packet, text
from clients.servers import Server, until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from node.home import Home
from node.test_mqtt import client
from node.test_mqtt_sessions import acknowledge, come, leave, nothing_more, payload, say

KILLS = pytest.mark.parametrize("kills", [False, True], ids=["stopped", "killed"])
WAYS = [(V31, True), (V311, False), (V5, True)]
"""Versions, and whether the node is killed: each once, since a node takes its time to start."""


@contextmanager
def home_of(directory: Path, shards: int = 2, **options: Any) -> Iterator[Home]:
    """A node for MQTT, and those after it on the same data."""
    home = Home(directory, shards, {"mqtt": "127.0.0.1:0"}, **options)
    home.start()
    try:
        yield home
    finally:
        home.kill()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Likewise, with two shards."""
    with home_of(tmp_path / "data") as home:
        yield home


def sessions(server: Server) -> dict[str, dict[str, Any]]:
    """What /v1/sessions lists, by client id."""
    return {row["client_id"]: row for row in json.loads(server.get("/v1/sessions"))["sessions"]}


def unsubscribe(one: Wire, name: str) -> None:
    """UNSUBSCRIBE, and its answer."""
    one.send(packet(0xA2, b"\x00\x07" + (b"\x00" if one.version == V5 else b"") + text(name)))
    one.read(UNSUBACK)


# --- what is there again


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
        assert payload(one, one.read(PUBLISH)) == b"%d" % round_


# --- time


def test_what_waits_for_a_time_waits_for_it_over_restarts(home: Home) -> None:
    """Expiry and the delay of a will are by wall time; a process that died left then."""
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
    until(lambda: server.metric("mqtt_session_rows_total") >= 1, "that is recorded")
    server = home.restart()
    with server.connect() as redis:
        assert history(redis, "chat:will") == [b"gone"]


def history(redis: Any, room: str) -> list[bytes]:
    """Payloads of a room."""
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
    """A client whose session stays."""
    properties = Properties(PacketTypes.CONNECT) if version == V5 else None  # type: ignore[no-untyped-call]
    if properties is not None:
        properties.SessionExpiryInterval = 3600
    assert server.node
    return Paho(server.node.mqtt, version, "paho", properties=properties, clean=False)
