"""etcd's JSON gateway: requests to the first server that answers, streams, authentication.

Idempotent requests (`ask`) go on to the next server when one fails. Others (`send_once`) do so only if no
connection was made; after that a failure is `CoordinatorUnknownError`. A host name means all its addresses;
names are resolved again after no server has answered.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2

from hubsub.config import join_address
from hubsub.coordination.location import Location
from hubsub.errors import (
    CoordinatorError,
    CoordinatorRefusedError,
    CoordinatorTooLargeError,
    CoordinatorUnknownError,
    CoordinatorUnreachableError,
    LeaseLostError,
)

CONNECT_S = 2.0
CONNECTIONS_MAX = 100
"""Simultaneous requests and watches; further requests wait."""
LINE_BYTES_MAX = 16 << 20
"""Limit of one line of a stream. etcd splits events at the size of one request (1.5 MiB); base64 adds a third."""

NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

# gRPC codes that mean that nothing was written; all others leave it open.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, EXHAUSTED = 3, 5, 7, 8
PRECONDITION, OUT_OF_RANGE, UNAUTHENTICATED = 9, 11, 16


class Server(NamedTuple):
    address: str
    port: int
    host: str
    """As the configuration names it; its certificate is checked against this."""


class Failed(Exception):
    """A server gave no reply, or one that leaves the outcome open."""


class Gateway:
    def __init__(self, location: Location) -> None:
        self._location = location
        self._scheme = "https" if location.tls else "http"
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                verify=location.ssl_context() if location.tls else False,
                trust_env=False,
                limits=httpx2.Limits(max_connections=CONNECTIONS_MAX),
                socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
            )
        )
        connect_s = min(CONNECT_S, location.timeout_s)
        self._timeout = httpx2.Timeout(location.timeout_s, connect=connect_s)
        self._endless = httpx2.Timeout(location.timeout_s, connect=connect_s, read=None)
        self._servers: list[Server] = []
        """The one that answered last is first; empty: names are to be resolved."""
        self._token: str | None = None

    async def ask(self, path: str, body: dict[str, Any], server: Server | None = None) -> dict[str, Any]:
        """Sends an idempotent request.

        Args:
            path: Path of the gateway.
            body: Sent as JSON.
            server: Asks only this one; default: all in turn.

        Raises:
            CoordinatorUnreachableError: no server answers.
        """
        reason: object = None
        for one in [server] if server else await self._round():
            try:
                return await self._send(one, path, body)
            except (httpx2.TransportError, Failed) as error:
                reason = f"{join_address(one.host, one.port)}: {str(error) or type(error).__name__}"
                self._failed(one)
        raise self._unreachable(reason)

    async def send_once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request that must not be repeated.

        Raises:
            CoordinatorUnknownError: it may have arrived.
        """
        reason: object = None
        for one in await self._round():
            reason = join_address(one.host, one.port)
            try:
                return await self._send(one, path, body)
            except NOT_SENT:
                self._failed(one)
            except (httpx2.TransportError, Failed) as error:
                self._failed(one)
                raise CoordinatorUnknownError(
                    value=f"{reason}: {str(error) or type(error).__name__}"
                ) from None
        raise self._unreachable(reason)

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator["Stream"]:
        """An endless reply, from the first server that begins one in time.

        Raises:
            CoordinatorUnreachableError: none does, or the stream breaks.
        """
        reason: object = None
        for one in await self._round():
            try:
                async with asyncio.timeout(self._location.timeout_s):
                    request = await self._request(one, path, body, self._endless)
                    response = await self._client.send(request, stream=True)
            except (httpx2.TransportError, Failed, TimeoutError) as error:
                reason = f"{join_address(one.host, one.port)}: {str(error) or type(error).__name__}"
                self._failed(one)
                continue
            try:
                yield Stream(one, response)
            except LoginOver as error:
                self._token = None
                raise CoordinatorUnreachableError("the stream's login is over", error) from None
            except (httpx2.TransportError, Failed) as error:
                self._failed(one)
                raise CoordinatorUnreachableError("the stream broke", error) from None
            finally:
                await response.aclose()
            return
        raise self._unreachable(reason)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for again in (False, True):
            request = await self._request(server, path, body, self._timeout)
            response = await self._client.send(request)
            try:
                # Streaming calls reply with lines; the ones made here reply with one line.
                return _answer(response.content.partition(b"\n")[0])
            except LoginOver as over:
                if again or self._location.user is None:
                    raise CoordinatorRefusedError(value=over) from None
                self._token = None
        raise AssertionError("the second time returns or raises")

    async def _request(
        self, server: Server, path: str, body: dict[str, Any], timeout: httpx2.Timeout
    ) -> httpx2.Request:
        if self._location.user is not None and self._token is None and path != "auth/authenticate":
            login = {"name": self._location.user, "password": self._location.password}
            self._token = (await self._send(server, "auth/authenticate", login))["token"]
        headers = {"Host": join_address(server.host, server.port)}
        if self._token is not None and path != "auth/authenticate":
            headers["Authorization"] = self._token
        return self._client.build_request(
            "POST",
            f"{self._scheme}://{join_address(server.address, server.port)}/v3/{path}",
            content=json.dumps(body).encode(),
            headers=headers,
            timeout=timeout,
            extensions={"sni_hostname": server.host},
        )

    async def _round(self) -> list[Server]:
        """The servers in the order in which they are tried."""
        if not self._servers:
            loop = asyncio.get_running_loop()
            found: dict[tuple[str, int], Server] = {}
            for host, port in self._location.hosts:
                try:
                    rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                except OSError:
                    continue  # Other names may resolve.
                for *_, address in rows:
                    found.setdefault((str(address[0]), port), Server(str(address[0]), port, host))
            self._servers = list(found.values())
        if not self._servers:
            hosts = ", ".join(host for host, _ in self._location.hosts)
            raise CoordinatorUnreachableError("no name of the coordinator can be looked up", hosts)
        return list(self._servers)

    def _unreachable(self, reason: object) -> CoordinatorUnreachableError:
        """No server answered: names may resolve differently by now."""
        self._servers = []
        return CoordinatorUnreachableError(value=reason)

    def _failed(self, server: Server) -> None:
        """Moves a server to the end."""
        if server in self._servers:
            self._servers.remove(server)
            self._servers.append(server)


class LoginOver(Exception):
    """The authentication token has expired; nothing was done."""


class Stream:
    """A streaming reply.

    Args:
        server: The server that replies.
        response: Its head has been received.
    """

    def __init__(self, server: Server, response: httpx2.Response) -> None:
        self._server = server
        self._response = response

    async def lines(
        self, idle_s: float, probe: Callable[[Server], Awaitable[None]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the message of each line, until the stream ends.

        Args:
            idle_s: `probe` is called after this time without data, in seconds.
            probe: Raises `CoordinatorError` if the server is not reliable any more.
        """
        chunks, rest = self._response.aiter_bytes(), b""
        coming: asyncio.Future[bytes] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(chunks, b""))
                done, _ = await asyncio.wait({coming}, timeout=idle_s)
                if not done:
                    await probe(self._server)
                    continue
                chunk, coming = coming.result(), None
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_BYTES_MAX:
                    raise CoordinatorError("etcd sent a line without end")
                for line in lines:
                    yield _answer(line)
        finally:
            if coming is not None:
                coming.cancel()


def _answer(line: bytes) -> dict[str, Any]:
    """The message, without the envelope of a stream."""
    try:
        answer: dict[str, Any] = json.loads(line)
        error = answer.get("error")
        if error is None:
            message: dict[str, Any] = answer.get("result", answer)
            return message
        code, text = answer.get("code", 0), answer.get("message", error)
        if isinstance(error, dict):
            code, text = error.get("grpc_code", 0), error.get("message", "")
    except (ValueError, AttributeError):
        raise Failed(f"no JSON: {line[:80]!r}") from None
    raise _error(code, text)


def _error(code: int, text: str) -> Exception:
    if "too large" in text or "larger than max" in text or "too many operations" in text:
        return CoordinatorTooLargeError(value=text)
    if code == NOT_FOUND and "lease" in text:
        return LeaseLostError()
    if code == UNAUTHENTICATED:
        return LoginOver(text)
    if "too many requests" in text:
        return CoordinatorUnreachableError("the coordinator is overloaded", text)
    if code == OUT_OF_RANGE:
        return CoordinatorError("etcd has no such revision any more", text)
    if code in (INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, EXHAUSTED, PRECONDITION):
        return CoordinatorRefusedError(value=text)
    return Failed(text)
