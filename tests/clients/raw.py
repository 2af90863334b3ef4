"""A raw Redis connection: bytes out, frames in, nothing interpreted.

A `Frame` of RESP2 or RESP3 keeps every byte that it was made from, so two frames are equal exactly if their
bytes are. Every wait is bounded by `TIMEOUT_S`, which only ends a test that hangs.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

TIMEOUT_S = float(os.environ.get("HUBSUB_TEST_TIMEOUT_S", "30"))
"""Far above the time that any step needs; reaching it is a failure, never a pass."""

_LINES = b"+-:_#,("
_BLOBS = b"$!="
_AGGREGATES = b"*~>%|"


@dataclass(frozen=True, slots=True)
class Frame:
    """One reply. `kind` is its first byte; `value` is the line, the blob, the
    items, or None for a null blob or array."""

    kind: str
    value: bytes | tuple[Frame, ...] | None

    def plain(self) -> object:
        """The frame as Python values: bytes, int, None, list; errors stay frames."""
        if self.value is None or self.kind == "_":
            return None
        if self.kind == ":":
            assert isinstance(self.value, bytes)
            return int(self.value)
        if self.kind in "-!":
            return self
        if isinstance(self.value, tuple):
            return [item.plain() for item in self.value]
        return self.value[4:] if self.kind == "=" else self.value

    def __repr__(self) -> str:
        if isinstance(self.value, tuple):
            return f"{self.kind}{list(self.value)!r}"
        return f"{self.kind}{self.value!r}"


class Parser:
    """Parses bytes into frames. It resumes where the bytes ended, so a long frame is scanned only once.

    Raises:
        ValueError: The bytes are not RESP.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._at = 0
        self._open: list[tuple[str, int, list[Frame]]] = []
        """Arrays that still lack items: kind, number of items, items so far."""

    def next(self) -> Frame | None:
        """The next whole frame; None if it needs more bytes."""
        while (frame := self._leaf()) is not None:
            while self._open:
                kind, count, items = self._open[-1]
                items.append(frame)
                if len(items) < count:
                    break
                self._open.pop()
                frame = Frame(kind, tuple(items))
            else:
                if self._at > 1 << 16 or self._at == len(self.data):
                    del self.data[: self._at]
                    self._at = 0
                return frame
        return None

    def _leaf(self) -> Frame | None:
        """The next frame without items; opens the arrays around it."""
        while (end := self.data.find(b"\r\n", self._at)) >= 0:
            kind, line, behind = self.data[self._at], bytes(self.data[self._at + 1 : end]), end + 2
            if kind in _LINES:
                self._at = behind
                return Frame(chr(kind), line)
            if kind not in _BLOBS and kind not in _AGGREGATES:
                raise ValueError(f"no RESP frame begins like this: {chr(kind)}{line[:80]!r}")
            count = int(line)
            if count < 0:
                self._at = behind
                return Frame(chr(kind), None)
            if kind in _BLOBS:
                if len(self.data) < behind + count + 2:
                    return None
                self._at = behind + count + 2
                if self.data[behind + count : self._at] != b"\r\n":
                    raise ValueError("a blob does not end in CRLF")
                return Frame(chr(kind), bytes(self.data[behind : behind + count]))
            self._at = behind
            if count == 0:
                return Frame(chr(kind), ())
            self._open.append((chr(kind), count * 2 if kind in b"%|" else count, []))
        return None


def encode(*args: bytes | str | int) -> bytes:
    """One command as an array of bulk strings."""
    parts = [f"*{len(args)}\r\n".encode()]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Connection:
    def __init__(self, host: str, port: int, resp: int = 2, receive_bytes: int | None = None) -> None:
        """Connects. A small `receive_bytes` (size of the receive buffer) makes a peer that accepts little
        while it does not read."""
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parser = Parser()
        if resp == 3:
            hello = self.call("HELLO", "3")
            assert hello.kind == "%", hello

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def command(self, *args: bytes | str | int) -> None:
        """Sends one command and does not wait."""
        self.send(encode(*args))

    def call(self, *args: bytes | str | int) -> Frame:
        """Sends one command and reads one frame."""
        self.command(*args)
        return self.read()

    def ask(self, *args: bytes | str | int) -> object:
        """Sends one command; returns its reply as Python values."""
        return self.call(*args).plain()

    def read(self) -> Frame:
        """The next frame; EOFError if the server closed instead."""
        while (frame := self.parser.next()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError(f"the server closed; unread: {bytes(self.parser.data[-200:])!r}")
            self.parser.data += data
        return frame

    def read_many(self, count: int) -> list[Frame]:
        """The next `count` frames."""
        return [self.read() for _ in range(count)]

    def read_to_end(self) -> list[Frame]:
        """Every frame until the server closes."""
        frames = []
        while True:
            try:
                frames.append(self.read())
            except (EOFError, ConnectionResetError):
                return frames

    def close(self) -> None:
        """Closes the connection without QUIT."""
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
