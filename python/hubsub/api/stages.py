"""Stages and batches: requests of the Spark sink (docs/protocol/stages.md), and giving up a batch.

`hubsub.control.staging` and `batches` implement them. In a cluster only one node handles a query's batches:
two nodes could otherwise both commit one batch.
"""

import asyncio
import re
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.home import elsewhere, home_of_query
from hubsub.api.log_schema import BatchAnswer, BatchCommit, GivenUp, StageAnswer
from hubsub.api.params import body, decode, name, path_id, path_name
from hubsub.api.reach import AtQuery
from hubsub.api.routes import ATTEMPT, Param, Routes
from hubsub.api.state import State
from hubsub.errors import BadRequestError, HubSubError, StageTooLargeError
from hubsub.names import text_of

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

QUERY_BYTES_MAX = 200

routes = Routes("queries")
STAGE_ERRORS = ("no_stages", "disk_full", "log_failed", "quarantined", "hub_closed")


@routes(
    "PUT",
    "/v1/queries/{query}/stages/{attempt}",
    "Keeps rows to publish, an Arrow IPC stream; nobody gets them before their batch is committed",
    (Param("topic", "That of all rows, which then have no column for it.", min_length=1),),
    body_type=MEDIA_TYPE,
    answer=(StageAnswer,),
    errors=(
        "bad_rows",
        "topic_length",
        "payload_length",
        "not_allowed",
        "stage_exists",
        "stage_too_large",
        "too_many_stages",
        "stages_full",
        "elsewhere",
        "nodes_unreachable",
        *STAGE_ERRORS,
    ),
)
async def stage(state: State, request: Request) -> Response:
    query, attempt = _query(request), _attempt(_text(request, "attempt"))
    pieces = _pieces(state, request)
    try:
        _check_home(state, request, query)
        rows = await state.staging.stage(query, attempt, name(request, "topic"), pieces)
    except HubSubError:
        # Drain the body: the client reads no response before it has sent all.
        async for _ in pieces:
            pass
        raise
    return json_answer(StageAnswer(rows=rows))


@routes(
    "DELETE",
    "/v1/queries/{query}/stages/{attempt}",
    "Drops rows that are not committed",
    status=204,
    errors=("stage_committed", *STAGE_ERRORS),
    reach=AtQuery(),
)
async def abort(state: State, request: Request) -> Response:
    query = _query(request)
    _check_home(state, request, query)
    await state.batches.abort(query, _attempt(_text(request, "attempt")))
    return Response(status_code=204)


@routes(
    "POST",
    "/v1/queries/{query}/batches/{batch}",
    "Publishes the rows of these attempts, once; may be repeated until it is answered",
    body=(BatchCommit,),
    answer=(BatchAnswer,),
    errors=(
        "stages_missing",
        "batch_passed",
        "batch_given_up",
        "batch_moving",
        "stage_lost",
        "body_too_large",
        "too_many_rooms",
        "room_creation_rate",
        *STAGE_ERRORS,
    ),
    reach=AtQuery(),
)
async def commit(state: State, request: Request) -> Response:
    query, batch = _query(request), _batch(request)
    _check_home(state, request, query)
    named: BatchCommit = decode(await body(state, request), BatchCommit)
    attempts = [_attempt(attempt) for attempt in named.attempts]
    if len(set(attempts)) < len(attempts):
        raise BadRequestError("an attempt is named twice")
    done = await state.batches.commit(query, batch, attempts)
    return json_answer(BatchAnswer(published=done.published, duplicate=done.duplicate))


@routes(
    "DELETE",
    "/v1/queries/{query}/batches/{batch}",
    "Gives up what is left of a blocked batch, so that its query goes on with the next; may be repeated",
    answer=(GivenUp,),
    errors=("batch_not_blocked", "batch_moving", *STAGE_ERRORS),
    reach=AtQuery(),
)
async def give_up(state: State, request: Request) -> Response:
    query = _query(request)
    _check_home(state, request, query)
    known = await state.batches.give_up(query, _batch(request))
    left = known.rows - known.published
    return json_answer(GivenUp(rows=known.rows, published=known.published, given_up=left))


async def _pieces(state: State, request: Request) -> AsyncIterator[bytes]:
    """The body in pieces, with a limit on its size and on each pause."""
    most, read = state.limits["http_stage_bytes_max"], 0
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise StageTooLargeError(value=f"{announced} > {most}", hint="send several stages")
    stream = request.stream().__aiter__()
    while True:
        try:
            async with asyncio.timeout(state.limits["request_timeout_ms"] / 1_000):
                piece = await anext(stream, None)
        except TimeoutError:
            raise BadRequestError("the body did not come in time", f"{read} bytes came") from None
        if piece is None:
            return
        read += len(piece)
        if read > most:
            raise StageTooLargeError(value=f"more than {most}", hint="send several stages")
        yield piece


def _check_home(state: State, request: Request, query: str) -> None:
    """Raises ElsewhereError, or why the other node is not available, unless this node has the query."""
    home = home_of_query(state, query)
    if home is not None:
        raise elsewhere(request, home)


def _text(request: Request, key: str) -> str:
    return text_of(path_name(request, key))


def _query(request: Request) -> str:
    query = _text(request, "query")
    if len(query.encode()) > QUERY_BYTES_MAX:
        raise BadRequestError(f"a query's name has at most {QUERY_BYTES_MAX} bytes", query[:50])
    return query


def _batch(request: Request) -> int:
    batch = path_id(request, "batch")
    if batch >= 2**63:
        raise BadRequestError("a batch is a number below 2^63", batch)
    return batch


def _attempt(text: str) -> str:
    if not re.fullmatch(ATTEMPT, text):
        raise BadRequestError("an attempt's name has 1 to 100 letters, digits, dots, - and _", text[:100])
    return text
