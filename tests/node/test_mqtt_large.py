"""Messages of MQTT too long to be waited for as a whole: they arrive as they were, and are bounded while they come."""

from __future__ import annotations

import random

from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V311, packet, text
from clients.servers import Server, until

from node.conftest import Start
from node.logged import DURABLE
from node.test_mqtt import begin, client, ended, reason

MB = 1_000_000
LIMITS = {"mqtt_packet_bytes_max": 64 * MB, "mqtt_large_bytes_max": 8 * MB}
PAYLOAD = random.Random(6).randbytes(20 * MB)


def announced(topic: str, payload_bytes: int, number: int) -> bytes:
    """The head of a PUBLISH of QoS 1, before 5.0."""
    head = text(topic) + number.to_bytes(2, "big")
    whole = packet(0x32, head + bytes(payload_bytes))
    return whole[: len(whole) - payload_bytes]


def peak_bytes(server: Server) -> int:
    """The most memory that the node ever had."""
    with open(f"/proc/{server.pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_a_long_message_is_logged_and_arrives_as_it_was(start: Start, data: object) -> None:
    server = begin(start, config={"data": str(data)}, classes=[DURABLE], limits=LIMITS)
    with client(server, "s") as subscriber, client(server, "p", V5) as publisher:
        assert subscriber.subscribe(("chat:long", 0)) == [0]
        before = peak_bytes(server)
        publisher.publish("chat:long", PAYLOAD, qos=1, number=7)
        assert publisher.read(PUBACK).id == 7
        message = subscriber.read(PUBLISH)
        assert (message.topic, message.rest) == ("chat:long", PAYLOAD)
        # The record; the log's frame of it, before and in the write; what the subscriber has not taken.
        assert peak_bytes(server) - before < 5 * len(PAYLOAD)
    with server.connect() as redis:
        rows = redis.ask("HUBSUB", "HISTORY", "chat:long", "COUNT", 1)
        assert isinstance(rows, list)
        assert rows[0][4] == PAYLOAD
    assert until(lambda: server.metric("mqtt_large_bytes") == 0)


def test_a_long_message_has_all_that_a_short_one_has(start: Start) -> None:
    server = begin(start, limits=LIMITS)
    payload = PAYLOAD[: 3 * MB]
    with client(server, "s", V5) as subscriber, client(server, "p", V5) as publisher:
        subscriber.subscribe(("long", 1))
        # By an alias, with a property; as QoS 2, twice.
        publisher.publish("long", b"short", properties=b"\x23\x00\x01")
        assert subscriber.read(PUBLISH).rest[1:] == b"short"
        named = b"\x23\x00\x01\x03" + text("kind")
        for flags in (0, 8):
            publisher.publish("", payload, qos=2, number=3, flags=flags, properties=named)
            assert publisher.read(PUBREC).id == 3
        publisher.answer(PUBREL, 3)
        assert publisher.read(PUBCOMP).id == 3
        message = subscriber.read(PUBLISH)
        subscriber.answer(PUBACK, message.id)
        own = b"\x03" + text("kind")
        assert (message.topic, message.rest) == ("long", bytes([len(own)]) + own + payload)
        publisher.publish("long", b"last")
        assert subscriber.read(PUBLISH).rest[1:] == b"last", "it was published once"


def test_long_messages_under_way_are_bounded(start: Start) -> None:
    server = begin(start, limits=LIMITS)
    payload = PAYLOAD[: 6 * MB]
    with client(server, "first") as first:
        head = announced("long", len(payload), 1)
        first.send(head, payload[: 3 * MB])
        until(lambda: server.metric("mqtt_large_bytes") == len("long") + len(payload))
        with client(server, "new", V5) as new:
            new.publish("other", payload, qos=1, number=1)
            assert reason(new) == 0x97
        with client(server, "old", V311) as old:
            old.send(announced("other", len(payload), 1))
            assert ended(old) is None
        assert server.metric("mqtt_large_refused_total") == 2
        # Short ones are none of it, and the first comes whole.
        with client(server, "short") as short:
            short.publish("short", b"", qos=1, number=1)
            short.read(PUBACK)
        first.send(payload[3 * MB :])
        assert first.read(PUBACK).id == 1
        until(lambda: server.metric("mqtt_large_bytes") == 0)
        # The bytes of a client that disconnects midway are released. One message alone may exceed the limit of all.
        first.send(head, payload[: 3 * MB])
        until(lambda: server.metric("mqtt_large_bytes") > 0)
    until(lambda: server.metric("mqtt_large_bytes") == 0)
    with client(server, "alone") as alone:
        alone.publish("long", PAYLOAD, qos=1, number=2)
        assert alone.read(PUBACK).id == 2
