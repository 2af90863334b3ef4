"""/v1/retained: retained messages (docs/protocol/mqtt-state.md), and their deletion.

Each is the last record of an internal room of the data plane. Its last header holds the position and publish
time of the message. A node answers for the hubs that it leads.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.merges import limit_of, page_of
from hubsub.api.params import name, number, path_name
from hubsub.api.reach import AllTold, Gathered, Somewhere
from hubsub.api.routes import LIMIT, Param, Routes
from hubsub.api.schema import NextOfShort, Record, payload_fields
from hubsub.api.state import State
from hubsub.config.kinds import Bad
from hubsub.config.matching import parse_pattern
from hubsub.control.cluster.plane import RPC_BYTES_MAX
from hubsub.control.devices import expiry_of
from hubsub.errors import BadRequestError, NoSuchRetainedError, refusal
from hubsub.names import bytes_of, literal_glob, text_of
from hubsub.node import Failed, HistoryRow, Item

ROWS: Final = b"$system/retained/"
ORIGIN: Final = "hubsub-retained"
"""Header of an entry: position and timestamp of its message."""
AT_ONCE: Final = 16
"""Number of entries read at the same time: those after the end of a page are read for nothing."""
PAGE_BYTES: Final = RPC_BYTES_MAX // 4
"""Most bytes of the entries of a page, unless it has one: with `next`, the page of another node fits into its
answer."""


class Retained(Record, kw_only=True):
    """A retained message. Its position is 0-0 if its room has no history."""

    expires_us: Annotated[
        int | None, Meta(description="When it ends by itself, in µs since 1970; null: it does not.")
    ]

    def record(self) -> Record:
        return Record(**{field: getattr(self, field) for field in Record.__struct_fields__})


class RetainedPage(Struct, kw_only=True):
    """One page of retained messages in order of topic."""

    retained: list[Retained]
    next: NextOfShort


routes = Routes("retained")


def merge_retained(state: State, request: Request, pages: Sequence[RetainedPage]) -> RetainedPage:
    """Sorted by topic. A page may be short: its `next` is the last topic that its node read."""
    limit, all_of = limit_of(state, request), [message for page in pages for message in page.retained]
    ends = [bytes_of(page.next) for page in pages if page.next is not None]
    shown, _ = page_of(limit, all_of, lambda message: bytes_of(message.topic), ends)
    if len(shown) == limit and any(bytes_of(shown[-1].topic) < bytes_of(one.topic) for one in all_of):
        return RetainedPage(retained=shown, next=shown[-1].topic)
    return RetainedPage(retained=shown, next=text_of(min(ends)) if ends else None)


@routes(
    "GET",
    "/v1/retained",
    "Messages that topics keep for who subscribes later, in order of topic",
    (
        Param("filter", "MQTT filter of topics; without it all."),
        Param("after", "Topics behind this one: the `next` of the page before."),
        LIMIT,
    ),
    answer=(RetainedPage,),
    reach=Gathered(RetainedPage, merge_retained),
)
async def list_retained(state: State, request: Request) -> Response:
    """A page examines at most `limit` entries; those that the filter leaves out or that have expired shorten it."""
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    wanted, after = request.query_params.get("filter", ""), name(request, "after")
    matches, begin = _filter(wanted)
    glob = literal_glob(ROWS + begin) + b"*"
    page: list[Retained] = []
    topics: list[bytes] = []
    size = 0
    for begun in range(0, limit, AT_ONCE):
        step = min(AT_ONCE, limit - begun)
        rooms = await state.node.rooms(glob, None if after is None else ROWS + after, step)
        topics = [room["name"].removeprefix(ROWS) for room in rooms]
        asked = [topic for topic in topics if matches.fullmatch(topic)]
        for message in await asyncio.gather(*(_entry(state, topic) for topic in asked)):
            if message is None:
                continue
            size += len(msgspec.json.encode(message))
            if page and size > PAGE_BYTES:
                return json_answer(RetainedPage(retained=page, next=page[-1].topic))
            page.append(message)
        if len(topics) < step:
            return json_answer(RetainedPage(retained=page, next=None))
        after = topics[-1]
    return json_answer(RetainedPage(retained=page, next=text_of(topics[-1])))


@routes(
    "GET",
    "/v1/retained/{topic}",
    "What a topic keeps",
    answer=(Retained,),
    errors=("no_such_retained_message",),
    reach=Somewhere(),
)
async def show_retained(state: State, request: Request) -> Response:
    topic = path_name(request, "topic")
    message = await retained_here(state, topic)
    if message is None:
        raise _nothing(topic)
    return json_answer(message)


@routes(
    "DELETE",
    "/v1/retained/{topic}",
    "Forgets it: who subscribes from now on gets none",
    status=204,
    errors=("no_such_retained_message",),
    reach=AllTold(),
)
async def delete_retained(state: State, request: Request) -> Response:
    """Deletes a retained message. Current subscribers are not notified; only later subscribers no longer get it."""
    topic = path_name(request, "topic")
    if await retained_here(state, topic) is None:
        raise _nothing(topic)
    [outcome] = await state.node.publish([Item(ROWS + topic, b"", {}, "hubsub")], as_node=True)
    if isinstance(outcome, Failed):
        raise refusal(*outcome)
    return Response(status_code=204)


async def retained_here(state: State, topic: bytes) -> Retained | None:
    """The retained message of a topic, if this node has it."""
    return None if await state.node.room(ROWS + topic) is None else await _entry(state, topic)


async def _entry(state: State, topic: bytes) -> Retained | None:
    _, rows = await state.node.history(ROWS + topic, 1, as_node=True)
    return _message(rows[-1], time.time_ns() // 1_000) if rows else None


def _message(row: HistoryRow, now_us: int) -> Retained | None:
    """The message of an entry; None if it has expired."""
    headers = dict(row.headers)
    position, _, timestamp = headers.pop(ORIGIN, "").partition(" ")
    if not row.payload or not timestamp:
        return None
    expires_us = expiry_of(headers, int(timestamp))
    if expires_us is not None and expires_us <= now_us:
        return None
    return Retained(
        position=position,
        timestamp_us=int(timestamp),
        topic=text_of(row.topic.removeprefix(ROWS)),
        publisher=row.publisher,
        headers=headers,
        expires_us=expires_us,
        **payload_fields(row.payload),
    )


def _filter(text: str) -> tuple[re.Pattern[bytes], bytes]:
    """Expression for matching topics, and their common prefix. An empty filter matches all.

    Raises:
        BadRequestError: a wildcard is in a wrong place.
    """
    if not text:
        return re.compile(b".*", re.DOTALL), b""
    try:
        expression = parse_pattern(f"mqtt:{text}").pattern
    except Bad as error:
        raise BadRequestError(
            f"the filter {error.reason}", text, "an MQTT filter, such as devices/+/state"
        ) from None
    # The level above `#` matches, too.
    begin = re.split(r"/?#|\+", text, maxsplit=1)[0]
    return re.compile(expression.encode(), re.DOTALL), begin.encode()


def _nothing(topic: bytes) -> NoSuchRetainedError:
    return NoSuchRetainedError(value=text_of(topic), hint="GET /v1/retained lists what topics keep")
