"""A ZooKeeper session: adapts kazoo, which has its own threads, to one event loop.

A session serves requests in order, and replies in order: several are sent at once and awaited together.
Events of kazoo's threads arrive via `call_soon_threadsafe`. Only `over` is written there directly, so that
nothing is sent for a session that is known to have ended.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.serialization import Connect
from kazoo.security import CREATOR_ALL_ACL

from hubsub.config import join_address
from hubsub.coordination.location import Location
from hubsub.errors import CoordinatorRefusedError, CoordinatorUnknownError, CoordinatorUnreachableError

Call = Callable[[KazooClient], AsyncResult]

LOST = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError)
"""After these errors the outcome of a request is unknown."""

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5}

KAZOO_LOG = logging.getLogger("hubsub.coordination.kazoo")
"""Silent: errors of requests and breaks of watches are reported here instead."""
KAZOO_LOG.addHandler(logging.NullHandler())
KAZOO_LOG.propagate = False


class Session:
    """Connects at `start()`; kazoo reconnects by itself until `close()`.

    Args:
        location: Servers; kazoo tries all addresses of all names.
        timeout_s: The server ends the session after this silence; it may grant another time.
    """

    def __init__(self, location: Location, timeout_s: float) -> None:
        login = [("digest", f"{location.user}:{location.password}")] if location.user is not None else None
        self._loop = asyncio.get_running_loop()
        self._answer_s = location.timeout_s
        self._client = KazooClient(
            hosts=",".join(join_address(host, port) for host, port in location.hosts),
            timeout=timeout_s,
            logger=KAZOO_LOG,
            connection_retry=RECONNECT,
            auth_data=login,
            default_acl=CREATOR_ALL_ACL if login else None,
            use_ssl=location.tls,
            ca=location.ca,
            certfile=location.cert,
            keyfile=location.key,
            verify_certs=True,
            check_hostname=location.tls,
        )
        self.granted_s = timeout_s
        """Session timeout that the server granted."""
        self.id = 0
        """Id of the first session, which owns the keys bound by a lease's commits."""
        self.over = False
        """A session of this client has ended; keys bound to it are deleted."""
        self.ended = asyncio.Event()
        """`over`, in the event loop."""
        self._connected = asyncio.Event()
        self._breaks: set[asyncio.Event] = set()
        self._client.add_listener(self._on_state)
        self._capture_granted()

    async def start(self) -> None:
        """Raises `CoordinatorUnreachableError` if no server answers in time; the session is closed then."""
        self._client.start_async()
        try:
            async with asyncio.timeout(self._answer_s):
                await self._connected.wait()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise CoordinatorUnreachableError(value=",".join(map(str, self._client.hosts))) from None
            raise

    async def close(self) -> None:
        """Ends the session, and deletes keys bound to it, at once if the server can be reached."""
        with suppress(Exception):  # It is over for this side whatever kazoo meets.
            await asyncio.to_thread(self._client.stop)
            await asyncio.to_thread(self._client.close)

    async def ask(self, *calls: Call) -> list[Any]:
        """Sends all requests at once, and again if the connection broke.

        Returns:
            Their results in order; None for a node that does not exist.
        """
        try:
            # The session moves to another server within its own time; then there is time for the reply.
            async with asyncio.timeout(2 * self._answer_s):
                while True:
                    await self._connected.wait()
                    answers = [self._bridge(call(self._client)) for call in calls]
                    results = await asyncio.gather(*answers, return_exceptions=True)
                    if not any(isinstance(result, LOST) for result in results):
                        return [_result(result) for result in results]
        except TimeoutError:
            raise CoordinatorUnreachableError() from None

    def transaction(self) -> TransactionRequest:
        return self._client.transaction()

    async def commit(self, transaction: TransactionRequest) -> list[Any]:
        """Commits once.

        Returns:
            A result or an error for each operation.

        Raises:
            CoordinatorUnknownError: it may have arrived.
        """
        try:
            async with asyncio.timeout(self._answer_s):
                await self._connected.wait()
        except TimeoutError:
            raise CoordinatorUnreachableError() from None
        try:
            async with asyncio.timeout(self._answer_s):
                results: list[Any] = await self._bridge(transaction.commit_async())
                return results
        except (TimeoutError, *LOST) as error:
            raise CoordinatorUnknownError(value=type(error).__name__) from None
        except KazooException as error:
            raise CoordinatorRefusedError(value=type(error).__name__) from None

    def until_break(self) -> asyncio.Event:
        """An event set at the next loss of the connection; pass it to `forget` afterwards."""
        broken = asyncio.Event()
        if not self._connected.is_set():
            broken.set()
        self._breaks.add(broken)
        return broken

    def forget(self, broken: asyncio.Event) -> None:
        self._breaks.discard(broken)

    # -- in kazoo's threads --

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self.over = True
        self._soon(self._state_is, state)

    def _capture_granted(self) -> None:
        """kazoo does not expose the granted timeout: it is read from the reply."""
        invoke = self._client._connection._invoke

        def heard(*args: Any, **kwargs: Any) -> Any:
            answer = invoke(*args, **kwargs)
            if isinstance(answer, tuple) and isinstance(answer[0], Connect) and answer[0].time_out > 0:
                self.granted_s = answer[0].time_out / 1_000
                self.id = self.id or answer[0].session_id
            return answer

        self._client._connection._invoke = heard

    def _bridge(self, result: AsyncResult) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle() -> None:
            if future.done():
                return  # The caller has given up.
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        result.rawlink(lambda _: self._soon(settle))
        return future

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended, and with it the waiting tasks.
            self._loop.call_soon_threadsafe(call, *args)

    # -- in the event loop --

    def soon(self, call: Callable[..., None]) -> Callable[..., None]:
        """Wraps `call` for kazoo's threads."""
        return lambda *args: self._soon(call, *args)

    def _state_is(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
            return
        self._connected.clear()
        for broken in self._breaks:
            broken.set()
        if state == KazooState.LOST:
            self.ended.set()


def _result(result: Any) -> Any:
    if isinstance(result, NoNodeError):
        return None
    if isinstance(result, KazooException):
        raise CoordinatorRefusedError(value=type(result).__name__)
    if isinstance(result, BaseException):
        raise result
    return result
