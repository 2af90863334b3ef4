"""Answers the data plane's room lookups: rooms of least-busy classes at their first use on this node, and
clients' `HUBSUB LOCATE`.

Invariants: each lookup gets one answer, unless the data plane has already refused what waited for it. At most
`LOOKUPS_MAX` lookups wait at a time; more are refused at once.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from hubsub.control.cluster.directory import WAITING_MAX, Directory
from hubsub.control.cluster.plane import TopicRoute
from hubsub.coordination.tasks import end
from hubsub.errors import (
    ClassRemovedError,
    HubClosedError,
    HubSubError,
    RoomCreationRateError,
    TooManyRoomsError,
    TopicLengthError,
)
from hubsub.node import Node

LOOKUPS_MAX: Final = WAITING_MAX
"""As many as the directory accepts."""

CLIENT_ERRORS: Final = (ClassRemovedError, TooManyRoomsError, RoomCreationRateError, TopicLengthError)
"""Errors whose code clients receive; any other error may be temporary, and the client may retry."""

log = structlog.get_logger("hubsub.cluster")


class Lookups:
    """Serves the data plane's lookups until it is closed.

    Args:
        data: Data plane that asks and gets the answers.
        directory: Looks up rooms, asking the controller if needed.
        own: This node's name and its Redis address for clients; None: it has no Redis listener.
    """

    def __init__(self, data: Node, directory: Directory, own: tuple[str, str] | None = None) -> None:
        self._data = data
        self._directory = directory
        self._own = own
        self._tasks: set[asyncio.Task[None]] = set()
        data.on_room_miss, data.on_locate = self._on_room_miss, self._on_locate

    async def close(self) -> None:
        self._data.on_room_miss = self._data.on_locate = None
        await end(*self._tasks)

    def _on_room_miss(self, room_class: str, room: bytes, creates: bool) -> None:
        if len(self._tasks) >= LOOKUPS_MAX:
            self._data.route_refuse([room])
        else:
            self._begin(self._place(room_class, room, creates))

    def _on_locate(self, number: int, room: bytes) -> None:
        if len(self._tasks) >= LOOKUPS_MAX:
            self._data.route_located(number, None)
        else:
            self._begin(self._locate(number, room))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _place(self, room_class: str, room: bytes, creates: bool) -> None:
        try:
            _, _, index = self._data.route_of(room)
            route = TopicRoute(room, room_class, index)
            place, find = self._directory.place, self._directory.find
            hub = await (place(route) if creates else find(route))
        except HubSubError as error:
            log.debug("a room gets no place", room_class=room_class, reason=error.message)
            self._data.route_refuse([room], _client_code(error))
        else:
            if hub is None:
                self._data.route_absent([room])
            else:
                self._data.route_rooms(room_class, {room: hub})

    async def _locate(self, number: int, room: bytes) -> None:
        try:
            located = await self._directory.look_up(room)
        except HubSubError as error:
            log.debug("a room cannot be located", reason=error.message)
            self._data.route_located(number, None, _client_code(error))
            return
        # A member without a Redis listener is of no use to a Redis client. Where no member has one, clients
        # reach them through edges: this node is as near as any. The same holds for a room without a hub,
        # which a lookup does not place.
        members = () if located is None else located.members
        shown = [(m.node, address) for m in members if (address := m.addresses.get("redis"))]
        if (members or located is None) and not shown and self._own is not None:
            shown = [self._own]
        self._data.route_located(number, shown or None)


def _client_code(error: HubSubError) -> str:
    """The error code for a client: `HubClosedError.code` (retry), unless the error is one of `CLIENT_ERRORS`."""
    return error.code if isinstance(error, CLIENT_ERRORS) else HubClosedError.code
