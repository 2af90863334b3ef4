"""RESP2 and RESP3, client direction, sans-I/O.

Frames (https://redis.io, "Redis serialization protocol specification"): a type byte, then a line, then for
some types a body:

    +text  -error  :int  ,double  #t  _  (bignum        one line
    $n  !n  =n                                          n bytes and CRLF after the line
    *n  ~n  >n                                          n values; %n |n: n pairs

A request is an array of bulk strings. The decoder holds the parts of an unfinished value on a stack, so that
no byte is scanned twice. Invalid RESP raises an error; incomplete input never does.
"""

from collections.abc import Iterable
from typing import Any

from hubsub.errors import ProtocolError, from_reply

DEPTH_MAX = 32
"""Nesting of arrays; no real reply comes near it."""

LINE_BYTES_MAX = 65_536
"""A longer line without an end is invalid."""

Argument = bytes | str | int


class Push(list[Any]):
    """An out-of-band value of RESP3."""


class _Frame:
    """An aggregate that still lacks `left` values."""

    __slots__ = ("kind", "left", "values")

    def __init__(self, kind: int, left: int) -> None:
        self.kind = kind
        self.left = left
        self.values: list[Any] = []


INCOMPLETE: Any = object()
"""Returned by `Decoder.next` while no complete value is there."""


def encode(args: Iterable[Argument]) -> bytes:
    """One command as an array of bulk strings."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in args]
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        out += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(out)


class Decoder:
    """Decodes bytes to values. Error replies are values too: instances of `HubSubError`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._scanned = 0
        """No line end before this index."""
        self._bulk: tuple[int, int] | None = None
        """Kind and length of the body to read next."""
        self._stack: list[_Frame] = []

    def feed(self, data: bytes) -> None:
        """Appends received bytes to the input of `next`."""
        if self._at == len(self._buffer):
            self._buffer.clear()
            self._at = self._scanned = 0
        elif self._at > 65_536:
            del self._buffer[: self._at]
            self._scanned = max(0, self._scanned - self._at)
            self._at = 0
        self._buffer += data

    def next(self) -> Any:
        """The next complete value, or `INCOMPLETE`.

        Raises:
            ProtocolError: the bytes are no RESP; the connection is unusable.
        """
        while True:
            value = self._one()
            if value is INCOMPLETE:
                return INCOMPLETE
            if isinstance(value, _Frame):
                if value.left:
                    if len(self._stack) >= DEPTH_MAX:
                        raise ProtocolError("the server sent arrays too deep in each other")
                    self._stack.append(value)
                    continue
                value = _finish(value)
            while self._stack and value is not _ATTRIBUTE:  # Attributes are not values of an aggregate.
                top = self._stack[-1]
                top.values.append(value)
                top.left -= 1
                if top.left:
                    break
                value = _finish(self._stack.pop())
            if self._stack or value is _ATTRIBUTE:
                continue
            return value

    def _one(self) -> Any:
        """A scalar, or the head of an aggregate."""
        if self._bulk is not None:
            return self._body(*self._bulk)
        buffer = self._buffer
        end = buffer.find(b"\r\n", max(self._at, self._scanned))
        if end < 0:
            if len(buffer) - self._at > LINE_BYTES_MAX:
                raise ProtocolError("the server sent a line without end")
            self._scanned = max(self._at, len(buffer) - 1)
            return INCOMPLETE
        if end == self._at:
            raise ProtocolError("the server sent an empty line")
        kind, line = buffer[self._at], bytes(buffer[self._at + 1 : end])
        self._at = self._scanned = end + 2
        match kind:
            case 0x24 | 0x21 | 0x3D:  # $ ! =
                length = _int(line)
                if length < 0:
                    return None
                self._bulk = (kind, length)
                return self._body(kind, length)
            case 0x2B:  # +
                return line
            case 0x3A | 0x28:  # : (
                return _int(line)
            case 0x2D:  # -
                return from_reply(line.decode("utf-8", "replace"))
            case 0x2A | 0x7E | 0x3E:  # * ~ >
                count = _int(line)
                return None if count < 0 else _Frame(kind, count)
            case 0x25 | 0x7C:  # % |
                return _Frame(kind, max(0, _int(line)) * 2)
            case 0x5F:  # _
                return None
            case 0x23:  # #
                return line == b"t"
            case 0x2C:  # ,
                return _float(line)
        raise ProtocolError("the server sent what is no RESP", repr(chr(kind)))

    def _body(self, kind: int, length: int) -> Any:
        start = self._at
        if len(self._buffer) < start + length + 2:
            return INCOMPLETE
        if self._buffer[start + length : start + length + 2] != b"\r\n":
            raise ProtocolError("the server sent a text that does not end where it should")
        value = bytes(self._buffer[start : start + length])
        self._at = self._scanned = start + length + 2
        self._bulk = None
        if kind == 0x21:
            return from_reply(value.decode("utf-8", "replace"))
        return value[4:] if kind == 0x3D else value


_ATTRIBUTE: Any = object()


def _finish(frame: _Frame) -> Any:
    values = frame.values
    match frame.kind:
        case 0x3E:
            return Push(values)
        case 0x25:
            return dict(zip(map(_hashable, values[::2]), values[1::2], strict=True))
        case 0x7C:
            return _ATTRIBUTE
    return values


def _hashable(value: Any) -> Any:
    return value if not isinstance(value, list | dict) else repr(value)


def _int(line: bytes) -> int:
    try:
        return int(line)
    except ValueError:
        raise ProtocolError("the server sent a number that is none", line) from None


def _float(line: bytes) -> float:
    try:
        return float(line)
    except ValueError:
        raise ProtocolError("the server sent a number that is none", line) from None
