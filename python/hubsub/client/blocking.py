"""The client without asyncio: an event loop in a separate thread does the work."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from hubsub.client.client import URL_DEFAULT, Client, Name
from hubsub.client.consumer import Consumer
from hubsub.client.options import Options
from hubsub.client.subscription import Subscription
from hubsub.client.types import Gap, History, Member, Position, Record
from hubsub.errors import ClientError, HubSubError, NotConnectedError

T = TypeVar("T")


class BlockingSubscription:
    """An iterator of records; created by `BlockingClient.subscribe`."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], inner: Subscription) -> None:
        self._run = run
        self._inner = inner

    @property
    def positions(self) -> dict[bytes, Position]:
        """Last position of each topic."""
        return self._inner.positions

    def get(self, timeout_s: float | None = None) -> Record | None:
        """The next record; None if none came in time, or the subscription was closed."""
        try:
            record: Record = self._run(self._next(timeout_s))
            return record
        except (TimeoutError, StopAsyncIteration):
            return None

    async def _next(self, timeout_s: float | None) -> Record:
        async with asyncio.timeout(timeout_s):  # With 0 too it takes a record that is there.
            return await anext(self._inner)

    def close(self) -> None:
        """Closes the subscription and its connection."""
        self._run(self._inner.close())

    def __iter__(self) -> Iterator[Record]:
        while (record := self.get()) is not None:
            yield record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingConsumer(BlockingSubscription):
    """A member of a group: an iterator of records to acknowledge; created by `BlockingClient.consume`."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], inner: Consumer) -> None:
        super().__init__(run, inner)
        self._consumer = inner

    def ack(self, *records: Record) -> int:
        """Acknowledges records; see `Consumer.ack`."""
        acknowledged: int = self._run(self._consumer.ack(*records))
        return acknowledged


class BlockingClient:
    """`Client` for code without asyncio; arguments, results and errors are the same.

    Example:
        ```python
        with hubsub.BlockingClient() as client, client.subscribe("chat:lobby") as records:
            client.publish("chat:lobby", "hello")
            print(records.get(timeout_s=5))
        ```
    """

    def __init__(
        self, url: str = URL_DEFAULT, *, options: Options | None = None, timeout_s: float | None = None
    ) -> None:
        self._gate = threading.Lock()
        """Held to pass work to the loop and to end the loop, so that accepted work is always answered."""
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hubsub-client", daemon=True)
        self._thread.start()
        try:
            self._client: Client = self._run(_make(url, options, timeout_s))
        except BaseException:
            self._end()
            raise

    def publish(self, topic: Name, payload: Name) -> int:
        """Publishes one record; see `Client.publish`."""
        return self._run(self._client.publish(topic, payload))

    def publish_many(self, items: Iterable[tuple[Name, Name]]) -> list[int]:
        """Publishes records in order; see `Client.publish_many`."""
        return self._run(self._client.publish_many(items))

    def subscribe(
        self,
        *topics: Name,
        patterns: Iterable[Name] = (),
        last: int | None = None,
        since_ms: int | None = None,
        resume: Position | str | Mapping[Name, Position | str] | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_connection: Callable[[HubSubError | None], None] | None = None,
    ) -> BlockingSubscription:
        """Subscribes; returns after the server has confirmed. Callbacks run in the client's thread.

        Arguments and errors are those of `Client.subscribe`.
        """

        async def opened() -> Subscription:
            inner = self._client.subscribe(
                *topics,
                patterns=patterns,
                last=last,
                since_ms=since_ms,
                resume=resume,
                on_gap=on_gap,
                on_connection=on_connection,
            )
            await inner.open()
            return inner

        return BlockingSubscription(self._run, self._run(opened()))

    def consume(
        self,
        topic: Name,
        name: Name,
        *,
        group: Name | None = None,
        on_connection: Callable[[HubSubError | None], None] | None = None,
    ) -> BlockingConsumer:
        """Joins a consumer group; returns after the server has confirmed. The callback runs in the client's thread.

        Arguments and errors are those of `Client.consume`.

        Example:
            ```python
            with client.consume("orders", "billing") as records:
                for record in records:
                    ...
                    records.ack(record)
            ```
        """

        async def opened() -> Consumer:
            inner = self._client.consume(topic, name, group=group, on_connection=on_connection)
            await inner.open()
            return inner

        return BlockingConsumer(self._run, self._run(opened()))

    def history(self, room: Name, *, count: int = 100, after: Position | str | None = None) -> History:
        """Reads a room's history; see `Client.history`."""
        return self._run(self._client.history(room, count=count, after=after))

    def locate(self, room: Name) -> list[Member]:
        """The nodes that serve a room; see `Client.locate`."""
        return self._run(self._client.locate(room))

    def ping(self) -> None:
        """Checks the connection; see `Client.ping`."""
        self._run(self._client.ping())

    def close(self) -> None:
        """Closes everything and ends the thread. May be called more than once."""
        if not self._closing:
            self._run(self._client.close())
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a callback cannot wait for its own client", None, "use another thread")
        with self._gate:
            if self._closing:
                work.close()
                raise NotConnectedError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise NotConnectedError("the client was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def _end(self) -> None:
        with self._gate:
            if self._closing:
                return  # Another thread ends it.
            self._closing = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    """Cancels all other tasks, so that no thread waits for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


async def _make(url: str, options: Options | None, timeout_s: float | None) -> Client:
    client = Client(url, options=options, timeout_s=timeout_s)
    return await client.__aenter__()
