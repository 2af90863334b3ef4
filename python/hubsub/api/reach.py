"""Selects the nodes that serve a request: this node, the node that has the resource, or all of them.

A handler answers for its own node. The reach of its route selects the other nodes and combines all answers
into one response. A request with `scope=node` is not forwarded.

Invariants: if a node's part of a list is missing, the header `hubsub-unreachable` names the node. No node is
asked twice in one request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.home import home_of_query, target_of
from hubsub.api.others import ONLY, Call, Others, Reply, encode, reply_of
from hubsub.api.params import path_name
from hubsub.api.schema import HistoryPage
from hubsub.api.state import State
from hubsub.errors import BadRequestError, HubSubError, NodesUnreachableError, NoSuchNodeError
from hubsub.names import bytes_of, text_of

UNREACHABLE = "hubsub-unreachable"
"""Header: the nodes whose part of the response is missing."""

Merge = Callable[[State, Request, list[Any]], Any]
"""Combines the bodies of all nodes into one; this node's comes first."""


@dataclass(frozen=True)
class Asked:
    """A client's request, and the means to answer it here and on other nodes."""

    state: State
    others: Others
    request: Request
    body: bytes
    here: Callable[[], Awaitable[Response]]

    async def of(self, nodes: Sequence[str]) -> tuple[Mapping[str, Reply], Sequence[str]]:
        """Forwards the request. Returns the replies by name, and the nodes that did not reply; both sorted by name."""
        path, query = target_of(self.request)
        only = f"{query}&{ONLY}" if query else ONLY
        call, names = encode(Call(self.request.method, path, only, self.body)), sorted(nodes)
        answers = await asyncio.gather(*(self._ask(name, call) for name in names))
        replies = {name: reply for name, reply in zip(names, answers, strict=True) if reply is not None}
        return replies, [name for name in names if name not in replies]

    async def part(self, node: str, query: str) -> Reply | None:
        """Asks one node at the same path with another query; None if it does not reply."""
        path, _ = target_of(self.request)
        return await self._ask(node, encode(Call(self.request.method, path, f"{query}&{ONLY}")))

    async def of_one(self, node: str) -> Response:
        """The response of one node, which must be registered."""
        if node not in self.others.names():
            raise NoSuchNodeError(value=node, hint="GET /v1/nodes lists them")
        return await self.of_home(node)

    async def of_home(self, node: str) -> Response:
        """The response of the only node that has the resource and may be down."""
        replies, _ = await self.of([node] if node in self.others.names() else [])
        if node not in replies:
            raise NodesUnreachableError(value=node)
        return _response(replies[node])

    async def of_all(self) -> tuple[Response, Mapping[str, Reply], Sequence[str]]:
        """This node's response, the others' replies, and the nodes that did not reply."""
        own, (replies, missing) = await asyncio.gather(self.here(), self.of(self.others.names()))
        return own, replies, missing

    async def _ask(self, node: str, call: bytes) -> Reply | None:
        try:
            return reply_of(await self.others.ask(node, call))
        except (HubSubError, msgspec.MsgspecError):
            return None


class Reach(Protocol):
    """Selects the nodes that answer a request."""

    async def answer(self, asked: Asked) -> Response:
        """The response to the client.

        Raises:
            HubSubError: there is none.
        """


@dataclass(frozen=True)
class Gathered:
    """Asks every node for its part and merges the parts.

    Args:
        kind: Type of the body.
        merge: Combines all bodies into one.
        of_homes: Whether nodes own parts even while they are not registered: hubs with a log.
    """

    kind: Any
    merge: Merge
    of_homes: bool = False

    async def answer(self, asked: Asked) -> Response:
        own, replies, missing = await asked.of_all()
        if own.status_code >= 400:
            return own
        if self.of_homes:
            homes = {home.node for home in asked.others.log_owners.all()}
            missing = sorted({*missing, *homes} - replies.keys() - {asked.state.node.name})
        refused = next((reply for reply in replies.values() if reply.status >= 400), None)
        if refused is not None:
            return _response(refused)
        bodies = [bytes(own.body), *(reply.body for reply in replies.values())]
        parts = [msgspec.json.decode(body, type=self.kind) for body in bodies]
        merged = msgspec.json.encode(self.merge(asked.state, asked.request, parts))
        headers = {UNREACHABLE: ", ".join(missing)} if missing else None
        return Response(merged, own.status_code, headers, "application/json")


class Somewhere:
    """The node that has the resource, wherever that is: this one, or the first that does not answer 404."""

    async def answer(self, asked: Asked) -> Response:
        own = await asked.here()
        if own.status_code != 404:
            return own
        replies, missing = await asked.of(asked.others.names())
        # A node that fails must not hide a node that has the resource.
        found = min(
            (r for r in replies.values() if r.status != 404), key=lambda r: r.status >= 400, default=None
        )
        if found is None and missing:
            raise NodesUnreachableError(value=", ".join(missing))
        return own if found is None else _response(found)


class AllTold:
    """Sends the request to all nodes; one must succeed. The header lists nodes that may have missed it."""

    async def answer(self, asked: Asked) -> Response:
        own, replies, missing = await asked.of_all()
        done = next((reply for reply in replies.values() if reply.status < 400), None)
        answer = own if own.status_code < 400 or done is None else _response(done)
        failed = [name for name, reply in replies.items() if reply.status >= 400 and reply.status != 404]
        if left_out := sorted([*missing, *failed]):
            answer.headers[UNREACHABLE] = ", ".join(left_out)
        return answer


class AtRoom:
    """The node that leads the hub of the path's `room`."""

    async def answer(self, asked: Asked) -> Response:
        room = unquote_to_bytes(asked.request.path_params["room"])
        # Methods that create a room also place it.
        node = await asked.others.holder(room, asked.request.method in ("PUT", "POST"))
        return await (asked.here() if node is None else asked.of_one(node))


@dataclass(frozen=True)
class AtNamedRoom:
    """The node that leads the hub of the query's `room`.

    Args:
        otherwise: Reach for a query without a room, or whose room has no place yet: any node serves its
            clients.
    """

    otherwise: Reach

    async def answer(self, asked: Asked) -> Response:
        room = asked.request.query_params.get("room")
        if room is None or await asked.others.hub_of(bytes_of(room)) is None:
            return await self.otherwise.answer(asked)
        node = await asked.others.holder(bytes_of(room), False)
        return await (asked.here() if node is None else asked.of_one(node))


class AtNode:
    """The node in the query's `node`; this one if there is none."""

    async def answer(self, asked: Asked) -> Response:
        node = asked.request.query_params.get("node", asked.state.node.name)
        return await (asked.here() if node == asked.state.node.name else asked.of_one(node))


class WhereKnown:
    """This node, whose data plane forwards the read. If it does not know the location of the path's `room`, a
    node that does.

    A room's leader knows it before anything is published. A room that no node knows has no history, and
    reading does not place it.
    """

    async def answer(self, asked: Asked) -> Response:
        if await asked.others.hub_of(path_name(asked.request, "room")) is not None:
            return await asked.here()
        replies, missing = await asked.of(asked.others.names())
        found = next((reply for reply in replies.values() if reply.status != 404), None)
        if found is not None:
            return _response(found)
        if missing:
            raise NodesUnreachableError(value=", ".join(missing))
        is_start = "after" not in asked.request.query_params
        return json_answer(HistoryPage(recovered=is_start, records=[], next=None))


class AtHub:
    """The node that has the log of the path's `hub`. If no node has it, this node answers the error."""

    async def answer(self, asked: Asked) -> Response:
        home = asked.others.log_owners.find(text_of(path_name(asked.request, "hub")))
        is_here = home is None or home.node == asked.state.node.name
        return await (asked.here() if home is None or is_here else asked.of_home(home.node))


class AtQuery:
    """The node that has the path's `query`: only that node handles the query's batches."""

    async def answer(self, asked: Asked) -> Response:
        home = home_of_query(asked.state, text_of(path_name(asked.request, "query")))
        return await (asked.here() if home is None else asked.of_home(home.node))


def check_scope(request: Request) -> None:
    """Raises BadRequestError if a `scope` other than `node` is given."""
    for scope in request.query_params.getlist("scope"):
        if scope != "node":
            raise BadRequestError("scope must be node", scope[:100], "leave it out to ask the whole cluster")


def is_of_this_node(request: Request) -> bool:
    """Whether the request must not be forwarded."""
    return request.query_params.get("scope") == "node"


def _response(reply: Reply) -> Response:
    headers = {"retry-after": reply.retry_after} if reply.retry_after else None
    return Response(reply.body, reply.status, headers, reply.media_type)
