"""Writes room records while its node is the controller, and reads buckets that its watches may lag.

Invariants: every commit expects the revision of `controller` that was this node's own when the request began.
Lookups reflect the room records as of after the election: a bucket is read before the first response from it,
because a watch may lag the writes of the previous controller. While the record of a room is being removed,
lookups of the room get no response.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from hubsub.control.cluster.bucket_values import Room
from hubsub.control.cluster.buckets import NOTHING, Batch, Buckets, NotKnown
from hubsub.control.cluster.commits import CONTROLLER, Commit
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.records import hub_key
from hubsub.control.cluster.room_limits import RoomRecords
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination import Put
from hubsub.errors import (
    CoordinatorError,
    CoordinatorUnknownError,
    ExpectationError,
    NoControllerError,
    RecordDamagedError,
    RecordFormatError,
)

TRIES: Final = 5
"""Attempts to write a batch when commits conflict or their outcome is unknown."""

COMMITS_MAX: Final = 8
"""Commits in flight at a time; they write different buckets."""

FORGET_RETRY_S: Final = 1.0
"""Delay before a removal of records whose outcome is unknown is retried."""


class RoomWriter:
    """Room records of all classes, as the controller reads and writes them.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache of the cluster; written records are added to it at once.
        controller: Provides the revision that commits expect.
        records: Counts the removed records.
    """

    def __init__(
        self, context: Context, cache: WatchCache, controller: Controller, records: RoomRecords
    ) -> None:
        self._ctx = context
        self.forgetting: set[tuple[str, bytes]] = set()
        """Rooms whose record is being removed: lookups of them wait for the outcome."""
        self._cache = cache
        self._controller = controller
        self._records = records
        self._fresh: set[str] = set()
        """Keys of buckets that the controller of `_fresh_by` has read or written: none lags the store."""
        self._fresh_by = 0
        """Revision of `controller` that `_fresh` belongs to; 0: nothing is fresh."""

    def serving(self, room_class: str) -> tuple[Buckets, int]:
        """Returns the buckets of a class, and the revision of `controller` that writes expect.

        Raises:
            NoControllerError: this node is not the controller, or does not know the rooms yet.
        """
        revision = self._controller.revision
        if revision is None:
            raise NoControllerError("this node is not the controller now")
        if room_class not in self._cache.classes or not self._cache.has_all_rooms(room_class):
            raise NoControllerError("the controller does not know the rooms of the class yet", room_class)
        return self._cache.rooms[room_class], revision

    def look_up(
        self, room_class: str, buckets: Buckets, rooms: Iterable[bytes]
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """Looks rooms up among the known records.

        Args:
            room_class: Class of the rooms.
            buckets: Buckets of the class, from `serving`.
            rooms: Names of the rooms.

        Returns:
            Hubs of the rooms that have a record, and the rooms without one. The caller asks again for a room in
            neither: it is being forgotten, or its record cannot be read now.
        """
        return _look_up(
            buckets,
            (
                room
                for room in rooms
                if (room_class, room) not in self.forgetting and not self.is_unreadable(buckets, room)
            ),
        )

    async def refresh(self, room_class: str, buckets: Buckets, rooms: Iterable[bytes], revision: int) -> None:
        """Reads the buckets of rooms that this controller has neither read nor written yet.

        Args:
            room_class: Class of the rooms.
            buckets: Buckets of the class, from `serving`.
            rooms: Names of the rooms.
            revision: Revision of `controller`, from `serving`.

        Raises:
            CoordinatorUnknownError: the store cannot be reached.
        """
        if self._fresh_by != revision:
            self._fresh, self._fresh_by = set(), revision
        slots = asyncio.Semaphore(COMMITS_MAX)

        async def one(key: str) -> None:
            async with slots:
                await self._read_again(room_class, [key])
            if self._fresh_by == revision and key not in self._cache.unreadable:
                self._fresh.add(key)

        await asyncio.gather(*(one(key) for key in _keys(buckets, rooms) - self._fresh))

    def is_unreadable(self, buckets: Buckets, room: bytes) -> bool:
        """Whether the bucket of a room cannot be read: its known value is not the latest."""
        return bool(self._cache.unreadable) and not self._cache.unreadable.keys().isdisjoint(
            _keys(buckets, [room])
        )

    async def write(
        self,
        buckets: Buckets,
        changes: Mapping[bytes, Room | None],
        revision: int,
        room_class: str,
        expect: Mapping[str, int] = NOTHING,
        is_due: Callable[[bytes], bool] = lambda _: True,
    ) -> dict[bytes, int]:
        """Writes records, and retries until each room has its new record or another record of it is found.

        Args:
            buckets: Buckets of the class.
            changes: New record by room; None: the record is removed.
            revision: Revision of `controller`, from `serving`.
            room_class: Class of the rooms.
            expect: Other keys, with the revisions that each commit expects of them.
            is_due: Whether a room still needs the change; checked with the latest state before each commit.

        Returns:
            The hub of each room that has a record then; without rooms of buckets that cannot be read, which are
            left as they are.

        Raises:
            NoControllerError: another node is the controller.
            ExpectationError: a key of `expect` has another revision.
            CoordinatorError: it cannot be reached, or the outcome stayed unknown.
        """
        slots = asyncio.Semaphore(COMMITS_MAX)
        in_doubt = False

        async def one(commit: Commit) -> None:
            nonlocal in_doubt
            keys = [write.key for write in commit.writes]
            async with slots:
                try:
                    made = await self._ctx.coordinator.commit(
                        commit.expect, [Put(write.key, write.value) for write in commit.writes]
                    )
                except (ExpectationError, CoordinatorUnknownError) as error:
                    if isinstance(error, ExpectationError) and error.key == CONTROLLER:
                        raise NoControllerError("another node is the controller now") from error
                    if isinstance(error, ExpectationError) and error.key in expect:
                        raise
                    in_doubt = True
                    if isinstance(error, CoordinatorUnknownError):
                        self._fresh_by = 0  # This commit may still be applied after the read below.
                    await self._read_again(room_class, keys)
                    return
                if self._fresh_by == revision:
                    self._fresh.update(keys)
                for write in commit.writes:
                    self._cache.add_bucket(room_class, write.key, write.value, made[write.key])

        left, given = dict(changes), dict[bytes, int]()
        for _ in range(TRIES):
            in_doubt = False
            while left := {
                room: at
                for room, at in left.items()
                if is_due(room) and not self.is_unreadable(buckets, room)
            }:
                batch = _commits(buckets, left, revision, expect)
                # `gather` returns after all commits ended, also when one failed.
                outcomes = await asyncio.gather(*map(one, batch.commits), return_exceptions=True)
                failures = [outcome for outcome in outcomes if outcome is not None]
                if failures:
                    # Unknown outcomes take precedence: the other errors mean that nothing was written.
                    raise min(failures, key=lambda error: not isinstance(error, CoordinatorUnknownError))
                left = dict(batch.left)
            if not in_doubt:
                done = {room: at.hub for room, at in changes.items() if at is not None} | given
                return {room: hub for room, hub in done.items() if not self.is_unreadable(buckets, room)}
            found = {room: found_in(buckets, room) for room in changes}
            left = {room: at for room, at in changes.items() if not _is_done(found[room], at)}
            given = {room: at.hub for room, at in found.items() if at is not None and room not in left}
        raise CoordinatorUnknownError()

    async def forget(
        self,
        room_class: str,
        hub: int,
        rooms: Iterable[bytes],
        give_up: Callable[[], Awaitable[Collection[bytes]]],
    ) -> int:
        """Removes the records of rooms that their leader gives up.

        Args:
            room_class: Class of the rooms.
            hub: Hub of the rooms; a room that is elsewhere by now, or pinned, keeps its record.
            rooms: Names of the rooms.
            give_up: Asks the hub's leader to give the rooms up, and returns those that it gave up. Until
                their records are removed or known to remain, lookups of these rooms get no response. If the
                record of the hub changes meanwhile, all remain.

        Returns:
            Number of rooms that have no record now.

        Raises:
            NoControllerError: as `serving`.
            CoordinatorError: a record could not be written.
        """
        buckets, revision = self.serving(room_class)
        led = self._cache.revision(hub_key(hub))
        keys = {(room_class, room) for room in rooms} - self.forgetting
        self.forgetting |= keys
        try:
            given_up = [room for room in await give_up() if (room_class, room) in keys]
            in_doubt = False
            while True:
                try:
                    await self._remove(room_class, buckets, hub, given_up, {hub_key(hub): led}, revision)
                    break
                except CoordinatorError as error:
                    # No lookup may be answered before it is known whether the records remain. After an attempt
                    # whose outcome is unknown, a failed one proves nothing: the first may still be applied.
                    in_doubt = in_doubt or isinstance(error, CoordinatorUnknownError)
                    if not in_doubt or self._controller.revision != revision:
                        raise
                    await asyncio.sleep(FORGET_RETRY_S)
            _, gone = _look_up(buckets, (room for room in given_up if not self.is_unreadable(buckets, room)))
            self._records.forgotten += len(gone)
            return len(gone)
        finally:
            self.forgetting -= keys

    async def _remove(
        self,
        room_class: str,
        buckets: Buckets,
        hub: int,
        rooms: Collection[bytes],
        expect: Mapping[str, int],
        revision: int,
    ) -> None:
        """Removes the records of rooms, except those that are pinned or elsewhere by now; checks before each attempt.

        Raises:
            CoordinatorUnknownError: some may be removed later.
            NoControllerError: as `serving`.
        """

        def is_due(room: bytes) -> bool:
            return found_in(buckets, room) == Room(hub)

        try:
            await self.write(buckets, dict.fromkeys(rooms), revision, room_class, expect, is_due)
        except ExpectationError:
            # The record of the hub has changed. So no late commit removes what was not removed by now.
            await self._read_again(room_class, _keys(buckets, rooms))

    async def _read_again(self, room_class: str, keys: Iterable[str]) -> None:
        """Reads buckets from the store into the watch cache. A value that this version cannot read leaves the
        known one, and its key is noted: see `is_unreadable`.

        Raises:
            CoordinatorUnknownError: the store cannot be reached.
        """
        for key in keys:
            try:
                entry = await self._ctx.coordinator.get(key)
            except CoordinatorError as error:
                raise CoordinatorUnknownError() from error
            if entry is None:
                continue
            try:
                self._cache.add_bucket(room_class, entry.key, entry.value, entry.revision)
            except (RecordFormatError, RecordDamagedError) as error:
                self._cache.unreadable[key] = str(error)
            else:
                self._cache.unreadable.pop(key, None)


def found_in(buckets: Buckets, room: bytes) -> Room | None:
    """Returns a room's record. Raises `NoControllerError`, which callers retry, while a part of a split is missing."""
    try:
        return buckets.find(room)
    except NotKnown:
        raise NoControllerError("the controller does not know all records of the class yet") from None


def _look_up(buckets: Buckets, rooms: Iterable[bytes]) -> tuple[dict[bytes, int], list[bytes]]:
    """Returns hubs of rooms that have a record, and rooms without one. The caller asks again for a room in neither."""
    found, absent = dict[bytes, int](), list[bytes]()
    for room in rooms:
        with suppress(NotKnown):
            at = buckets.find(room)
            if at is None:
                absent.append(room)
            else:
                found[room] = at.hub
    return found, absent


def _keys(buckets: Buckets, rooms: Iterable[bytes]) -> set[str]:
    """Keys of the buckets of rooms, without rooms of a missing part of a split."""
    keys = set[str]()
    for room in rooms:
        with suppress(NotKnown):
            keys.add(buckets.key_of(room))
    return keys


def _commits(
    buckets: Buckets, changes: Mapping[bytes, Room | None], revision: int, expect: Mapping[str, int]
) -> Batch:
    """Like `Buckets.commits`, but raises `NoControllerError` as `found_in` does."""
    try:
        return buckets.commits(changes, revision, expect)
    except NotKnown:
        raise NoControllerError("the controller does not know all records of the class yet") from None


def _is_done(found: Room | None, wanted: Room | None) -> bool:
    """Whether a room has the wanted record. For a room without a pin any record will do."""
    return found == wanted or (wanted is not None and not wanted.is_pinned and found is not None)
