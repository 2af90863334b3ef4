"""A member of a group that shares a topic's records.

A subscription whose records come to one member each. Where the topic's class has a log the group keeps its place on the
server, and what is not acknowledged comes again, to this member or another one.
"""

from collections.abc import Callable, Sequence

from hubsub.client.connection import Connection, Target
from hubsub.client.options import Options
from hubsub.client.resp import Push
from hubsub.client.subscription import Subscription
from hubsub.client.types import Position, Record
from hubsub.errors import ClientError, HubSubError, NotConnectedError


class Consumer(Subscription):
    """What `Client.consume` returns: iterate over it, and `ack` what is done.

    Args:
        servers, options, on_connection, opened: As of a subscription.
        topic: What is shared.
        group: By whom.
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
        """Says that records are done with: they come to nobody again.

        Returns:
            How many of them this connection had. After a reconnect those from before it are not among them: they come
            again.

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
        """What was not taken is the next member's."""
        self._queue.clear()

    def _on_push(self, push: Push) -> None:
        match push:
            case [b"consume", topic, _, position, payload, *_]:
                self._put(Record(topic, payload, Position.parse(position)))
            case [b"consuming", topic, *_]:
                self._confirm(b"consuming", topic, [])
            case _:
                super()._on_push(push)
