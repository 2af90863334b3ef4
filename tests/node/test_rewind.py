"""MQTT filters that start in the past, and messages that carry their position."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients.mqtt import PINGRESP, PUBACK, PUBLISH, UNSUBACK, V5, V311, Wire, packet, text
from clients.servers import Server

from node.conftest import Start
from node.test_mqtt import begin, client

PAST = {"name": "past", "match": ["past/#"], "history": {"messages": 100}}
KEPT = {"name": "kept", "match": ["kept/#"], "durability": "durable", "history": {"bytes": "64MiB"}}
WANTS = b"\x26" + text("hubsub-positions") + text("1")


@pytest.fixture
def server(start: Start, tmp_path: Path) -> Server:
    """A node with one class with history in memory and one with a log."""
    return begin(start, 2, classes=[PAST, KEPT], config={"data": str(tmp_path / "data")})


def publish(server: Server, topic: str, *payloads: str) -> None:
    """Publishes the payloads in order."""
    with server.connect() as redis:
        for payload in payloads:
            redis.ask("PUBLISH", topic, payload)


def next_of(one: Wire, count: int) -> list[bytes]:
    """Payloads of the next messages."""
    return [one.read(PUBLISH).rest for _ in range(count)]


@pytest.mark.parametrize("topic", ["past/a", "kept/a"])
@pytest.mark.parametrize(
    ("start_of", "due"),
    [("2", ["2", "3"]), ("earliest", ["1", "2", "3"]), ("1h", ["1", "2", "3"]), ("0", [])],
)
def test_a_filter_begins_in_the_past_and_goes_on_live(
    server: Server, topic: str, start_of: str, due: list[str]
) -> None:
    publish(server, topic, "1", "2", "3")
    with client(server, "c") as one:
        assert one.subscribe((f"$rewind/{start_of}/{topic}", 0)) == [0]
        publish(server, topic, "live")
        assert next_of(one, len(due) + 1) == [payload.encode() for payload in (*due, "live")]
        # It is a subscription to the plain topic: an unsubscribe with either name ends it.
        one.send(packet(0xA2, b"\x00\x05" + text(f"$rewind/{start_of}/{topic}")))
        assert one.read(UNSUBACK).id == 5
        publish(server, topic, "later")
        one.ping()
        one.read(PINGRESP)


def test_a_wildcard_begins_in_the_past_of_classes_with_a_log(server: Server) -> None:
    for i in range(5):
        publish(server, f"kept/{i}", "1", "2")
    with client(server, "c", version=V311) as one:
        assert one.subscribe(("$rewind/earliest/kept/+", 1)) == [1]
        came: dict[str, list[bytes]] = {}
        for _ in range(10):
            message = one.read(PUBLISH)
            assert message.qos == 1
            one.answer(PUBACK, message.id)
            came.setdefault(message.topic, []).append(message.rest)
        assert came == {f"kept/{i}": [b"1", b"2"] for i in range(5)}
        publish(server, "kept/0", "live")
        assert one.read(PUBLISH).rest == b"live"


@pytest.mark.parametrize(
    "name", ["$rewind/5/kept/+", "$rewind/x/a", "$rewind/5/$share/g/a", "$rewind/5/$SYS/a"]
)
def test_a_beginning_that_there_is_not_is_refused(server: Server, name: str) -> None:
    with client(server, "a") as one:
        assert one.subscribe((name, 0), ("t", 0)) == [0x80, 0]
    with client(server, "b", version=V5) as one:
        own = text(name) + b"\x00"
        one.send(packet(0x82, b"\x00\x01\x00" + own))
        # The code follows the reason string, if there is one.
        assert one.read().rest[-1] == 0x8F


def test_messages_say_where_they_stand_when_they_are_asked_to(server: Server) -> None:
    def positions(one: Wire, count: int) -> list[bytes]:
        told = []
        for _ in range(count):
            message = one.read(PUBLISH)
            name = message.rest.find(text("hubsub-position"))
            assert name > 0
            told.append(message.rest[name + 17 :].partition(b"-")[2][:1])
        return told

    publish(server, "kept/a", "x", "y")
    with client(server, "c", version=V5) as one, client(server, "d", version=V5) as other:
        assert one.subscribe(("$rewind/earliest/kept/a", 0), properties=WANTS) == [0]
        assert other.subscribe(("kept/a", 0)) == [0]
        publish(server, "kept/a", "z")
        assert positions(one, 3) == [b"1", b"2", b"3"]
        assert b"hubsub-position" not in other.read(PUBLISH).rest
