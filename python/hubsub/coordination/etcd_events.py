"""One etcd stream for all watches of a coordinator. A cluster has a directory of rooms per class, and a
stream per watch would use up the few connections.

A watch joins first, then reads its directory at one revision, then takes later changes from the stream. While
it reads, changes are buffered, only the latest per key: memory is bounded by the directory.

Invariants: a watch that joined gets every later change of the stream. When the stream ends, all watches get
the reason; the next one that joins starts a new stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from hubsub.errors import CoordinatorUnreachableError

Change = dict[str, Any]
"""An event of etcd."""

Read = Callable[[asyncio.Event], AsyncGenerator[Change, None]]
"""Opens the stream: sets the event once it is open, and yields the changes of all keys."""


class Feed:
    """The changes of one directory."""

    def __init__(self, start: str) -> None:
        self.start = start
        """Prefix of the directory's stored keys, up to their names."""
        self._pending: dict[str, Change] = {}
        self._news = asyncio.Event()
        self._why: Exception | None = None

    def add(self, key: str, change: Change) -> None:
        self._pending.pop(key, None)
        self._pending[key] = change
        self._news.set()

    def end(self, why: Exception) -> None:
        self._why = why
        self._news.set()

    async def next(self) -> list[Change]:
        """The changes since the last call, only the latest per key, in their order.

        Raises:
            CoordinatorError: the stream ended.
        """
        await self._news.wait()
        if self._why is not None:
            raise self._why
        self._news.clear()
        changes = list(self._pending.values())
        self._pending.clear()
        return changes


class Events:
    """The stream, open while it has readers.

    Args:
        read: Opens the stream.
        key_of: Returns the stored key of a change, and the prefix of its directory.
    """

    def __init__(self, read: Read, key_of: Callable[[Change], tuple[str, str]]) -> None:
        self._read = read
        self._key_of = key_of
        self._feeds: dict[str, list[Feed]] = {}
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self, start: str) -> Feed:
        """Takes the changes of a directory from now on.

        Raises:
            CoordinatorError: the stream cannot be opened.
        """
        feed = Feed(start)
        self._feeds.setdefault(start, []).append(feed)
        if self._task is None or self._task.done():
            self._opened = asyncio.Event()
            self._task = asyncio.create_task(self._run(self._opened))
        task, opened = self._task, asyncio.ensure_future(self._opened.wait())
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
            if not opened.done():
                await feed.next()  # It raises the reason.
        except BaseException:
            self.leave(feed)
            raise
        finally:
            opened.cancel()
        return feed

    def leave(self, feed: Feed) -> None:
        """Removes a feed; the last one ends the stream."""
        feeds = self._feeds.get(feed.start, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(feed.start, None)
        if not self._feeds and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, opened: asyncio.Event) -> None:
        why: Exception = CoordinatorUnreachableError("the stream ended")
        try:
            async with aclosing(self._read(opened)) as changes:
                async for change in changes:
                    key, start = self._key_of(change)
                    for feed in self._feeds.get(start, ()):
                        feed.add(key, change)
        except Exception as error:
            why = error
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.end(why)
        self._feeds = {}
