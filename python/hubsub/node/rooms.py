"""What is asked of a node about rooms, records in memory and clients."""

from collections.abc import Sequence
from typing import Any

from hubsub import _native
from hubsub.config import RESERVED
from hubsub.node.answers import (
    BusyRoom,
    Consumer,
    Failed,
    HistoryRow,
    Item,
    Member,
    Occupancy,
    Published,
    PublishedRows,
)
from hubsub.node.life import Life

ROOMS_ALL = 2**32
"""As many of the busiest rooms as the shards know, which is bounded."""


class Rooms(Life):
    """A part of `Node`."""

    async def publish(self, items: Sequence[Item], *, as_node: bool = False) -> list[Published | Failed]:
        """Publishes records in order; one result each. Only the node itself uses names that begin with `$`.

        Waits without a time limit: a publish whose outcome is unknown must not be taken for a failed one.
        """
        answers = await self._ask(self._core.publish, list(items), as_node)
        return [Published(*a) if len(a) == 4 else Failed(*a) for a in answers]

    async def publish_rows(
        self, chunk: bytes, left: Sequence[int] | None, of: Sequence[int] | None, producer: int
    ) -> PublishedRows:
        """Publishes the rows of a chunk of `RowReader`, or those of `left`; in a class with a log each room's in order.

        Args:
            chunk: As `RowReader` gave it.
            left: Places in the chunk, rising; None for all of `of`.
            of: Places of the rows that this producer numbers, rising, room by room; None for all of the chunk.
            producer: Who numbers them, of `hubsub.names.producer_id`. The same one has the same `of`.
        """
        again, refused = await self._ask(self._core.publish_rows, chunk, left, of, producer)
        return PublishedRows(again, [(row, Failed(code, message)) for row, code, message in refused])

    def row_reader(self, topic: bytes | None, publisher: str) -> _native.RowReader:
        """Reads one Arrow stream of rows.

        Args:
            topic: That of all rows, which then have no column for it.
            publisher: Of rows that name none.
        """
        return self._core.row_reader(topic, publisher)

    async def room(self, room: bytes) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = await self._ask_in_time(self._core.room, room)
        return answer

    async def rooms(self, match: bytes | None, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        """Up to `limit` rooms in order of name, behind `after`: those in memory and those in the log."""
        answer: list[dict[str, Any]] = await self._ask_in_time(self._core.rooms, match, after, limit)
        return answer

    async def room_create(self, room: bytes) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = await self._ask_in_time(self._core.room_create, room)
        return answer

    async def room_delete(self, room: bytes, *, as_node: bool = False) -> bool:
        """Whether it was there.

        Raises:
            RoomInUseError: it has subscribers.
        """
        return bool(await self._ask_in_time(self._core.room_delete, room, as_node))

    async def history(
        self,
        room: bytes,
        count: int,
        after: tuple[int, int] | None = None,
        topic: bytes | None = None,
        *,
        as_node: bool = False,
    ) -> tuple[bool, list[HistoryRow]]:
        """Whether `after` was known, and the rows, oldest first."""
        recovered, rows = await self._ask_in_time(self._core.history, room, count, after, topic, as_node)
        return recovered, [HistoryRow(*row) for row in rows]

    async def clients(
        self, sort: str, limit: int, client: int | None = None, client_ids: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The first by `sort`, or that one; with `client_ids` only MQTT clients with one of these."""
        ask = self._core.clients
        answer: list[dict[str, Any]] = await self._ask_in_time(ask, sort, limit, client, list(client_ids))
        return answer

    async def client_kill(self, client: int, reason: str) -> bool:
        """Whether there was one."""
        return bool(await self._ask_in_time(self._core.client_kill, client, reason))

    async def sessions(
        self, limit: int, after: str | None = None, client_id: str | None = None
    ) -> list[dict[str, Any]]:
        """MQTT sessions that outlive their connections: so many behind that client id, in their order, or that one."""
        ask = self._core.sessions
        answer: list[dict[str, Any]] = await self._ask_in_time(ask, limit, after, client_id)
        return answer

    async def session_end(self, client_id: str) -> bool:
        """Ends the session of a client id; whether there was one."""
        return bool(await self._ask_in_time(self._core.session_end, client_id))

    async def busiest_rooms(self, limit: int, *, own: bool = False) -> list[BusyRoom]:
        """The busiest first; with `own` also the node's own rooms."""
        asked = limit if own else ROOMS_ALL
        rooms = [BusyRoom(*row) for row in await self._ask_in_time(self._core.busiest_rooms, asked)]
        return [room for room in rooms if own or not room.name.startswith(RESERVED.encode())][:limit]

    async def members(self, room: bytes) -> tuple[int, list[Member]]:
        """How many members a room has in the whole cluster, and those that are listed, by key.

        Raises:
            TimedOutError: nobody says who is there.
        """
        count, rows = await self._ask_in_time(self._core.members, room)
        return count, [Member(*row) for row in rows]

    async def occupancy(self, room: bytes) -> Occupancy:
        """How many of this node are in a room."""
        protocols, publishers, members = await self._ask_in_time(self._core.occupancy, room)
        return Occupancy(dict(protocols), publishers, members)

    async def consumers(self) -> list[Consumer]:
        """Groups that keep their place in rooms that are led here, and have had a member since."""
        return [Consumer(*row) for row in await self._ask_in_time(self._core.consumers)]

    async def forget_consumer(self, group: bytes, topic: bytes) -> bool:
        """Whether it was known here: it goes on from its row, or anew."""
        return bool(await self._ask_in_time(self._core.forget_consumer, group, topic))

    def room_of(self, topic: bytes) -> tuple[bytes, str]:
        """Room of a topic and the name of its class."""
        room, room_class, _ = self._core.route_of(topic)
        return room, room_class
