"""Requests to the nodes' HTTP listeners, with the standard library only: executors have nothing else.

A request is tried on each server in turn, repeatedly with growing pauses, until it is answered or has made no
progress for `retry_s`. A permanent refusal is raised at once, as the class of its code. If a server of a
cluster redirects to another one (`elsewhere`), the request goes there.
"""

import contextlib
import http.client
import json
import logging
import random
import ssl
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from hubsub.errors import (
    BY_CODE,
    BadRequestError,
    BatchMovingError,
    ElsewhereError,
    HubSubError,
    NotAllowedError,
    NotConnectedError,
    OffsetsLostError,
    PipelineError,
    StageExistsError,
)
from hubsub.names import text_of
from hubsub.pipeline.listing import Hub, Listing
from hubsub.pipeline.offsets import lost
from hubsub.pipeline.options import Access
from hubsub.pipeline.selection import slices

CONNECT_S = 5.0
PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
LOG_S = 0.5
"""Shorter outages are not logged."""
LOG_AGAIN_S = 15.0
ANSWER_BYTES_MAX = 64 << 20
"""Of a JSON response: a listing of 100,000 hubs is 30 MB."""
REPORT_S = 2.0
"""A report of progress delays the next batch by this at most."""

ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"

TOKEN_HINT = "does the option token hold a valid one?"

Params = Sequence[tuple[str, str]]

LOG = logging.getLogger("hubsub.pipeline")

BROKEN = (OSError, http.client.HTTPException)
"""Errors of a broken connection."""


class BackOff:
    """Back-off between attempts, until `seconds` after the last progress.

    Args:
        seconds: The option `retrySeconds`.
        logs: Whether to log waits; tasks do not, as they are many.
    """

    def __init__(self, seconds: float, logs: bool = False) -> None:
        self._seconds = seconds
        self._logs = logs
        self._log_at = time.monotonic() + LOG_S
        self.renew()

    def renew(self) -> None:
        """Call this after progress."""
        now = time.monotonic()
        self._until = now + self._seconds
        self._pause = PAUSE_S

    def wait(self, error: HubSubError) -> None:
        """Waits before the next attempt; raises the error instead if it is time to give up."""
        pause = self._pause * random.uniform(0.5, 1.0)
        now = time.monotonic()
        if now + pause > self._until:
            raise error
        if self._logs and now >= self._log_at:
            left = self._until - now
            LOG.warning("%s; trying for %.0f s more (option retrySeconds)", error.message, left)
            self._log_at = now + LOG_AGAIN_S
        time.sleep(pause)
        self._pause = min(2 * self._pause, PAUSE_S_MAX)


class Wire:
    """Connections to nodes, one per server, reused between requests. For one thread."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._idle: dict[str, http.client.HTTPConnection] = {}
        self._context: ssl.SSLContext | None = None
        self._owners: dict[str, str] = {}
        """By query, the server that accepted its last stage: only one of a cluster does."""
        self.server = ""
        """The server that answered last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()

    # -- requests of the protocol --

    def listing(self, rooms: Iterable[str] = (), pattern: str | None = None) -> Listing:
        """The hubs that hold these rooms, or that may hold rooms of a pattern; all, if neither is given."""
        queries: list[Params] = [[("subscribePattern", pattern)]] if pattern else [[]]
        parts = slices(rooms)
        if parts[0]:
            queries = [[("subscribe", ",".join(part))] for part in parts]
        return Listing.join(Listing.decode(self._json("GET", "/v1/log", params)) for params in queries)

    def offset_at(self, hub: Hub, timestamp_us: int) -> int:
        """First offset whose timestamp is not before; the end of the hub if there is none."""
        path = f"/v1/hubs/{hub.id}/offset"
        return int(
            self._json("GET", path, [("timestamp_us", str(timestamp_us))], servers=hub.servers)["offset"]
        )

    def report(
        self, query: str, offsets: Mapping[int, int], rows_per_second: float | None, ended: bool = False
    ) -> None:
        """Reports the progress or the end of a query. One attempt: the next batch reports again.

        Args:
            query: Name of the query.
            offsets: Hub to the first offset that is not read yet.
            rows_per_second: Reading rate; None: unknown.
            ended: Whether the query reads no further.

        Raises:
            HubSubError: no server accepted it.
        """
        body: dict[str, Any] = {"offsets": {str(hub): offset for hub, offset in offsets.items()}}
        if rows_per_second is not None:
            body["rows_per_second"] = round(rows_per_second, 1)
        if ended:
            body["ended"] = True
        with self._answer("PUT", f"/v1/queries/{quote(query, safe='')}", (), (), json.dumps(body).encode()):
            pass

    def publish_table(self, job: str, table: Mapping[str, Any]) -> None:
        """Publishes the latest rows of a job, as `JobTable` of the API. One attempt: the next batch sends newer ones.

        Raises:
            HubSubError: no server accepted it.
        """
        with self._answer("PUT", f"/v1/jobs/{job}", (), (), json.dumps(table).encode()):
            pass

    def archived(self, query: str, offsets: Mapping[int, int], log: str | None, pattern: str | None) -> None:
        """Reports the offsets up to which an archive has all records. One attempt: the next batch reports again.

        Args:
            query: Name of the query.
            offsets: Hub to the first offset that is not archived.
            log: Identity of the log; None: unknown.
            pattern: The archive has only rooms that match it; None: all.

        Raises:
            HubSubError: no server accepted it.
        """
        body = {"offsets": {str(hub): offset for hub, offset in offsets.items()}, "archived": True}
        body |= {"log": log, "room_pattern": pattern}
        with self._answer("PUT", f"/v1/queries/{quote(query, safe='')}", (), (), json.dumps(body).encode()):
            pass

    def stage(self, query: str, body: bytes, topic: bytes | None) -> str:
        """Sends rows as an Arrow stream.

        Args:
            query: Name of the query.
            body: The Arrow stream.
            topic: Topic of all rows; None: they have a column for it.

        Returns:
            The name of their stage, a different one for each attempt.

        Raises:
            HubSubError: a row is refused, or no node accepts them.
        """
        back_off = BackOff(self._access.retry_s)
        params = [] if topic is None else [("topic", text_of(topic))]
        while True:
            name = uuid.uuid4().hex
            path = f"/v1/queries/{quote(query, safe='')}/stages/{name}"
            try:
                owner = self._owners.get(query)
                with self._answer("PUT", path, params, (owner,) if owner else (), body, ARROW) as answer:
                    _object(answer)
                    self._owners[query] = self.server
                return name
            except BROKEN as broken:
                back_off.wait(_unreachable(self._access.servers, broken))
            except HubSubError as error:
                # An existing stage was sent before its connection broke.
                if not error.retryable and not isinstance(error, StageExistsError):
                    raise
                back_off.wait(error)

    def commit(self, query: str, batch: int, attempts: Sequence[str]) -> dict[str, Any]:
        """Publishes the rows of these stages once, however often it is called.

        Args:
            query: Name of the query.
            batch: Number of the batch.
            attempts: Names of the stages.

        Raises:
            HubSubError: nothing of the batch was published, or it will be and no node has confirmed it.
        """
        path = f"/v1/queries/{quote(query, safe='')}/batches/{batch}"
        body = json.dumps({"attempts": list(attempts)}).encode()
        back_off = BackOff(self._access.retry_s, logs=True)
        while True:
            try:
                with self._answer("POST", path, (), (), body) as answer:
                    return _object(answer)
            except BROKEN as broken:
                back_off.wait(_unreachable(self._access.servers, broken))
            except BatchMovingError as moving:
                back_off.renew()
                back_off.wait(moving)
            except HubSubError as error:
                if not error.retryable:
                    raise
                back_off.wait(error)

    def drop_stage(self, query: str, attempt: str) -> None:
        """Drops rows that will not be committed. One attempt."""
        path = f"/v1/queries/{quote(query, safe='')}/stages/{attempt}"
        try:
            with self._answer("DELETE", path, (), ()):
                pass
        except BROKEN as broken:
            raise _unreachable(self._access.servers, broken) from None

    @contextlib.contextmanager
    def records(self, hub: int, servers: Sequence[str], params: Params) -> Iterator[http.client.HTTPResponse]:
        """Opens a stream of records: one round over the servers; the caller decides about retries.

        Args:
            hub: Id of the hub.
            servers: Servers to try first.
            params: Query parameters.

        Raises:
            HubSubError: a server refused, or none could be reached.
        """
        with self._answer("GET", f"/v1/hubs/{hub}/records", params, servers) as answer:
            kind = answer.getheader("content-type", "")
            if kind != ARROW:
                raise PipelineError("the server sent no stream of records", kind or "nothing")
            yield answer

    # -- HTTP --

    def _json(self, method: str, path: str, params: Params, servers: Sequence[str] = ()) -> dict[str, Any]:
        back_off = BackOff(self._access.retry_s, logs=True)
        while True:
            try:
                with self._answer(method, path, params, servers) as answer:
                    return _object(answer)
            except BROKEN as broken:
                back_off.wait(_unreachable(self._access.servers, broken))
            except HubSubError as error:
                if not error.retryable:
                    raise
                back_off.wait(error)

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        params: Params,
        servers: Sequence[str],
        body: bytes | None = None,
        kind: str = JSON,
    ) -> Iterator[http.client.HTTPResponse]:
        """The first good response of a server or of its redirect. A response read to its end keeps its connection."""
        last: HubSubError | None = None
        target = path + (f"?{urlencode(params, quote_via=quote)}" if params else "")
        left, asked = list(dict.fromkeys((*servers, *self._access.servers))), set[str]()
        while left:
            server = left.pop(0)
            if server in asked:
                continue
            asked.add(server)
            try:
                connection, answer = self._ask(server, method, target, body, kind)
            except BROKEN as broken:
                last = _unreachable([server], broken)
                if isinstance(broken, ssl.SSLCertVerificationError):
                    raise last from None
                continue
            except ElsewhereError as there:
                last = there
                if there.location is not None:
                    left.insert(0, urlsplit(there.location).netloc)
                continue
            except HubSubError as error:
                if not error.retryable:
                    raise
                last = error
                continue
            self.server = server
            try:
                yield answer
            finally:
                if answer.isclosed() and not answer.will_close:
                    self._idle[server] = connection
                else:
                    connection.close()
            return
        assert last is not None, "there is a server"
        raise last

    def _ask(
        self, server: str, method: str, target: str, body: bytes | None, kind: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """One request to one server. If the server has closed a kept connection, a new one is opened."""
        idle = self._idle.pop(server, None)
        is_report = method == "PUT" and kind == JSON
        for connection in ([idle] if idle else []) + [self._connection(server)]:
            try:
                if connection.sock is None:
                    connection.connect()  # Sets TCP_NODELAY too.
                assert connection.sock is not None
                connection.sock.settimeout(REPORT_S if is_report else self._access.timeout_s)
                connection.request(method, target, body, self._headers(body, kind))
                answer = connection.getresponse()
                if answer.status >= 300:
                    error = _refusal(answer)
                    connection.close()
                    raise error
                if answer.status == 204:
                    answer.read()
                return connection, answer
            except BROKEN:
                connection.close()
                if connection is not idle:
                    raise
        raise AssertionError("the new connection answers or raises")

    def _headers(self, body: bytes | None, kind: str) -> dict[str, str]:
        headers = {"accept": f"{ARROW}, {JSON}"}
        if body is not None:
            headers["content-type"] = kind
        if self._access.token is not None:
            headers["authorization"] = f"Bearer {self._access.token}"
        return headers

    def _connection(self, server: str) -> http.client.HTTPConnection:
        host, _, port = server.rpartition(":")
        host = host.strip("[]")
        if not self._access.tls:
            return http.client.HTTPConnection(host, int(port), timeout=CONNECT_S)
        if self._context is None:
            self._context = _tls(self._access)
        return http.client.HTTPSConnection(host, int(port), timeout=CONNECT_S, context=self._context)


def _tls(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.tls_ca)
        if not access.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.tls_cert is not None:
            context.load_cert_chain(access.tls_cert, access.tls_key)
    except OSError as error:  # Also errors in the files.
        files = ", ".join(name for name in (access.tls_ca, access.tls_cert, access.tls_key) if name)
        hint = "each executor needs the files of tls.* under the same path"
        raise PipelineError(
            f"the files for TLS cannot be used ({error.strerror or error})", files, hint
        ) from None
    return context


def _object(answer: http.client.HTTPResponse) -> dict[str, Any]:
    text = answer.read(ANSWER_BYTES_MAX)
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise PipelineError("the server sent no JSON object", text[:100], "is this HubSub's HTTP listener?")
    return body


def _refusal(answer: http.client.HTTPResponse) -> HubSubError:
    """The error in a response, as the class of its code."""
    text = answer.read(64 << 10)
    try:
        body = json.loads(text)
        code, message, hint = str(body["code"]), str(body["message"]), body.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = text[:100].decode(errors="replace")
        if answer.status >= 500:  # Mostly from a proxy between us and the node.
            return NotConnectedError(f"the server answered {answer.status}", shown)
        if answer.status in (401, 403):
            return NotAllowedError(f"the server answered {answer.status}", shown, TOKEN_HINT)
        return PipelineError(f"the server answered {answer.status}", shown)
    if code == ElsewhereError.code:
        return ElsewhereError(message, hint=hint, location=answer.getheader("location"))
    cls = NotAllowedError if answer.status in (401, 403) else BY_CODE.get(code)
    if cls is NotAllowedError:
        return cls(message, hint=hint or TOKEN_HINT)
    if cls is OffsetsLostError:
        hub, first, end = body.get("hub"), body.get("first"), body.get("end")
        if isinstance(first, int) and isinstance(end, int):
            return lost(str(hub), first, end)
        return OffsetsLostError(message, hint=hint, hub=hub)
    if cls is None or cls.__init__ is not HubSubError.__init__:
        cls = NotConnectedError if answer.status >= 500 else BadRequestError
    return cls(message, hint=hint)


def _unreachable(servers: Sequence[str], broken: Exception) -> NotConnectedError:
    reason = str(broken) or type(broken).__name__
    hint = "option servers names the HTTP listeners of nodes, HOST:PORT"
    if isinstance(broken, ssl.SSLCertVerificationError):
        hint = "tls.ca names the file with the certificate that the server's is signed with"
    elif isinstance(broken, ssl.SSLError):
        hint = "is the server's listener plain? then write http://HOST:PORT"
    elif isinstance(broken, http.client.RemoteDisconnected | http.client.BadStatusLine):
        hint = "is the server's listener one for TLS? then write https://HOST:PORT"
    return NotConnectedError(f"no server answers ({reason})", ", ".join(servers), hint)
