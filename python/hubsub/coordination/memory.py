"""A coordinator in memory, for tests of its users, and the reference model for the other backends.

A `MemoryStore` is the state of a server; each `MemoryCoordinator` is a connection to it. Everything runs in
one event loop, so a commit is atomic by nature.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from hubsub.coordination.base import Coordinator, Page, Put, Write, join_key, split_key
from hubsub.coordination.lease import Lease
from hubsub.coordination.watch import Entry, Watch
from hubsub.errors import CoordinatorUnreachableError, ExpectationError, LeaseLostError


class MemoryStore:
    """Keys, leases and watches.

    Args:
        clock: Clock of the leases. If you pass your own, call `expire()` after moving it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        """Revision of the last commit."""
        self._away = False
        self._leases: dict[int, tuple[float, float]] = {}
        """Id to its time to live and the time at which it expires."""
        self._last_lease = 0
        self._bound: dict[str, int] = {}
        """Key to the lease that it is bound to."""
        self._watches: dict[Watch, asyncio.Event] = {}
        """Watch to the event that breaks it."""

    @property
    def away(self) -> bool:
        """Whether the store is unreachable; set it to simulate that. Leases start their time again afterwards."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        if away:
            self.break_watches()
        elif self._away:
            self._leases = {
                lease: (ttl_s, self.clock() + ttl_s) for lease, (ttl_s, _) in self._leases.items()
            }
        self._away = away

    def break_watches(self) -> None:
        """Breaks all watches, as if all connections were cut once."""
        for broken in self._watches.values():
            broken.set()

    def reach(self) -> None:
        if self._away:
            raise CoordinatorUnreachableError()
        self.expire()

    def commit(self, expect: dict[str, int], writes: tuple[Write, ...], lease: int | None) -> dict[str, int]:
        """Makes all writes or none.

        Args:
            expect: Key to revision; 0: the key must not exist.
            writes: The writes.
            lease: Id of the lease for writes that name one.

        Returns:
            Key to revision of each write; 0 for those deleted.

        Raises:
            ExpectationError: a key has another revision.
            LeaseLostError: the lease is over.
        """
        for key, expected in expect.items():
            found = self.entries[key].revision if key in self.entries else 0
            if found != expected:
                raise ExpectationError(key, expected, found)
        if lease is not None and lease not in self._leases:
            raise LeaseLostError()
        if writes:
            self.revision += 1
        made = {}
        for write in writes:
            if isinstance(write, Put):
                bound = None if write.lease is None else lease
                self._put(Entry(write.key, bytes(write.value), self.revision), bound)
                made[write.key] = self.revision
            else:
                self._delete(write.key)
                made[write.key] = 0
        return made

    def directory(self, directory: str) -> list[Entry]:
        """Entries in order of names."""
        return [self.entries[key] for key in sorted(self.entries) if split_key(key)[0] == directory]

    def grant(self, ttl_s: float) -> int:
        self._last_lease += 1
        self._leases[self._last_lease] = ttl_s, self.clock() + ttl_s
        return self._last_lease

    def renew(self, lease: int) -> bool:
        if lease in self._leases:
            ttl_s, _ = self._leases[lease]
            self._leases[lease] = ttl_s, self.clock() + ttl_s
        return lease in self._leases

    def has(self, lease: int) -> bool:
        return lease in self._leases

    def end(self, lease: int) -> None:
        """Ends a lease and deletes its keys; a test may do this to a lease that is held."""
        if self._leases.pop(lease, None) is not None:
            self.revision += 1
            for key in [key for key, bound in self._bound.items() if bound == lease]:
                self._delete(key)

    def expire(self) -> None:
        """Ends expired leases; nothing while the store is unreachable."""
        if not self._away:
            for lease in [lease for lease, (_, over) in self._leases.items() if over <= self.clock()]:
                self.end(lease)

    async def follow(self, watch: Watch) -> None:
        self.reach()
        broken = self._watches[watch] = asyncio.Event()
        try:
            watch.whole(self.directory(watch.directory))
            await broken.wait()
        finally:
            del self._watches[watch]

    def _put(self, entry: Entry, lease: int | None) -> None:
        self.entries[entry.key] = entry
        self._bound.pop(entry.key, None)
        if lease is not None:
            self._bound[entry.key] = lease
        for watch in self._watching(entry.key):
            watch.put(entry)

    def _delete(self, key: str) -> None:
        self._bound.pop(key, None)
        if self.entries.pop(key, None) is not None:
            for watch in self._watching(key):
                watch.delete(key)

    def _watching(self, key: str) -> list[Watch]:
        directory = split_key(key)[0]
        return [
            watch
            for watch, broken in self._watches.items()
            if watch.directory == directory and not broken.is_set()
        ]


class MemoryCoordinator(Coordinator):
    """A connection to a store; without one, to a store of its own."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__()
        self.store = store or MemoryStore()
        self.cut = False
        """Whether this connection alone cannot reach the store; set it to simulate the fault."""

    async def reach(self) -> None:
        await asyncio.sleep(0)  # Lets other tasks run first, as a network might.
        if self.cut:
            raise CoordinatorUnreachableError()
        self.store.reach()

    async def _get(self, key: str) -> Entry | None:
        await self.reach()
        return self.store.entries.get(key)

    async def _page(self, directory: str, after: str, limit: int) -> Page:
        await self.reach()
        later = (
            entry
            for entry in self.store.directory(directory)
            if not after or entry.key > join_key(directory, after)
        )
        found = tuple(islice(later, limit + 1))
        return Page(found[:limit], len(found) > limit)

    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
        await self.reach()
        leases = [w.lease.id for w in writes if isinstance(w, Put) and isinstance(w.lease, MemoryLease)]
        return self.store.commit(expect, writes, leases[0] if leases else None)

    async def _follow(self, watch: Watch) -> None:
        await self.reach()
        await self.store.follow(watch)

    async def _grant(self, ttl_s: float) -> Lease:
        await self.reach()
        return MemoryLease(self, ttl_s)


class MemoryLease(Lease):
    def __init__(self, coordinator: MemoryCoordinator, ttl_s: float) -> None:
        super().__init__(ttl_s, time.monotonic())
        self._coordinator = coordinator
        self.id = coordinator.store.grant(ttl_s)
        self._over = asyncio.create_task(self._look())

    async def _renew(self) -> bool:
        await self._coordinator.reach()
        return self._coordinator.store.renew(self.id)

    async def _end(self) -> None:
        with suppress(CoordinatorUnreachableError):
            await self._coordinator.reach()
            self._coordinator.store.end(self.id)

    async def _look(self) -> None:
        """Expires the lease in time, even if there are no requests."""
        store = self._coordinator.store
        while store.has(self.id):
            await asyncio.sleep(self.ttl_s / 10)
            store.expire()
