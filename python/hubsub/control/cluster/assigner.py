"""Places new rooms and moves rooms: the part of the controller that writes room records.

Requests collect while a batch is in flight, and the next batch takes as many as fit: under more load batches
get larger and commits per room fewer. A batch is checked against the limits, spread by `placement.choose`,
confirmed with the members of each hub (a member may refuse a room, which then goes to another hub), written,
and answered.

Invariants: a response contains only rooms whose record is written. Every request gets a response, even if its
batch fails, and the next batch follows. Every commit expects the revision of `controller` that was this
node's own when the batch began. Responses reflect the room records as of after the election: a bucket is read
before the first response from it, because a watch may lag the writes of the previous controller. A batch has
at most `BATCH_ROOMS` rooms and `BATCH_BYTES` of their names.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from hubsub.control.cluster import rpc
from hubsub.control.cluster.buckets import NAME_BYTES_MAX, NOTHING, Batch, Buckets, NotKnown, Room, hash_of
from hubsub.control.cluster.commits import CONTROLLER, Commit
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.placement import Allowance, NodeLoad, choose
from hubsub.control.cluster.records import EPHEMERAL, hub_key
from hubsub.control.cluster.room_limits import RoomRecords
from hubsub.control.cluster.view import Timing
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination import Coordinator, Put
from hubsub.errors import (
    CoordinatorError,
    CoordinatorUnknownError,
    ExpectationError,
    HubSubError,
    MoveError,
    NoControllerError,
    PeerError,
    RecordDamagedError,
    RecordFormatError,
    TooManyRoomsError,
    TopicLengthError,
)
from hubsub.names import text_of

BATCH_ROOMS: Final = 500
BATCH_BYTES: Final = 128 << 10
"""Bytes of names in one batch: the request to a member must fit into one message. A batch takes about 50 ms
of the controller, which does no failover meanwhile."""

ROUNDS: Final = 4
"""Attempts to find a hub for a room that members refused."""

MOVES_RETAINED: Final = 256
"""Number of latest moves of rooms that are retained, for `GET /v1/moves`."""

TRIES: Final = 5
"""Attempts to write a batch when commits conflict or their outcome is unknown."""

COMMITS_MAX: Final = 8
"""Commits in flight at a time; they write different buckets."""

FORGET_RETRY_S: Final = 1.0
"""Delay before a removal of records whose outcome is unknown is retried."""

REFUSED_LOG_S: Final = 10.0
"""Minimum interval between two log lines about one limit that refuses rooms."""

log = structlog.get_logger("hubsub.cluster")

Confirm = Callable[[str, rpc.Confirm], Awaitable[rpc.Confirmation]]
"""Asks a node whether it accepts rooms of its hubs; fails with `PeerError`."""


@dataclass(slots=True)
class _Request:
    room_class: str
    rooms: tuple[bytes, ...]
    answer: asyncio.Future[rpc.Assigned]


class Assigner:
    """Serves `Assign`, `Find` and `Move` while its node is the controller.

    Args:
        coordinator: Store of the records.
        cache: Watch cache of the cluster; written records are added to it at once.
        controller: Provides the revision that commits expect, and the view that hubs are chosen from.
        take: Asks a member whether it accepts rooms.
        loads: Latest known load by node; the estimated load of new rooms is added to it.
        rooms_per_second: Rooms that may be created per second, also the burst; 0: no limit.
        rooms_max: Rooms that may exist.
        records: Counts of room records, and the limits per class and in bytes.
        timing: The same in the whole cluster.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        cache: WatchCache,
        controller: Controller,
        take: Confirm,
        loads: dict[str, NodeLoad],
        *,
        rooms_per_second: int,
        rooms_max: int,
        records: RoomRecords,
        timing: Timing,
        clock: Callable[[], float],
    ) -> None:
        self._refusals_logged_s: dict[str, float] = {}
        """By limit, when it was last logged."""
        rate = float(rooms_per_second or 1_000_000_000)
        self._allowance = Allowance(per_second=rate, burst=rate, rooms_max=rooms_max, left=rate, at_s=clock())
        self._records = records
        self._coordinator = coordinator
        self._cache = cache
        self._controller = controller
        self._take = take
        self._loads = loads
        self._timing = timing
        self._clock = clock
        self._forgetting: set[tuple[str, bytes]] = set()
        """Rooms whose record is being removed: lookups of them wait for the outcome."""
        self._fresh: set[str] = set()
        """Keys of buckets that the controller of `_fresh_by` has read or written: none lags the store."""
        self._fresh_by = 0
        """Revision of `controller` that `_fresh` belongs to; 0: nothing is fresh."""
        self._requests: deque[_Request] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._moves: deque[tuple[float, rpc.MoveRow]] = deque(maxlen=MOVES_RETAINED)
        """Time by the clock, and the move."""

    async def assign(self, request: rpc.Assign) -> rpc.Assigned:
        """Looks up the hubs of rooms, and places the rooms that have none.

        Raises:
            NoControllerError: this node is not the controller, or cannot act now.
            CoordinatorError: a record could not be written.
        """
        answer: asyncio.Future[rpc.Assigned] = asyncio.get_running_loop().create_future()
        self._requests.append(_Request(request.room_class, request.rooms, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def find(self, request: rpc.Find) -> rpc.Found:
        """Looks up the hubs of rooms, without placing any.

        Raises:
            NoControllerError: as `assign`.
            CoordinatorError: a record could not be read.
        """
        buckets, revision = self._begun(request.room_class)
        await self._refresh(request.room_class, buckets, request.rooms, revision)
        found, absent = self._sought(request.room_class, buckets, request.rooms)
        return rpc.Found(found, tuple(absent), tuple(map(buckets.revision_of, found)))

    async def move(self, request: rpc.Move) -> rpc.Moved:
        """Pins a room of an ephemeral class, or removes its pin.

        Raises:
            MoveError: it cannot be moved there.
            NoControllerError: as `assign`.
            CoordinatorError: as `assign`.
        """
        buckets, revision = self._begun(request.room_class)
        if (request.room_class, request.room) in self._forgetting:
            raise NoControllerError("the room is being forgotten just now", text_of(request.room))
        found = _found(buckets, request.room)
        before = None if found is None else found.hub
        try:
            moved = await self._move(request, buckets, revision)
        except HubSubError as error:
            self._record_steps(request, before, None, error.message)
            raise
        self._record_steps(request, before, moved.hub, None)
        return moved

    def moves(self) -> list[rpc.MoveRow]:
        """The latest moves of rooms that this node carried out or refused, at most `MOVES_RETAINED`, latest
        last."""
        now = self._clock()
        return [msgspec.structs.replace(row, ago_s=round(now - at_s, 3)) for at_s, row in self._moves]

    def _record_steps(
        self, request: rpc.Move, before: int | None, hub: int | None, refused: str | None
    ) -> None:
        leader = None if hub is None else self._cache.hubs[hub].record.leader
        row = rpc.MoveRow(
            room=request.room,
            room_class=request.room_class,
            before=before,
            hub=hub,
            leader=leader,
            why="asked for",
            refused=refused,
            ago_s=0.0,
        )
        self._moves.append((self._clock(), row))
        log.info(
            "a room is moved" if refused is None else "a room is not moved",
            room=text_of(request.room),
            room_class=request.room_class,
            before=before,
            hub=hub,
            reason=refused,
        )

    async def _move(self, request: rpc.Move, buckets: Buckets, revision: int) -> rpc.Moved:
        stored = self._cache.classes[request.room_class].record
        if stored.durability != EPHEMERAL:
            raise MoveError(
                "a room with a log cannot be moved yet",
                f"class {request.room_class}",
                "its records stay where they were written; put busy rooms into a class of their own with more hubs",
            )
        if request.to is None:
            if stored.placement != "ring":
                raise MoveError("a room without a ring must go somewhere", hint="name a node")
            await self._write(buckets, {request.room: None}, revision, request.room_class)
            self._check_read(buckets, request.room)
            return rpc.Moved(None)
        hub = self._hub_of(request.room_class, request.room, request.to)
        _, limit = self._records.fitting(request.room_class, [request.room])
        if limit is not None and _found(buckets, request.room) is None:
            raise MoveError("there is no space for the record of another room", limit)
        refused = await self._refused({request.room: hub})
        if refused:
            raise MoveError("the node does not take the room", request.to)
        await self._write(buckets, {request.room: Room(hub, True)}, revision, request.room_class)
        self._check_read(buckets, request.room)
        return rpc.Moved(hub)

    def _check_read(self, buckets: Buckets, room: bytes) -> None:
        if self._is_unreadable(buckets, room):
            raise NoControllerError("the record of the room cannot be read", text_of(room))

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
            NoControllerError: as `assign`.
            CoordinatorError: as `assign`.
        """
        buckets, revision = self._begun(room_class)
        led = self._cache.revision(hub_key(hub))
        keys = {(room_class, room) for room in rooms} - self._forgetting
        self._forgetting |= keys
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
            _, gone = _sought(buckets, (room for room in given_up if not self._is_unreadable(buckets, room)))
            self._records.forgotten += len(gone)
            return len(gone)
        finally:
            self._forgetting -= keys

    async def _remove(
        self,
        room_class: str,
        buckets: Buckets,
        hub: int,
        rooms: Collection[bytes],
        expect: Mapping[str, int],
        revision: int,
    ) -> None:
        """Removes the records of rooms, except those that are pinned or elsewhere by now; checks before each
        attempt.

        Raises:
            CoordinatorUnknownError: some may be removed later.
            NoControllerError: as `assign`.
        """

        def is_due(room: bytes) -> bool:
            return _found(buckets, room) == Room(hub)

        try:
            await self._write(buckets, dict.fromkeys(rooms), revision, room_class, expect, is_due)
        except ExpectationError:
            # The record of the hub has changed. So no late commit removes what was not removed by now.
            await self._read_again(room_class, _keys(buckets, rooms))

    def _sought(
        self, room_class: str, buckets: Buckets, rooms: Iterable[bytes]
    ) -> tuple[dict[bytes, int], list[bytes]]:
        """Like the function; also leaves out rooms that are being forgotten, and rooms of buckets that cannot be
        read."""
        return _sought(
            buckets,
            (
                room
                for room in rooms
                if (room_class, room) not in self._forgetting and not self._is_unreadable(buckets, room)
            ),
        )

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        for request in self._requests:
            request.answer.cancel()

    # -- batches --

    async def _work(self) -> None:
        while self._requests:
            batch = self._next()
            room_class = batch[0].room_class
            rooms = list(dict.fromkeys(room for request in batch for room in request.rooms))
            try:
                answer = await self._assigned(room_class, rooms)
            except Exception as error:
                if not isinstance(error, HubSubError):
                    log.exception("a batch of rooms failed", room_class=room_class, rooms=len(rooms))
                    error = NoControllerError("the controller failed to place the rooms", room_class)
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            revisions = dict(zip(answer.hubs, answer.revisions, strict=True))
            for request in batch:
                if not request.answer.done():
                    hubs = {room: answer.hubs[room] for room in request.rooms if room in answer.hubs}
                    request.answer.set_result(
                        rpc.Assigned(
                            hubs,
                            {room: answer.refused[room] for room in request.rooms if room in answer.refused},
                            tuple(revisions[room] for room in hubs),
                        )
                    )

    def _next(self) -> list[_Request]:
        """Takes the oldest request, and later ones of the same class that fit into the batch."""
        batch, others = [self._requests.popleft()], deque[_Request]()
        rooms, size = len(batch[0].rooms), sum(map(len, batch[0].rooms))
        while self._requests:
            request = self._requests.popleft()
            rooms += len(request.rooms)
            size += sum(map(len, request.rooms))
            fits = rooms <= BATCH_ROOMS and size <= BATCH_BYTES
            (batch if fits and request.room_class == batch[0].room_class else others).append(request)
        self._requests = others
        return batch

    def _begun(self, room_class: str) -> tuple[Buckets, int]:
        revision = self._controller.revision
        if revision is None:
            raise NoControllerError("this node is not the controller now")
        if room_class not in self._cache.classes or not self._cache.has_all_rooms(room_class):
            raise NoControllerError("the controller does not know the rooms of the class yet", room_class)
        return self._cache.rooms[room_class], revision

    async def _assigned(self, room_class: str, rooms: list[bytes]) -> rpc.Assigned:
        buckets, revision = self._begun(room_class)
        found, new = self._sought(room_class, buckets, rooms)
        await self._refresh(room_class, buckets, found, revision)
        refused = {room: TopicLengthError.code for room in new if len(room) > NAME_BYTES_MAX}
        new = [room for room in new if room not in refused]
        given, codes = self._allowed(room_class, new)
        refused |= codes
        hubs = await self._placed(room_class, new[:given])
        refused |= {room: "no_place" for room in new[:given] if room not in hubs}
        made = await self._write(
            buckets, {room: Room(hub) for room, hub in hubs.items()}, revision, room_class
        )
        # Read again: meanwhile a room may have been moved, or its record removed.
        found, _ = self._sought(room_class, buckets, [*found, *made])
        return rpc.Assigned(found, refused, tuple(map(buckets.revision_of, found)))

    def _allowed(self, room_class: str, new: list[bytes]) -> tuple[int, dict[bytes, str]]:
        """Returns how many of the new rooms may be created, and the error codes of the others."""
        fitting, limit = self._records.fitting(room_class, new)
        count = sum(self._records.counts.values())
        self._allowance, given, code = self._allowance.taken(fitting, count, self._clock())
        refused = dict.fromkeys(new[given:fitting], code or "") | dict.fromkeys(
            new[fitting:], TooManyRoomsError.code
        )
        of_allowance = "rooms_max" if code == TooManyRoomsError.code else "room_creations_per_second_max"
        for reason, count in ((limit, len(new) - fitting), (of_allowance, fitting - given)):
            if reason is not None and count > 0:
                self._count_refused(reason, room_class, count)
        return given, refused

    def _count_refused(self, limit: str, room_class: str, rooms: int) -> None:
        self._records.refused[limit] += rooms
        now = self._clock()
        if now >= self._refusals_logged_s.get(limit, -REFUSED_LOG_S) + REFUSED_LOG_S:
            self._refusals_logged_s[limit] = now
            log.warning("new rooms are refused", limit=limit, room_class=room_class, rooms=rooms)

    async def _placed(self, room_class: str, rooms: list[bytes]) -> dict[bytes, int]:
        """Chooses hubs whose members confirm the rooms. A room that was forgotten recently keeps its hub
        without confirmation, like a room with a record."""
        placed = self._back(room_class, rooms)
        refused: dict[bytes, set[int]] = {}
        for _ in range(ROUNDS):
            left = [room for room in rooms if room not in placed]
            view = self._controller.view()
            if not left or view is None:
                break
            choice = choose(view, self._clock(), self._timing, room_class, left, self._loads, refused)
            self._loads.update(choice.loads)
            if not choice.hubs and not refused:
                raise NoControllerError("no hub of the class can take rooms yet", room_class)
            no = await self._refused(choice.hubs)
            placed |= {room: hub for room, hub in choice.hubs.items() if room not in no}
            for room, members in no.items():
                refused.setdefault(room, set()).update(self._hubs_with(room_class, members))
        return placed

    def _back(self, room_class: str, rooms: Iterable[bytes]) -> dict[bytes, int]:
        """Rooms that were forgotten recently, with the hub that each had: see `forgotten`."""
        back = {room: self._cache.forgotten.hub_of(room_class, room) for room in rooms}
        return {room: hub for room, hub in back.items() if hub is not None and hub in self._cache.hubs}

    def _hubs_with(self, room_class: str, members: Collection[str]) -> Iterator[int]:
        for hub, stored in self._cache.hubs.items():
            if stored.record.room_class == room_class and not set(members).isdisjoint(stored.record.members):
                yield hub

    async def _refused(self, hubs: Mapping[bytes, int]) -> Mapping[bytes, set[str]]:
        """Rooms that members of their hub refuse, with those members; a member that does not respond refuses
        all."""
        by_member: dict[str, dict[int, list[bytes]]] = {}
        for room, hub in hubs.items():
            for member in self._cache.hubs[hub].record.members:
                by_member.setdefault(member, {}).setdefault(hub, []).append(room)

        refused: dict[bytes, set[str]] = {}

        async def ask(member: str, rooms: Mapping[int, list[bytes]]) -> None:
            try:
                request = rpc.Confirm({hub: tuple(names) for hub, names in rooms.items()})
                no: Iterable[bytes] = (await self._take(member, request)).refused
            except PeerError:
                no = [room for names in rooms.values() for room in names]
            for room in no:
                refused.setdefault(room, set()).add(member)

        await asyncio.gather(*(ask(member, rooms) for member, rooms in by_member.items()))
        return refused

    def _hub_of(self, room_class: str, room: bytes, to: str) -> int:
        """Returns the hub with this name or id, or one of the hubs that the node with this name leads,
        selected by the hash of the room's name."""
        node = to
        if node not in self._cache.nodes:
            for hub, stored in self._cache.hubs.items():
                is_meant = to in (str(hub), f"{stored.record.room_class}-{stored.record.index}")
                if is_meant and stored.record.room_class == room_class:
                    return hub
                if is_meant:
                    value = f"{to}, class {room_class}"
                    raise MoveError("the hub is one of another class", value, "hubsub node ls lists nodes")
        led = [
            hub
            for hub, stored in sorted(self._cache.hubs.items())
            if stored.record.room_class == room_class
            and stored.record.leader == node
            and stored.record.proposed is None
        ]
        if not led:
            raise MoveError(
                "the node leads no hub of the room's class",
                f"{node}, class {room_class}",
                "GET /v1/cluster says who leads which hub",
            )
        return led[hash_of(room) % len(led)]

    # -- records --

    async def _write(
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
            revision: Revision of `controller`.
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
                    made = await self._coordinator.commit(
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
                if is_due(room) and not self._is_unreadable(buckets, room)
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
                return {room: hub for room, hub in done.items() if not self._is_unreadable(buckets, room)}
            found = {room: _found(buckets, room) for room in changes}
            left = {room: at for room, at in changes.items() if not _is_done(found[room], at)}
            given = {room: at.hub for room, at in found.items() if at is not None and room not in left}
        raise CoordinatorUnknownError()

    async def _refresh(
        self, room_class: str, buckets: Buckets, rooms: Iterable[bytes], revision: int
    ) -> None:
        """Reads the buckets of these rooms that this controller has neither read nor written yet."""
        if self._fresh_by != revision:
            self._fresh, self._fresh_by = set(), revision
        slots = asyncio.Semaphore(COMMITS_MAX)

        async def one(key: str) -> None:
            async with slots:
                await self._read_again(room_class, [key])
            if self._fresh_by == revision and key not in self._cache.unreadable:
                self._fresh.add(key)

        await asyncio.gather(*(one(key) for key in _keys(buckets, rooms) - self._fresh))

    async def _read_again(self, room_class: str, keys: Iterable[str]) -> None:
        """Reads buckets from the store into the watch cache. A value that this version cannot read leaves the
        known one, and its key is noted: see `_is_unreadable`.

        Raises:
            CoordinatorUnknownError: the store cannot be reached.
        """
        for key in keys:
            try:
                entry = await self._coordinator.get(key)
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

    def _is_unreadable(self, buckets: Buckets, room: bytes) -> bool:
        """Whether the bucket of a room cannot be read: its known value is not the latest."""
        return bool(self._cache.unreadable) and not self._cache.unreadable.keys().isdisjoint(
            _keys(buckets, [room])
        )


def _sought(buckets: Buckets, rooms: Iterable[bytes]) -> tuple[dict[bytes, int], list[bytes]]:
    """Returns hubs of rooms that have a record, and rooms without one. The caller asks again for a room in
    neither."""
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


def _found(buckets: Buckets, room: bytes) -> Room | None:
    """Returns a room's record. Raises `NoControllerError`, which callers retry, while a part of a split is
    missing."""
    try:
        return buckets.find(room)
    except NotKnown:
        raise NoControllerError("the controller does not know all records of the class yet") from None


def _commits(
    buckets: Buckets, changes: Mapping[bytes, Room | None], revision: int, expect: Mapping[str, int]
) -> Batch:
    """Like `Buckets.commits`, but raises `NoControllerError` as `_found` does."""
    try:
        return buckets.commits(changes, revision, expect)
    except NotKnown:
        raise NoControllerError("the controller does not know all records of the class yet") from None


def _is_done(found: Room | None, wanted: Room | None) -> bool:
    """Whether a room has the wanted record. For a room without a pin any record will do."""
    return found == wanted or (wanted is not None and not wanted.is_pinned and found is not None)
