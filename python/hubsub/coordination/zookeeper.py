"""The coordinator in ZooKeeper 3.5 or newer, through kazoo.

A directory is one node (`hubs`, `rooms%2Fchat`, `=` for the keys without one), and a key is a node below it,
so that a directory is watched and listed in one place. A key's revision is its `mzxid`.

ZooKeeper's transactions compare *versions*, which restart when a node is created again. Therefore every
commit that creates a node also writes its directory's node, and every commit states the version that its
directories had before it read its keys: keys created since are noticed, and the read is repeated. That write
also returns the revision of the created nodes, which their own results lack.

A lease is a separate session, proved by a write: nothing else needs a quorum. ZooKeeper's leader may learn of
a renewal half a tick late, and a session is at least two ticks long, so a lease uses three quarters of its
session.
"""

import asyncio
import time
from typing import Any
from urllib.parse import quote, unquote

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from hubsub.coordination.base import Coordinator, Page, Put, Write, join_key, split_key
from hubsub.coordination.lease import Lease
from hubsub.coordination.location import Location, parse_location
from hubsub.coordination.watch import Entry, Watch
from hubsub.coordination.zookeeper_session import Call, Session
from hubsub.errors import (
    CoordinatorRefusedError,
    CoordinatorUnknownError,
    CoordinatorUnreachableError,
    ExpectationError,
    LeaseLostError,
)

PORT = 2181
TOP = "="
"""Node of the keys without a directory: no name is quoted to it."""
READ_ENTRIES = 500
"""Reads in flight at once."""
SESSION_SHARE = 0.75
"""Share of a session that a lease relies on."""

CHANGED = (BadVersionError, NodeExistsError, NoNodeError)
"""A transaction found other nodes than were read."""
OTHERS = (RolledBackError, RuntimeInconsistency)
"""Results of the other operations in a failed transaction."""


async def open_url(url: str) -> Coordinator:
    coordinator = ZooKeeperCoordinator(parse_location(url, PORT))
    await coordinator.start()
    return coordinator


class ZooKeeperCoordinator(Coordinator):
    def __init__(self, location: Location) -> None:
        super().__init__()
        self._location = location
        self._session = Session(location, location.timeout_s)
        self._root = f"/{location.prefix}"

    async def start(self) -> None:
        await self._session.start()
        try:
            await self._make_directory("")
        except BaseException:
            await self._session.close()
            raise

    async def close(self) -> None:
        await super().close()
        await self._session.close()

    async def _get(self, key: str) -> Entry | None:
        _, found = await self._session.ask(_sync(self._root), _get(self._path(key)))
        return _entry(key, found)

    async def holds(self, key: str, revision: int) -> bool:
        """As in any coordinator. `sync` needs no majority (ZOOKEEPER-1675), so a former leader may answer a
        read with old data; a transaction is always voted on, even if it only checks.
        """
        if revision == 0:
            return False
        try:
            await self.commit({key: revision}, [])
        except ExpectationError:
            return False
        return True

    async def _page(self, directory: str, after: str, limit: int) -> Page:
        path = self._node(directory)
        _, listed = await self._session.ask(_sync(path), lambda zk: zk.get_children_async(path))
        names = sorted(name for name in map(unquote, listed or ()) if name > after)
        entries: list[Entry] = []
        while names and not entries:  # All listed entries may have been deleted meanwhile.
            part, names = names[:limit], names[limit:]
            entries = await self._read(directory, part)
        return Page(tuple(entries), bool(names))

    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
        lease = next((write.lease for write in writes if isinstance(write, Put) and write.lease), None)
        session = lease.session if isinstance(lease, ZooKeeperLease) else self._session
        until = time.monotonic() + self._location.timeout_s
        while time.monotonic() < until:
            if lease is not None and session.over:
                raise LeaseLostError()
            made = await self._attempt(session, expect, writes)
            if made is not None:
                if lease is not None and session.over:  # kazoo may have sent it with its next session.
                    raise CoordinatorUnknownError(value="the lease ended meanwhile")
                return made
        raise CoordinatorUnreachableError("others write to the same directories all the time")

    async def _attempt(
        self, session: Session, expect: dict[str, int], writes: tuple[Write, ...]
    ) -> dict[str, int] | None:
        """One transaction; None if a node changed between reading and writing."""
        keys = list(dict.fromkeys([*expect, *(write.key for write in writes)]))
        directories = list(dict.fromkeys(split_key(key)[0] for key in keys))
        # Directories are read first: later creations in them change their version.
        nodes = [*map(self._node, directories), *map(self._path, keys)]
        _, *found = await session.ask(_sync(self._root), *map(_exists, nodes))
        versions = dict(zip(directories, found, strict=False))
        stats: dict[str, ZnodeStat | None] = dict(zip(keys, found[len(directories) :], strict=True))
        missing = [directory for directory in directories if versions[directory] is None]
        if missing:
            for directory in missing:
                await self._make_directory(directory)
            return None
        for key, expected in expect.items():
            revision = _revision(stats[key])
            if revision != expected:
                raise ExpectationError(key, expected, revision)

        transaction = session.transaction()
        made_in = {
            split_key(write.key)[0]
            for write in writes
            if isinstance(write, Put) and not _stays(write, stats[write.key])
        }
        for directory in directories:
            node, version = self._node(directory), versions[directory].version
            if directory in made_in:
                transaction.set_data(node, b"", version)
            else:
                transaction.check(node, version)
        for key in expect.keys() - {write.key for write in writes}:
            if (stat := stats[key]) is not None:
                transaction.check(self._path(key), stat.version)
        for write in writes:
            path, stat = self._path(write.key), stats[write.key]
            version = stat.version if stat is not None and write.key in expect else -1
            if isinstance(write, Put) and _stays(write, stat):
                transaction.set_data(path, write.value, version)
                continue
            if stat is not None:
                transaction.delete(path, version)
            if isinstance(write, Put):
                transaction.create(path, write.value, ephemeral=write.lease is not None)
        results = await session.commit(transaction)
        if not _done(results):
            return None
        zxid = max((result.mzxid for result in results if isinstance(result, ZnodeStat)), default=0)
        return {write.key: zxid if isinstance(write, Put) else 0 for write in writes}

    async def _follow(self, watch: Watch) -> None:
        await self._make_directory(watch.directory)
        broken = self._session.until_break()
        try:
            await self._follow_until(watch, broken)
        finally:
            self._session.forget(broken)

    async def _grant(self, ttl_s: float) -> Lease:
        requested_s = time.monotonic()
        session = Session(self._location, ttl_s / SESSION_SHARE)
        await session.start()
        return ZooKeeperLease(session, requested_s, self._root)

    async def _follow_until(self, watch: Watch, broken: asyncio.Event) -> None:
        """A ZooKeeper watch fires once: reading the node again renews it."""
        directory, node = watch.directory, self._node(watch.directory)
        changed: set[str] = set()
        """Paths of changed nodes: the directory's own if names were added or removed."""
        news = asyncio.Event()

        def changed_node(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:
                changed.add(event.path)
                news.set()

        seen = self._session.soon(changed_node)

        async def names() -> set[str]:
            _, listed = await self._session.ask(
                _sync(node), lambda zk: zk.get_children_async(node, watch=seen)
            )
            return {unquote(name) for name in listed or ()}

        entries = await self._read(directory, sorted(await names()), seen)
        watch.whole(entries)
        # Only keys that were found: if a listed key had been deleted, its creation is a change.
        known = _names(entries)
        while await _first(news, broken) is news:
            news.clear()
            paths = changed.copy()
            changed.clear()
            again = {unquote(path.removeprefix(f"{node}/")) for path in paths - {node}}
            if node in paths:
                again |= known ^ await names()
            entries = await self._read(directory, sorted(again), seen)
            known -= again
            known |= _names(entries)
            for entry in entries:
                watch.put(entry)
            for key in {join_key(directory, name) for name in again} - {entry.key for entry in entries}:
                watch.delete(key)

    # -- stored form --

    def _node(self, directory: str) -> str:
        return f"{self._root}/{_quote(directory) if directory else TOP}"

    def _path(self, key: str) -> str:
        directory, name = split_key(key)
        return f"{self._node(directory)}/{_quote(name)}"

    async def _make_directory(self, directory: str) -> None:
        """Creates a directory; directories are never deleted."""
        node = self._node(directory)
        await self._session.ask(lambda zk: zk.ensure_path_async(node))

    async def _read(self, directory: str, names: list[str], watch: Any = None) -> list[Entry]:
        entries = []
        for start in range(0, len(names), READ_ENTRIES):
            keys = [join_key(directory, name) for name in names[start : start + READ_ENTRIES]]
            found = await self._session.ask(*(_get(self._path(key), watch) for key in keys))
            entries += [_entry(key, one) for key, one in zip(keys, found, strict=True)]
        return [entry for entry in entries if entry is not None]


class ZooKeeperLease(Lease):
    def __init__(self, session: Session, requested_s: float, root: str) -> None:
        super().__init__(session.granted_s * SESSION_SHARE, requested_s)
        self.session = session
        self._root = root
        self._end_watcher = asyncio.create_task(self._watch_end())

    async def _renew(self) -> bool:
        # A write that changes nothing: a quorum must accept it, in this session. Pings and `sync` may be
        # answered by a server or leader that the others have already left; the others restart the session's
        # time on their own and end it earlier.
        transaction = self.session.transaction()
        transaction.check(self._root, -1)
        results = await self.session.commit(transaction)
        return not self.session.over and _done(results)

    async def _end(self) -> None:
        self._end_watcher.cancel()
        await self.session.close()

    async def _watch_end(self) -> None:
        await self.session.ended.wait()
        self._lose()
        await self.session.close()


def _stays(write: Put, stat: ZnodeStat | None) -> bool:
    """Whether the existing node can be overwritten instead of recreated: a node cannot change its session."""
    if stat is None:
        return False
    owner = write.lease.session.id if isinstance(write.lease, ZooKeeperLease) else 0
    return bool(stat.ephemeralOwner == owner)


def _done(results: list[Any]) -> bool:
    """Whether a transaction was made; False if it found other nodes than were read."""
    errors = [result for result in results if isinstance(result, KazooException)]
    if any(isinstance(error, CHANGED) for error in errors):
        return False
    for error in errors:
        if not isinstance(error, OTHERS):
            raise CoordinatorRefusedError(value=type(error).__name__)
    return not errors


async def _first(news: asyncio.Event, broken: asyncio.Event) -> asyncio.Event:
    """The event that is set first; `broken` if both are."""
    waits = [asyncio.ensure_future(event.wait()) for event in (news, broken)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return broken if broken.is_set() else news


def _entry(key: str, found: tuple[bytes, ZnodeStat] | None) -> Entry | None:
    return None if found is None else Entry(key, found[0], found[1].mzxid)


def _names(entries: list[Entry]) -> set[str]:
    return {split_key(entry.key)[1] for entry in entries}


def _revision(stat: ZnodeStat | None) -> int:
    return 0 if stat is None else int(stat.mzxid)


def _quote(name: str) -> str:
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def _sync(path: str) -> Call:
    """Makes later reads see every write that was answered before."""
    return lambda zk: zk.sync_async(path)


def _exists(path: str) -> Call:
    return lambda zk: zk.exists_async(path)


def _get(path: str, watch: Any = None) -> Call:
    return lambda zk: zk.get_async(path, watch=watch)
