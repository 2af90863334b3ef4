"""A watch: the content of one directory, then its changes.

Backends feed it (`whole`, `put`, `delete`) as they learn of changes. The reader takes the changes since its
last read, only the latest value per key: memory is bounded by the directory, however slow the reader. Values
never go back to an older revision.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Self

import structlog

from hubsub.coordination.tasks import end
from hubsub.errors import CoordinatorError, CoordinatorRefusedError

RETRY_MS_MIN = 50
RETRY_MS_MAX = 1_000
"""Wait between the break of a watch and its restart; doubled each time."""

log = structlog.get_logger("hubsub.coordination")


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """One result of a watch."""

    whole: bool
    """The entries are complete: at the beginning, or again after a break."""
    entries: tuple[Entry, ...]
    """The entries, sorted by key."""
    gone: tuple[str, ...] = ()
    """Deleted keys; empty if `whole`."""


class Watch:
    """An asynchronous iterator of `Changes`; `close()` ends it, as does closing its coordinator.

    Args:
        directory: For the log.
        follow: Feeds the watch from a beginning (`whole` first) to a break, which it signals by returning or
            by a `CoordinatorError`. Called again after each break.
    """

    def __init__(self, directory: str, follow: Callable[["Watch"], Awaitable[None]]) -> None:
        self.directory = directory
        self._known: dict[str, int] = {}
        """Revision of each key as fed; the reader may not have it yet."""
        self._whole = False
        self._puts: dict[str, Entry] = {}
        self._gone: set[str] = set()
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self._closed = False
        self._began = False
        """Whether the current run of `follow` has fed the complete directory."""
        self._task = asyncio.create_task(self._run(follow))

    # -- reader --

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes:
        """The changes since the last call; waits until there are some.

        Raises:
            CoordinatorRefusedError: the store will not serve this watch.
        """
        await self._news.wait()
        if self._closed:
            raise StopAsyncIteration
        if self._error is not None:
            raise self._error
        entries = tuple(self._puts[key] for key in sorted(self._puts))
        changes = Changes(self._whole, entries, tuple(sorted(self._gone)))
        self._whole, self._puts, self._gone = False, {}, set()
        self._news.clear()
        return changes

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        await end(self._task)

    # -- backend --

    def whole(self, entries: Iterable[Entry]) -> None:
        self._puts = {entry.key: entry for entry in entries}
        self._known = {key: entry.revision for key, entry in self._puts.items()}
        self._whole, self._gone, self._began = True, set(), True
        self._news.set()

    def put(self, entry: Entry) -> None:
        if entry.revision <= self._known.get(entry.key, 0):
            return
        self._known[entry.key] = entry.revision
        self._puts[entry.key] = entry
        self._gone.discard(entry.key)
        self._news.set()

    def delete(self, key: str) -> None:
        if self._known.pop(key, 0) == 0:
            return
        self._puts.pop(key, None)
        if not self._whole:
            self._gone.add(key)
        self._news.set()

    async def _run(self, follow: Callable[["Watch"], Awaitable[None]]) -> None:
        pause_ms = RETRY_MS_MIN
        while True:
            reason: object = "ended by the store"
            self._began = False
            try:
                await follow(self)
            except Exception as error:
                if isinstance(error, CoordinatorRefusedError) or not isinstance(error, CoordinatorError):
                    self._error = error
                    self._news.set()
                    return
                reason = error.message
            if self._began:
                pause_ms = RETRY_MS_MIN
            log.info("the watch broke and begins again", directory=self.directory, reason=reason)
            await asyncio.sleep(pause_ms / 1_000)
            pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
