"""Strict HTTP/1 parsing (RFC 9112): refuses requests that two programs may read differently.

h11 accepts some forms that the RFC leaves to the server. A proxy in front that reads the same bytes
differently would see the end of a request elsewhere than the node. Its clients could then send requests that
it does not see (request smuggling).
"""

import re
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

VERSIONS: Final = (b"1.0", b"1.1")
SHORT_BYTES: Final = 16_384
"""Bytes of input that a connection may keep without counting them: enough for usual request heads."""
HEAD_BYTES_MAX: Final = 3 * 65_535 + SHORT_BYTES
"""Bytes of a request's unfinished line and fields: they may name the longest topic, each byte of it escaped as %XX."""
FIELDS_MAX: Final = 128
"""Fields of a head, or of a trailer: each takes some 200 bytes of memory, however short it is."""
CHUNK_DIGITS_MAX: Final = 16
"""Digits of a chunk size: more do not fit in 64 bits."""

_HEX = re.compile(rb"[0-9A-Fa-f]*")


class _Lines(ReceiveBuffer):
    """Input whose lines end with CR LF and are not folded, and whose chunk sizes have a valid length."""

    def __init__(self) -> None:
        super().__init__()
        self._checked = 0
        """Bytes of the current lines whose ends are already checked."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        end = self._data.find(b"\r\n\r\n", max(0, self._checked - 3))
        until = len(self._data) if end < 0 else end + 4
        if self._data.startswith(b"\r\n"):
            until = 2
        at = self._data.find(b"\n", self._checked, until)
        while at >= 0:
            if self._data[at - 1 : at] != b"\r":
                raise h11.LocalProtocolError("a line ends without a carriage return")
            at = self._data.find(b"\n", at + 1, until)
        self._checked = until
        lines = super().maybe_extract_lines()
        if lines is not None:
            self._checked = 0
            if len(lines) > 1 + FIELDS_MAX:
                raise h11.LocalProtocolError("there are too many fields")
            if any(line.startswith((b" ", b"\t")) for line in lines):
                raise h11.LocalProtocolError("a field goes on in the next line")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        line = super().maybe_extract_next_line()
        digits = _HEX.match(self._data if line is None else line)
        if digits is not None and digits.end() > CHUNK_DIGITS_MAX:
            raise h11.LocalProtocolError("the size of a chunk has too many digits")
        return line


class StrictConnection(h11.Connection):
    """The server's end of a connection."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self._receive_buffer = _Lines()

    @property
    def unparsed_bytes(self) -> int:
        """Bytes of input that are not parsed yet."""
        return len(self._receive_buffer)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check(event)
        return event


def _check(request: h11.Request) -> None:
    """Raises for an unsupported version, or if two programs could find different ends of the body."""
    if request.http_version not in VERSIONS:
        raise h11.RemoteProtocolError("the version is none that is spoken here")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
        raise h11.RemoteProtocolError("the body's length is said in two ways")
