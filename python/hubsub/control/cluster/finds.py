"""Answers the data plane where rooms are: those that are placed one by one, at their first use here, and clients'
`HUBSUB LOCATE`.

Invariants: each question is answered once, or its data plane has refused by itself what waited for it. At most
`FINDING_MAX` questions wait at a time; more are refused at once.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

import structlog

from hubsub.control.cluster.dataplane import Routes
from hubsub.control.cluster.directory import WAITING_MAX, Located
from hubsub.errors import (
    ClassRemovedError,
    HubClosedError,
    HubSubError,
    RoomCreationRateError,
    TooManyRoomsError,
    TopicLengthError,
)

FINDING_MAX: Final = WAITING_MAX
"""As many as the directory waits for."""

TOLD: Final = (ClassRemovedError, TooManyRoomsError, RoomCreationRateError, TopicLengthError)
"""What a client is told as it is; anything else may pass, and it may ask again."""

log = structlog.get_logger("hubsub.cluster")


class Finder(Protocol):
    """As `ClusterNode`."""

    async def look_up(self, topic: bytes) -> Located | None: ...
    async def place(self, room_class: str, room: bytes, index: int, create: bool = True) -> int | None: ...
    async def find(self, room_class: str, room: bytes, index: int) -> int | None: ...


class Finds:
    """Takes the data plane's questions until it is closed.

    Args:
        data: Who asks, and is told.
        finder: Who knows, or asks the controller.
        own: This node, and where its clients reach it by Redis; None: they do not.
    """

    def __init__(self, data: Routes, finder: Finder, own: tuple[str, str] | None = None) -> None:
        self._data = data
        self._finder = finder
        self._own = own
        self._tasks: set[asyncio.Task[None]] = set()
        data.on_room_miss, data.on_locate = self._on_room_miss, self._on_locate

    async def close(self) -> None:
        """Answers nothing any more."""
        self._data.on_room_miss = self._data.on_locate = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_room_miss(self, room_class: str, room: bytes, makes: bool) -> None:
        if len(self._tasks) >= FINDING_MAX:
            self._data.route_refuse([room])
        else:
            self._begin(self._place(room_class, room, makes))

    def _on_locate(self, number: int, room: bytes) -> None:
        if len(self._tasks) >= FINDING_MAX:
            self._data.route_located(number, None)
        else:
            self._begin(self._locate(number, room))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _place(self, room_class: str, room: bytes, makes: bool) -> None:
        try:
            _, _, index = self._data.route_of(room)
            ask = self._finder.place if makes else self._finder.find
            hub = await ask(room_class, room, index)
        except HubSubError as error:
            log.debug("a room gets no place", room_class=room_class, reason=error.message)
            self._data.route_refuse([room], _told(error))
        else:
            if hub is None:
                self._data.route_absent([room])
            else:
                self._data.route_rooms(room_class, {room: hub})

    async def _locate(self, number: int, room: bytes) -> None:
        try:
            located = await self._finder.look_up(room)
        except HubSubError as error:
            log.debug("a room cannot be located", reason=error.message)
            self._data.route_located(number, None, _told(error))
            return
        # Who has no listener for Redis is of no use to who asks by it. Where no member has one they stand behind edges:
        # from this one it is as near as from any. So it is to a room that has no place, and gets none by a question.
        members = () if located is None else located.members
        shown = [(m.node, address) for m in members if (address := m.addresses.get("redis"))]
        if (members or located is None) and not shown and self._own is not None:
            shown = [self._own]
        self._data.route_located(number, shown or None)


def _told(error: HubSubError) -> str:
    """The code that a client is told: that it may ask again, unless there is more to say."""
    return error.code if isinstance(error, TOLD) else HubClosedError.code
