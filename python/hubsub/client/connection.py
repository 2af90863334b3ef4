"""A single connection: bytes and their order, without policy.

Replies come in the order of the requests; pushes go to a callback. A failed connection stays failed: its
owner opens a new one.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from hubsub.client.resp import INCOMPLETE, Argument, Decoder, Push, encode
from hubsub.errors import (
    ClientError,
    HubSubError,
    NotConnectedError,
    ProtocolError,
    TimedOutError,
    without_secrets,
)

READ_BYTES = 65_536
PORT_DEFAULT = 3221


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def targets(url: str) -> list[Target]:
    """The servers of `redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]`; the scheme may be left out.

    Raises:
        ClientError: the text is no such address.
    """
    hint = f"such as redis://127.0.0.1:{PORT_DEFAULT}"
    scheme, _, rest = url.rpartition("://")
    if scheme not in ("", "redis"):
        raise ClientError("this scheme is not known", without_secrets(url), hint)
    userinfo, _, hosts = rest.rpartition("@")
    found = []
    for part in hosts.split(","):
        try:
            split = urlsplit(f"redis://{userinfo}@{part}" if userinfo else f"redis://{part}")
            host, port = split.hostname or "127.0.0.1", split.port or PORT_DEFAULT
        except ValueError:
            raise ClientError("this is no address", part, hint) from None
        if split.path not in ("", "/"):
            raise ClientError("an address has no path", without_secrets(url), hint)
        name = unquote(split.username) if split.username else None
        found.append(Target(host, port, name, unquote(split.password) if split.password else None))
    return found


class Connection:
    """A connection after its greeting (HELLO 3).

    Args:
        target: The server.
        timeout_s: Time limit for connecting, and for each reply.
        on_push: Called with each push, in order of arrival, between replies.
    """

    def __init__(
        self, target: Target, timeout_s: float, on_push: Callable[[Push], None] | None = None
    ) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self.heard_at = 0.0
        """Loop time of the last bytes from the server."""
        self._on_push = on_push
        self._decoder = Decoder()
        self._replies: deque[asyncio.Future[Any]] = deque()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._error: HubSubError | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, name: str | None = None) -> None:
        """Connects and sends the greeting.

        Raises:
            NotConnectedError: no server answers.
            HubSubError: the server refuses the greeting.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                self._reader, self._writer = await asyncio.open_connection(
                    self.target.host, self.target.port, limit=READ_BYTES
                )
        except (OSError, TimeoutError, UnicodeError) as error:  # UnicodeError: the host name is invalid.
            raise NotConnectedError(f"no server can be reached ({_reason(error)})", self.target) from None
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        self._task = loop.create_task(self._read())
        hello: list[Argument] = ["HELLO", "3"]
        if self.target.password is not None:
            hello += ["AUTH", self.target.username or "default", self.target.password]
        if name:
            hello += ["SETNAME", name]
        try:
            await self.call(*hello)
        except BaseException:
            await self.close()
            raise

    @property
    def error(self) -> HubSubError | None:
        """Why the connection has ended; None while it is open."""
        return self._error

    def send(self, *args: Argument) -> asyncio.Future[Any]:
        """Sends a command at once; the future is its reply, with error replies as exceptions."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._error is not None or self._writer is None:
            _refuse(future, self._error or NotConnectedError(value=self.target))
            return future
        self._replies.append(future)
        self._writer.write(encode(args))
        return future

    def send_unanswered(self, *args: Argument) -> None:
        """Sends a command whose reply comes as pushes."""
        if self._error is not None or self._writer is None:
            raise self._error or NotConnectedError(value=self.target)
        self._writer.write(encode(args))

    async def drain(self) -> None:
        """Waits while too many bytes are unsent.

        Raises:
            TimedOutError: the server does not take them in time.
        """
        if self._writer is None or self._error is not None:
            return
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._writer.drain()
        except TimeoutError:
            self._fail(TimedOutError(value=self.target))
            raise TimedOutError(value=self.target) from None
        except OSError as error:
            # Fail before more is written: asyncio would log an error of its own.
            self._fail(NotConnectedError(f"the connection broke ({_reason(error)})", self.target))

    async def call(self, *args: Argument) -> Any:
        """Sends a command and waits for its reply.

        Raises:
            TimedOutError: no reply in time; the outcome is unknown.
        """
        future = self.send(*args)
        await self.drain()
        return await self.reply(future)

    async def reply(self, future: asyncio.Future[Any]) -> Any:
        """Waits for the reply of `send`. If it is late the connection is closed: later replies would be misassigned."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await future
        except TimeoutError:
            error = TimedOutError(value=self.target)
            self._fail(error)
            raise error from None

    def pause(self) -> None:
        """Stops reading, so that the server notices; requests wait too."""
        self._may_read.clear()

    def resume(self) -> None:
        """Continues reading after `pause`."""
        self._may_read.set()

    @property
    def paused(self) -> bool:
        return not self._may_read.is_set()

    async def close(self, why: str = "the connection was closed") -> None:
        """Closes the connection; pending requests fail with `NotConnectedError`."""
        self._fail(NotConnectedError(why, self.target))
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            # This cancellation is the task's, not the caller's.
            await asyncio.wait((self._task,))

    async def _read(self) -> None:
        assert self._reader is not None, "open() starts this task"
        loop = asyncio.get_running_loop()
        try:
            while data := await self._reader.read(READ_BYTES):
                self.heard_at = loop.time()
                self._decoder.feed(data)
                while self._error is None and (value := self._decoder.next()) is not INCOMPLETE:
                    self._take(value)
                await self._may_read.wait()
                if self._error is not None:
                    return  # The remaining bytes came too late: the owner may have a new connection.
            self._fail(NotConnectedError("the server closed the connection", self.target))
        except OSError as error:
            self._fail(NotConnectedError(f"the connection broke ({_reason(error)})", self.target))
        except HubSubError as error:
            self._fail(error)
        except Exception as error:  # A callback failed, or a push has an unknown form: reading ends here.
            self._fail(ProtocolError("a push could not be handled", repr(error)))

    def _take(self, value: Any) -> None:
        if isinstance(value, Push):
            if self._on_push is not None:
                self._on_push(value)
        elif self._replies:
            future = self._replies.popleft()
            if future.done():
                return
            if isinstance(value, HubSubError):
                _refuse(future, value)
            else:
                future.set_result(value)
        else:
            # Without a pending request, an error is the server's last message before it closes.
            self._fail(
                value if isinstance(value, HubSubError) else ProtocolError("the server answered unasked")
            )

    def _fail(self, error: HubSubError) -> None:
        if self._error is not None:
            return
        self._error = error
        while self._replies:
            future = self._replies.popleft()
            if not future.done():
                _refuse(future, error)
        self._may_read.set()
        if self._writer is not None:
            self._writer.transport.abort()  # A server that reads no more would never get the rest.
        if self._on_push is not None:
            self._on_push(Push([b"closed"]))


def _refuse(future: asyncio.Future[Any], error: HubSubError) -> None:
    """Fails a request; marks the exception as retrieved, as the caller may be gone, which is not worth a log line."""
    future.set_exception(error)
    future.exception()


def _reason(error: OSError | UnicodeError) -> str:
    """asyncio's messages contain addresses and numbers; the system's are for people."""
    if isinstance(error, UnicodeError):
        return "this is no host name"
    if isinstance(error, socket.gaierror):  # Its numbers are not those of the system.
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno else str(error) or "no answer in time"


__all__ = ["PORT_DEFAULT", "Connection", "Target", "targets"]
