"""/v1/queries: progress of data pipelines (docs/protocol/records.md), and blocked batches.

The progress is held in memory, by this node alone.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.hubs import hub_list
from hubsub.api.log_schema import BlockedBatch, Hub, Query, QueryHub, QueryList, QueryReport
from hubsub.api.params import body, decode, path_name
from hubsub.api.reach import AllTold, Gathered
from hubsub.api.routes import Routes
from hubsub.api.state import State
from hubsub.control.query_progress import Progress
from hubsub.errors import NoSuchQueryError
from hubsub.names import text_of

routes = Routes("log")


def merge_queries(state: State, request: Request, lists: Sequence[QueryList]) -> QueryList:
    """Sorted by name. Each node reports a query's progress in its own hubs; they are combined."""
    found: dict[str, Query] = {}
    for query in (query for part in lists for query in part.queries):
        known = found.setdefault(query.query, query)
        if known is not query:
            known.hubs = sorted([*known.hubs, *query.hubs], key=lambda row: row.hub)
            known.lag = sum(row.lag for row in known.hubs)
            if query.silence_s < known.silence_s:
                known.ended = query.ended
            known.silence_s = min(known.silence_s, query.silence_s)
    blocked = [batch for part in lists for batch in part.blocked]
    return QueryList(
        queries=[found[name] for name in sorted(found)],
        blocked=sorted(blocked, key=lambda batch: (batch.query, batch.batch)),
    )


@routes(
    "GET",
    "/v1/queries",
    "How far the queries of data pipelines have read, and whose batches are blocked",
    answer=(QueryList,),
    reach=Gathered(QueryList, merge_queries),
)
async def list_queries(state: State, request: Request) -> Response:
    hubs = hub_list(state)
    batches = state.batches.blocked
    blocked = [
        BlockedBatch(
            **{
                field: getattr(batch, field) for field in ("batch", "rows", "code", "reason", "hint", "tries")
            },
            query=name,
            blocked_s=round(batches.for_s(batch), 3),
            next_try_s=None if (wait := batches.until_s(batch)) is None else round(wait, 3),
        )
        for name, batch in batches.all().items()
    ]
    queries = [_query(state, name, told, hubs) for name, told in state.queries.all().items()]
    return json_answer(QueryList(queries=queries, blocked=blocked))


@routes(
    "PUT",
    "/v1/queries/{query}",
    "Tells how far a query has read",
    body=(QueryReport,),
    status=204,
    errors=("body_too_large", "too_busy", "other_log"),
    reach=AllTold(),
)
async def report_query(state: State, request: Request) -> Response:
    told: QueryReport = decode(await body(state, request), QueryReport)
    if told.archived:
        await state.archived.report(told.offsets, told.room_pattern, told.log)
        return Response(status_code=204)
    hubs = {hub.id for hub in hub_list(state)}
    state.queries.report(_name(request), told.offsets, hubs, told.rows_per_second, told.batch, told.ended)
    return Response(status_code=204)


@routes(
    "DELETE", "/v1/queries/{query}", "Forgets a query", status=204, errors=("no_such_query",), reach=AllTold()
)
async def drop_query(state: State, request: Request) -> Response:
    query = _name(request)
    if not state.queries.drop(query):
        raise NoSuchQueryError(
            value=query, hint="GET /v1/queries lists those that have reported in the last hour"
        )
    return Response(status_code=204)


def _name(request: Request) -> str:
    return text_of(path_name(request, "query"))


def _query(state: State, name: str, told: Progress, hubs: list[Hub]) -> Query:
    rows = [
        QueryHub(hub=hub.id, name=hub.name, offset=told.offsets[hub.id], lag=lag)
        for hub in hubs
        if (lag := told.lag(hub.id, hub.committed + 1)) is not None
    ]
    return Query(
        **{field: getattr(told, field) for field in ("batch", "rows_per_second", "ended")},
        query=name,
        silence_s=round(state.queries.silence_s(told), 3),
        lag=sum(row.lag for row in rows),
        hubs=rows,
    )
