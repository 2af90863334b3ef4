"""One etcd stream serves all watches."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator

import pytest

from hubsub.coordination.etcd import PORT, EtcdCoordinator
from hubsub.coordination.etcd_events import Change, Events
from hubsub.coordination.location import parse_location
from hubsub.errors import CoordinatorUnreachableError


class Stream:
    """Yields the queued changes; None ends it."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[Change | None] = asyncio.Queue()
        self.open = 0

    async def read(self, opened: asyncio.Event) -> AsyncGenerator[Change, None]:
        self.open += 1
        opened.set()
        try:
            while (change := await self.changes.get()) is not None:
                yield change
        finally:
            self.open -= 1


def change(key: bytes, revision: int = 5) -> Change:
    return {"kv": {"key": b64encode(key).decode(), "mod_revision": str(revision)}}


def events(stream: Stream) -> Events:
    return Events(stream.read, EtcdCoordinator(parse_location("etcd://127.0.0.1:1/ours", PORT))._key_of)


async def test_what_others_wrote_below_the_prefix_ends_no_watch() -> None:
    stream = Stream()
    all_of = events(stream)
    feed = await all_of.join("ours/hubs//")
    for foreign in (b"ours/\xff\xfe", b"ours/hubs/\xff//x", b"ours/", b"ours/hubs"):
        stream.changes.put_nowait(change(foreign))
    own = change(b"ours/hubs//7")
    stream.changes.put_nowait(own)
    assert await feed.next() == [own]
    all_of.leave(feed)


async def test_a_stream_that_cannot_be_read_is_closed_and_all_are_told() -> None:
    stream = Stream()
    all_of = events(stream)
    feeds = [await all_of.join(f"ours/{name}//") for name in ("hubs", "nodes")]
    stream.changes.put_nowait({})
    for feed in feeds:
        with pytest.raises(KeyError):
            await feed.next()
        all_of.leave(feed)
    assert stream.open == 0
    again = await all_of.join("ours/hubs//")
    stream.changes.put_nowait(None)
    with pytest.raises(CoordinatorUnreachableError):
        await again.next()
