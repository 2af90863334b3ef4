"""Requests to a node about rooms, records in memory and clients."""

from collections.abc import Sequence

from hubsub import _native
from hubsub.config import RESERVED
from hubsub.errors import refusal
from hubsub.node.lifecycle import Lifecycle
from hubsub.node.status import Client, Room, Session, TraceSteps, read
from hubsub.node.types import (
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

ROOMS_ALL = 2**32
"""More than the busiest rooms that the shards track, which is bounded."""


class Rooms(Lifecycle):
    """The room part of `Node`."""

    async def publish(self, items: Sequence[Item], *, as_node: bool = False) -> list[Published | Failed]:
        """Publishes records in order; one result each. Only the node itself uses names that begin with `$`.

        Waits without a time limit: a publish whose outcome is unknown must not be reported as failed.
        """
        answers = await self._ask(self._core.publish, list(items), as_node)
        return [Published(*a) if len(a) == 4 else Failed(*a) for a in answers]

    async def publish_rows(
        self, chunk: bytes, left: Sequence[int] | None, of: Sequence[int] | None, producer: int
    ) -> PublishedRows:
        """Publishes rows of a chunk of `RowReader`. In a class with a log the rows of each room stay in order.

        Args:
            chunk: As returned by `RowReader`.
            left: Places in the chunk of the rows to publish, rising; None for all of `of`.
            of: Places of the rows that this producer numbers, rising, room by room; None for the whole chunk.
            producer: Id from `hubsub.names.producer_id`. The same producer must always have the same `of`.

        Returns:
            The number of rows that were published before, and the refused rows.
        """
        again, refused = await self._ask(self._core.publish_rows, chunk, left, of, producer)
        return PublishedRows(again, [(row, Failed(code, message)) for row, code, message in refused])

    def row_reader(self, topic: bytes | None, publisher: str) -> _native.RowReader:
        """Reads one Arrow stream of rows.

        Args:
            topic: Topic of all rows, which then have no column for it.
            publisher: Publisher of rows that name none.
        """
        return self._core.row_reader(topic, publisher)

    async def room(self, room: bytes) -> Room | None:
        return await self._ask_in_time(self._core.room, room)

    async def rooms(self, match: bytes | None, after: bytes | None, limit: int) -> list[Room]:
        """Up to `limit` rooms in memory and in the log, in order of name.

        Args:
            match: Pattern of room names; None for all.
            after: Name to start after; None starts at the first room.
            limit: Most rooms to return.
        """
        return await self._ask_in_time(self._core.rooms, match, after, limit)

    async def room_create(self, room: bytes) -> Room | None:
        return await self._ask_in_time(self._core.room_create, room)

    async def room_delete(self, room: bytes, *, as_node: bool = False) -> bool:
        """Deletes a room. Returns whether it existed.

        Raises:
            RoomInUseError: it has subscribers.
        """
        return await self._ask_in_time(self._core.room_delete, room, as_node)

    async def history(
        self,
        room: bytes,
        count: int,
        after: tuple[int, int] | None = None,
        topic: bytes | None = None,
        *,
        as_node: bool = False,
    ) -> tuple[bool, list[HistoryRow]]:
        """Records of a room.

        Args:
            room: Name of the room.
            count: Most records to return.
            after: Position (epoch, seq) to start after; None returns the last records.
            topic: Only records of this topic.
            as_node: Whether internal rooms may be read.

        Returns:
            Whether `after` was known, and the records, oldest first.
        """
        recovered, rows = await self._ask_in_time(self._core.history, room, count, after, topic, as_node)
        return recovered, [HistoryRow(*row) for row in rows]

    async def clients(
        self, sort: str, limit: int, client: int | None = None, client_ids: Sequence[str] = ()
    ) -> list[Client]:
        """Connected clients.

        Args:
            sort: Field to sort by, the largest first.
            limit: Most clients to return.
            client: Only the connection with this id.
            client_ids: Only MQTT clients with one of these ids.
        """
        ask = self._core.clients
        text = await self._ask_in_time(ask, sort, limit, client, list(client_ids))
        return read(text, list[Client])

    async def client_kill(self, client: int, reason: str) -> bool:
        """Closes a connection. Returns whether it existed."""
        return await self._ask_in_time(self._core.client_kill, client, reason)

    async def sessions(
        self, limit: int, after: str | None = None, client_id: str | None = None
    ) -> list[Session]:
        """MQTT sessions that outlive their connections, in order of client id.

        Args:
            limit: Most sessions to return.
            after: Client id to start after.
            client_id: Only the session of this client id.
        """
        ask = self._core.sessions
        text = await self._ask_in_time(ask, limit, after, client_id)
        return read(text, list[Session])

    async def session_end(self, client_id: str) -> bool:
        """Ends the session of a client id; returns whether there was one."""
        return await self._ask_in_time(self._core.session_end, client_id)

    async def busiest_rooms(self, limit: int, *, own: bool = False) -> list[BusyRoom]:
        """The busiest rooms, the busiest first; with `own` including internal rooms."""
        asked = limit if own else ROOMS_ALL
        rooms = [BusyRoom(*row) for row in await self._ask_in_time(self._core.busiest_rooms, asked)]
        return [room for room in rooms if own or not room.name.startswith(RESERVED.encode())][:limit]

    async def members(self, room: bytes) -> tuple[int, list[Member]]:
        """Number of members of a room in the whole cluster, and the listed members, by key.

        Raises:
            TimedOutError: no node answered.
        """
        count, rows = await self._ask_in_time(self._core.members, room)
        return count, [Member(*row) for row in rows]

    async def occupancy(self, room: bytes) -> Occupancy:
        """Subscribers, publishers and members of a room on this node."""
        protocols, publishers, members = await self._ask_in_time(self._core.occupancy, room)
        return Occupancy(dict(protocols), publishers, members)

    async def trace_start(self, number: int, topic: bytes, records: int, ms: int, every: int = 1) -> None:
        """Starts to follow the next records of a topic, as they come from other nodes and shards. A second call with
        the same number opens the trace for publishes here: after the first on all nodes, no step is missed.

        Args:
            number: Identifies the trace, 64 bits.
            topic: The topic.
            records: Most records that each shard follows, 1 to 200.
            ms: Time for which it follows them, in ms. Their steps are retained for a minute more.
            every: It follows about one record in so many, all shards and nodes the same ones.

        Raises:
            TooManyTracesError: there are `traces_max` others on a shard. `trace_end` ends it on the other shards.
        """
        await self._ask_in_time(self._core.trace_start, number, topic, records, ms, every)

    async def trace_steps(self, number: int) -> TraceSteps:
        """The steps of followed records whose position is known, shard by shard; empty for an unknown number."""
        return read(await self._ask_in_time(self._core.trace_steps, number), TraceSteps)

    async def trace_end(self, number: int) -> bool:
        """Ends a trace and drops its steps; returns whether there was one."""
        return await self._ask_in_time(self._core.trace_end, number)

    async def consumers(self) -> list[Consumer]:
        """Consumer groups of rooms that this node leads, if they have had a member since it leads them."""
        return [Consumer(*row) for row in await self._ask_in_time(self._core.consumers)]

    async def forget_consumer(self, group: bytes, topic: bytes) -> bool:
        """Drops a consumer's state here; it continues from its entry, or new records. Returns whether it was known."""
        return await self._ask_in_time(self._core.forget_consumer, group, topic)

    def room_of(self, topic: bytes) -> tuple[bytes, str]:
        """Room of a topic and the name of its class."""
        room, room_class, _ = self._core.route_of(topic)
        return room, room_class


async def publish_own(node: Rooms, items: Sequence[Item]) -> list[Published]:
    """Publishes internal records with one sync: all of them, or raises.

    Raises:
        HubSubError: one was refused; others may be published.
    """
    results = await node.publish(items, as_node=True)
    for result in results:
        if isinstance(result, Failed):
            raise refusal(*result)
    return [result for result in results if not isinstance(result, Failed)]
