"""One stream of etcd for all watches of a coordinator: a cluster has a directory of rooms for each class, and each
stream takes a connection, of which there are few.

A watch joins first, then reads its directory at one revision, then takes what the stream gives behind that. While it
reads, the stream's changes are held, a key at its latest: so memory is bounded by the directory.

Invariants: who joined is given every change that the stream gives from then on. When the stream ends, all who
joined are told why, and whoever joins next begins another one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from hubsub.errors import CoordinatorUnreachableError

Change = dict[str, Any]
"""An event of etcd."""

Read = Callable[[asyncio.Event], AsyncGenerator[Change, None]]
"""Opens the stream: sets the event once it stands, and gives the changes of all keys."""


class Feed:
    """The changes of one directory."""

    def __init__(self, start: str) -> None:
        self.start = start
        """What stored keys of the directory begin with, up to their names."""
        self._held: dict[str, Change] = {}
        self._news = asyncio.Event()
        self._why: Exception | None = None

    def give(self, key: str, change: Change) -> None:
        self._held.pop(key, None)
        self._held[key] = change
        self._news.set()

    def end(self, why: Exception) -> None:
        self._why = why
        self._news.set()

    async def next(self) -> list[Change]:
        """What came since, in order of the latest of each key.

        Raises:
            CoordinatorError: the stream ended.
        """
        await self._news.wait()
        if self._why is not None:
            raise self._why
        self._news.clear()
        changes = list(self._held.values())
        self._held.clear()
        return changes


class Events:
    """The stream, as long as anybody takes of it.

    Args:
        read: Opens it.
        key_of: The stored key of a change, and the start of its directory.
    """

    def __init__(self, read: Read, key_of: Callable[[Change], tuple[str, str]]) -> None:
        self._read = read
        self._key_of = key_of
        self._feeds: dict[str, list[Feed]] = {}
        self._stands = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self, start: str) -> Feed:
        """Takes the changes of a directory from now on.

        Raises:
            CoordinatorError: the stream cannot be had.
        """
        feed = Feed(start)
        self._feeds.setdefault(start, []).append(feed)
        if self._task is None or self._task.done():
            self._stands = asyncio.Event()
            self._task = asyncio.create_task(self._run(self._stands))
        task, stands = self._task, asyncio.ensure_future(self._stands.wait())
        try:
            await asyncio.wait({task, stands}, return_when=asyncio.FIRST_COMPLETED)
            if not stands.done():
                await feed.next()  # It says why there is none.
        except BaseException:
            self.leave(feed)
            raise
        finally:
            stands.cancel()
        return feed

    def leave(self, feed: Feed) -> None:
        """Takes no more; the last one ends the stream."""
        feeds = self._feeds.get(feed.start, [])
        if feed in feeds:
            feeds.remove(feed)
        if not feeds:
            self._feeds.pop(feed.start, None)
        if not self._feeds and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, stands: asyncio.Event) -> None:
        why: Exception = CoordinatorUnreachableError("the stream ended")
        try:
            async with aclosing(self._read(stands)) as changes:
                async for change in changes:
                    key, start = self._key_of(change)
                    for feed in self._feeds.get(start, ()):
                        feed.give(key, change)
        except Exception as error:
            why = error
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.end(why)
        self._feeds = {}
