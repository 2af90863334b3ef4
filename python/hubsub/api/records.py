"""Ranges of a hub's log as Arrow IPC streams (docs/protocol/records.md).

Python checks the request and owns the connection. Rust reads and encodes the rows, which arrive as bytes. If
a reader stops reading, at most one chunk waits here and one in Rust. A broken stream never looks complete:
its connection is closed without the last chunk. In a cluster the node that has the hub streams it; other
nodes redirect to it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hubsub.api.answers import json_answer
from hubsub.api.home import elsewhere
from hubsub.api.hubs import find_hub
from hubsub.api.log import check_readable
from hubsub.api.log_schema import Hub, OffsetAnswer
from hubsub.api.params import names, optional_number, path_name
from hubsub.api.reach import AtHub
from hubsub.api.routes import I64_MAX, Param, Routes
from hubsub.api.state import State
from hubsub.columns import COLUMNS
from hubsub.errors import (
    BadRequestError,
    HubSubError,
    NodesUnreachableError,
    NoSuchHubError,
    OffsetsLostError,
    OtherLogError,
)
from hubsub.names import bytes_of, text_of
from hubsub.node import Records

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

BATCH_ROWS, BATCH_ROWS_MAX = 16_384, 1 << 20
BATCH_BYTES, BATCH_BYTES_MAX = 4 << 20, 64 << 20

PIECE_BYTES = 1 << 20
"""Bytes written to the connection at once; the system buffers anything beyond them."""

log = structlog.get_logger()

routes = Routes("log")
LOG = Param("log", "Identity of the log that is meant: another one refuses.")
STREAM_ERRORS = ("no_such_hub", "not_allowed", "other_log", "quarantined", "log_failed", "disk_full")


@routes(
    "GET",
    "/v1/hubs/{hub}/offset",
    "Where a time begins in a hub's log",
    (
        Param("timestamp_us", "In µs since 1970.", "integer", minimum=0, maximum=I64_MAX, required=True),
        LOG,
    ),
    answer=(OffsetAnswer,),
    errors=STREAM_ERRORS,
    reach=AtHub(),
)
async def show_offset(state: State, request: Request) -> Response:
    hub = _hub(state, request)
    timestamp_us = optional_number(request, "timestamp_us")
    if timestamp_us is None:
        raise BadRequestError("timestamp_us is missing", None, "µs since 1970, as the column `timestamp`")
    return json_answer(OffsetAnswer(offset=await state.node.log_offset(hub.id, timestamp_us)))


@routes(
    "GET",
    "/v1/hubs/{hub}/records",
    "A range of a hub's log as an Arrow IPC stream",
    (
        Param("from", "First offset; the oldest that is kept.", "integer", minimum=0, maximum=I64_MAX),
        Param(
            "until",
            "The offset behind the last; behind what is committed.",
            "integer",
            minimum=0,
            maximum=I64_MAX,
        ),
        LOG,
        Param("room", "Of this room; more than once: of one of them."),
        Param("room_prefix", "Of rooms whose name begins so."),
        Param(
            "room_pattern",
            "Of rooms that match this glob or MQTT filter; more than once: one of them.",
            min_length=1,
        ),
        Param("topic", "Of this topic; more than once: of one of them."),
        Param("topic_prefix", "Of topics that begin so."),
        Param(
            "topic_filter",
            "Of topics that match this MQTT filter or glob; more than once: one of them.",
            min_length=1,
        ),
        Param("device", "Of this device; more than once: of one of them."),
        Param(
            "since_us",
            "With this timestamp or a later one, in µs.",
            "integer",
            minimum=0,
            maximum=I64_MAX,
        ),
        Param(
            "until_us",
            "With an earlier timestamp than this, in µs.",
            "integer",
            minimum=0,
            maximum=I64_MAX,
        ),
        Param(
            "columns",
            f"With commas between: {', '.join(COLUMNS)}. All, if not given.",
            pattern=f"({'|'.join(COLUMNS)})(,({'|'.join(COLUMNS)}))*",
        ),
        Param("compression", "Of the batches' buffers.", choices=("none", "lz4")),
        Param(
            "batch_rows",
            f"Of a batch at most; {BATCH_ROWS:,}.",
            "integer",
            minimum=1,
            maximum=BATCH_ROWS_MAX,
        ),
        Param(
            "batch_bytes",
            f"Of names, headers and payloads after which a batch ends; {BATCH_BYTES:,}.",
            "integer",
            minimum=1,
            maximum=BATCH_BYTES_MAX,
        ),
    ),
    media_type=MEDIA_TYPE,
    errors=(
        *STREAM_ERRORS,
        "offsets_lost",
        "offset_unknown",
        "too_many_streams",
        "elsewhere",
        "nodes_unreachable",
    ),
)
async def read_records(state: State, request: Request) -> Response:
    hub = _hub(state, request)
    scan = _scan(request, hub)
    try:
        records = await state.node.open_records(scan)
    except HubSubError as error:
        _explain(error, hub)
    if request.method == "HEAD":
        records.close()
        return Response(media_type=MEDIA_TYPE)
    return _ArrowAnswer(state, hub, records)


class _ArrowAnswer(Response):
    """The response stream, which ends when the reader disconnects."""

    def __init__(self, state: State, hub: Hub, records: Records) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._state = state
        self._hub = hub
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_wait_gone(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not sending.result():
                await self._break_off(scope, gone)
        finally:
            self._records.close()
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)

    async def _send(self, send: Send) -> bool:
        """Sends all records. Returns False if the stream had to be broken off."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._records:
                view = memoryview(chunk)
                for at in range(0, len(view), PIECE_BYTES):
                    async with asyncio.timeout(self._state.limits["log_stream_idle_ms"] / 1_000):
                        await send(
                            {
                                "type": "http.response.body",
                                "body": view[at : at + PIECE_BYTES],
                                "more_body": True,
                            }
                        )
        except TimeoutError:
            log.warning("stream of records closed, nobody reads it", hub=self._hub.name)
            return False
        except HubSubError as error:
            log.warning("stream of records closed", hub=self._hub.name, code=error.code, reason=str(error))
            return False
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True

    async def _break_off(self, scope: Scope, gone: "asyncio.Future[None]") -> None:
        """Closes the connection after the bytes already sent, as far as the reader takes them in time."""
        abort: Callable[[bool], None] = scope["state"]["close_connection"]
        abort(False)
        try:
            async with asyncio.timeout(self._state.limits["log_stream_idle_ms"] / 1_000):
                await asyncio.shield(gone)
        except TimeoutError:
            abort(True)
            await gone


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _hub(state: State, request: Request) -> Hub:
    """The hub of the path, after a check that it belongs to the log that the reader expects."""
    wanted, there = request.query_params.get("log"), state.log
    if wanted is not None and there != wanted.lower():
        raise OtherLogError(value=there or "none", hint=f"offsets of {wanted} mean nothing here")
    name = text_of(path_name(request, "hub"))
    home = None if state.others is None else state.others.log_owners.find(name)
    if home is not None and home.node != state.node.name:
        raise elsewhere(request, home)
    hub = find_hub(state, name)
    if hub is None and home is not None:
        raise NodesUnreachableError("the hub's node has just started, and opens it", name)
    if hub is None:
        raise NoSuchHubError(value=name, hint="GET /v1/log lists those with a log; others are in memory only")
    check_readable(hub.room_class)
    return hub


def _scan(request: Request, hub: Hub) -> dict[str, Any]:
    """Converts the query to the core's scan arguments."""
    query = request.query_params
    columns = tuple(query["columns"].split(",")) if "columns" in query else COLUMNS
    for column in columns:
        if column not in COLUMNS:
            raise BadRequestError("there is no such column", column, f"there are {', '.join(COLUMNS)}")
    compression = query.get("compression", "none")
    if compression not in ("none", "lz4"):
        raise BadRequestError("compression is not known", compression, "none or lz4")
    first, until = optional_number(request, "from"), optional_number(request, "until")
    if first is not None and until is not None and first > until:
        raise BadRequestError("until is below from", until, f"from is {first}")
    return {
        "hub": hub.id,
        "from": first,
        "until": until,
        "rooms": names(request, "room"),
        "room_prefix": bytes_of(query.get("room_prefix", "")),
        "room_patterns": query.getlist("room_pattern"),
        "topics": names(request, "topic"),
        "topic_prefix": bytes_of(query.get("topic_prefix", "")),
        "topic_filters": query.getlist("topic_filter"),
        "devices": names(request, "device"),
        "since_us": optional_number(request, "since_us") or 0,
        "until_us": optional_number(request, "until_us"),
        "columns": list(columns),
        "lz4": compression == "lz4",
        "batch_rows": optional_number(request, "batch_rows", 1, BATCH_ROWS_MAX) or BATCH_ROWS,
        "batch_bytes": optional_number(request, "batch_bytes", 1, BATCH_BYTES_MAX) or BATCH_BYTES,
    }


def _explain(error: HubSubError, hub: Hub) -> NoReturn:
    """Adds to the core's error a hint for the reader."""
    hints = {
        "offsets_lost": f"hub {hub.name} begins again at {getattr(error, 'end', None)}",
        "offset_unknown": "GET /v1/log tells how far each hub is committed",
        "too_many_streams": "limits.log_streams_max bounds them; try again when one has ended",
        "quarantined": "`hubsub log verify` says what is damaged, `hubsub log repair` mends it",
    }
    error.hint = error.hint or hints.get(error.code)
    if isinstance(error, OffsetsLostError):
        error.hub = hub.name
    raise error
