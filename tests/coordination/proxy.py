"""A connection that tests can break, as a whole or at one request."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from base64 import b64encode
from types import TracebackType
from typing import Self


class Line(ABC):
    @abstractmethod
    def cut(self) -> None:
        """Ends all connections and refuses new ones."""

    @abstractmethod
    async def mend(self) -> None: ...


class Wire(Line):
    """A line over sockets, which can also be cut at a request."""

    met: asyncio.Event
    """Set when the request of `cut_at` arrives."""

    @abstractmethod
    def drop(self) -> None:
        """Ends all connections; still accepts new ones."""

    @abstractmethod
    def cut_at(self, value: bytes, *, passes_on: bool) -> None:
        """Cuts the connection once, at the request that contains `value`.

        Args:
            value: Bytes that the request contains, plainly or in base64.
            passes_on: Whether the server gets the request. Its reply is then withheld, and `drop` cuts the
                connection.
        """


class Wires(Wire):
    """Several wires as one."""

    def __init__(self, wires: list[Proxy]) -> None:
        self._wires = wires
        self.met = asyncio.Event()
        for wire in wires:
            wire.met = self.met

    def cut(self) -> None:
        for wire in self._wires:
            wire.cut()

    async def mend(self) -> None:
        for wire in self._wires:
            await wire.mend()

    def drop(self) -> None:
        for wire in self._wires:
            wire.drop()

    def cut_at(self, value: bytes, *, passes_on: bool) -> None:
        for wire in self._wires:
            wire.cut_at(value, passes_on=passes_on)


class Proxy(Wire):
    """A proxy between clients and one port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: list[bytes] = []
        self._passes_on = True
        self.met = asyncio.Event()

    def cut(self) -> None:
        self._server.close()
        self.drop()

    def drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def cut_at(self, value: bytes, *, passes_on: bool) -> None:
        # Where requests use base64, the value is encoded by itself, so its text is always the same.
        self._fatal = [value, b64encode(value)]
        self._passes_on = passes_on
        self.met.clear()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, up_writer}
        doomed = asyncio.Event()
        try:
            await asyncio.gather(self._up(reader, up_writer, doomed), self._down(up_reader, writer, doomed))
        except OSError:
            pass
        finally:
            self._writers -= {writer, up_writer}
            writer.transport.abort()
            up_writer.transport.abort()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        tail = b""
        while data := await reader.read(65_536):
            seen = tail + data
            if any(fatal in seen for fatal in self._fatal):
                self._fatal = []
                self.met.set()
                if not self._passes_on:
                    raise ConnectionResetError
                doomed.set()
            tail = seen[-200:]
            writer.write(data)
            await writer.drain()
        writer.transport.abort()

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while data := await reader.read(65_536):
            if not doomed.is_set():
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError
