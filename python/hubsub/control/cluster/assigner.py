"""Places new rooms, in batches, while its node is the controller.

Requests collect while a batch is in flight, and the next batch takes as many as fit: under more load batches
get larger and commits per room fewer. A batch is checked against the limits, spread by `placement.choose`,
confirmed with the members of each hub (a member may refuse a room, which then goes to another hub), written,
and answered.

Invariants: a response contains only rooms whose record is written. Every request gets a response, even if its
batch fails, and the next batch follows. A batch has at most `BATCH_ROOMS` rooms and `BATCH_BYTES` of their
names.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from hubsub.control.cluster import rpc
from hubsub.control.cluster.bucket_values import Room
from hubsub.control.cluster.buckets import NAME_BYTES_MAX
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.placement import Allowance, NodeLoad, choose
from hubsub.control.cluster.room_limits import RoomRecords
from hubsub.control.cluster.room_moves import RoomMoves
from hubsub.control.cluster.room_writer import RoomWriter
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination.tasks import end
from hubsub.errors import (
    HubSubError,
    NoControllerError,
    PeerError,
    TooManyRoomsError,
    TopicLengthError,
)

BATCH_ROOMS: Final = 500
BATCH_BYTES: Final = 128 << 10
"""Bytes of names in one batch: the request to a member must fit into one message. A batch takes about 50 ms
of the controller, which does no failover meanwhile."""

ROUNDS: Final = 4
"""Attempts to find a hub for a room that members refused."""

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
    """Serves `Assign` and `Find`, and with `moves` also `Move`, while its node is the controller.

    Args:
        context: Store, data plane and clock.
        writer: Reads and writes the records.
        cache: Watch cache of the cluster.
        controller: Provides the view that hubs are chosen from.
        confirm: Asks a member whether it accepts rooms.
        loads: Latest known load by node; the estimated load of new rooms is added to it.
        rooms_per_second: Rooms that may be created per second, also the burst; 0: no limit.
        rooms_max: Rooms that may exist.
        records: Counts of room records, and the limits per class and in bytes.
    """

    def __init__(
        self,
        context: Context,
        writer: RoomWriter,
        cache: WatchCache,
        controller: Controller,
        confirm: Confirm,
        loads: dict[str, NodeLoad],
        *,
        rooms_per_second: int,
        rooms_max: int,
        records: RoomRecords,
    ) -> None:
        self._ctx = context
        self.writer = writer
        self.moves = RoomMoves(context, cache, controller, writer, records, self._ask_members)
        self._refusals_logged_s: dict[str, float] = {}
        """By limit, when it was last logged."""
        rate = float(rooms_per_second or 1_000_000_000)
        self._allowance = Allowance(
            per_second=rate, burst=rate, rooms_max=rooms_max, left=rate, at_s=context.clock()
        )
        self._records = records
        self._cache = cache
        self._controller = controller
        self._confirm = confirm
        self._loads = loads
        self._requests: deque[_Request] = deque()
        self._worker: asyncio.Task[None] | None = None

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
        buckets, revision = self.writer.serving(request.room_class)
        await self.writer.refresh(request.room_class, buckets, request.rooms, revision)
        found, absent = self.writer.look_up(request.room_class, buckets, request.rooms)
        return rpc.Found(found, tuple(absent), tuple(map(buckets.revision_of, found)))

    async def close(self) -> None:
        await end(self._worker)
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

    async def _assigned(self, room_class: str, rooms: list[bytes]) -> rpc.Assigned:
        buckets, revision = self.writer.serving(room_class)
        found, new = self.writer.look_up(room_class, buckets, rooms)
        await self.writer.refresh(room_class, buckets, found, revision)
        refused = {room: TopicLengthError.code for room in new if len(room) > NAME_BYTES_MAX}
        new = [room for room in new if room not in refused]
        given, codes = self._allowed(room_class, new)
        refused |= codes
        hubs = await self._place(room_class, new[:given])
        refused |= {room: "no_place" for room in new[:given] if room not in hubs}
        made = await self.writer.write(
            buckets, {room: Room(hub) for room, hub in hubs.items()}, revision, room_class
        )
        # Read again: meanwhile a room may have been moved, or its record removed.
        found, _ = self.writer.look_up(room_class, buckets, [*found, *made])
        return rpc.Assigned(found, refused, tuple(map(buckets.revision_of, found)))

    def _allowed(self, room_class: str, new: list[bytes]) -> tuple[int, dict[bytes, str]]:
        """Returns how many of the new rooms may be created, and the error codes of the others."""
        fitting, limit = self._records.fitting(room_class, new)
        count = sum(self._records.counts.values())
        self._allowance, given, code = self._allowance.taken(fitting, count, self._ctx.clock())
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
        now = self._ctx.clock()
        if now >= self._refusals_logged_s.get(limit, -REFUSED_LOG_S) + REFUSED_LOG_S:
            self._refusals_logged_s[limit] = now
            log.warning("new rooms are refused", limit=limit, room_class=room_class, rooms=rooms)

    async def _place(self, room_class: str, rooms: list[bytes]) -> dict[bytes, int]:
        """Chooses hubs whose members confirm the rooms. A room that was forgotten recently keeps its hub
        without confirmation, like a room with a record."""
        placed = self._recently_forgotten(room_class, rooms)
        refused: dict[bytes, set[int]] = {}
        for _ in range(ROUNDS):
            left = [room for room in rooms if room not in placed]
            view = self._controller.view()
            if not left or view is None:
                break
            choice = choose(view, room_class, left, self._loads, refused)
            self._loads.update(choice.loads)
            if not choice.hubs and not refused:
                raise NoControllerError("no hub of the class can take rooms yet", room_class)
            no = await self._ask_members(choice.hubs)
            placed |= {room: hub for room, hub in choice.hubs.items() if room not in no}
            for room, members in no.items():
                refused.setdefault(room, set()).update(self._hubs_with(room_class, members))
        return placed

    def _recently_forgotten(self, room_class: str, rooms: Iterable[bytes]) -> dict[bytes, int]:
        """Rooms that were forgotten recently, with the hub that each had: see `forgotten`."""
        back = {room: self._cache.forgotten.hub_of(room_class, room) for room in rooms}
        return {room: hub for room, hub in back.items() if hub is not None and hub in self._cache.hubs}

    def _hubs_with(self, room_class: str, members: Collection[str]) -> Iterator[int]:
        for hub, stored in self._cache.hubs.items():
            if stored.record.room_class == room_class and not set(members).isdisjoint(stored.record.members):
                yield hub

    async def _ask_members(self, hubs: Mapping[bytes, int]) -> Mapping[bytes, set[str]]:
        """Rooms that members of their hub refuse, with those members; a member that does not respond refuses all."""
        by_member: dict[str, dict[int, list[bytes]]] = {}
        for room, hub in hubs.items():
            for member in self._cache.hubs[hub].record.members:
                by_member.setdefault(member, {}).setdefault(hub, []).append(room)

        refused: dict[bytes, set[str]] = {}

        async def ask(member: str, rooms: Mapping[int, list[bytes]]) -> None:
            try:
                request = rpc.Confirm({hub: tuple(names) for hub, names in rooms.items()})
                no: Iterable[bytes] = (await self._confirm(member, request)).refused
            except PeerError:
                no = [room for names in rooms.values() for room in names]
            for room in no:
                refused.setdefault(room, set()).add(member)

        await asyncio.gather(*(ask(member, rooms) for member, rooms in by_member.items()))
        return refused
