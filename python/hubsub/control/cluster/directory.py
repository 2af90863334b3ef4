"""Where rooms are: from a topic to the hub of its room, and to the addresses of the nodes that have it.

A room of a ring class is where the ring has it, unless a record pins it elsewhere. A room of a least-busy class
is where its record says; one without a record is asked for at the controller, which makes one if that is wanted. What
this node follows answers at once; what it has to ask for waits, at most `WAIT_S`, and many wait for one question.

An answer of the controller holds until the watch gives the room's record (`Buckets.answered`). It is not taken, and the
room is asked for again, if the watch gave another record, or took one away, while it was on its way.

Invariants: what has a record is found without the coordinator and without the controller. At most `WAITING_MAX` rooms
are waited for, one question of this node is under way at a time, and nobody waits longer than `WAIT_S`: who waits is
answered, or told that nobody answered. A hub that is given is what is known here at that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from hubsub.control.cluster import asks
from hubsub.control.cluster.follow import Follow
from hubsub.control.cluster.plane import Named, Plane
from hubsub.control.cluster.records import HubRecord
from hubsub.control.cluster.rooms import NotKnown
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
"""How long a request waits for the place of a room."""

WAITING_MAX: Final = 10_000
"""Rooms that are waited for."""

GIVEN_UP_S: Final = 30.0
"""How long the controller alone says where a room is that this node gave up: its record goes in that time, or stays."""

ASKED_ROOMS: Final = 500
ASKED_BYTES: Final = 64 << 10
"""Rooms of one question, and bytes of their names."""

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.0
"""Before the controller is asked again; doubled each time."""

Ask = Callable[[asks.Assign | asks.Find | asks.Move | asks.Moves], Awaitable[asks.Answer]]
"""Asks the controller."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that has a room."""

    node: str
    addresses: Mapping[str, str]
    """Protocol to `HOST:PORT`, as clients reach it."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where a room is."""

    room: bytes
    room_class: str
    hub: int
    term: int
    members: tuple[Member, ...]
    """The leader first; without those that are not registered now."""


@dataclass(slots=True)
class _Wanted:
    index: int
    """Of the hub that the ring has for it."""
    until_s: float
    """When nobody waits any more."""
    makes: bool
    """Whether it gets a place if it has none."""
    answer: asyncio.Future[int | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """None: it has no place."""


class Directory:
    """Answers where rooms are, on one node.

    Args:
        plane: What knows the ring, and which class a topic belongs to.
        follow: What is known of the cluster; `wake` is to be called when it changed.
        ask: Asks the controller.
        clock: Monotonic, seconds.
    """

    def __init__(self, plane: Plane, follow: Follow, ask: Ask, clock: Callable[[], float]) -> None:
        self._plane = plane
        self._follow = follow
        self._ask = ask
        self._clock = clock
        self._wanted: dict[tuple[str, bytes], _Wanted] = {}
        self._why: HubSubError | None = None
        """Why the controller was asked in vain the last time."""
        self._given_up: dict[tuple[str, bytes], float] = {}
        """Rooms that this node gave up as their leader, and when: see `is_given_up`."""
        self._woken = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Rooms that are waited for."""
        return len(self._wanted)

    def wake(self) -> None:
        """What is followed has changed."""
        self._woken.set()

    async def locate(self, topic: bytes, create: bool = True) -> Located | None:
        """Where the room of a topic is.

        Args:
            topic: Any of the room's topics.
            create: Whether a room that has no place gets one; else None is answered.

        Raises:
            ClassRemovedError: it has no place, and its class gives none any more.
            NoControllerError: nobody gave it a place within `WAIT_S`.
            NoPlaceError: no node takes it now.
            TooManyRoomsError: there are as many rooms as there may be.
            RoomCreationRateError: as many were made of late as may be.
            TooManyWaitingError: `WAITING_MAX` others wait.
        """
        named = self._plane.named(topic)
        return self._located(named, await self.place(named.room_class, named.room, named.index, create))

    async def look_up(self, topic: bytes) -> Located | None:
        """Where the room of a topic is; None: it has no place, and gets none. The controller is asked for what is not
        known here.

        Raises:
            ClassRemovedError: it has no place, and its class gives none any more.
            NoControllerError: nobody answered within `WAIT_S`.
            TooManyWaitingError: `WAITING_MAX` others wait.
        """
        named = self._plane.named(topic)
        hub = await self.find(named.room_class, named.room, named.index)
        kept = self._follow.classes.get(named.room_class)
        if hub is None and kept is not None and kept.record.is_removed:
            raise ClassRemovedError(value=text_of(named.room))
        return self._located(named, hub)

    async def place(self, room_class: str, room: bytes, index: int, create: bool = True) -> int | None:
        """The hub of a room; as `locate`.

        Args:
            room_class: Its class.
            room: Its name.
            index: Of the hub that the ring has for it.
            create: As `locate`.
        """
        hub = self.known(room_class, room, index)
        if hub is not None:
            return hub
        kept = self._follow.classes.get(room_class)
        if create and kept is not None and kept.record.is_removed:
            # It may have a place that this node has not heard of.
            hub = await self._wait(room_class, room, index, makes=False)
            if hub is None:
                raise ClassRemovedError(value=text_of(room))
            return hub
        if not create and not self.is_given_up(room_class, room):
            if self._follow.are_rooms_whole(room_class):
                return None
            raise NoControllerError("the rooms of the class are not known here yet", room_class)
        return await self._wait(room_class, room, index, makes=create)

    async def find(self, room_class: str, room: bytes, index: int) -> int | None:
        """The hub of a room, as `place`; None: it has no place and gets none. A room that was made elsewhere just now
        is known: the controller is asked for what is not known here."""
        hub = self.known(room_class, room, index)
        return hub if hub is not None else await self._wait(room_class, room, index, makes=False)

    async def _wait(self, room_class: str, room: bytes, index: int, makes: bool) -> int | None:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    hub = await self._asked(room_class, room, index, makes)
                    # Between the answer and now the watch may have given something else.
                    if hub is None or hub == self.known(room_class, room, index):
                        return hub
        except TimeoutError:
            raise self._nobody(room) from None

    async def _asked(self, room_class: str, room: bytes, index: int, makes: bool) -> int | None:
        key, until_s = (room_class, room), self._clock() + WAIT_S
        wanted = self._wanted.get(key)
        if wanted is None:
            self._drop_waited()
            if len(self._wanted) >= WAITING_MAX:
                raise TooManyWaitingError(value=WAITING_MAX)
            wanted = self._wanted[key] = _Wanted(index, until_s, makes)
            self.wake()
        wanted.until_s, wanted.makes = until_s, wanted.makes or makes
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await asyncio.shield(wanted.answer)

    def _nobody(self, room: bytes) -> NoControllerError:
        why = "" if self._why is None else f" ({self._why.message})"
        return NoControllerError(value=f"{text_of(room)}, after {WAIT_S:g} s{why}")

    def give_up(self, room_class: str, rooms: Iterable[bytes]) -> list[bytes]:
        """Leaves it to the controller where rooms are, but for those that are waited for: their records may be removed.

        Returns:
            Those that are not waited for.
        """
        now, buckets = self._clock(), self._follow.rooms[room_class]
        while self._given_up and (oldest := next(iter(self._given_up.items())))[1] + GIVEN_UP_S <= now:
            del self._given_up[oldest[0]]
        given_up = [room for room in rooms if (room_class, room) not in self._wanted]
        for room in given_up:
            self._given_up.pop((room_class, room), None)  # The latest are last.
            self._given_up[room_class, room] = now
            buckets.drop_answer(room)
        return given_up

    def keep(self, room_class: str, rooms: Iterable[bytes]) -> None:
        """They were not given up after all."""
        for room in rooms:
            self._given_up.pop((room_class, room), None)

    def is_given_up(self, room_class: str, room: bytes) -> bool:
        """Whether the controller alone says where a room is: this node gave it up less than `GIVEN_UP_S` ago, the
        controller has not answered since, and the watch has neither taken the room's record away nor given another."""
        given_up_s = self._given_up.get((room_class, room))
        if given_up_s is None or self._clock() >= given_up_s + GIVEN_UP_S:
            return False
        return not self._follow.forgotten.is_since(room_class, room, given_up_s)

    def known(self, room_class: str, room: bytes, index: int) -> int | None:
        """The hub of a room as far as it is known here; None: it has no record, or is not known yet."""
        if self._given_up and self.is_given_up(room_class, room):
            return None
        kept, buckets = self._follow.classes.get(room_class), self._follow.rooms.get(room_class)
        if kept is None or buckets is None or not self._follow.are_rooms_whole(room_class):
            return None
        try:
            hub = buckets.hub_of(room)
        except NotKnown:
            return None
        if hub is not None:
            return hub if hub in self._follow.hubs else None
        return self._follow.hub_of(room_class, index) if kept.record.placement == "ring" else None

    async def move(self, topic: bytes, to: str | None) -> int | None:
        """Pins the room of a topic to a hub that a node leads; ephemeral classes only.

        Args:
            topic: Any of the room's topics.
            to: A node, or a hub by its name or id; None takes the pin of a ring class's room away.

        Returns:
            The hub; None where the ring says.

        Raises:
            MoveError: it cannot be moved there.
            NoControllerError: nobody is there who does it; ask again.
        """
        named = self._plane.named(topic)
        answer = await self._ask(asks.Move(named.room_class, named.room, to))
        if isinstance(answer, asks.Moved):
            return answer.hub
        assert isinstance(answer, asks.Sorry)
        raise (MoveError if answer.code == MoveError.code else NoControllerError)(
            answer.reason, hint=answer.hint
        )

    async def moves(self) -> tuple[asks.MoveRow, ...]:
        """What the controller moved of late, the latest last.

        Raises:
            NoControllerError: nobody is there who knows; ask again.
        """
        answer = await self._ask(asks.Moves())
        if isinstance(answer, asks.Moving):
            return answer.moves
        assert isinstance(answer, asks.Sorry)
        raise NoControllerError(answer.reason, hint=answer.hint)

    async def close(self) -> None:
        """Ends what waits."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        for wanted in self._wanted.values():
            wanted.answer.cancel()
        self._wanted.clear()

    # -- what is waited for --

    async def _work(self) -> None:
        pause = RETRY_S
        while self._wanted:
            self._woken.clear()
            self._drop_waited()
            question = self._next()
            if question.rooms and await self._answered(question):
                pause = RETRY_S
                continue
            if self._wanted:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                pause = min(2 * pause, RETRY_S_MAX)

    def _drop_waited(self) -> None:
        """Tells those who have waited for long enough that nobody answered."""
        now = self._clock()
        for key in [key for key, wanted in self._wanted.items() if now >= wanted.until_s]:
            self._answer(key, self._nobody(key[1]))

    def _next(self) -> asks.Assign | asks.Find:
        """What the controller is asked next: rooms of one class, the first ones first. Answers what is known by now."""
        chosen, makes, rooms, size = "", False, list[bytes](), 0
        for (room_class, room), wanted in list(self._wanted.items()):
            kept = self._follow.classes.get(room_class)
            if kept is None or (chosen and (chosen, makes) != (room_class, wanted.makes)):
                continue
            hub = self.known(room_class, room, wanted.index)
            if hub is not None:
                self._answer((room_class, room), hub)
                continue
            if kept.record.placement == "ring":
                continue
            if rooms and (size + len(room) > ASKED_BYTES or len(rooms) == ASKED_ROOMS):
                break
            chosen, makes, size = room_class, wanted.makes, size + len(room)
            rooms.append(room)
        return (asks.Assign if makes else asks.Find)(chosen, tuple(rooms))

    async def _answered(self, question: asks.Assign | asks.Find) -> bool:
        """Whether the controller said where all these rooms are."""
        room_class, rooms, asked_s = question.room_class, list(question.rooms), self._clock()
        try:
            answer = await self._ask(question)
        except (NoControllerError, PeerError) as error:
            answer = asks.Sorry(error.code, error.message)
        if isinstance(answer, asks.Assigned | asks.Found):
            self._why = None
            hubs = {
                room: hub
                for room, hub in answer.hubs.items()
                if self._is_true(room_class, room, hub, asked_s)
            }
            for room, hub in hubs.items():
                self._take(room_class, room, hub)
            refused = answer.refused if isinstance(answer, asks.Assigned) else {}
            for room, code in refused.items():
                self._answer((room_class, room), refusal(code, code, text_of(room)))
            absent = answer.absent if isinstance(answer, asks.Found) else ()
            for room in absent:
                wanted = self._wanted.get((room_class, room))
                if wanted is not None and not wanted.makes:  # Else it is asked for anew, to get a place.
                    self._answer((room_class, room), None)
            rooms = [room for room in rooms if not (room in hubs or room in refused or room in absent)]
            if not rooms:
                return True
            answer = asks.Sorry("", "the controller does not know all records of the class yet")
        assert isinstance(answer, asks.Sorry)
        self._why = NoControllerError(answer.reason)
        for room in rooms:
            # Rooms of other classes are asked for before these again.
            key = room_class, room
            if key in self._wanted:
                self._wanted[key] = self._wanted.pop(key)
        return False

    def _is_true(self, room_class: str, room: bytes, hub: int, asked_s: float) -> bool:
        """Whether an answer of the controller may be taken: it is not older than what the watch gave of the room, as
        far as that can be told, and its hub is known here."""
        if hub not in self._follow.hubs:
            return False
        recorded = self._recorded(room_class, room)
        if recorded == hub:
            return True
        if self._follow.forgotten.is_since(room_class, room, asked_s):
            return False
        # A room with a record is asked for only if it was given up. Else the record came after the question.
        return recorded is None or self.is_given_up(room_class, room)

    def _take(self, room_class: str, room: bytes, hub: int) -> None:
        """Takes an answer of the controller."""
        if self.is_given_up(room_class, room) or self._recorded(room_class, room) != hub:
            # The watch has yet to give what it was answered from: a record that went, perhaps, and came again.
            self._follow.rooms[room_class].answered(room, hub)
        self._given_up.pop((room_class, room), None)
        self._answer((room_class, room), hub)

    def _recorded(self, room_class: str, room: bytes) -> int | None:
        """The hub of a room by its record; None: it has none, as far as is known here."""
        try:
            found = self._follow.rooms[room_class].find(room)
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
            wanted.answer.exception()  # Those who asked may have gone.

    def _located(self, named: Named, hub: int | None) -> Located | None:
        if hub is None:
            return None
        record = self._follow.hubs[hub].record
        return Located(named.room, named.room_class, hub, record.term, self._members(record))

    def _members(self, record: HubRecord) -> tuple[Member, ...]:
        nodes = self._follow.nodes
        return tuple(Member(name, nodes[name].record.addresses) for name in record.members if name in nodes)
