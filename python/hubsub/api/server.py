"""The HTTP listener: uvicorn inside the node's own loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hubsub.api.app import App
from hubsub.api.state import State
from hubsub.api.strict import StrictConnection
from hubsub.config import join_address, split_address
from hubsub.errors import StartError

BACKLOG = 512
SHUTDOWN_S = 5


class LoopServer(uvicorn.Server):
    """uvicorn in a loop that is somebody else's, who has signal handlers of his own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


_TLS = b"\x16"
"""What a ClientHello begins with, and no request."""
_TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x28"
"""A fatal alert, handshake_failure, as each version of TLS reads it (RFC 8446, sections 5.1 and 6)."""


class _Protocol(H11Protocol):
    """HTTP whose requests must come in time, and be read alike by all; uvicorn limits only the silence between two.

    Without the first a few connections that say nothing would take all of `http_connections_max` for ever.
    """

    head_s: ClassVar[float]
    """Time that a connection has to send the head of a request."""
    _late: asyncio.TimerHandle | None = None
    _has_begun = False
    """Whether it has sent anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Each request has a copy of this in its scope. An answer that breaks off has no other way
        # to say so than the end of its connection.
        self.app_state = {**self.app_state, "close_connection": self._close}
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun and data[:1] == _TLS:
            self.transport.write(_TLS_ALERT)
            self.transport.close()
            return
        self._has_begun = True
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Also where the body of a request is wrong whose answer is on its way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        super().send_400_response(msg)

    def _close(self, at_once: bool) -> None:
        """Ends the connection: at once, or behind what was sent."""
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
    """A listening socket that leaves the descriptors free that are reserved, as those of the data plane do.

    asyncio takes all connections that wait before it looks at the first, so only here is it early enough.
    """

    first_reserved: int
    """The first descriptor that is not for clients."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if connection.fileno() < self.first_reserved:
            return connection, address
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(_FULL)
        raise ConnectionAbortedError("the descriptors left are reserved")


_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


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
            # asyncio switches Nagle's algorithm off where the protocol says TCP. Else the body of an answer waits for
            # the acknowledgement of its head, which a client delays by 40 ms on a connection that it has used before.
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
        """Serves from here on."""
        assert self._socket is not None, "bind() comes first"
        limits, told = self._state.limits, self._state.node.metrics()["node"]
        self._socket.first_reserved = told["descriptors_max"] - told["descriptors_reserved"]
        self._server = LoopServer(
            uvicorn.Config(
                App(self._state),
                http=type("_Timed", (_Protocol,), {"head_s": limits["request_timeout_ms"] / 1_000}),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # uvicorn would believe who connects from loopback, as any program of the machine may.
                proxy_headers=bool(self._state.config.trusted_proxies),
                forwarded_allow_ips=list(self._state.config.trusted_proxies),
                limit_concurrency=self._refused_at(),
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        await self._server.serving.wait()

    def reload(self) -> None:
        """Takes over the limit on connections, for those made from now on."""
        if self._server is not None:
            self._server.config.limit_concurrency = self._refused_at()

    async def stop(self) -> None:
        """Ends requests that run, within `SHUTDOWN_S`."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        if self._socket is not None:
            self._socket.close()

    def _refused_at(self) -> int:
        """The number of the first connection that is answered 503; uvicorn counts each among its own."""
        return self._state.limits["http_connections_max"] + 1
