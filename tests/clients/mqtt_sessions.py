"""MQTT clients with persistent sessions, byte by byte, on any node."""

from __future__ import annotations

from clients.mqtt import CONNACK, PUBACK, PUBCOMP, PUBREC, PUBREL, V5, Packet, Wire, text, varying


def expiry(seconds: int) -> bytes:
    """The session expiry property of 5.0."""
    return b"\x11" + seconds.to_bytes(4, "big")


def resume(
    one: Wire,
    client_id: str,
    version: int = V5,
    clean: bool = False,
    expiry_s: int = 3600,
    will: tuple[str, int] | None = None,
    will_qos: int = 0,
    receive_max: int = 0,
) -> bool:
    """Connects as a client with a persistent session. Returns whether the session existed.

    `will`: its topic and, in 5.0, its delay in s.
    """
    properties = expiry(expiry_s) if version == V5 else b""
    if receive_max:
        properties += b"\x21" + receive_max.to_bytes(2, "big")
    rest, flags = b"", 2 * clean
    if will is not None:
        topic, delay_s = will
        own = b"\x18" + delay_s.to_bytes(4, "big") if version == V5 else b""
        rest = (varying(len(own)) + own if version == V5 else b"") + text(topic) + text("gone")
        flags |= 4 | will_qos << 3
    answer = one.connect(client_id, version, properties, flags=flags, rest=rest)
    assert (answer.kind, answer.body[1]) == (CONNACK, 0), answer
    return answer.body[0] == 1


def may_resume(one: Wire, client_id: str, refusal: int = 0x88) -> bool | None:
    """Connects with 5.0. Returns whether the session existed; None if the server refused with the code
    `refusal`."""
    answer = one.connect(client_id, V5, expiry(3600), flags=0)
    assert answer.kind == CONNACK and answer.body[1] in (0, refusal), answer
    return None if answer.body[1] else answer.body[0] == 1


def say(one: Wire, topic: str, payload: bytes, qos: int, number: int = 1) -> None:
    """Publishes, and waits until the QoS handshake is complete."""
    one.publish(topic, payload, qos, number)
    if qos == 1:
        one.read(PUBACK)
    elif qos == 2:
        one.read(PUBREC)
        one.answer(PUBREL, number)
        one.read(PUBCOMP)


def payload(one: Wire, message: Packet) -> bytes:
    """The payload of a PUBLISH whose properties have at most 127 bytes."""
    return message.rest[1 + message.rest[0] :] if one.version == V5 else message.rest


def acknowledge(one: Wire, message: Packet) -> None:
    """Completes the QoS handshake of a received message."""
    if message.qos == 1:
        one.answer(PUBACK, message.id)
    elif message.qos == 2:
        one.answer(PUBREC, message.id)
        one.read(PUBREL)
        one.answer(PUBCOMP, message.id)
