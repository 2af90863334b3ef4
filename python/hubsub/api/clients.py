"""/v1/clients: connected clients, their traffic, and closing a connection."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.params import number, path_id
from hubsub.api.schema import Client, ClientList
from hubsub.api.state import State
from hubsub.errors import BadRequestError, NoSuchClientError

_NUMBERS = tuple(
    f.name for f in msgspec.structs.fields(Client) if f.type in (int, float) and f.name != "shard"
)
SORTS: tuple[str, ...] = _NUMBERS
"""Sort keys of the client list: every numeric field."""


async def list_clients(state: State, request: Request) -> Response:
    sort = request.query_params.get("sort", "messages_out_1s")
    if sort not in SORTS:
        raise BadRequestError("clients are not sorted by this", sort, f"one of {', '.join(SORTS)}")
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    rows = await state.node.clients(sort, limit, client_ids=request.query_params.getlist("client_id"))
    return json_answer(ClientList(clients=[client_body(state, row) for row in rows]))


async def show_client(state: State, request: Request) -> Response:
    client = path_id(request, "id")
    rows = await state.node.clients("id", 1, client)
    if not rows:
        raise NoSuchClientError(value=client, hint="GET /v1/clients lists them")
    return json_answer(client_body(state, rows[0]))


async def kill_client(state: State, request: Request) -> Response:
    client = path_id(request, "id")
    if not await state.node.client_kill(client, "killed by an operator"):
        raise NoSuchClientError(value=client, hint="GET /v1/clients lists them")
    return Response(status_code=204)


def client_body(state: State, row: dict[str, Any]) -> Client:
    """Converts the core's description of a connection of this node."""
    return msgspec.convert({"node": state.node.name, **row}, Client)
