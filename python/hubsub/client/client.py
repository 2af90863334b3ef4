"""The asyncio client: publish, subscribe, history.

One connection carries the commands. It is opened on first use and again after a failure; each subscription
has its own. A request that was sent and not answered is repeated only if it is idempotent.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from hubsub.client.connection import Connection, targets
from hubsub.client.consumer import Consumer
from hubsub.client.options import Options
from hubsub.client.resp import Argument
from hubsub.client.subscription import Start, Subscription
from hubsub.client.types import Gap, History, Member, Position, Record
from hubsub.errors import ClientError, HubSubError, NotConnectedError, NotRecoveredError, TimedOutError

URL_DEFAULT = "redis://127.0.0.1:3221"

Name = str | bytes
"""A topic, room or pattern: text is UTF-8."""

IN_FLIGHT_MAX = 1_024
"""Publishes of one batch that may wait for their replies."""


class Client:
    """A client of HubSub, or of Redis as far as Redis goes.

    Args:
        url: `redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]`; the servers are tried in turn.
        options: Time limits of this client.
        timeout_s: Shorthand for `Options(timeout_s=…)`.

    Example:
        ```python
        async with hubsub.Client() as client:
            async with client.subscribe("chat:lobby", last=10) as records:
                await client.publish("chat:lobby", "hello")
                async for record in records:
                    print(record.position, record.payload.decode())
        ```
    """

    def __init__(
        self, url: str = URL_DEFAULT, *, options: Options | None = None, timeout_s: float | None = None
    ) -> None:
        if options is not None and timeout_s is not None:
            raise ClientError("give either options or timeout_s", None, "Options has a timeout_s")
        self._servers = deque(targets(url))
        self._options = options or (Options() if timeout_s is None else Options(timeout_s=timeout_s))
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._subscriptions: set[Subscription] = set()
        self._closed = False

    async def publish(self, topic: Name, payload: Name) -> int:
        """Publishes one record.

        Returns:
            Number of subscribers in the whole room that receive it.

        Raises:
            NotConnectedError: no server can be reached; the record was not sent.
            TimedOutError: it was sent and not answered; the outcome is unknown.
            TypeError: topic or payload is neither text nor bytes; nothing was sent.
        """
        return int(await self._once("PUBLISH", _bytes(topic), _bytes(payload)))

    async def publish_many(
        self, items: Iterable[tuple[Name, Name]], *, on_answer: Callable[[int], None] | None = None
    ) -> list[int]:
        """Publishes `(topic, payload)` pairs in order, without waiting for each reply.

        Args:
            items: The pairs to publish.
            on_answer: Called in order with the number of receivers of each acknowledged record, so that you
                know the acknowledged ones even if a later one fails.

        Returns:
            Number of receivers of each record, in the same order.

        Raises:
            HubSubError: the error of the first refused record; later ones may have been published.
        """
        connection = await self._connected()
        results: list[int] = []
        waiting: deque[asyncio.Future[Any]] = deque()

        async def take_answer() -> None:
            results.append(int(await self._answer(connection, waiting.popleft())))
            if on_answer is not None:
                on_answer(results[-1])

        try:
            for topic, payload in items:
                waiting.append(connection.send("PUBLISH", _bytes(topic), _bytes(payload)))
                await connection.drain()
                if len(waiting) >= IN_FLIGHT_MAX:
                    await take_answer()
            while waiting:
                await take_answer()
        finally:
            for future in waiting:  # After an error these are not awaited any more.
                future.cancel()
        return results

    def subscribe(
        self,
        *topics: Name,
        patterns: Iterable[Name] = (),
        last: int | None = None,
        since_ms: int | None = None,
        resume: Position | str | Mapping[Name, Position | str] | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_connection: Callable[[HubSubError | None], None] | None = None,
    ) -> Subscription:
        """Subscribes to topics and patterns.

        Args:
            topics: Topics, exactly.
            patterns: Redis globs. They start now and cannot resume.
            last: Starts with the last `last` records of each topic.
            since_ms: Starts with the records from this unix time, in ms.
            resume: Starts after this position (of one topic), or these by topic.
            on_gap: Called when records were missed, or may have been; the next record of that topic carries
                the gap too.
            on_connection: Called with the error when the connection is lost, with None after a reconnect has
                resumed.

        Returns:
            An asynchronous iterator of records, to be used with `async with`.

        Raises:
            ClientError: the arguments contradict each other.
            NotConnectedError: the client is closed.
        """
        names = [_bytes(topic) for topic in topics]
        globs = [_bytes(pattern) for pattern in patterns]
        if not names and not globs:
            raise ClientError("there is nothing to subscribe to", None, "name a topic or a pattern")
        start, positions = _start(names, last, since_ms, resume)
        if globs and (start or positions):
            raise ClientError(
                "patterns start now", None, "leave out last, since_ms and resume, or name topics"
            )
        if self._closed:
            raise NotConnectedError("the client is closed")
        return Subscription(
            self._servers,
            self._options,
            names,
            globs,
            start,
            positions,
            on_gap,
            on_connection,
            self._subscriptions,
        )

    def consume(
        self,
        topic: Name,
        name: Name,
        *,
        group: Name | None = None,
        on_connection: Callable[[HubSubError | None], None] | None = None,
    ) -> Consumer:
        """Joins a group that shares a topic's records: each record goes to one member.

        If the topic's class has a log, the group's position is persisted, also while it has no members, and a
        record is redelivered until it is acknowledged.

        Args:
            topic: The topic, without `+` and `#`.
            name: The consumer's name; without `group` also the group's.
            group: The group, without `/`, `+` and `#`.
            on_connection: As in `subscribe`.

        Returns:
            An asynchronous iterator of records with a method `ack`, to be used with `async with`.

        Example:
            ```python
            async with client.consume("orders", "billing") as records:
                async for record in records:
                    ...
                    await records.ack(record)
            ```
        """
        shared = _bytes(name if group is None else group)
        servers, opened = list(self._servers), self._subscriptions
        return Consumer(servers, self._options, _bytes(topic), shared, on_connection, opened)

    async def history(self, room: Name, *, count: int = 100, after: Position | str | None = None) -> History:
        """Reads a room's history, oldest first.

        Args:
            room: The room.
            count: Most records to return, default 100.
            after: Position to start after; without it, the last records.

        Returns:
            The records; `recovered` is False if `after` belongs to another epoch of the room.
        """
        args: list[Argument] = ["HUBSUB", "HISTORY", _bytes(room), "COUNT", count]
        if after is not None:
            args += ["AFTER", str(after)]
        try:
            rows = await self._again(*args)
        except NotRecoveredError:
            return History((), recovered=False)
        return History(
            tuple(
                Record(topic, payload, Position.parse(position), None, int(timestamp), publisher.decode())
                for position, timestamp, topic, publisher, payload, *_ in rows
            ),
            recovered=True,
        )

    async def locate(self, room: Name) -> list[Member]:
        """The nodes that serve a room, leader first."""
        rows = await self._again("HUBSUB", "LOCATE", _bytes(room))
        return [Member(row[0].decode(), row[1].decode()) for row in rows]

    async def ping(self) -> None:
        """Returns once the server has answered."""
        await self._again("PING")

    async def command(self, *args: Argument) -> Any:
        """Sends any command once and returns its reply; text comes as bytes.

        Raises:
            HubSubError: the reply is an error.
        """
        return await self._once(*args)

    async def close(self) -> None:
        """Closes the connection and all subscriptions."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connected(self) -> Connection:
        """The connection; a new one if the last one failed."""
        async with self._connecting:
            if self._closed:
                raise NotConnectedError("the client is closed")
            if self._connection is not None and self._connection.error is None:
                return self._connection
            error: HubSubError = NotConnectedError()
            for _ in range(len(self._servers)):
                connection = Connection(self._servers[0], self._options.timeout_s)
                try:
                    await connection.open(self._options.name)
                except NotConnectedError as failed:
                    error = failed
                    self._servers.rotate(-1)
                    continue
                if self._closed:  # Closed meanwhile: close the new connection, too.
                    await connection.close()
                    raise NotConnectedError("the client is closed")
                self._connection = connection
                return connection
            raise error

    async def _once(self, *args: Argument) -> Any:
        connection = await self._connected()
        future = connection.send(*args)
        await connection.drain()
        return await self._answer(connection, future)

    async def _again(self, *args: Argument) -> Any:
        """For an idempotent request: repeats it once if the connection broke."""
        with contextlib.suppress(NotConnectedError):
            return await (await self._connected()).call(*args)
        return await (await self._connected()).call(*args)

    @staticmethod
    async def _answer(connection: Connection, future: asyncio.Future[Any]) -> Any:
        try:
            return await connection.reply(future)
        except NotConnectedError as error:
            raise TimedOutError(
                "the connection broke before the answer, the outcome is unknown", error.value
            ) from error


def _bytes(name: Name) -> bytes:
    """Text as UTF-8, bytes as they are; anything else is refused: `bytes(5)` would be five NUL bytes."""
    if isinstance(name, str):
        return name.encode()
    try:
        return bytes(memoryview(name))
    except TypeError:
        raise TypeError(f"expected str or bytes, got {type(name).__name__}: {name!r:.80}") from None


def _position(value: Position | str) -> Position:
    return Position.parse(value) if isinstance(value, str) else value


def _start(
    topics: list[bytes],
    last: int | None,
    since_ms: int | None,
    resume: Position | str | Mapping[Name, Position | str] | None,
) -> tuple[Start, dict[bytes, Position]]:
    """Start of the topics: one for all, and positions by topic."""
    if sum(option is not None for option in (last, since_ms, resume)) > 1:
        raise ClientError("a subscription starts at one place", None, "give one of last, since_ms and resume")
    if last is not None:
        return ("LAST", last), {}
    if since_ms is not None:
        return ("SINCE", since_ms), {}
    if resume is None:
        return (), {}
    if isinstance(resume, Mapping):
        return (), {_bytes(topic): _position(position) for topic, position in resume.items()}
    if len(topics) != 1:
        raise ClientError("one position belongs to one topic", None, "give resume={topic: position, …}")
    return (), {topics[0]: _position(resume)}
