"""Names of the maximum length of a protocol: the node derives longer internal names from them and keeps all
bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clients.mqtt import PUBACK, PUBLISH, V5, V311, text
from clients.mqtt_sessions import acknowledge
from clients.servers import Server, until
from command_line import hubsub

from node.conftest import Start
from node.test_mqtt import begin, client
from node.test_mqtt_retained import DURABLE, NO_LOCAL, keep, kept, served
from node.test_mqtt_sessions import come, leave
from node.test_mqtt_sessions_restart import home_of

RETAINED, SESSION = len(b"$system/retained/"), len(b"$system/session/")
BYTES_MAX = 65_535
LENGTHS = (BYTES_MAX - RETAINED, BYTES_MAX - RETAINED + 1, BYTES_MAX - 1, BYTES_MAX)
"""Lengths of topics: the longest whose entry has a name of 65,535 bytes, and longer ones."""


def topics() -> list[str]:
    """One topic in memory and one with a log per length."""
    return [f"{begin}{n:05}/".ljust(n, "x") for n in LENGTHS for begin in ("a/", "kept/")]


def listed(server: Server) -> list[str]:
    """The topics of all retained messages, read page by page: a page ends before its length passes 128 KiB."""
    topics: list[str] = []
    after = ""
    while True:
        page = json.loads(server.get(f"/v1/retained?limit=1000{after}"))
        topics += [row["topic"] for row in page["retained"]]
        if page["next"] is None:
            return topics
        after = f"&after={quote(page['next'], safe='')}"


@pytest.mark.parametrize("with_data", [False, True])
def test_topics_of_every_length_keep_their_message(start: Start, data: Path, with_data: bool) -> None:
    config = {"data": str(data)} if with_data else {}
    server = begin(start, 2, config=config, classes=DURABLE if with_data else [])
    will = b"\x00" + text("w" * BYTES_MAX) + text("gone")
    with client(server, "with-will", V5, flags=0x02 | 0x04 | 0x20, rest=will), client(server, "p", V5) as one:
        assert all(keep(one, topic, b"kept") < 0x80 for topic in topics())
    names = [*topics(), "w" * BYTES_MAX]
    until(lambda: server.metric("retained_messages") == len(names), "the will, too")

    def found(listener: Any) -> dict[str, int]:
        came = {}
        with client(listener, "s", V311) as other:
            for number, topic in enumerate(names, 1):
                other.ask((topic, 0), number=number)
            while len(came) < len(names):
                if (packet := other.read()).kind == PUBLISH:
                    came[packet.topic] = packet.flags & 1
        return came

    assert found(server) == dict.fromkeys(names, 1)
    if not with_data:
        return
    assert server.node is not None
    server.node.stop()
    verified = hubsub("log", "verify", str(data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    again = begin(start, 3, config=config, classes=DURABLE)
    until(lambda: again.metric("retained_messages") == len(names), "all are kept")
    assert found(again) == dict.fromkeys(names, 1)
    assert sorted(listed(again)) == sorted(names)
    assert json.loads(again.get("/v1/retained/" + "%77" * BYTES_MAX))["topic"] == "w" * BYTES_MAX


@pytest.mark.parametrize(
    ("size", "kills"), [(BYTES_MAX - SESSION, True), (BYTES_MAX - SESSION + 1, False), (BYTES_MAX, True)]
)
def test_sessions_of_client_ids_of_every_length_outlive_the_process(
    tmp_path: Path, size: int, kills: bool
) -> None:
    name = "i" * size
    with home_of(tmp_path / "data", classes=DURABLE) as home:
        one, _ = come(home.server, name)
        assert one.subscribe(("kept/t", 1)) == [1]
        leave(home.server, one)
        with client(home.server, "p", V5) as publisher:
            publisher.publish("kept/t", b"meanwhile", 1, 3)
            assert publisher.read(PUBACK).id == 3
        home.restart(kills)
        again, is_present = come(home.server, name)
        assert is_present
        packet = again.read(PUBLISH)
        assert packet.rest.endswith(b"meanwhile")
        acknowledge(again, packet)
        again.close()


PUBLISHER_BYTES_MAX = 256
HEARD = [{"name": "heard", "match": ["heard/#"], "history": {"messages": 100}}]


def publisher(name: str) -> str:
    """A record's publisher field, except for the hash that replaces longer names."""
    return name if len(name) <= PUBLISHER_BYTES_MAX else name[: PUBLISHER_BYTES_MAX - 17] + "~"


@pytest.mark.parametrize("with_data", [False, True])
def test_records_name_their_publisher_in_at_most_256_bytes(start: Start, data: Path, with_data: bool) -> None:
    config = {"data": str(data)} if with_data else {}
    logged = {"durability": "durable", "history": {"bytes": "64MiB"}}
    classes = [HEARD[0] | logged] if with_data else HEARD
    server = begin(start, 2, config=config, classes=classes)
    lengths = (PUBLISHER_BYTES_MAX - 1, PUBLISHER_BYTES_MAX, PUBLISHER_BYTES_MAX + 1, BYTES_MAX)
    for length in lengths:
        with client(server, "x" * length, V5) as one:
            one.publish("heard/t", b"m", qos=1, number=7)
            assert one.read(PUBACK).id == 7
        with server.connect() as redis:
            named = redis.call("CLIENT", "SETNAME", "x" * length)
            assert (named.kind == "+") == (length <= PUBLISHER_BYTES_MAX)
    with server.connect() as redis:
        said = [row[3].decode() for row in redis.ask("HUBSUB", "HISTORY", "heard/t")]
    assert [len(name) for name in said] == [min(length, PUBLISHER_BYTES_MAX) for length in lengths]
    for name, length in zip(said, lengths, strict=True):
        assert name.startswith(publisher("x" * length))
    assert len(set(said)) == len(lengths)


@pytest.mark.parametrize("length", [PUBLISHER_BYTES_MAX - 1, PUBLISHER_BYTES_MAX, BYTES_MAX - 1])
def test_no_local_tells_clients_apart_whose_long_ids_begin_alike(start: Start, length: int) -> None:
    server = served(start, classes=HEARD)
    alike = "x" * length
    for room in ("heard/kept", "plain/kept"):
        with client(server, alike + "a", V5) as one, client(server, alike + "b", V5) as other:
            for each in (one, other):
                each.subscribe((room, NO_LOCAL))
            for each, hears, payload in ((one, other, b"of one"), (other, one, b"of the other")):
                assert keep(each, room, payload) < 0x80
                assert hears.read(PUBLISH).body.endswith(payload)
            # Nothing is retained for it, either: the record belongs to the other client.
            assert kept(other, (room, NO_LOCAL)) == []
            assert [row.payload for row in kept(one, (room, NO_LOCAL))] == [b"of the other"]
