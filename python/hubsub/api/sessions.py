"""/v1/sessions: MQTT sessions that outlive their connections, and ending a session."""

from collections.abc import Sequence
from urllib.parse import unquote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.merges import limit_of, page_of
from hubsub.api.params import number
from hubsub.api.reach import AtNode, Gathered
from hubsub.api.routes import LIMIT, NODE, Param, Routes
from hubsub.api.schema import Next
from hubsub.api.state import State
from hubsub.errors import NoSuchSessionError
from hubsub.node.status import Session

HINT = "GET /v1/sessions lists them, with their nodes"


class SessionPage(Struct, kw_only=True):
    """One page of sessions in order of client id."""

    sessions: list[Session]
    next: Next


routes = Routes("sessions")


def merge_sessions(state: State, request: Request, pages: Sequence[SessionPage]) -> SessionPage:
    """Sorted by client id."""
    all_of = [session for page in pages for session in page.sessions]
    ends = [page.sessions[-1].client_id for page in pages if page.next is not None]
    shown, goes_on = page_of(limit_of(state, request), all_of, lambda session: session.client_id, ends)
    return SessionPage(sessions=shown, next=shown[-1].client_id if goes_on else None)


@routes(
    "GET",
    "/v1/sessions",
    "MQTT sessions that outlive their connections, in order of client id",
    (
        Param("client_id", "That of this client id."),
        Param("after", "Sessions behind this client id: the `next` of the page before."),
        LIMIT,
    ),
    answer=(SessionPage,),
    reach=Gathered(SessionPage, merge_sessions),
)
async def list_sessions(state: State, request: Request) -> Response:
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    query = request.query_params
    # One extra entry shows whether there is another page.
    rows = await state.node.sessions(limit + 1, query.get("after"), query.get("client_id"))
    page = rows[:limit]
    return json_answer(SessionPage(sessions=page, next=page[-1].client_id if len(rows) > limit else None))


@routes(
    "GET",
    "/v1/sessions/{client_id}",
    "An MQTT session",
    (NODE,),
    answer=(Session,),
    errors=("no_such_session", "no_such_node"),
    reach=AtNode(),
)
async def show_session(state: State, request: Request) -> Response:
    client_id = unquote(request.path_params["client_id"])
    rows = await state.node.sessions(1, client_id=client_id)
    if not rows:
        raise NoSuchSessionError(value=client_id, hint=HINT)
    return json_answer(rows[0])


@routes(
    "DELETE",
    "/v1/sessions/{client_id}",
    "Ends an MQTT session, with its connection and all that waits for it",
    (NODE,),
    status=204,
    errors=("no_such_session", "no_such_node"),
    reach=AtNode(),
)
async def end_session(state: State, request: Request) -> Response:
    client_id = unquote(request.path_params["client_id"])
    if not await state.node.session_end(client_id):
        raise NoSuchSessionError(value=client_id, hint=HINT)
    return Response(status_code=204)
