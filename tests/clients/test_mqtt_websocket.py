"""MQTT over WebSocket: Paho's client, and hand-made frames."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator

import pytest

from clients.mqtt import CONNACK, V5, VERSIONS, Message, Paho, Wire, packet, text
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node

BINARY, TEXT, CLOSE, PING, PONG = 2, 1, 8, 9, 10


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with listeners for WebSockets and MQTT."""
    needs("hubsub-core")
    config = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0", "ws_origins": ["https://good.example"]}
    with hubsub_node(request.param, config) as server:
        yield server


def ws(server: Server) -> tuple[str, int]:
    """The address of the WebSocket listener."""
    assert server.node is not None
    return server.node.ws


def mqtt(server: Server) -> tuple[str, int]:
    """The address of the MQTT listener."""
    assert server.node is not None
    return server.node.mqtt


@pytest.mark.parametrize("version", VERSIONS)
def test_every_qos_both_ways(server: Server, version: int) -> None:
    with (
        Paho(ws(server), version, "page", transport="websockets") as page,
        Paho(mqtt(server), version, "device") as device,
    ):
        assert page.subscribe(("t", 2)) == [2]
        assert device.subscribe(("t", 2)) == [2]
        for qos in (0, 1, 2):
            for who in (page, device):
                payload = bytes(range(256)) * 273
                who.publish("t", payload, qos)
                assert page.next() == device.next() == Message("t", payload, qos)


class Frames:
    """A WebSocket whose frames are made and parsed by hand."""

    def __init__(
        self, address: tuple[str, int], *headers: str, path: str = "/mqtt", protocol: str = "mqtt"
    ) -> None:
        self.socket = socket.create_connection(address, timeout=TIMEOUT_S)
        lines = [
            f"GET {path} HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
            f"Sec-WebSocket-Protocol: {protocol}",
            *headers,
        ]
        self.send("\r\n".join([*lines, "", ""]).encode())
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(1 << 16)
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        self.status = head.split(b"\r\n")[0].split(b" ")[1].decode()
        self.head = head.decode()

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def read(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        while True:
            length = self.data[1] if len(self.data) > 1 else 0
            at = {126: 4, 127: 10}.get(length, 2)
            if len(self.data) >= at:
                size = int.from_bytes(self.data[2:at], "big") if at > 2 else length
                if len(self.data) >= at + size >= 2:
                    first, payload = self.data[0], self.data[at : at + size]
                    self.data = self.data[at + size :]
                    assert first & 0x80
                    return first & 15, payload
            more = self.socket.recv(1 << 16)
            assert more, "the server closed"
            self.data += more

    def stream(self, count: int) -> bytes:
        """The next `count` bytes of binary messages' payloads."""
        carried = b""
        while len(carried) < count:
            opcode, payload = self.read()
            assert opcode == BINARY
            carried += payload
        assert len(carried) == count
        return carried


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """A client's masked frame."""
    mask = b"\x37\xfa\x21\x3d"
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return bytes([opcode | 0x80 * fin]) + length + mask + masked


CONNECT = packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text("frames"))
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def test_packets_may_be_cut_anywhere_and_share_messages(server: Server) -> None:
    with Frames(ws(server)) as one:
        assert one.status == "101" and "Sec-WebSocket-Protocol: mqtt" in one.head
        one.send(
            frame(BINARY, CONNECT[:3], fin=False),
            frame(PING, b"are you there"),
            frame(0, CONNECT[3:] + PINGREQ),
        )
        got = [one.read() for _ in "12"]
        assert sorted(got, reverse=True)[0] == (PONG, b"are you there")
        carried = b"".join(payload for opcode, payload in got if opcode == BINARY)
        assert carried + one.stream(6 - len(carried)) == b"\x20\x02\x00\x00" + PINGRESP
        for byte in frame(BINARY, PINGREQ):
            one.send(bytes([byte]))
        assert one.stream(2) == PINGRESP
        many = 30_000
        one.send(frame(BINARY, PINGREQ) * many)
        assert one.stream(2 * many) == PINGRESP * many
        one.send(frame(CLOSE, b"\x03\xe8"))
        assert one.read() == (CLOSE, b"\x03\xe8")
        assert one.socket.recv(10) == b""


def test_a_page_that_reads_slowly_gets_all_in_order(server: Server) -> None:
    with Frames(ws(server)) as one, server.connect() as redis:
        one.send(frame(BINARY, CONNECT), frame(BINARY, packet(0x82, b"\x00\x01" + text("slow") + b"\x00")))
        assert one.stream(9) == b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00"
        count = 20_000
        for i in range(count):
            redis.command("PUBLISH", "slow", b"%05d" % i + b"." * 500)
        assert {frame.plain() for frame in redis.read_many(count)} == {1}
        due = b"".join(packet(0x30, text("slow") + b"%05d" % i + b"." * 500) for i in range(count))
        assert one.stream(len(due)) == due


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"path": "/mqtt?x=1"}, "101"),
        ({"path": "/other"}, "404"),
        ({"protocol": "chat"}, "400"),
        ({"protocol": "mqttv3.1"}, "101"),
    ],
)
def test_only_mqtt_is_spoken_there(server: Server, more: dict[str, str], status: str) -> None:
    with Frames(ws(server), **more) as one:
        assert one.status == status


def test_pages_of_other_origins_are_refused(server: Server) -> None:
    host, port = ws(server)
    for origin, status in (
        ("https://good.example", "101"),
        ("https://evil.example", "403"),
        (f"http://{host}:{port}", "101"),
        (f"http://{host}:{port + 1}", "403"),
        (f"http://evil.example:{port}", "403"),
    ):
        with Frames(ws(server), f"Origin: {origin}") as one:
            assert one.status == status


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(TEXT, b"hello"), 1003),
        (bytes([0x82, 0x02]) + PINGREQ, 1002),
        (frame(0, PINGREQ), 1002),
        (frame(PING, b"", fin=False), 1002),
    ],
    ids=["a text", "without a mask", "of no message", "a ping in parts"],
)
def test_what_is_wrong_closes_that_one_client(server: Server, bad: bytes, code: int) -> None:
    with Frames(ws(server)) as one, Wire(mqtt(server)) as good:
        assert good.connect("good").kind == CONNACK
        one.send(frame(BINARY, CONNECT))
        one.stream(4)
        one.send(bad)
        assert one.read() == (CLOSE, code.to_bytes(2, "big"))
        assert one.socket.recv(10) == b""
        good.ping()
        good.read()


def test_the_server_says_goodbye_in_both_protocols(server: Server) -> None:
    connect = packet(0x10, text("MQTT") + b"\x05\x02\x00\x00\x00" + text("page"))
    with Frames(ws(server)) as one, Wire(mqtt(server)) as other:
        one.send(frame(BINARY, connect))
        assert one.read()[0] == BINARY
        assert other.connect("page", V5).kind == CONNACK
        opcode, payload = one.read()
        assert opcode == BINARY and payload[:1] == b"\xe0" and payload[2] == 0x8E
        assert one.read() == (CLOSE, b"\x03\xe8")
