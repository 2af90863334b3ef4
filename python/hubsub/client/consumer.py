"""A member of a group that shares a topic's records.

A subscription in which each record goes to one member. If the topic's class has a log, the server persists
the group's position, and redelivers unacknowledged records to this member or another one.
"""

from collections.abc import Callable, Sequence

from hubsub.client.connection import Connection, Target
from hubsub.client.options import Options
from hubsub.client.resp import Push
from hubsub.client.subscription import Subscription
from hubsub.client.types import Position, Record
from hubsub.errors import ClientError, HubSubError, NotConnectedError


class Consumer(Subscription):
    """Result of `Client.consume`: iterate over it, and `ack` finished records.

    Args:
        servers: As in `Subscription`.
        options: As in `Subscription`.
        topic: The shared topic.
        group: Name of the group.
        on_connection: As in `Subscription`.
        opened: As in `Subscription`.
    """

    def __init__(
        self,
        servers: Sequence[Target],
        options: Options,
        topic: bytes,
        group: bytes,
        on_connection: Callable[[HubSubError | None], None] | None,
        opened: set[Subscription],
    ) -> None:
        super().__init__(servers, options, [topic], [], (), {}, None, on_connection, opened)
        self._topic, self._group = topic, group

    async def ack(self, *records: Record) -> int:
        """Acknowledges records: they are not delivered again.

        Returns:
            How many of them were delivered on this connection. Records from before a reconnect do not count:
            they are redelivered.

        Raises:
            NotConnectedError: there is no connection now.
        """
        if self._connection is None or self._connection.error is not None:
            raise NotConnectedError("the consumer is not connected")
        positions = [str(record.position) for record in records if record.position is not None]
        if not positions:
            raise ClientError(
                "there is nothing to acknowledge", None, "give records that this consumer brought"
            )
        return int(await self._connection.call("HUBSUB", "ACK", *positions))

    async def _subscribe(self, connection: Connection) -> None:
        self.is_hubsub = True
        self._confirmed.clear()
        self._unconfirmed = {(b"consuming", self._topic)}
        connection.send_unanswered("HUBSUB", "SUBSCRIBE", self._topic, "AS", self._group)
        await connection.drain()
        await self._until_confirmed(connection)

    def _lost(self) -> None:
        """Drops queued records: the server delivers them to another member."""
        self._queue.clear()

    def _on_push(self, push: Push) -> None:
        match push:
            case [b"consume", topic, _, position, payload, *_]:
                self._put(Record(topic, payload, Position.parse(position)))
            case [b"consuming", topic, *_]:
                self._confirm(b"consuming", topic, [])
            case _:
                super()._on_push(push)
