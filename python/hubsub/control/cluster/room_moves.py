"""Moves of rooms by an operator: pins a room of an ephemeral class to a hub, or removes its pin. Lists them
together with the moves of hubs.

Invariant: the latest `MOVES_RETAINED` moves of rooms are retained, also those that were refused.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import structlog

from hubsub.control.cluster import rpc
from hubsub.control.cluster.bucket_values import Room, hash_of
from hubsub.control.cluster.buckets import Buckets
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.records import EPHEMERAL
from hubsub.control.cluster.room_limits import RoomRecords
from hubsub.control.cluster.room_writer import RoomWriter, found_in
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.errors import HubSubError, MoveError, NoControllerError
from hubsub.names import text_of

MOVES_RETAINED: Final = 256
"""Number of latest moves of rooms that are retained, for `GET /v1/moves`."""

MOVES_LISTED: Final = 256
"""Maximum number of moves, of rooms and hubs together, in a response: it must fit into one message."""

INTERMEDIATE: Final = frozenset({"propose", "withdraw", "has records"})
"""Steps that do not change a hub's leader, so they are no moves."""

log = structlog.get_logger("hubsub.cluster")


class RoomMoves:
    """Serves `Move` while its node is the controller.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache of the cluster.
        controller: Has the latest moves of hubs.
        writer: Writes the records.
        records: Limits of the records.
        ask_members: Asks the members of hubs whether they accept rooms; returns the refused rooms.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        controller: Controller,
        writer: RoomWriter,
        records: RoomRecords,
        ask_members: Callable[[Mapping[bytes, int]], Awaitable[Mapping[bytes, set[str]]]],
    ) -> None:
        self._ctx = context
        self._cache = cache
        self._controller = controller
        self._writer = writer
        self._records = records
        self._ask_members = ask_members
        self._moves: deque[tuple[float, rpc.MoveRow]] = deque(maxlen=MOVES_RETAINED)
        """Time by the clock, and the move."""

    async def move(self, request: rpc.Move) -> rpc.Moved:
        """Pins a room of an ephemeral class, or removes its pin.

        Raises:
            MoveError: it cannot be moved there.
            NoControllerError: this node is not the controller, or cannot act now.
            CoordinatorError: a record could not be written.
        """
        buckets, revision = self._writer.serving(request.room_class)
        if (request.room_class, request.room) in self._writer.forgetting:
            raise NoControllerError("the room is being forgotten just now", text_of(request.room))
        found = found_in(buckets, request.room)
        before = None if found is None else found.hub
        try:
            moved = await self._move(request, buckets, revision)
        except HubSubError as error:
            self._note(request, before, None, error.message)
            raise
        self._note(request, before, moved.hub, None)
        return moved

    def recent(self) -> rpc.MoveList:
        """Rooms and hubs that this node moved as the controller, and moves that it refused, in the order of
        time; at most `MOVES_LISTED`.

        Raises:
            NoControllerError: this node is not the controller now.
        """
        if self._controller.revision is None:
            raise NoControllerError("this node is not the controller now")
        hubs = [
            (
                at_s,
                rpc.MoveRow(
                    room=None,
                    room_class=step.after.room_class,
                    before=None,
                    hub=step.hub,
                    leader=step.after.leader,
                    why=step.why,
                    refused=None,
                    ago_s=0.0,
                ),
            )
            for at_s, step in self._controller.steps
            if step.why not in INTERMEDIATE
        ]
        now = self._ctx.clock()
        rows = sorted([*hubs, *self._moves], key=lambda move: move[0])[-MOVES_LISTED:]
        return rpc.MoveList(
            tuple(msgspec.structs.replace(row, ago_s=round(now - at_s, 3)) for at_s, row in rows)
        )

    def _note(self, request: rpc.Move, before: int | None, hub: int | None, refused: str | None) -> None:
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
        self._moves.append((self._ctx.clock(), row))
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
            await self._writer.write(buckets, {request.room: None}, revision, request.room_class)
            self._check_read(buckets, request.room)
            return rpc.Moved(None)
        hub = self._hub_of(request.room_class, request.room, request.to)
        _, limit = self._records.fitting(request.room_class, [request.room])
        if limit is not None and found_in(buckets, request.room) is None:
            raise MoveError("there is no space for the record of another room", limit)
        refused = await self._ask_members({request.room: hub})
        if refused:
            raise MoveError("the node does not take the room", request.to)
        await self._writer.write(buckets, {request.room: Room(hub, True)}, revision, request.room_class)
        self._check_read(buckets, request.room)
        return rpc.Moved(hub)

    def _check_read(self, buckets: Buckets, room: bytes) -> None:
        if self._writer.is_unreadable(buckets, room):
            raise NoControllerError("the record of the room cannot be read", text_of(room))

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
