"""The HTTP listener: uvicorn inside the node's own event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hubsub.api.app import App, head_bytes
from hubsub.api.state import State
from hubsub.api.strict import SHORT_BYTES, StrictConnection
from hubsub.config import join_address, split_address
from hubsub.errors import StartError, TooBusyError

BACKLOG = 512
SHUTDOWN_S = 5
TICK_S = 0.1
"""Seconds between two ticks of uvicorn, which renews the header Date at each tenth."""


class LoopServer(uvicorn.Server):
    """uvicorn in a foreign event loop whose owner handles signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Ends `serve` once the running requests have ended."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """As uvicorn's, but an end need not wait for the next tick."""
        tick = 0
        while not await self.on_tick(tick):
            tick += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), TICK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TLS = b"\x16"
"""First byte of a TLS ClientHello; no HTTP request begins with it."""
_TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x28"
"""A fatal alert, handshake_failure, as each version of TLS reads it (RFC 8446, sections 5.1 and 6)."""


class _Protocol(H11Protocol):
    """HTTP with strict parsing, a time limit for request heads, and a limit for the bytes of all of them.
    uvicorn limits only the idle time between two requests.

    Without the time limit, a few silent connections could occupy all of `http_connections_max` for ever.
    """

    conn: StrictConnection
    node: ClassVar[State]
    head_s: ClassVar[float]
    """Time limit for the head of a request, in seconds."""
    _held = 0
    """Bytes of unparsed input that `State.request_bytes` includes."""
    _unread: asyncio.TimerHandle | None = None
    """Ends the connection of a client that does not read."""
    _late: asyncio.TimerHandle | None = None
    _has_begun = False
    """Whether the connection has sent any bytes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Each request has a copy of this in its scope. A broken-off response can only be signalled by closing
        # the connection.
        self.app_state = {**self.app_state, "close_connection": self._close}
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun and data[:1] == _TLS:
            self.transport.write(_TLS_ALERT)
            self.transport.close()
            return
        self._has_begun = True
        # A body goes to its handler, which counts it.
        if self.conn.their_state is h11.SEND_BODY or self._admits(len(data)):
            super().data_received(data)
            self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        # The task of a new request begins before that, and counts its head.
        self.loop.call_soon(self._recount)

    def on_response_complete(self) -> None:
        # Else an idle connection would keep the head of its last request.
        self.headers, self.scope, self.cycle.scope = [], {}, {}  # type: ignore[typeddict-item]
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.node.hold(-self._held)
        self._held = 0
        super().connection_lost(exc)
        self._limit_unread()

    def send_400_response(self, msg: str) -> None:
        """Also handles a bad request body whose response has already started."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        super().send_400_response(msg)

    def _admits(self, more: int) -> bool:
        """Counts arriving bytes beyond the first `SHORT_BYTES`. False: all requests are too long, and this one ends."""
        size = max(0, self.conn.unparsed_bytes + more - SHORT_BYTES)
        try:
            self.node.hold(size - self._held)
        except TooBusyError:
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.abort()
            else:
                self.transport.write(_FULL)
                self.transport.close()
            return False
        self._held = size
        return True

    def _recount(self) -> None:
        if not self.transport.is_closing():
            size = max(0, self.conn.unparsed_bytes - SHORT_BYTES)
            self.node.request_bytes += size - self._held
            self._held = size
        self._limit_unread()

    def _limit_unread(self) -> None:
        """A client that does not read its responses may keep a long request only for the time of a head."""
        is_long = self._held > 0 or (self.cycle is not None and head_bytes(self.cycle.scope) > 0)
        if self._unread is not None and not (self.flow.write_paused and is_long):
            self._unread.cancel()
            self._unread = None
        elif self._unread is None and self.flow.write_paused and is_long:
            self._unread = self.loop.call_later(self.head_s, self.transport.abort)

    def _close(self, at_once: bool) -> None:
        """Closes the connection, either at once or after the bytes already sent."""
        if at_once:
            self.transport.abort()
        else:
            self.transport.close()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Listener(socket.socket):
    """A listening socket that leaves the reserved descriptors free, like the listeners of the data plane.

    asyncio accepts all waiting connections before it handles the first, so only `accept` is early enough.
    """

    first_reserved: int
    """The first descriptor that clients may not use."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if connection.fileno() < self.first_reserved:
            return connection, address
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(_FULL)
        raise ConnectionAbortedError("the descriptors left are reserved")


class HttpServer:
    """Serves the API on one address from `start` to `stop`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._server: LoopServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._socket: _Listener | None = None

    def bind(self, address: str) -> str:
        """Binds; connections wait in the backlog until `start`.

        Returns:
            The bound `HOST:PORT`.

        Raises:
            StartError: the address cannot be bound.
        """
        host, port = split_address(address)
        try:
            info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            # asyncio disables Nagle's algorithm if the socket's protocol is TCP. Otherwise a response body
            # waits for the acknowledgement of its head, which a client delays by 40 ms on a reused
            # connection.
            self._socket = _Listener(*info[:3])
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(info[4])
            self._socket.listen(BACKLOG)
        except OSError as error:
            if self._socket is not None:
                self._socket.close()
            hint = "another server may have this port; `:0` picks a free one"
            raise StartError(f"cannot listen ({error.strerror})", address, hint) from None
        bound = self._socket.getsockname()
        self._state.http_address = join_address(bound[0], bound[1])
        return self._state.http_address

    async def start(self) -> None:
        """Starts to serve requests on the socket that `bind` has bound."""
        assert self._socket is not None, "bind() comes first"
        limits, told = self._state.limits, self._state.node.metrics()["node"]
        self._socket.first_reserved = told["descriptors_max"] - told["descriptors_reserved"]
        self._server = LoopServer(
            uvicorn.Config(
                App(self._state),
                http=type(
                    "_Limited",
                    (_Protocol,),
                    {"node": self._state, "head_s": limits["request_timeout_ms"] / 1_000},
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # uvicorn would trust proxy headers from loopback, which any program of the machine can send.
                proxy_headers=bool(self._state.config.trusted_proxies),
                forwarded_allow_ips=list(self._state.config.trusted_proxies),
                limit_concurrency=self._refused_at(),
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        await self._server.serving.wait()

    def reload(self) -> None:
        """Applies the current connection limit to new connections."""
        if self._server is not None:
            self._server.config.limit_concurrency = self._refused_at()

    async def stop(self) -> None:
        """Ends running requests within `SHUTDOWN_S`."""
        if self._server is not None and self._task is not None:
            self._server.end()
            await self._task
        if self._socket is not None:
            self._socket.close()

    def _refused_at(self) -> int:
        """Number of the first connection that gets 503; uvicorn includes the new connection in its count."""
        return self._state.limits["http_connections_max"] + 1
