"""The coordinator in etcd 3.4 or newer, over its JSON gateway.

A key's revision is its `mod_revision`. The key `hubs/17` is stored as `PREFIX/hubs//17`: names are not empty,
so the two slashes end the directory, and a range is one directory without its subdirectories. A commit is one
transaction whose other branch reads the expected keys. A watch reads the directory at one revision and gets
changes from the next one on, by one stream for all watches (`etcd_events`). An etcd lease is renewed at any server
that answers; a new etcd leader restarts its time, so keys are never deleted before the deadline.
"""

import asyncio
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from math import ceil
from typing import Any

from hubsub.coordination.base import Coordinator, Page, Put, Write, join_key, split_key
from hubsub.coordination.etcd_events import Change, Events, Feed
from hubsub.coordination.etcd_gateway import Gateway, Server
from hubsub.coordination.lease import Lease
from hubsub.coordination.location import Location, parse_location
from hubsub.coordination.watch import Entry, Watch
from hubsub.errors import (
    CoordinatorError,
    CoordinatorRefusedError,
    CoordinatorTooLargeError,
    ExpectationError,
)

PORT = 2379
RANGE_ENTRIES = 500
"""Entries per request; fewer if they are large (the gateway takes 4 MiB in one reply)."""


async def open_url(url: str) -> Coordinator:
    coordinator = EtcdCoordinator(parse_location(url, PORT))
    try:
        await coordinator.get("meta/cluster")
    except BaseException:
        await coordinator.close()
        raise
    return coordinator


class EtcdCoordinator(Coordinator):
    def __init__(self, location: Location) -> None:
        super().__init__()
        self._gateway = Gateway(location)
        self._prefix = location.prefix
        self._probe_s = location.timeout_s
        self._events = Events(self._changes, self._key_of)

    async def close(self) -> None:
        await super().close()
        await self._gateway.close()

    async def _get(self, key: str) -> Entry | None:
        answer = await self._gateway.ask("kv/range", {"key": self._stored(key)})
        return next(iter(self._entries(answer)), None)

    async def _page(self, directory: str, after: str, limit: int) -> Page:
        entries, more, _ = await self._range(directory, after, limit)
        return Page(tuple(entries), more)

    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
        request = {
            "compare": [
                {
                    "key": self._stored(key),
                    "target": "MOD",
                    "result": "EQUAL",
                    "mod_revision": str(revision),
                }
                for key, revision in expect.items()
            ],
            "success": [self._operation(write) for write in writes],
            "failure": [{"request_range": {"key": self._stored(key), "keys_only": True}} for key in expect],
        }
        answer = await self._gateway.send_once("kv/txn", request)
        if not answer.get("succeeded"):
            for (key, expected), of in zip(expect.items(), answer["responses"], strict=True):
                found = _revision(of["response_range"].get("kvs", []))
                if found != expected:
                    raise ExpectationError(key, expected, found)
            raise CoordinatorError("etcd found an expectation wrong, and then all of them right")
        revision = int(answer["header"]["revision"])
        return {write.key: revision if isinstance(write, Put) else 0 for write in writes}

    async def _follow(self, watch: Watch) -> None:
        feed = await self._events.join(self._start(watch.directory))
        try:
            await self._follow_feed(watch, feed)
        finally:
            self._events.leave(feed)

    async def _follow_feed(self, watch: Watch, feed: Feed) -> None:
        entries, after, at = [], "", 0
        more = True
        while more:
            part, more, at = await self._range(watch.directory, after, RANGE_ENTRIES, at)
            entries += part
            after = split_key(part[-1].key)[1] if part else ""
        watch.whole(entries)
        while True:
            for change in await feed.next():
                # Older changes are part of what was read.
                if int(change["kv"]["mod_revision"]) > at:
                    self._feed(watch, change)

    async def _changes(self, opened: asyncio.Event) -> AsyncGenerator[Change, None]:
        """Changes of all keys below the prefix."""
        range_ = {"key": _encode(f"{self._prefix}/"), "range_end": _encode(f"{self._prefix}0")}
        create = {**range_, "fragment": True}
        async with (
            self._gateway.stream("watch", {"create_request": create}) as stream,
            aclosing(stream.lines(self._probe_s, self._probe)) as events,
        ):
            async for event in events:
                if event.get("canceled"):
                    if "permission" in event.get("cancel_reason", ""):
                        raise CoordinatorRefusedError(value=event["cancel_reason"])
                    return
                if event.get("created"):
                    opened.set()
                for change in event.get("events", []):
                    yield change

    def _key_of(self, change: Change) -> tuple[str, str]:
        # Keys of other programs map to none of our directories.
        stored = b64decode(change["kv"]["key"]).decode(errors="backslashreplace")
        return stored, stored[: stored.rfind("/") + 1]

    def _start(self, directory: str) -> str:
        return f"{self._prefix}/{directory}//" if directory else f"{self._prefix}//"

    async def _grant(self, ttl_s: float) -> Lease:
        requested_s = time.monotonic()
        answer = await self._gateway.ask("lease/grant", {"TTL": ceil(ttl_s)})
        return EtcdLease(self._gateway, answer["ID"], int(answer["TTL"]), requested_s)

    # -- stored form --

    def _stored(self, key: str) -> str:
        directory, name = split_key(key)
        return _encode(f"{self._prefix}/{directory}//{name}" if directory else f"{self._prefix}//{name}")

    def _bounds(self, directory: str, after: str = "") -> tuple[str, str]:
        """First key, and the key after the last one, of a directory or of its part after a name."""
        base = self._start(directory)
        return _encode(f"{base}{after}\0" if after else base), _encode(f"{base[:-1]}0")

    async def _range(
        self, directory: str, after: str, limit: int, at: int = 0
    ) -> tuple[list[Entry], bool, int]:
        """Reads a range.

        Args:
            directory: The directory.
            after: Name to start after; empty for the beginning.
            limit: Most entries.
            at: Revision of the store to read at; 0: the current one.

        Returns:
            Entries, whether there are more, and the revision of the store that was read.
        """
        start, end = self._bounds(directory, after)
        limit = min(limit, RANGE_ENTRIES)
        while True:
            request = {"key": start, "range_end": end, "limit": str(limit), "revision": str(at)}
            try:
                answer = await self._gateway.ask("kv/range", request)
            except CoordinatorTooLargeError:
                if limit == 1:
                    raise
                limit = ceil(limit / 8)
                continue
            # The header has the current revision, even if an older one was read.
            now = at or int(answer["header"]["revision"])
            return self._entries(answer, directory), bool(answer.get("more")), now

    async def _probe(self, server: Server) -> None:
        """Fails unless the server of a watch answers and has a quorum."""
        request = {"key": self._stored("meta/cluster"), "keys_only": True}
        await self._gateway.ask("kv/range", request, server)

    def _operation(self, write: Write) -> dict[str, Any]:
        if not isinstance(write, Put):
            return {"request_delete_range": {"key": self._stored(write.key)}}
        put = {"key": self._stored(write.key), "value": b64encode(write.value).decode()}
        if isinstance(write.lease, EtcdLease):
            put["lease"] = write.lease.id
        return {"request_put": put}

    def _feed(self, watch: Watch, change: dict[str, Any]) -> None:
        entry = self._entry(change["kv"], watch.directory)
        if change.get("type") == "DELETE":
            watch.delete(entry.key)
        else:
            watch.put(entry)

    def _entries(self, answer: dict[str, Any], directory: str | None = None) -> list[Entry]:
        return [self._entry(kv, directory) for kv in answer.get("kvs", [])]

    def _entry(self, kv: dict[str, Any], directory: str | None = None) -> Entry:
        stored = b64decode(kv["key"]).decode()
        of, _, name = stored.removeprefix(f"{self._prefix}/").rpartition("/")
        key = join_key(of.rstrip("/") if directory is None else directory, name)
        return Entry(key, b64decode(kv.get("value", "")), int(kv["mod_revision"]))


class EtcdLease(Lease):
    def __init__(self, gateway: Gateway, lease_id: str, ttl_s: int, requested_s: float) -> None:
        super().__init__(ttl_s, requested_s)
        self.id = lease_id
        self._gateway = gateway

    async def _renew(self) -> bool:
        answer = await self._gateway.ask("lease/keepalive", {"ID": self.id})
        return int(answer.get("TTL", 0)) > 0

    async def _end(self) -> None:
        with suppress(CoordinatorError):  # It expires by itself.
            await self._gateway.ask("lease/revoke", {"ID": self.id})


def _encode(key: str) -> str:
    return b64encode(key.encode()).decode()


def _revision(kvs: Sequence[dict[str, Any]]) -> int:
    return int(kvs[0]["mod_revision"]) if kvs else 0
