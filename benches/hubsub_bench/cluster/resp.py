"""A minimal Redis connection for measurements: sends commands and reads values, without retries."""

import socket
from contextlib import suppress
from typing import Self, TypeAlias

from hubsub_bench import BenchError

TIMEOUT_S = 10.0

Value: TypeAlias = "int | bytes | list[Value] | None"
"""Simple strings are bytes; an error raises."""


class ErrorReply(BenchError):
    """The server replied with an error; the connection stays usable."""


class Connection:
    """One blocking connection, with a limit for each wait.

    Args:
        address: `HOST:PORT`.
        timeout_s: Limit for connecting and for each read, above 0.

    Raises:
        BenchError: no server listens there.
    """

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except OSError as error:
            raise BenchError(
                "the server cannot be reached", f"{address} ({error.strerror or error})"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def end(self) -> None:
        """Shuts both directions down, which wakes a reader in another thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, *words: str | bytes | int) -> Value:
        """Sends a command and reads one value.

        Raises:
            BenchError: the reply is an error, or there is none in time.
        """
        self.send(*words)
        return self.read()

    def send(self, *words: str | bytes | int) -> None:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        head = b"*%d\r\n" % len(parts)
        try:
            self._socket.sendall(head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        except OSError as error:
            raise BenchError("the connection was lost", f"{self.address} ({error})") from error

    def read(self, timeout_s: float = TIMEOUT_S) -> Value:
        """The next value; `timeout_s` is the longest wait for each piece of it.

        Raises:
            BenchError: it is an error, or there is none in time.
        """
        self._socket.settimeout(timeout_s)
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ErrorReply("the server answered with an error", rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self.read(timeout_s) for _ in range(int(rest))]
        raise BenchError("the server speaks something else than RESP2", repr(line[:40]))

    def _line(self) -> bytes:
        while b"\r\n" not in self._input:
            self._more()
        line, _, self._input = self._input.partition(b"\r\n")
        return line

    def _bytes(self, size: int) -> bytes:
        while len(self._input) < size + 2:
            self._more()
        value, self._input = self._input[:size], self._input[size + 2 :]
        return value

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise BenchError("the server does not answer", self.address) from None
        except OSError as error:
            raise BenchError("the connection was lost", f"{self.address} ({error})") from error
        if not data:
            raise BenchError("the server closed the connection", self.address)
        self._input += data
