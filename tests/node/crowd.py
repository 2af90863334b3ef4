"""Many concurrent connections on asyncio: pipelined publishers, and subscribers that store what they receive.

hiredis parses the replies, so a test of some hundred thousand messages takes seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Self

import hiredis
from clients.raw import TIMEOUT_S, encode


class Member(asyncio.Protocol):
    """One connection. `replies` and `pushes` hold what it received; RESP3 distinguishes them."""

    def __init__(self) -> None:
        self.reader = hiredis.Reader(notEnoughData=Ellipsis)
        self.replies: list[Any] = []
        self.pushes: list[list[Any]] = []
        self.transport: asyncio.Transport
        self.is_closed = False
        self._waiting: tuple[Callable[[], bool], asyncio.Future[None]] | None = None

    @classmethod
    async def join(cls, host: str, port: int, *commands: tuple[bytes | str | int, ...]) -> Self:
        """Connects in RESP3 and runs commands, awaiting each reply.

        Args:
            host: The server's address.
            port: The server's Redis port.
            commands: Commands as tuples of arguments.
        """
        loop = asyncio.get_running_loop()
        _, member = await loop.create_connection(cls, host, port)
        await member.call("HELLO", 3)
        for command in commands:
            await member.call(*command)
        return member

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        while (item := self.reader.gets()) is not Ellipsis:
            if isinstance(item, hiredis.PushNotification):
                self.pushes.append(item)
            else:
                self.replies.append(item)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting and (self._waiting[0]() or self.is_closed):
            condition, future = self._waiting
            self._waiting = None
            if not future.done():
                future.set_result(None) if condition() else future.set_exception(
                    EOFError("the server closed")
                )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the received data fulfils a condition. Raises EOFError if the server closes first."""
        if condition():
            return
        if self.is_closed:
            raise EOFError("the server closed")
        future = asyncio.get_running_loop().create_future()
        self._waiting = (condition, future)
        async with asyncio.timeout(TIMEOUT_S):
            await future

    async def until_closed(self) -> None:
        """Waits until the server has closed and everything that it sent was received."""
        if not self.is_closed:
            with contextlib.suppress(EOFError):
                await self.until(lambda: False)

    async def call(self, *command: bytes | str | int) -> Any:
        """Sends one command and returns its reply; for a (un)subscribe, the last confirmation."""
        pushes, replies = len(self.pushes), len(self.replies)
        self.transport.write(encode(*command))
        verb = str(command[0]).upper()
        if verb == "HUBSUB" and str(command[1]).upper() == "SUBSCRIBE":
            await self.until(lambda: len(self.pushes) > pushes or len(self.replies) > replies)
            return self.pushes.pop(pushes) if len(self.replies) == replies else self.replies.pop()
        if verb.endswith("SUBSCRIBE"):
            await self.until(
                lambda: sum(p[0] == verb.lower().encode() for p in self.pushes) >= len(command) - 1
            )
            self.pushes = [p for p in self.pushes if p[0] != verb.lower().encode()]
            return None
        await self.until(lambda: len(self.replies) > replies)
        return self.replies.pop()

    async def pipeline(self, commands: Iterable[tuple[bytes | str | int, ...]]) -> list[Any]:
        """Sends all commands in one write and returns all replies."""
        data, count = bytearray(), 0
        for command in commands:
            data += encode(*command)
            count += 1
        before = len(self.replies)
        self.transport.write(bytes(data))
        await self.until(lambda: len(self.replies) >= before + count)
        replies = self.replies[before:]
        del self.replies[before:]
        return replies

    def leave(self) -> None:
        self.transport.close()
