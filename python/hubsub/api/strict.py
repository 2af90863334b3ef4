"""HTTP/1 as RFC 9112 wants it of a server: what two programs may read differently is refused.

h11 takes some of what the RFC lets a server take. A proxy in front that reads the same bytes otherwise would see the
end of a request elsewhere than the node: its clients could then send requests that it does not see (request smuggling).
"""

import re
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

VERSIONS: Final = (b"1.0", b"1.1")
HEAD_BYTES_MAX: Final = 65_536
CHUNK_DIGITS_MAX: Final = 16
"""Of the size of a chunk: more are no number of 64 bits."""

_HEX = re.compile(rb"[0-9A-Fa-f]*")


class _Lines(ReceiveBuffer):
    """Input whose lines end with CR LF, go on in no further line, and announce chunks of a length that there may be."""

    def __init__(self) -> None:
        super().__init__()
        self._checked = 0
        """Bytes of the lines at hand whose ends are known to be right."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        end = self._data.find(b"\r\n\r\n")
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

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check(event)
        return event


def _check(request: h11.Request) -> None:
    """Raises where the version is another one, or two programs could find different ends of the body."""
    if request.http_version not in VERSIONS:
        raise h11.RemoteProtocolError("the version is none that is spoken here")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
        raise h11.RemoteProtocolError("the body's length is said in two ways")
