"""MQTT clients for tests: hand-made packets over a socket (`Wire`), and Eclipse Paho's client (`Paho`).

Every wait is bounded by `TIMEOUT_S`, which only ends a test that hangs.
"""

from __future__ import annotations

import queue
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from clients.raw import TIMEOUT_S

V31, V311, V5 = 3, 4, 5
VERSIONS = [V31, V311, V5]

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = range(8, 15)


def text(value: str | bytes) -> bytes:
    """A length-prefixed string, as packets contain it."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def varying(value: int) -> bytes:
    """A variable byte integer: seven bits a byte, the lowest first."""
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | (128 if value else 0))
        if not value:
            return bytes(out)


def packet(first: int, body: bytes) -> bytes:
    """A packet with this first byte."""
    return bytes([first]) + varying(len(body)) + body


@dataclass(frozen=True)
class Packet:
    """A packet from the server."""

    kind: int
    flags: int
    body: bytes

    @property
    def qos(self) -> int:
        """QoS of a PUBLISH."""
        return self.flags >> 1 & 3

    @property
    def topic(self) -> str:
        """Topic of a PUBLISH."""
        return self.body[2 : 2 + int.from_bytes(self.body[:2], "big")].decode()

    @property
    def id(self) -> int:
        """Packet id of a PUBLISH of QoS 1 or 2, or of an acknowledgement."""
        at = 2 + int.from_bytes(self.body[:2], "big") if self.kind == PUBLISH else 0
        return int.from_bytes(self.body[at : at + 2], "big")

    @property
    def rest(self) -> bytes:
        """The bytes after topic and id of a PUBLISH, or after the id of an acknowledgement: in 5.0 properties
        first."""
        at = 2 + int.from_bytes(self.body[:2], "big") if self.kind == PUBLISH else 0
        return self.body[at + 2 * (self.kind != PUBLISH or self.qos > 0) :]


class Wire:
    """A connection whose packets are made and parsed by hand."""

    def __init__(self, address: tuple[str, int], receive_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(address)
        self._data = bytearray()
        self.version = V311

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection without DISCONNECT."""
        self._socket.close()

    def send(self, *parts: bytes) -> None:
        self._socket.sendall(b"".join(parts))

    def connect(
        self,
        client_id: str,
        version: int = V311,
        properties: bytes = b"",
        keep_alive_s: int = 0,
        flags: int = 2,
        rest: bytes = b"",
    ) -> Packet:
        """Sends CONNECT. Returns the response."""
        self.version = version
        own = varying(len(properties)) + properties if version == V5 else b""
        head = text("MQIsdp" if version == V31 else "MQTT") + bytes([version, flags])
        self.send(packet(0x10, head + keep_alive_s.to_bytes(2, "big") + own + text(client_id) + rest))
        return self.read()

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        number: int = 0,
        flags: int = 0,
        properties: bytes = b"",
    ) -> None:
        """Sends PUBLISH and does not wait."""
        own = varying(len(properties)) + properties if self.version == V5 else b""
        named = number.to_bytes(2, "big") if qos else b""
        self.send(packet(0x30 | qos << 1 | flags, text(topic) + named + own + payload))

    def ask(self, *filters: tuple[str, int], number: int = 1, properties: bytes = b"") -> None:
        """Sends SUBSCRIBE and does not wait."""
        own = varying(len(properties)) + properties if self.version == V5 else b""
        wanted = b"".join(text(name) + bytes([options]) for name, options in filters)
        self.send(packet(0x82, number.to_bytes(2, "big") + own + wanted))

    def subscribe(self, *filters: tuple[str, int], number: int = 1, properties: bytes = b"") -> list[int]:
        """Sends SUBSCRIBE. Returns the granted QoS or the reason code of each filter."""
        self.ask(*filters, number=number, properties=properties)
        answer = self.read(SUBACK)
        assert answer.id == number
        # Its properties are few: their length is one byte.
        return list(answer.rest[1 + answer.rest[0] :] if self.version == V5 else answer.rest)

    def answer(self, kind: int, number: int, reason: bytes = b"") -> None:
        """Sends PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self.send(packet(kind << 4 | (2 if kind == PUBREL else 0), number.to_bytes(2, "big") + reason))

    def ping(self) -> None:
        """Sends PINGREQ. The server replies after all messages that it sent before."""
        self.send(b"\xc0\x00")

    def read(self, kind: int | None = None) -> Packet:
        """The next packet, which must be of that kind."""
        while (one := self._take()) is None:
            assert self._receive(), "the server closed"
        assert kind in (None, one.kind), one
        return one

    def read_all(self) -> list[Packet]:
        """All packets until the server closes."""
        while self._receive():
            pass
        return list(iter(self._take, None))

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._data += data
        return bool(data)

    def _take(self) -> Packet | None:
        length = 0
        for at, byte in enumerate(self._data[1:5]):
            length |= (byte & 127) << 7 * at
            if byte < 128:
                end = at + 2 + length
                if len(self._data) < end:
                    return None
                one = Packet(self._data[0] >> 4, self._data[0] & 15, bytes(self._data[at + 2 : end]))
                del self._data[:end]
                return one
        return None


class Message(NamedTuple):
    """A message that a Paho client received."""

    topic: str
    payload: bytes
    qos: int


class Paho:
    """Eclipse Paho's client, with methods that wait for its callbacks."""

    def __init__(
        self,
        address: tuple[str, int],
        version: int,
        client_id: str = "",
        will: tuple[str, bytes] | None = None,
        properties: Properties | None = None,
        transport: Literal["tcp", "websockets"] = "tcp",
        clean: bool = True,
    ) -> None:
        kind = {} if version == V5 else {"clean_session": clean}
        self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion(version),
            transport=transport,
            **kind,
        )
        # Paho sends messages above this limit later, after subsequent messages of QoS 0.
        self.client.max_inflight_messages_set(1000)
        if transport == "websockets":
            self.client.ws_set_options("/mqtt")
        self._came: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self.client.on_connect = lambda *a: self._came.put(("connected", (a[2], a[3], a[4])))
        self.client.on_subscribe = lambda *a: self._came.put(("subscribed", [code.value for code in a[3]]))
        self.client.on_unsubscribe = lambda *a: self._came.put(
            ("unsubscribed", [code.value for code in a[3]])
        )
        self.client.on_disconnect = lambda *a: self._came.put(("disconnected", a[3]))
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        if will is not None:
            self.client.will_set(*will, qos=1)
        begins: dict[str, Any] = {"clean_start": clean} if version == V5 else {}
        self.client.connect(*address, keepalive=60, properties=properties, **begins)
        self.client.loop_start()
        flags, reason, self.granted = self._wait("connected")
        self.session_present = flags.session_present
        assert not reason.is_failure, reason

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Sends DISCONNECT and closes."""
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """Closes the connection without DISCONNECT."""
        self.client.loop_stop()
        sock = self.client.socket()
        assert sock is not None
        sock.close()

    def _wait(self, kind: str) -> Any:
        came, what = self._came.get(timeout=TIMEOUT_S)
        assert came == kind, (came, what)
        return what

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """Subscribes. Returns the granted QoS or the reason code of each filter."""
        wanted: Sequence[tuple[str, Any]] = filters
        if self.client.protocol == MQTTProtocolVersion.MQTTv5:
            wanted = [(name, SubscribeOptions(qos)) for name, qos in filters]
        self.client.subscribe(list(wanted))
        return list(self._wait("subscribed"))

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribes. Returns the reason codes; none before 5.0."""
        self.client.unsubscribe(list(filters))
        return list(self._wait("unsubscribed"))

    def publish(self, topic: str, payload: bytes, qos: int = 0, **more: Any) -> None:
        """Publishes, and waits for the acknowledgement that the QoS requires."""
        self.client.publish(topic, payload, qos, **more).wait_for_publish(TIMEOUT_S)

    def disconnected(self) -> Any:
        """Waits until the server has ended the connection. Returns the reason."""
        return self._wait("disconnected")

    def message(self) -> MQTTMessage:
        """The next message, as Paho's object."""
        return self.messages.get(timeout=TIMEOUT_S)

    def next(self) -> Message:
        """The next message, which must be live and no duplicate."""
        message = self.message()
        assert not message.retain and not message.dup
        return Message(message.topic, message.payload, message.qos)


def properties(kind: int, values: Mapping[str, Any]) -> Properties:
    """Paho's properties of a packet."""
    own = Properties(kind)
    for name, value in values.items():
        setattr(own, name, value)
    return own
