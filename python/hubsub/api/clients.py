"""/v1/clients: connected clients, their traffic, and closing a connection."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.merges import limit_of
from hubsub.api.params import number, path_id
from hubsub.api.reach import AtNode, Gathered
from hubsub.api.routes import LIMIT, NODE, Param, Routes
from hubsub.api.schema import ClientList
from hubsub.api.state import State
from hubsub.errors import BadRequestError, NoSuchClientError
from hubsub.node.status import Client

_NUMBERS = tuple(
    f.name for f in msgspec.structs.fields(Client) if f.type in (int, float) and f.name != "shard"
)
SORTS: tuple[str, ...] = _NUMBERS
"""Sort keys of the client list: every numeric field."""

routes = Routes("clients")


def merge_clients(state: State, request: Request, lists: Sequence[ClientList]) -> ClientList:
    """Sorted by the requested number, the largest first."""
    sort = request.query_params.get("sort", "messages_out_1s")
    all_of = [client for part in lists for client in part.clients]
    largest = sorted(all_of, key=lambda client: getattr(client, sort), reverse=True)
    return ClientList(clients=largest[: limit_of(state, request)])


@routes(
    "GET",
    "/v1/clients",
    "Connections, the largest first",
    (
        Param("sort", "By this number.", choices=SORTS),
        Param("client_id", "MQTT clients with this id; more than once: with one of them."),
        LIMIT,
    ),
    answer=(ClientList,),
    reach=Gathered(ClientList, merge_clients),
)
async def list_clients(state: State, request: Request) -> Response:
    sort = request.query_params.get("sort", "messages_out_1s")
    if sort not in SORTS:
        raise BadRequestError("clients are not sorted by this", sort, f"one of {', '.join(SORTS)}")
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    rows = await state.node.clients(sort, limit, client_ids=request.query_params.getlist("client_id"))
    return json_answer(ClientList(clients=rows))


@routes(
    "GET",
    "/v1/clients/{id}",
    "A connection",
    (NODE,),
    answer=(Client,),
    errors=("no_such_client", "no_such_node"),
    reach=AtNode(),
)
async def show_client(state: State, request: Request) -> Response:
    client = path_id(request, "id")
    rows = await state.node.clients("id", 1, client)
    if not rows:
        raise NoSuchClientError(value=client, hint="GET /v1/clients lists them")
    return json_answer(rows[0])


@routes(
    "DELETE",
    "/v1/clients/{id}",
    "Closes a connection",
    (NODE,),
    status=204,
    errors=("no_such_client", "no_such_node"),
    reach=AtNode(),
)
async def kill_client(state: State, request: Request) -> Response:
    client = path_id(request, "id")
    if not await state.node.client_kill(client, "killed by an operator"):
        raise NoSuchClientError(value=client, hint="GET /v1/clients lists them")
    return Response(status_code=204)
