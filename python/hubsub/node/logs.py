"""Requests to a node about its log: hubs, streams of records, and small files in the data directory."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from hubsub.errors import BadRequestError
from hubsub.node.lifecycle import Lifecycle
from hubsub.node.setup import write_synced
from hubsub.node.status import Hub, Log, Scan, Store, read

log = structlog.get_logger()


class Logs(Lifecycle):
    """The log part of `Node`."""

    def log(self) -> Log | None:
        """State, figures and hubs of the log; None if no class has one."""
        text = self._core.log() if self.addresses else None
        return None if text is None else read(text, Log)

    def inflight_store(self) -> Store | None:
        """State and figures of the session store; None if it is neither a file nor a server."""
        text = self._core.inflight_store() if self.addresses else None
        return None if text is None else read(text, Store)

    async def open_hub(self, hub: int, room_class: str, index: int) -> Hub:
        """Opens a hub of a class with a log while the node runs, and creates it if it does not exist here.

        Opening a large log may take long; other requests do not wait for it.

        Args:
            hub: Its id in the whole cluster, from 1.
            room_class: Name of its class.
            index: Its index among the class's hubs, from 0.

        Returns:
            The hub's state. A hub that is already open does not change.

        Raises:
            HubDiffersError: the id, or the class's index, is another hub's here; both are named.
            DiskFullError: nothing was created.
            QuarantinedError: it is damaged.
            HubClosedError: it is being closed.
            LogFailedError: the log accepts no records.
            BadRequestError: the node does not know the class, or has no log for it.
        """
        try:
            opened = await self._ask(self._core.open_hub, hub, room_class, index)
        except ValueError as error:
            raise BadRequestError(str(error), value=room_class) from None
        return read(opened, Hub)

    async def close_hub(self, hub: int) -> int | None:
        """Closes a hub after its records are safe on disk, where it stays.

        Returns:
            The last offset that it assigned, 0 if it has no record. None: it was not open.

        Raises:
            HubClosedError: it is being closed.
            LogFailedError: it could not be made safe.
        """
        return await self._ask(self._core.close_hub, hub)

    def log_archived(self, offsets: Mapping[int, int]) -> None:
        """Sets the offsets up to which hubs are archived: retention need not wait for records before them."""
        self._core.log_archived(dict(offsets))

    def read_file(self, name: str) -> str | None:
        """The last text given to `write_file`, in this run or an earlier one."""
        file = Path(self.config.data or "", name)
        try:
            return file.read_text() if self.config.data else None
        except (OSError, UnicodeDecodeError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("a file of the data directory cannot be read", file=str(file), reason=str(error))
            return None

    async def write_file(self, name: str, text: str) -> None:
        """Persists a small text in the data directory; only one call per name at a time."""
        assert self.config.data is not None, "there is a log"
        await asyncio.to_thread(write_synced, Path(self.config.data, name), text)

    def log_hub_of(self, room: bytes) -> tuple[str, int | None]:
        """Name of a room's class, and the id of the hub that logs its records, if there is one."""
        return self._core.log_hub_of(room)

    async def log_offset(self, hub: int, timestamp_us: int) -> int:
        """The first offset of a hub with that timestamp or a later one; else the first offset that is not committed."""
        return await self._ask_in_time(self._core.log_offset, hub, timestamp_us)

    async def open_records(self, scan: Scan) -> "Records":
        """Opens a stream of a hub's records.

        Args:
            scan: Selects the records, and their form.

        Returns:
            The stream; errors up to its first chunk are raised here.

        Raises:
            OffsetsLostError, OffsetUnknownError, QuarantinedError, TooManyStreamsError, LogFailedError.
            BadRequestError: a pattern cannot be read.
        """
        try:
            records = Records(self, await self._ask(self._core.log_open, scan))
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        await records.begin()
        return records

    async def next_records(self, number: int) -> bytes | None:
        """The next chunk of a stream; None after the last."""
        return await self._ask(self._core.log_next, number)

    def close_records(self, number: int) -> None:
        """Ends a stream, if it is open."""
        if self._loop is not None:
            self._core.log_close(number)


class Records:
    """An Arrow IPC stream in chunks: an async iterator of bytes, each encoded on demand.

    It ends where the stream does. An error from it means that the rest is missing. A caller that stops early
    must close it; errors and cancellation of `anext` close it, too.
    """

    def __init__(self, node: Logs, number: int) -> None:
        self._node = node
        self._number: int | None = number
        self._first: bytes | None = None

    async def begin(self) -> None:
        """Waits for the first chunk, which `anext` then returns."""
        self._first = await self._next()

    def __aiter__(self) -> "Records":
        return self

    async def __anext__(self) -> bytes:
        chunk, self._first = self._first, None
        if chunk is None:
            chunk = await self._next()
        if chunk is None:
            self.close()
            raise StopAsyncIteration
        return chunk

    def close(self) -> None:
        """Releases the stream in the node."""
        number, self._number = self._number, None
        self._first = None
        if number is not None:
            self._node.close_records(number)

    async def _next(self) -> bytes | None:
        if self._number is None:
            return None
        try:
            chunk: bytes | None = await self._node.next_records(self._number)
        except BaseException:
            self.close()
            raise
        return chunk
