"""Merges the lists of all nodes into one response.

Each function takes the state of the answering node, the request and one list per node. It returns one list in
the order that the route documents, cut to the `limit` of the request.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from hubsub.api.consumer_schema import Consumer, ConsumerList
from hubsub.api.log_schema import HubPage, Query, QueryList
from hubsub.api.params import number
from hubsub.api.retained import RetainedPage
from hubsub.api.schema import BusyRoom, BusyRooms, ClientList, NodeList, NodeRef, RoomPage
from hubsub.api.sessions import SessionPage
from hubsub.api.state import State
from hubsub.names import bytes_of, text_of

T = TypeVar("T")


def rooms(state: State, request: Request, pages: Sequence[RoomPage]) -> RoomPage:
    """Sorted by name. A room that is being moved appears once."""
    all_of = {room.name: room for page in reversed(pages) for room in page.rooms}
    ends = [bytes_of(page.rooms[-1].name) for page in pages if page.next is not None]
    shown, goes_on = _page(_limit(state, request), all_of.values(), lambda room: bytes_of(room.name), ends)
    return RoomPage(rooms=shown, next=shown[-1].name if goes_on else None)


def hubs(state: State, request: Request, pages: Sequence[HubPage]) -> HubPage:
    """Sorted by hub id."""
    all_of = [hub for page in pages for hub in page.hubs]
    ends = [page.hubs[-1].id for page in pages if page.next is not None]
    shown, goes_on = _page(_limit(state, request), all_of, lambda hub: hub.id, ends)
    return HubPage(hubs=shown, next=shown[-1].id if goes_on else None)


def busiest(state: State, request: Request, lists: Sequence[BusyRooms]) -> BusyRooms:
    """Sorted by rate, the busiest room first; the rates of a room on several nodes are added."""
    rates: dict[str, float] = {}
    for room in (room for part in lists for room in part.rooms):
        rates[room.name] = rates.get(room.name, 0.0) + room.messages_per_second
    limit = number(request, "limit", 10, 100)
    first = sorted(rates.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return BusyRooms(rooms=[BusyRoom(name=name, messages_per_second=rate) for name, rate in first])


def clients(state: State, request: Request, lists: Sequence[ClientList]) -> ClientList:
    """Sorted by the requested number, the largest first."""
    sort = request.query_params.get("sort", "messages_out_1s")
    all_of = [client for part in lists for client in part.clients]
    largest = sorted(all_of, key=lambda client: getattr(client, sort), reverse=True)
    return ClientList(clients=largest[: _limit(state, request)])


def sessions(state: State, request: Request, pages: Sequence[SessionPage]) -> SessionPage:
    """Sorted by client id."""
    all_of = [session for page in pages for session in page.sessions]
    ends = [page.sessions[-1].client_id for page in pages if page.next is not None]
    shown, goes_on = _page(_limit(state, request), all_of, lambda session: session.client_id, ends)
    return SessionPage(sessions=shown, next=shown[-1].client_id if goes_on else None)


def retained(state: State, request: Request, pages: Sequence[RetainedPage]) -> RetainedPage:
    """Sorted by topic. A page may be short: its `next` is the last topic that its node read."""
    limit, all_of = _limit(state, request), [message for page in pages for message in page.retained]
    ends = [bytes_of(page.next) for page in pages if page.next is not None]
    shown, _ = _page(limit, all_of, lambda message: bytes_of(message.topic), ends)
    if len(shown) == limit and any(bytes_of(shown[-1].topic) < bytes_of(one.topic) for one in all_of):
        return RetainedPage(retained=shown, next=shown[-1].topic)
    return RetainedPage(retained=shown, next=text_of(min(ends)) if ends else None)


def consumers(state: State, request: Request, lists: Sequence[ConsumerList]) -> ConsumerList:
    """Sorted by group and topic. If a consumer's room and entry have different leaders, the room's wins."""
    found: dict[tuple[str, str], Consumer] = {}
    for consumer in (consumer for part in lists for consumer in part.consumers):
        key = (consumer.group, consumer.topic)
        if key not in found or found[key].lag is None:
            found[key] = consumer
    return ConsumerList(consumers=[found[key] for key in sorted(found)])


def nodes(state: State, request: Request, lists: Sequence[NodeList]) -> NodeList:
    """Nodes sorted by name."""
    all_of = [node for part in lists for node in part.nodes]
    return NodeList(nodes=sorted(all_of, key=lambda node: node.name))


def plain_nodes(state: State, request: Request, lists: Sequence[list[NodeRef]]) -> list[NodeRef]:
    """Sorted by node name."""
    return sorted((node for part in lists for node in part), key=lambda node: node.name)


def queries(state: State, request: Request, lists: Sequence[QueryList]) -> QueryList:
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
    held = [batch for part in lists for batch in part.held]
    return QueryList(
        queries=[found[name] for name in sorted(found)],
        held=sorted(held, key=lambda batch: (batch.query, batch.batch)),
    )


def _limit(state: State, request: Request) -> int:
    return number(request, "limit", 100, state.limits["http_page_max"])


def _page(
    limit: int, rows: Iterable[T], key: Callable[[T], Any], ends: Sequence[Any]
) -> tuple[list[T], bool]:
    """The first rows of all pages in order, and whether there are more.

    Each page has the first rows of its node. Rows after the end of the shortest truncated page are not
    completely known; that page alone has as many rows as requested.
    """
    known = sorted((row for row in rows if not ends or key(row) <= min(ends)), key=key)
    return known[:limit], bool(ends) or len(known) > limit
