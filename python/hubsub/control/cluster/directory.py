"""Room lookup: maps a topic to the hub of its room, and to the addresses of the hub's members.

A room of a ring class is in the hub that the ring selects, unless a record pins it elsewhere. A room of a
least-busy class is in the hub of its record. For a room without a record this node asks the controller, which
places it if wanted. Lookups that the watch cache can answer return at once; others wait for the controller,
at most `WAIT_S`, and share requests.

A response of the controller names the revision of the bucket that it is based on, and is valid until the watch
delivers this revision or a later one (`Buckets.add_answer`). It is discarded, and the room requested again, if
the watch delivered one with a different record, or without a record, while the request was in flight.

Invariants: a room with a record is found without the coordinator and without the controller. At most
`WAITING_MAX` rooms are waited for, this node has one request in flight at a time, and no caller waits longer
than `WAIT_S`: each gets a result, or the error that the controller did not answer. A returned hub is the one
known here at that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hubsub.control.cluster import rpc
from hubsub.control.cluster.buckets import NotKnown
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.plane import TopicRoute
from hubsub.control.cluster.records import HubRecord
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination.tasks import end, wait_set
from hubsub.errors import (
    ClassRemovedError,
    HubSubError,
    MoveError,
    NoControllerError,
    PeerError,
    TooManyWaitingError,
    refusal,
)
from hubsub.names import text_of

WAIT_S: Final = 5.0
"""How long a caller waits for the hub of a room."""

WAITING_MAX: Final = 10_000
"""Maximum number of rooms that callers wait for."""

GIVEN_UP_S: Final = 30.0
"""How long only the controller answers for a room that this node gave up: within this time its record is
removed, or remains."""

ASKED_ROOMS: Final = 500
ASKED_BYTES: Final = 64 << 10
"""Limits of one request: rooms, and bytes of their names."""

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
"""Delay before the controller is asked again, doubled each time up to `RETRY_S_MAX`."""

Ask = Callable[[rpc.Assign | rpc.Find | rpc.Move | rpc.Moves], Awaitable[rpc.Response]]
"""Sends a request to the controller."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the hub that has a room."""

    node: str
    addresses: Mapping[str, str]
    """Protocol to `HOST:PORT`, as clients reach it."""


@dataclass(frozen=True, slots=True)
class Located:
    room: bytes
    room_class: str
    hub: int
    term: int
    members: tuple[Member, ...]
    """Leader first; without nodes that are not registered now."""


@dataclass(slots=True)
class _Wanted:
    route: TopicRoute
    until_s: float
    """When the last caller stops waiting."""
    creates: bool
    """Whether to place it if it has no hub."""
    answer: asyncio.Future[int | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The hub; None: it has none."""


class Directory:
    """Looks rooms up on one node.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache; call `wake` when it changed.
        ask: Sends a request to the controller.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        ask: Ask,
    ) -> None:
        self._ctx = context
        self._cache = cache
        self._ask = ask
        self._wanted: dict[tuple[str, bytes], _Wanted] = {}
        self._why: HubSubError | None = None
        """Why the last request to the controller failed."""
        self._given_up: dict[tuple[str, bytes], float] = {}
        """Rooms that this node gave up as their leader, with the time: see `is_given_up`."""
        self._dropped_s = context.clock() - RETRY_S
        """When lookups that waited too long were last dropped to make room for others."""
        self._is_closed = False
        self._woken = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._wanted)

    def wake(self) -> None:
        self._woken.set()

    async def locate(self, topic: bytes, create: bool = True) -> Located | None:
        """Returns the hub and members of a topic's room.

        Args:
            topic: Any of the room's topics.
            create: Whether to place a room that has no hub; default: yes. Else None is returned for it.

        Raises:
            ClassRemovedError: it has no hub, and its class is removed.
            NoControllerError: the controller did not place it within `WAIT_S`.
            NoPlaceError: no node accepts it now.
            TooManyRoomsError: the maximum number of rooms exists.
            RoomCreationRateError: too many rooms were created recently.
            TooManyWaitingError: `WAITING_MAX` others wait.
        """
        route = self._ctx.plane.topic_route(topic)
        return self._located(route, await self.place(route, create))

    async def look_up(self, topic: bytes) -> Located | None:
        """Returns the hub and members of a topic's room, without placing it; None: it has no hub. Asks the
        controller for a room that is not known here.

        Raises:
            ClassRemovedError: it has no hub, and its class is removed.
            NoControllerError: the controller did not answer within `WAIT_S`.
            TooManyWaitingError: `WAITING_MAX` others wait.
        """
        route = self._ctx.plane.topic_route(topic)
        hub = await self.find(route)
        stored = self._cache.classes.get(route.room_class)
        if hub is None and stored is not None and stored.record.is_removed:
            raise ClassRemovedError(value=text_of(route.room))
        return self._located(route, hub)

    async def place(self, route: TopicRoute, create: bool = True) -> int | None:
        """Returns the hub of a room, or None, like `locate`.

        Args:
            route: The room, its class, and its hub on the ring.
            create: As for `locate`.

        Raises:
            HubSubError: as `locate`.
        """
        hub = self.known(route)
        if hub is not None:
            return hub
        stored = self._cache.classes.get(route.room_class)
        if create and stored is not None and stored.record.is_removed:
            # It may have a hub that this node does not know of yet.
            hub = await self._wait(route, creates=False)
            if hub is None:
                raise ClassRemovedError(value=text_of(route.room))
            return hub
        if not create and not self.is_given_up(route.room_class, route.room):
            if self._cache.has_all_rooms(route.room_class):
                return None
            raise NoControllerError("the rooms of the class are not known here yet", route.room_class)
        return await self._wait(route, creates=create)

    async def find(self, route: TopicRoute) -> int | None:
        """Returns the hub of a room, without placing it; None: it has no hub. Asks the controller for a room
        that is not known here, so that a room that was just placed elsewhere is found.

        Raises:
            NoControllerError: the controller did not answer within `WAIT_S`.
            TooManyWaitingError: `WAITING_MAX` others wait.
        """
        hub = self.known(route)
        return hub if hub is not None else await self._wait(route, creates=False)

    async def _wait(self, route: TopicRoute, creates: bool) -> int | None:
        pause = RETRY_S
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    hub = await self._asked(route, creates)
                    # Meanwhile the watch may have delivered a different record.
                    if hub is None or hub == self.known(route):
                        return hub
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RETRY_S_MAX)
        except TimeoutError:
            raise self._nobody(route.room) from None

    async def _asked(self, route: TopicRoute, creates: bool) -> int | None:
        if self._is_closed:
            raise NoControllerError("the node stops", text_of(route.room))
        key, until_s = (route.room_class, route.room), self._ctx.clock() + WAIT_S
        wanted = self._wanted.get(key)
        if wanted is None:
            if len(self._wanted) >= WAITING_MAX and self._ctx.clock() >= self._dropped_s + RETRY_S:
                self._dropped_s = self._ctx.clock()
                self._drop_waited()
            if len(self._wanted) >= WAITING_MAX:
                raise TooManyWaitingError(value=WAITING_MAX)
            wanted = self._wanted[key] = _Wanted(route, until_s, creates)
            self.wake()
        wanted.until_s, wanted.creates = until_s, wanted.creates or creates
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await asyncio.shield(wanted.answer)

    def _nobody(self, room: bytes) -> NoControllerError:
        why = "" if self._why is None else f" ({self._why.message})"
        return NoControllerError(value=f"{text_of(room)}, after {WAIT_S:g} s{why}")

    def give_up(self, room_class: str, rooms: Iterable[bytes]) -> list[bytes]:
        """Makes the controller alone answer for rooms, because their records may be removed. Rooms that
        callers wait for are skipped.

        Returns:
            The rooms that were not skipped.
        """
        now, buckets = self._ctx.clock(), self._cache.rooms[room_class]
        while self._given_up and (oldest := next(iter(self._given_up.items())))[1] + GIVEN_UP_S <= now:
            del self._given_up[oldest[0]]
        given_up = [room for room in rooms if (room_class, room) not in self._wanted]
        for room in given_up:
            self._given_up.pop((room_class, room), None)  # Keeps the dict in order of time.
            self._given_up[room_class, room] = now
            buckets.drop_answer(room)
        return given_up

    def keep(self, room_class: str, rooms: Iterable[bytes]) -> None:
        """Reverts `give_up` for rooms that are still used."""
        for room in rooms:
            self._given_up.pop((room_class, room), None)

    def is_given_up(self, room_class: str, room: bytes) -> bool:
        """Whether only the controller may answer for a room: this node gave it up less than `GIVEN_UP_S` ago,
        the controller has not answered since, and the watch has delivered neither a removal of the room's
        record nor a different record."""
        given_up_s = self._given_up.get((room_class, room))
        if given_up_s is None or self._ctx.clock() >= given_up_s + GIVEN_UP_S:
            return False
        return not self._cache.forgotten.is_since(room_class, room, given_up_s)

    def known(self, route: TopicRoute) -> int | None:
        """The hub of a room, by the controller's response or the watch cache; None: no record, or not known yet."""
        if self._given_up and self.is_given_up(route.room_class, route.room):
            return None
        stored, buckets = self._cache.classes.get(route.room_class), self._cache.rooms.get(route.room_class)
        if stored is None or buckets is None:
            return None
        try:
            hub = buckets.hub_of(route.room)
        except NotKnown:
            return None
        if hub is not None:
            return hub if hub in self._cache.hubs else None
        if not self._cache.has_all_rooms(route.room_class):
            return None
        return (
            self._cache.hub_of(route.room_class, route.index) if stored.record.placement == "ring" else None
        )

    async def move(self, topic: bytes, to: str | None) -> int | None:
        """Pins the room of a topic to a hub; ephemeral classes only.

        Args:
            topic: Any of the room's topics.
            to: A hub by its name or id, or a node: one of the hubs that it leads. None removes the pin of a
                room of a ring class.

        Returns:
            The hub; None: the ring decides.

        Raises:
            MoveError: it cannot be moved there.
            NoControllerError: no controller is available; retry.
        """
        route = self._ctx.plane.topic_route(topic)
        answer = await self._ask(rpc.Move(route.room_class, route.room, to))
        if isinstance(answer, rpc.Moved):
            return answer.hub
        assert isinstance(answer, rpc.ErrorResponse)
        raise (MoveError if answer.code == MoveError.code else NoControllerError)(
            answer.reason, hint=answer.hint
        )

    async def moves(self) -> tuple[rpc.MoveRow, ...]:
        """Returns the controller's recent moves, latest last.

        Raises:
            NoControllerError: no controller is available; retry.
        """
        answer = await self._ask(rpc.Moves())
        if isinstance(answer, rpc.MoveList):
            return answer.moves
        assert isinstance(answer, rpc.ErrorResponse)
        raise NoControllerError(answer.reason, hint=answer.hint)

    async def close(self) -> None:
        """Cancels all waiting lookups; later ones fail."""
        self._is_closed = True
        await end(self._worker)
        for wanted in self._wanted.values():
            wanted.answer.cancel()
        self._wanted.clear()

    # -- what is waited for --

    async def _work(self) -> None:
        pause = RETRY_S
        while self._wanted:
            self._woken.clear()
            self._drop_waited()
            request = self._next()
            if request.rooms and await self._answered(request):
                pause = RETRY_S
                continue
            if self._wanted:
                await wait_set(self._woken, pause)
                pause = min(2 * pause, RETRY_S_MAX)

    def _drop_waited(self) -> None:
        now = self._ctx.clock()
        for key in [key for key, wanted in self._wanted.items() if now >= wanted.until_s]:
            self._answer(key, self._nobody(key[1]))

    def _next(self) -> rpc.Assign | rpc.Find:
        """Builds the next request: rooms of one class, oldest first. Completes the lookups that the watch
        cache can answer by now."""
        chosen, creates, rooms, size = "", False, list[bytes](), 0
        for (room_class, room), wanted in list(self._wanted.items()):
            stored = self._cache.classes.get(room_class)
            if stored is None or (chosen and (chosen, creates) != (room_class, wanted.creates)):
                continue
            hub = self.known(wanted.route)
            if hub is not None:
                self._answer((room_class, room), hub)
                continue
            if stored.record.placement == "ring":
                continue
            if rooms and (size + len(room) > ASKED_BYTES or len(rooms) == ASKED_ROOMS):
                break
            chosen, creates, size = room_class, wanted.creates, size + len(room)
            rooms.append(room)
        return (rpc.Assign if creates else rpc.Find)(chosen, tuple(rooms))

    async def _answered(self, request: rpc.Assign | rpc.Find) -> bool:
        """Sends a request; returns whether the response covers all its rooms."""
        room_class, rooms = request.room_class, list(request.rooms)
        buckets = self._cache.rooms[room_class]
        # A controller of an older version states no revisions: its response is valid until the next value.
        revisions = {room: buckets.revision_of(room) + 1 for room in rooms}
        try:
            answer = await self._ask(request)
        except (NoControllerError, PeerError) as error:
            answer = rpc.ErrorResponse(error.code, error.message)
        if isinstance(answer, rpc.Assigned | rpc.Found):
            self._why = None
            revisions |= zip(answer.hubs, answer.revisions, strict=False)
            hubs = {
                room: hub
                for room, hub in answer.hubs.items()
                if room in revisions and self._is_true(room_class, room, hub, revisions[room])
            }
            for room, hub in hubs.items():
                buckets.add_answer(room, hub, revisions[room])
                self._given_up.pop((room_class, room), None)
                self._answer((room_class, room), hub)
            refused = answer.refused if isinstance(answer, rpc.Assigned) else {}
            for room, code in refused.items():
                self._answer((room_class, room), refusal(code, code, text_of(room)))
            absent = answer.absent if isinstance(answer, rpc.Found) else ()
            for room in absent:
                wanted = self._wanted.get((room_class, room))
                if (
                    wanted is not None and not wanted.creates
                ):  # Otherwise it is requested again, to be placed.
                    self._answer((room_class, room), None)
            rooms = [room for room in rooms if not (room in hubs or room in refused or room in absent)]
            if not rooms:
                return True
            answer = rpc.ErrorResponse("", "the controller does not know all records of the class yet")
        assert isinstance(answer, rpc.ErrorResponse)
        self._why = NoControllerError(answer.reason)
        for room in rooms:
            # Requeue, so that rooms of other classes come first.
            key = room_class, room
            if key in self._wanted:
                self._wanted[key] = self._wanted.pop(key)
        return False

    def _is_true(self, room_class: str, room: bytes, hub: int, revision: int) -> bool:
        """Whether a response of the controller is valid: its hub is known here, and the watch has delivered no
        different state of the room of the same revision or a later one."""
        if hub not in self._cache.hubs:
            return False
        is_newer = revision > self._cache.rooms[room_class].revision_of(room)
        return is_newer or self._recorded(room_class, room) == hub

    def _recorded(self, room_class: str, room: bytes) -> int | None:
        """Returns the hub in a room's record; None: no record is known here."""
        try:
            found = self._cache.rooms[room_class].find(room)
        except NotKnown:
            return None
        return None if found is None else found.hub

    def _answer(self, key: tuple[str, bytes], answer: int | HubSubError | None) -> None:
        wanted = self._wanted.pop(key, None)
        if wanted is None or wanted.answer.done():
            return
        if not isinstance(answer, HubSubError):
            wanted.answer.set_result(answer)
        else:
            wanted.answer.set_exception(answer)
            wanted.answer.exception()  # Suppresses asyncio's warning if all callers have gone.

    def _located(self, route: TopicRoute, hub: int | None) -> Located | None:
        if hub is None:
            return None
        record = self._cache.hubs[hub].record
        return Located(route.room, route.room_class, hub, record.term, self._members(record))

    def _members(self, record: HubRecord) -> tuple[Member, ...]:
        nodes = self._cache.nodes
        return tuple(Member(name, nodes[name].record.addresses) for name in record.members if name in nodes)
