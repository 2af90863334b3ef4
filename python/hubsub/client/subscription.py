"""A subscription: records in order, over as many connections as needed.

It owns one connection at a time and stops reading at `QUEUE_RECORDS_MAX` unread records. A slow consumer is
thus a slow subscriber to the server, and memory is bounded.

On HubSub it knows the position of each topic and resumes from it after a reconnect. Where that is impossible
(a pattern, a plain Redis, a position that the server no longer knows) it reports a `Gap`. If a room began a
new epoch during an outage, the subscription reads that epoch from its beginning, as all of it is new here.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from hubsub.client.connection import Connection, Target
from hubsub.client.options import Options
from hubsub.client.resp import Argument, Push
from hubsub.client.types import Gap, Position, Record
from hubsub.errors import ClientError, HubSubError, NotConnectedError, ReplyError, TimedOutError

QUEUE_RECORDS_MAX = 1_024
QUEUE_RECORDS_LOW = 256

Start = tuple[Argument, ...]
"""Start of a topic, as the arguments of HUBSUB SUBSCRIBE after the topic; empty: now."""


class Subscription:
    """An asynchronous iterator of records; created by `Client.subscribe`.

    Use it as a context manager: entering waits until the server has confirmed every topic, leaving closes its
    connection.
    """

    def __init__(
        self,
        servers: Sequence[Target],
        options: Options,
        topics: Sequence[bytes],
        patterns: Sequence[bytes],
        start: Start,
        positions: Mapping[bytes, Position],
        on_gap: Callable[[Gap], None] | None,
        on_connection: Callable[[HubSubError | None], None] | None,
        opened: "set[Subscription]",
    ) -> None:
        self._opened = opened
        """The client's open subscriptions; this one is in it from `open` to `close`."""
        self._opening = asyncio.Lock()
        self._servers = deque(servers)
        self._options = options
        self._topics = list(dict.fromkeys(topics))
        self._patterns = list(dict.fromkeys(patterns))
        self._start = start
        self._positions = dict(positions)
        """Positions of the last received records, to resume after."""
        self._taken = dict(positions)
        """Positions of the last records that the consumer has taken."""
        self._on_gap = on_gap
        self._on_connection = on_connection
        self._gaps: dict[bytes, Gap] = {}
        self._queue: deque[Record] = deque()
        self._changed = asyncio.Event()
        self._unconfirmed: set[tuple[bytes, bytes]] = set()
        self._starting_over: set[bytes] = set()
        """Topics whose new epoch was requested from its beginning: earlier records come again, and are ignored."""
        self._confirmed = asyncio.Event()
        self._closed = asyncio.Event()
        self._connection: Connection | None = None
        self._runner: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._ended = False
        self.is_hubsub = False
        """Whether the server is HubSub, so that records have positions; known after subscribing."""
        self.reconnects = 0

    @property
    def positions(self) -> dict[bytes, Position]:
        """Position of the last record taken of each topic; save it to resume later."""
        return dict(self._taken)

    async def open(self) -> None:
        """Connects and waits until all topics are confirmed.

        Raises:
            NotConnectedError: no server answers.
            ReplyError: the server refuses; also when `last`, `since` or `resume` meet a plain Redis.
        """
        async with self._opening:
            if self._runner is not None or self._ended:
                return
            self._opened.add(self)
            try:
                await self._connect()
            except BaseException:
                self._opened.discard(self)
                raise
            if self._ended:  # Closed meanwhile.
                await self._drop()
            else:
                self._runner = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Ends the iteration and closes the connection. May be called more than once."""
        self._ended = True
        self._changed.set()
        self._opened.discard(self)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait((self._runner,))
        await self._drop()

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        await self.open()
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        record = self._queue.popleft()
        if record.position is not None and record.pattern is None:
            self._taken[record.topic] = record.position
        if len(self._queue) == QUEUE_RECORDS_LOW and self._connection is not None:
            self._connection.resume()
        return record

    # -- connection --

    async def _run(self) -> None:
        """Reconnects until closed; ends with an error only if no retry can help."""
        try:
            while True:
                await self._until_closed()
                if self._error is not None:
                    raise self._error
                self._tell_connection(self._connection.error if self._connection else None)
                await self._reconnect()
                self.reconnects += 1
                self._tell_connection(None)
        except Exception as error:
            self._error = error
            self._changed.set()
            self._opened.discard(self)
            await self._drop()

    async def _until_closed(self) -> None:
        """Waits for the end of the connection, and pings the server when it is silent.

        Any byte is a sign of life: the reply may be queued after more records than the consumer takes in
        time.
        """
        connection = self._connection
        assert connection is not None, "open() or _reconnect() made it"
        loop = asyncio.get_running_loop()
        while not self._closed.is_set():
            due = connection.heard_at + self._options.ping_s - loop.time()
            if due <= 0 and not connection.paused:
                heard_at = connection.heard_at
                connection.send("PING")
                await self._wait_closed(self._options.timeout_s)
                if connection.heard_at == heard_at and not connection.paused:
                    return await connection.close("the server is silent")
            else:
                await self._wait_closed(due if due > 0 else self._options.ping_s)
        return None

    async def _wait_closed(self, most_s: float) -> None:
        # `wait_for` of Python 3.11 loses a cancellation that coincides with the result, and `close` would
        # wait for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._closed.wait()

    async def _reconnect(self) -> None:
        self._lost()
        options, loop = self._options, asyncio.get_running_loop()
        give_up_at = None if options.give_up_s is None else loop.time() + options.give_up_s
        wait = options.backoff_s
        while True:
            try:
                return await self._connect()
            except HubSubError as error:
                if not error.retryable or (give_up_at is not None and loop.time() >= give_up_at):
                    raise
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, options.backoff_s_max)

    async def _connect(self) -> None:
        """Connects to the first server that answers and subscribes there."""
        error: HubSubError = NotConnectedError()
        for _ in range(len(self._servers)):
            self._closed.clear()
            connection = Connection(self._servers[0], self._options.timeout_s, self._on_push)
            try:
                await connection.open(self._options.name)
                self._connection = connection
                await self._subscribe(connection)
                return
            except NotConnectedError as failed:
                error = failed
                self._servers.rotate(-1)
            except BaseException:
                await connection.close()
                raise
        raise error

    async def _subscribe(self, connection: Connection) -> None:
        try:
            await connection.call("HUBSUB", "POSITIONS", "ON")
            self.is_hubsub = True
        except ReplyError:
            self.is_hubsub = False
        if not self.is_hubsub and (self._start or self._positions):
            raise ClientError(
                "this server keeps no history to start from", connection.target, "it is no HubSub"
            )
        self._confirmed.clear()
        self._starting_over.clear()
        self._unconfirmed = {(b"subscribe", t) for t in self._topics} | {
            (b"psubscribe", p) for p in self._patterns
        }
        if self.is_hubsub:
            for topic in self._topics:
                position = self._positions.get(topic)
                start = ("FROM", str(position)) if position is not None else self._start or ("LAST", "0")
                connection.send_unanswered("HUBSUB", "SUBSCRIBE", topic, *start)
        elif self._topics:
            connection.send_unanswered("SUBSCRIBE", *self._topics)
        if self._patterns:
            connection.send_unanswered("PSUBSCRIBE", *self._patterns)
        await connection.drain()
        # A long replay may fill the queue before it is read: confirmations of other topics then come when the
        # consumer has made room, so the wait ends there too.
        await self._until_confirmed(connection)

    async def _until_confirmed(self, connection: Connection) -> None:
        if not self._unconfirmed:
            return
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await self._confirmed.wait()
        except TimeoutError:
            raise TimedOutError(
                "the server did not confirm the subscription in time", connection.target
            ) from None
        if self._error is not None:
            raise self._error
        if connection.error is not None:
            raise connection.error

    def _lost(self) -> None:
        """Reports a gap for each topic and pattern that cannot resume."""
        if not self.is_hubsub:
            for topic in self._topics:
                self._tell_gap(Gap(topic, None, None))
        for pattern in self._patterns:
            self._tell_gap(Gap(pattern, None, None))

    def _tell_connection(self, error: HubSubError | None) -> None:
        if self._on_connection is not None:
            self._on_connection(error)

    # -- messages of the server --

    def _on_push(self, push: Push) -> None:
        match push:
            case [b"message", topic, *_] if topic in self._starting_over:
                pass
            case [b"message", topic, payload, *rest]:
                position = Position.parse(rest[0]) if rest else None
                if position is not None:
                    self._positions[topic] = position
                self._put(Record(topic, payload, position, None, gap=self._gaps.pop(topic, None)))
            case [b"pmessage", pattern, topic, payload, *rest]:
                position = Position.parse(rest[0]) if rest else None
                self._put(Record(topic, payload, position, pattern, gap=self._gaps.pop(pattern, None)))
            case [b"subscribe" | b"psubscribe" as kind, name, _, *rest]:
                self._confirm(kind, name, rest)
            case [b"gap", topic, first, last, *_]:
                self._tell_gap(Gap(topic, _end_of_gap(first), _end_of_gap(last)))
            case [b"closed"]:
                self._closed.set()
                self._confirmed.set()
                self._changed.set()

    def _put(self, record: Record) -> None:
        self._queue.append(record)
        self._changed.set()
        if len(self._queue) >= QUEUE_RECORDS_MAX and self._connection is not None:
            self._connection.pause()
            self._confirmed.set()

    def _confirm(self, kind: bytes, name: bytes, rest: list[Any]) -> None:
        self._unconfirmed.discard((kind, name))
        starts_over = kind == b"subscribe" and name in self._starting_over
        if starts_over:
            self._starting_over.discard(name)
        if len(rest) >= 2:
            position, recovered = Position.parse(rest[0]), bool(int(rest[1]))
            known = self._positions.get(name)
            if known is not None and not recovered:
                # The gap that was reported covers it.
                if not (starts_over and known.epoch == position.epoch):
                    self._not_recovered(name, known, position)
            elif known is None and self._start[:1] != ("SINCE",):
                # After a loss before the first record, resume from the start of this subscription, not from
                # the newest record.
                back = int(self._start[1]) if self._start else 0
                start = position._replace(seq=max(0, position.seq - back))
                self._positions[name] = self._taken[name] = start
        if not self._unconfirmed:
            self._confirmed.set()

    def _not_recovered(self, topic: bytes, known: Position, last: Position) -> None:
        """The server cannot resume after `known`; `last` is the position of the room's last record."""
        if known.epoch == last.epoch and known.seq < last.seq:
            # The same epoch, whose oldest records are gone: the remaining ones come now.
            self._tell_gap(Gap(topic, known._replace(seq=known.seq + 1), None))
            return
        self._tell_gap(Gap(topic, None, None))
        self._positions[topic] = self._taken[topic] = last
        is_news = known.epoch != last.epoch and last.seq > 0
        if is_news and self._runner is not None and self._connection is not None:
            # The room began a new epoch during this subscription: none of its records was received yet.
            first = last._replace(seq=0)
            self._positions[topic] = self._taken[topic] = first
            self._unconfirmed.add((b"subscribe", topic))
            self._starting_over.add(topic)
            self._connection.send_unanswered("HUBSUB", "SUBSCRIBE", topic, "FROM", str(first))

    def _tell_gap(self, gap: Gap) -> None:
        self._gaps[gap.topic] = gap
        if self._on_gap is not None:
            try:
                self._on_gap(gap)
            except Exception as error:
                self._error = error  # An error of the consumer's callback ends the subscription.
                raise


def _end_of_gap(text: bytes) -> Position | None:
    """None for seq 0, which no record has: the server does not know the end of the gap."""
    position = Position.parse(text)
    return position if position.seq else None
