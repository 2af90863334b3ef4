"""/v1/log, and ranges of a hub's log as Arrow IPC streams (docs/protocol/records.md).

Python checks the request and owns the connection; the rows are read and encoded in Rust, and
come as bytes. A reader that does not read is not read for: one chunk waits here, one in Rust.
What breaks off never looks like an end: then the connection is closed without the last chunk.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hubsub.api.answers import json_answer
from hubsub.api.hubs import find_hub, hub_list
from hubsub.api.params import names, optional_number, path_name
from hubsub.api.schema import Hub, LoggedHub, LogInfo, OffsetAnswer
from hubsub.api.state import State
from hubsub.config import PUBLIC, RESERVED, RoomClass
from hubsub.config.matching import may_overlap
from hubsub.errors import (
    BadRequestError,
    HubSubError,
    NoSuchClassError,
    NoSuchHubError,
    NotAllowedError,
    OffsetsLostError,
    OtherLogError,
)
from hubsub.names import bytes_of, text_of
from hubsub.node import Records

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

COLUMNS = (
    "hub",
    "term",
    "offset",
    "room",
    "epoch",
    "seq",
    "topic",
    "timestamp",
    "publisher",
    "device",
    "headers",
    "payload",
)
"""In the order in which they are always answered."""

BATCH_ROWS, BATCH_ROWS_MAX = 16_384, 1 << 20
BATCH_BYTES, BATCH_BYTES_MAX = 4 << 20, 64 << 20

PIECE_BYTES = 1 << 20
"""Bytes that are handed to the connection at once: what it holds beyond them is the system's."""

log = structlog.get_logger()


async def show_log(state: State, request: Request) -> Response:
    info = state.node.log()
    wanted = request.query_params.get("class")
    # Of the node's own classes there is one that may be read, for who names it.
    public = [cls for cls in state.config.all_classes if cls.name == PUBLIC]
    classes = [cls for cls in (*public, *state.classes) if wanted in (None, cls.name)]
    if not classes:
        names_of_all = ", ".join(cls.name for cls in state.classes)
        raise NoSuchClassError(value=wanted, hint=f"the classes are {names_of_all}")
    hubs, ephemeral = _selection(state, request, classes, hub_list(state))
    server = state.node_ref(request).http
    listed = [
        LoggedHub(
            hub=hub.id,
            name=hub.name,
            room_class=hub.room_class,
            state=hub.state,
            earliest=hub.earliest,
            committed_until=hub.committed + 1,
            bytes=hub.bytes,
            first_timestamp_us=hub.first_timestamp_us,
            last_timestamp_us=hub.last_timestamp_us,
            servers=[server] if server else [],
        )
        for hub in hubs
    ]
    return json_answer(LogInfo(log=info["identity"] if info else None, hubs=listed, ephemeral=ephemeral))


async def show_offset(state: State, request: Request) -> Response:
    hub = _hub(state, request)
    timestamp_us = optional_number(request, "timestamp_us")
    if timestamp_us is None:
        raise BadRequestError("timestamp_us is missing", None, "µs since 1970, as the column `timestamp`")
    return json_answer(OffsetAnswer(offset=await state.node.log_offset(hub.id, timestamp_us)))


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
    """The stream, as long as somebody reads it."""

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
        """Whether the reader has all."""
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
        """Closes the connection behind what was sent, as far as the reader takes it."""
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


def _selection(
    state: State, request: Request, classes: list[RoomClass], hubs: list[Hub]
) -> tuple[list[Hub], list[str]]:
    """The hubs that have what is asked for, and the classes among it that keep no log."""
    of_classes = {cls.name for cls in classes}
    hubs = [hub for hub in hubs if hub.room_class in of_classes]
    rooms = [bytes_of(room) for text in request.query_params.getlist("subscribe") for room in text.split(",")]
    pattern = request.query_params.get("subscribePattern")
    wanted: set[int] = set()
    unlogged: set[str] = set()
    for room in rooms:
        name, hub = state.node.log_hub_of(room)
        _check_readable(name)
        if hub is not None:
            wanted.add(hub)
        else:
            unlogged.add(name)
    if pattern is not None or not rooms:
        matching = [cls for cls in classes if _may_match(cls, pattern, request.query_params.get("class"))]
        logged = {cls.name for cls in matching if cls.is_logged}
        wanted |= {hub.id for hub in hubs if hub.room_class in logged}
        unlogged |= {cls.name for cls in matching if not cls.is_logged}
    in_order = [cls.name for cls in classes if cls.name in unlogged]
    return [hub for hub in hubs if hub.id in wanted], in_order


def _may_match(cls: RoomClass, pattern: str | None, named: str | None) -> bool:
    """Whether a pattern, or no pattern, asks for rooms of a class; for the node's own only if it is named."""
    begins = (pattern or "").removeprefix("glob:").removeprefix("mqtt:")
    if cls.name.startswith(RESERVED) and cls.name != named and not begins.startswith(RESERVED):
        return False
    return pattern is None or not cls.match or any(may_overlap(of_class, pattern) for of_class in cls.match)


def _check_readable(room_class: str) -> None:
    """Raises NotAllowedError for the classes that the node keeps for itself."""
    if room_class.startswith(RESERVED) and room_class != PUBLIC:
        hint = f"of the node's own rooms only {PUBLIC}/… may be read"
        raise NotAllowedError(value=room_class, hint=hint)


def _hub(state: State, request: Request) -> Hub:
    """The hub of the path, in the log that the reader means."""
    info = state.node.log()
    wanted = request.query_params.get("log")
    if wanted is not None and (info is None or info["identity"] != wanted.lower()):
        identity = info["identity"] if info else "none"
        raise OtherLogError(value=identity, hint=f"offsets of {wanted} mean nothing here")
    name = text_of(path_name(request, "hub"))
    hub = find_hub(state, name)
    if hub is None:
        raise NoSuchHubError(value=name, hint="GET /v1/log lists those with a log; others are in memory only")
    _check_readable(hub.room_class)
    return hub


def _scan(request: Request, hub: Hub) -> dict[str, Any]:
    """What the query asks for, as the core takes it."""
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
    """The core's refusal, with what a reader can do about it."""
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
