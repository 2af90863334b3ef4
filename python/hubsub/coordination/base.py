"""What every coordinator does: the small consistent store of nodes, classes, hubs and rooms.

Keys are paths of directories and a name (`hubs/17`, `rooms/chat/3`, `controller`). A change gives
its key a new *revision*, which grows and is never used again for that key; 0 is the revision of a
key that is not there. Backends fill in the methods with an underscore; what they are given has been
checked. They know nothing of what the keys mean.

Errors are those of `hubsub.errors.CoordinatorError`: whatever is not `CoordinatorUnknownError`
means that nothing was written. Reads are repeated at other servers before they fail, commits never
once they may have arrived.
"""

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
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
"""What one operation of a commit adds to its key and value, at most: lengths, versions, rights."""
PAGE_MAX = 1_000
"""Entries of one page."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a directory, in order of names."""

    entries: tuple[Entry, ...]
    more: bool
    """Whether there are entries behind the last one."""


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: Lease | None = None
    """The key goes with it; None unbinds a key that was bound."""


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    """Nothing happens if it is not there."""


Write = Put | Delete


class Coordinator(ABC):
    """A connection to the store, for one event loop. Its watches and leases end with it."""

    failed: str | None = None
    """Why this connection can do nothing any more, for good: only the embedded one, whose files or thread are this
    process's, can fail so. `has_failed` is set then."""

    store_bytes_max: int | None = None
    """Bytes of keys and values that the store takes; None: it does not say."""

    def __init__(self) -> None:
        self.has_failed = asyncio.Event()
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    async def get(self, key: str) -> Entry | None:
        """The entry as of now: every write that was answered before the call is seen."""
        check_key(key)
        return await self._get(key)

    async def holds(self, key: str, revision: int) -> bool:
        """Whether a key has that revision at some time after this is called: a majority of the store says so."""
        entry = await self.get(key)
        return entry is not None and entry.revision == revision

    async def page(self, directory: str, after: str = "", limit: int = PAGE_MAX) -> Page:
        """Entries directly in a directory; pages are not of one moment.

        Args:
            directory: `""` for the keys without one.
            after: Name (without the directory) to begin behind; `""` for the beginning.
            limit: Entries, 1 to `PAGE_MAX`; less may come.
        """
        check_directory(directory)
        if not 1 <= limit <= PAGE_MAX:
            raise ValueError(f"limit must be 1 to {PAGE_MAX}: {limit}")
        return await self._page(directory, after, limit)

    async def commit(self, expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
        """Makes all writes or none, and only if each key of `expect` has that revision.

        Args:
            expect: Key to revision; 0: it must not be there.
            writes: At most one for each key, and at most one lease among them.

        Returns:
            Key to revision of each write; 0 for those deleted.

        Raises:
            ExpectationError: names the key; nothing was written.
            LeaseLostError: the lease is over; nothing was written.
            CoordinatorTooLargeError: too many operations or bytes; nothing was written.
            CoordinatorUnknownError: it may have been made, or may still be.
        """
        check_commit(expect, writes)
        if not expect and not writes:
            return {}
        return await self._commit(dict(expect), tuple(writes))

    def watch(self, directory: str) -> Watch:
        """What is directly in a directory, from now on: see `Watch`."""
        check_directory(directory)
        watch = Watch(directory, self._follow)
        self._watches.add(watch)
        return watch

    async def lease(self, ttl_s: float) -> Lease:
        """A lease that is renewed until it is given back or lost.

        Args:
            ttl_s: Time to live; servers round it up: `Lease.ttl_s` says what it became.
        """
        if not ttl_s > 0:
            raise ValueError(f"a time to live must be positive: {ttl_s}")
        lease = await self._grant(ttl_s)
        self._leases.add(lease)
        return lease

    async def close(self) -> None:
        """Ends watches and gives leases back, as far as the store can be reached."""
        await asyncio.gather(*(watch.close() for watch in list(self._watches)))
        await asyncio.gather(*(lease.give_back() for lease in list(self._leases)))

    async def listens_at(self) -> str | None:
        """Where others join it, `HOST:PORT`; None: it is no part of this process."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def _get(self, key: str) -> Entry | None: ...

    @abstractmethod
    async def _page(self, directory: str, after: str, limit: int) -> Page: ...

    @abstractmethod
    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]: ...

    @abstractmethod
    async def _follow(self, watch: Watch) -> None:
        """Feeds a watch from the whole to a break."""

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
    """Refuses what no backend could do; the limits are those of the narrowest."""
    written = {write.key for write in writes}
    for key in expect.keys() | written:
        check_key(key)
    if len(written) < len(writes):
        raise ValueError("a commit must write each key once")
    if len(expect) + len(writes) > OPERATIONS_MAX:
        raise CoordinatorTooLargeError(
            f"a commit has at most {OPERATIONS_MAX} operations", len(expect) + len(writes)
        )
    # A key may be written as three characters a byte.
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
