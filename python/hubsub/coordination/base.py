"""The interface of every coordinator: the small consistent store of nodes, classes, hubs and rooms.

Keys are paths of directories and a name (`hubs/17`, `rooms/chat/3`, `controller`). A change gives its key a
new *revision*, which is higher than all before it of any key; a missing key has revision 0. Backends implement
the methods with an underscore; their arguments have been checked. They do not know what the keys mean.

Errors are those of `hubsub.errors.CoordinatorError`. Any error except `CoordinatorUnknownError` means that
nothing was written. Reads are repeated at other servers before they fail; commits never once they may have
arrived.
"""

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from hubsub.coordination.lease import Lease
from hubsub.coordination.watch import Entry, Watch
from hubsub.errors import CoordinatorTooLargeError, LeaseLostError

KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 65_536
OPERATIONS_MAX = 100
"""Expectations and writes of one commit; etcd takes 128 of each kind."""
COMMIT_BYTES_MAX = 1_000_000
"""Size of one commit as ZooKeeper would send it, whose servers drop a connection at 1,048,575 bytes."""
OPERATION_BYTES = 128
"""Upper bound of what an operation of a commit adds to its key and value: lengths, versions, permissions."""
PAGE_MAX = 1_000
"""Most entries of a page."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a directory, in order of names."""

    entries: tuple[Entry, ...]
    more: bool
    """Whether there are entries after the last one."""


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: Lease | None = None
    """The key is deleted with the lease; None unbinds a key that was bound."""


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    """Deleting a missing key has no effect."""


Write = Put | Delete


class Coordinator(ABC):
    """A connection to the store, for one event loop. Closing it ends its watches and leases."""

    failed: str | None = None
    """Why this connection has failed for good; `has_failed` is set then. Only the embedded one, whose files
    and thread belong to this process, can fail so.
    """

    store_bytes_max: int | None = None
    """Most bytes of keys and values in the store; None: unknown."""

    def __init__(self) -> None:
        self.has_failed = asyncio.Event()
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    async def get(self, key: str) -> Entry | None:
        """The current entry: every write that was answered before the call is visible."""
        check_key(key)
        return await self._get(key)

    async def holds(self, key: str, revision: int) -> bool:
        """Whether a key has that revision at a time after the call; a majority of the store confirms it."""
        entry = await self.get(key)
        return entry is not None and entry.revision == revision

    async def page(self, directory: str, after: str = "", limit: int = PAGE_MAX) -> Page:
        """Entries directly in a directory. Pages are not snapshots of the same moment.

        Args:
            directory: `""` for the keys without one.
            after: Name (without the directory) to start after; `""` for the beginning.
            limit: Most entries, 1 to `PAGE_MAX`; fewer may be returned.

        Raises:
            ValueError: an argument is invalid.
        """
        check_directory(directory)
        if not 1 <= limit <= PAGE_MAX:
            raise ValueError(f"limit must be 1 to {PAGE_MAX}: {limit}")
        return await self._page(directory, after, limit)

    async def all(self, directory: str) -> list[Entry]:
        """All entries directly in a directory, page by page; not a snapshot of one moment."""
        found: list[Entry] = []
        more = True
        while more:
            page = await self.page(directory, split_key(found[-1].key)[1] if found else "")
            found += page.entries
            more = page.more and bool(page.entries)
        return found

    async def commit(self, expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
        """Makes all writes or none, and only if each key of `expect` has that revision.

        Args:
            expect: Key to revision; 0: the key must not exist.
            writes: At most one per key, and at most one lease among them.

        Returns:
            Key to revision of each write; 0 for those deleted.

        Raises:
            ExpectationError: names the key; nothing was written.
            LeaseLostError: the lease is over; nothing was written.
            CoordinatorTooLargeError: too many operations or bytes; nothing was written.
            CoordinatorUnknownError: the writes may have been made, or may still be.
        """
        check_commit(expect, writes)
        if not expect and not writes:
            return {}
        return await self._commit(dict(expect), tuple(writes))

    def watch(self, directory: str) -> Watch:
        """Watches the entries directly in a directory from now on: see `Watch`."""
        check_directory(directory)
        watch = Watch(directory, self._follow)
        self._watches.add(watch)
        return watch

    async def lease(self, ttl_s: float) -> Lease:
        """A lease that is renewed until it is given back or lost.

        Args:
            ttl_s: Time to live; servers round it up: `Lease.ttl_s` has the actual value.
        """
        if not ttl_s > 0:
            raise ValueError(f"a time to live must be positive: {ttl_s}")
        lease = await self._grant(ttl_s)
        self._leases.add(lease)
        return lease

    async def close(self) -> None:
        """Ends watches and gives leases back, as far as the store can be reached."""
        await asyncio.gather(*(watch.close() for watch in list(self._watches)))
        await asyncio.gather(*(lease.release() for lease in list(self._leases)))

    async def listens_at(self) -> str | None:
        """The address `HOST:PORT` where other nodes join it; None: it is not part of this process."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def _get(self, key: str) -> Entry | None: ...

    @abstractmethod
    async def _page(self, directory: str, after: str, limit: int) -> Page: ...

    @abstractmethod
    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]: ...

    @abstractmethod
    async def _follow(self, watch: Watch) -> None:
        """Feeds a watch, from the complete directory until a break."""

    @abstractmethod
    async def _grant(self, ttl_s: float) -> Lease: ...


def split_key(key: str) -> tuple[str, str]:
    """Directory (`""` for none) and name."""
    directory, _, name = key.rpartition("/")
    return directory, name


def join_key(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def check_key(key: str) -> None:
    if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
        raise ValueError(f"a key must have 1 to {KEY_BYTES_MAX} bytes: {key[:80]!r}")
    if "" in key.split("/") or "\0" in key:
        raise ValueError(f"a key must be names with single slashes between them: {key!r}")


def check_directory(directory: str) -> None:
    if directory:
        check_key(directory)


def check_commit(expect: Mapping[str, int], writes: Sequence[Write]) -> None:
    """Refuses commits that some backend could not make; the limits are those of the narrowest."""
    written = {write.key for write in writes}
    for key in expect.keys() | written:
        check_key(key)
    if len(written) < len(writes):
        raise ValueError("a commit must write each key once")
    if len(expect) + len(writes) > OPERATIONS_MAX:
        raise CoordinatorTooLargeError(
            f"a commit has at most {OPERATIONS_MAX} operations", len(expect) + len(writes)
        )
    # A byte of a key may be encoded as three characters.
    total = sum(3 * len(key.encode()) + OPERATION_BYTES for key in [*expect, *written])
    leases = set()
    for write in writes:
        if isinstance(write, Put):
            if len(write.value) > VALUE_BYTES_MAX:
                raise CoordinatorTooLargeError(
                    f"a value has at most {VALUE_BYTES_MAX} bytes", f"{len(write.value)} of {write.key}"
                )
            total += len(write.value)
            if write.lease is not None:
                leases.add(write.lease)
    if total > COMMIT_BYTES_MAX:
        raise CoordinatorTooLargeError(f"a commit has at most {COMMIT_BYTES_MAX} bytes", total)
    if len(leases) > 1:
        raise ValueError("a commit may name one lease")
    for lease in leases:
        if not lease.held:
            raise LeaseLostError()
