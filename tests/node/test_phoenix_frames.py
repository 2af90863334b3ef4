"""Invalid requests and frames at the WebSocket listener, byte by byte: each has its reply and its limit."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from clients.phoenix import OK, Page
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, until

Start = Callable[..., Server]

FIN, CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x80, 0, 1, 2, 8, 9, 10

HEARTBEAT = b'[null,"1","phoenix","heartbeat",{}]'
ANSWER = '[null,"1","phoenix","phx_reply",{"status":"ok","response":{}}]'

HEAD = {
    "Host": "a",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture(scope="module")
def server(needs: Callable[..., None]) -> Iterator[Server]:
    """A node with a WebSocket listener."""
    needs("hubsub-core")
    with hubsub_node(2, {"ws": "127.0.0.1:0", "ws_origins": ["https://good.example"]}) as server:
        yield server


class Raw:
    """A socket to the listener that sends and receives raw frames."""

    def __init__(self, server: Server) -> None:
        assert server.node is not None
        self.stack = ExitStack()
        self.socket = self.stack.enter_context(socket.create_connection(server.node.ws, TIMEOUT_S))
        self.stream = self.stack.enter_context(self.socket.makefile("rb"))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def ask(self, line: str = "GET /socket/websocket?vsn=2.0.0 HTTP/1.1", **fields: str | None) -> int:
        """Sends a request with the usual fields and these changes; returns the status of the response."""
        own = {name.replace("_", "-"): value for name, value in fields.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**HEAD, **own}.items() if value is not None)
        self.socket.sendall(f"{line}\r\n{head}\r\n".encode())
        return self.status()

    def status(self) -> int:
        """The status of the next response; its head is read."""
        status = int(self.stream.readline().split()[1])
        self.head = dict(
            line.decode().lower().rstrip("\r\n").split(": ", 1)
            for line in iter(self.stream.readline, b"\r\n")
        )
        return status

    def send(
        self, first: int, payload: bytes = b"", *, masked: bool = True, length: int | None = None
    ) -> None:
        """Sends a frame with a first byte, a payload and optionally a different declared length."""
        length = len(payload) if length is None else length
        mask = 0x80 if masked else 0
        if length < 126:
            head = bytes([first, mask | length])
        elif length < 0x1_0000:
            head = bytes([first, mask | 126]) + struct.pack(">H", length)
        else:
            head = bytes([first, mask | 127]) + struct.pack(">Q", length)
        self.socket.sendall(head + (b"\0\0\0\0" if masked else b"") + payload)

    def frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        first, length = self.stream.read(2)
        if length == 126:
            (length,) = struct.unpack(">H", self.stream.read(2))
        return first & 0x0F, self.stream.read(length)

    def closed(self) -> int:
        """The code of the Close frame that must come next; asserts that the connection then ends."""
        opcode, payload = self.frame()
        assert opcode == CLOSE, (opcode, payload)
        assert self.stream.read() == b""
        code: int = struct.unpack(">H", payload[:2])[0]
        return code


def test_a_frame_that_breaks_a_rule_closes_with_its_code(server: Server) -> None:
    before = server.metric("protocol_errors_total")
    broken: list[tuple[str, Callable[[Raw], None], int]] = [
        ("text that is not UTF-8", lambda raw: raw.send(FIN | TEXT, b'["\xff"]'), 1007),
        ("half a character at the end", lambda raw: raw.send(FIN | TEXT, b'"\xc3'), 1007),
        ("no mask", lambda raw: raw.send(FIN | TEXT, HEARTBEAT, masked=False), 1002),
        ("reserved bits", lambda raw: raw.send(FIN | 0x40 | TEXT, HEARTBEAT), 1002),
        ("an unknown opcode", lambda raw: raw.send(FIN | 3, HEARTBEAT), 1002),
        ("a continuation of nothing", lambda raw: raw.send(FIN | CONTINUATION, b"x"), 1002),
        ("a control frame in fragments", lambda raw: raw.send(PING, b"x"), 1002),
        ("a control frame that is long", lambda raw: raw.send(FIN | PING, b"x" * 126), 1002),
        ("a Close of one byte", lambda raw: raw.send(FIN | CLOSE, b"x"), 1002),
        # The frame is refused by its length: the node awaits and stores none of it.
        ("a frame above the limit", lambda raw: raw.send(FIN | TEXT, b"", length=2 << 20), 1009),
        ("a frame of exabytes", lambda raw: raw.send(FIN | BINARY, b"", length=1 << 62), 1009),
        ("a length of 64 bits", lambda raw: raw.send(FIN | TEXT, b"", length=1 << 63), 1002),
    ]
    for what, breaks, code in broken:
        with Raw(server) as raw:
            assert raw.ask() == 101
            breaks(raw)
            assert raw.closed() == code, what
    assert server.metric("protocol_errors_total") == before + len(broken)


def test_a_message_inside_another_closes(server: Server) -> None:
    with Raw(server) as raw:
        assert raw.ask() == 101
        raw.send(TEXT, b"[null,")
        raw.send(FIN | TEXT, HEARTBEAT)
        assert raw.closed() == 1002


def test_control_frames_between_fragments_are_answered_at_once_and_change_nothing(server: Server) -> None:
    with Raw(server) as raw:
        assert raw.ask() == 101
        raw.send(TEXT, HEARTBEAT[:10])
        raw.send(FIN | PING, b"there?")
        assert raw.frame() == (PONG, b"there?")
        raw.send(CONTINUATION, HEARTBEAT[10:20])
        raw.send(FIN | PONG, b"unasked")
        raw.send(FIN | CONTINUATION, HEARTBEAT[20:])
        assert raw.frame() == (TEXT, ANSWER.encode())
        raw.send(TEXT, HEARTBEAT[:10])
        raw.send(FIN | CLOSE, struct.pack(">H", 4001))
        assert raw.closed() == 4001


def test_a_frame_byte_by_byte_is_a_frame(server: Server) -> None:
    with Raw(server) as raw:
        assert raw.ask() == 101
        frame = bytes([FIN | TEXT, 0x80 | len(HEARTBEAT)]) + b"\0\0\0\0" + HEARTBEAT
        for byte in frame:
            raw.socket.sendall(bytes([byte]))
        assert raw.frame() == (TEXT, ANSWER.encode())


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"Sec_WebSocket_Version": "12"}, 426),
        ({"Sec_WebSocket_Version": None}, 426),
        ({"Upgrade": None}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Connection": "close"}, 426),
        ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Host": None}, 400),
        ({"Content_Length": "3"}, 400),
        ({"line": "GET /socket/websocket HTTP/1.0"}, 400),
        ({"line": "POST /socket/websocket HTTP/1.1"}, 405),
        ({"line": "GET /elsewhere HTTP/1.1"}, 404),
        ({"line": "GET /socket/websocket?vsn=3.0.0 HTTP/1.1"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://good.example.evil.example"}, 403),
        ({"Origin": "http://good.example"}, 403),
        ({"Origin": "https://good.example"}, 101),
        ({"X": "x" * 17_000}, 431),
    ],
    ids=lambda how: str(how)[:60],
)
def test_a_request_that_is_none_is_told_why(server: Server, how: dict[str, Any], status: int) -> None:
    with Raw(server) as raw:
        assert raw.ask(**how) == status
        if status == 426:
            assert raw.head["sec-websocket-version"] == "13"


def test_a_slow_handshake_has_its_time_and_no_more(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"handshake_ms": 1_000})
    with Raw(server) as whole, Raw(server) as nothing, Raw(server) as half:
        assert whole.ask() == 101
        half.socket.sendall(b"GET /socket/websocket HTTP/1.1\r\nHost: a\r\n")
        assert nothing.stream.read() == half.stream.read() == b""
        until(lambda: server.metric("handshake_timeouts_total") == 2)
        whole.send(FIN | TEXT, HEARTBEAT)
        assert whole.frame() == (TEXT, ANSWER.encode()), "who has shaken hands stays"


@pytest.mark.parametrize("policy", ["disconnect", "conflate", "catch-up"])
def test_a_slow_page_is_dealt_with_as_its_class_says(start: Start, policy: str) -> None:
    kept = {"history": {"messages": 100_000, "bytes": "1GiB"}} if policy == "catch-up" else {}
    slow = {"name": "slow", "match": ["slow"], "on_slow": policy, **kept}
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"output_bytes_max": 100_000}, classes=[slow])
    assert server.node is not None
    met = {"disconnect": "slow_closed_total", "conflate": "dropped_total", "catch-up": "catch_ups_total"}
    with (
        Page(server.node.ws, positions="true") as one,
        Page(server.node.ws) as other,
        server.connect() as redis,
    ):
        one.join("slow")
        sent = 0
        while server.metric(met[policy]) == 0:
            redis.ask("PUBLISH", "slow", json.dumps({"n": sent, "x": "x" * 20_000}))
            sent += 1
        assert other.ask("phoenix", "heartbeat") == OK, "nobody else waits"
        redis.ask("PUBLISH", "slow", '{"last":true}')
        if policy == "disconnect":
            until(lambda: server.metric("phoenix_connections") == 1)
            return
        seen: list[int] = []
        missed = 0
        while True:
            _, _, _, event, got = one.read()
            if event == "phx_gap":
                missed += 1
            elif "last" in got:
                break
            else:
                seen.append(got["n"])
        assert seen == sorted(set(seen))
        if policy == "catch-up":
            assert (seen, missed) == (list(range(sent)), 0), "it misses nothing that the history has"
        else:
            assert missed > 0 and len(seen) < sent, "the latest stays, and what gave way is told"
