"""/v1/rooms: find, create and delete rooms, and read their history; /v1/busiest."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.merges import limit_of, page_of
from hubsub.api.params import check_length, flag, name, number, path_name, position
from hubsub.api.reach import AtRoom, Gathered, WhereKnown
from hubsub.api.routes import LIMIT, POSITION, Param, Routes
from hubsub.api.schema import (
    BusyRoom,
    BusyRooms,
    HistoryPage,
    NodeRef,
    Record,
    Room,
    RoomPage,
    payload_fields,
    room_body,
)
from hubsub.api.state import State
from hubsub.config import RESERVED
from hubsub.errors import BadRequestError, NoSuchRoomError
from hubsub.names import bytes_of, text_of
from hubsub.node import HistoryRow

OWN = RESERVED.encode()
BEHIND_OWN = OWN + b"\xff"
"""Sorts after all internal names."""

routes = Routes("rooms")
OWN_TOO = Param("own", "Also the node's own, whose names begin with `$`.", "boolean")


def merge_rooms(state: State, request: Request, pages: Sequence[RoomPage]) -> RoomPage:
    """Sorted by name. A room that is being moved appears once."""
    all_of = {room.name: room for page in reversed(pages) for room in page.rooms}
    ends = [bytes_of(page.rooms[-1].name) for page in pages if page.next is not None]
    shown, goes_on = page_of(
        limit_of(state, request), all_of.values(), lambda room: bytes_of(room.name), ends
    )
    return RoomPage(rooms=shown, next=shown[-1].name if goes_on else None)


def merge_busiest(state: State, request: Request, lists: Sequence[BusyRooms]) -> BusyRooms:
    """Sorted by rate, the busiest room first; the rates of a room on several nodes are added."""
    rates: dict[str, float] = {}
    for room in (room for part in lists for room in part.rooms):
        rates[room.name] = rates.get(room.name, 0.0) + room.messages_per_second
    limit = number(request, "limit", 10, 100)
    first = sorted(rates.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return BusyRooms(rooms=[BusyRoom(name=name, messages_per_second=rate) for name, rate in first])


@routes(
    "GET",
    "/v1/rooms",
    "Rooms in order of name",
    (
        Param("match", "Redis glob over names."),
        Param("after", "Names behind this one: the `next` of the page before."),
        LIMIT,
        OWN_TOO,
    ),
    answer=(RoomPage,),
    reach=Gathered(RoomPage, merge_rooms),
)
async def list_rooms(state: State, request: Request) -> Response:
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    match, after = name(request, "match"), name(request, "after")
    rooms = await state.node.rooms(match, after, limit)
    # Internal rooms are listed only on request.
    if not flag(request, "own") and not (match or b"").startswith(OWN):
        shown = [room for room in rooms if not room["name"].startswith(OWN)]
        if len(shown) < len(rooms):
            before = [room for room in shown if room["name"] < OWN]
            behind = max(after or b"", BEHIND_OWN)
            rooms = [*before, *await state.node.rooms(match, behind, limit - len(before))]
    nodes = [state.node_ref(request)]
    page = RoomPage(
        rooms=[room_body(room, nodes) for room in rooms],
        next=text_of(rooms[-1]["name"]) if len(rooms) == limit else None,
    )
    return json_answer(page)


@routes(
    "GET",
    "/v1/rooms/{room}",
    "A room, and the nodes that hold it",
    answer=(Room,),
    errors=("no_such_room", "topic_length"),
    reach=AtRoom(),
)
async def show_room(state: State, request: Request) -> Response:
    room = room_name(state, request)
    await _placed(state, room, create=False)
    found = await state.node.room(room)
    if found is None:
        raise NoSuchRoomError(value=text_of(room), hint="a first subscriber makes it, or PUT, or POST")
    return json_answer(room_body(found, await _members(state, request, room)))


@routes(
    "POST",
    "/v1/rooms/{room}",
    "A room, made if it is not there; without a history in its class, who will hold it",
    answer=(Room,),
    errors=("topic_length", "too_many_rooms", "room_creation_rate"),
    reach=AtRoom(),
)
async def place_room(state: State, request: Request) -> Response:
    """A room, created if it does not exist. For a class without history, the nodes that would serve it."""
    room = room_name(state, request)
    await _placed(state, room, create=True)
    found = await state.node.room(room) or await state.node.room_create(room) or _unrecorded(state, room)
    return json_answer(room_body(found, await _members(state, request, room)))


@routes(
    "PUT",
    "/v1/rooms/{room}",
    "Makes a room whose class keeps a history",
    answer=(Room,),
    errors=("topic_length", "too_many_rooms", "room_creation_rate"),
    reach=AtRoom(),
)
async def create_room(state: State, request: Request) -> Response:
    room = room_name(state, request)
    there = await state.node.room(room) is not None
    made = await state.node.room_create(room)
    if made is None:
        raise BadRequestError(
            "a room of a class without history exists only while it has subscribers",
            text_of(room),
            "give its class a history",
        )
    return json_answer(room_body(made, [state.node_ref(request)]), 200 if there else 201)


@routes(
    "DELETE",
    "/v1/rooms/{room}",
    "Deletes a room without subscribers, with its history",
    status=204,
    errors=("no_such_room", "room_in_use", "topic_length"),
    reach=AtRoom(),
)
async def delete_room(state: State, request: Request) -> Response:
    room = room_name(state, request)
    if not await state.node.room_delete(room):
        raise NoSuchRoomError(value=text_of(room))
    return Response(status_code=204)


@routes(
    "GET",
    "/v1/rooms/{room}/history",
    "What a room remembers, oldest first",
    (
        Param("count", "At most so many records; history_reply_records_max bounds it.", "integer", minimum=1),
        Param("after", "Behind this position; without it, the last ones.", pattern=POSITION),
        Param("topic", "Of this topic only."),
    ),
    answer=(HistoryPage,),
    errors=("topic_length",),
    reach=WhereKnown(),
)
async def history(state: State, request: Request) -> Response:
    room = room_name(state, request)
    count = number(request, "count", 100, state.limits["history_reply_records_max"])
    text = request.query_params.get("after")
    after = position(text) if text is not None else None
    if state.others is not None and await state.others.hub_of(room) is None:
        raise NoSuchRoomError(value=text_of(room), hint="it has no place yet, as far as this node knows")
    recovered, rows = await state.node.history(room, count, after, name(request, "topic"))
    records = [record_body(row) for row in rows]
    more = after is not None and len(records) == count
    return json_answer(
        HistoryPage(recovered=recovered, records=records, next=records[-1].position if more else None)
    )


def record_body(row: HistoryRow) -> Record:
    return Record(
        position=f"{row.epoch}-{row.seq}",
        timestamp_us=row.timestamp_us,
        topic=text_of(row.topic),
        publisher=row.publisher,
        headers=dict(row.headers),
        **payload_fields(row.payload),
    )


@routes(
    "GET",
    "/v1/busiest",
    "The busiest rooms, by a sketch",
    (Param("limit", "At most 100.", "integer", minimum=1), OWN_TOO),
    answer=(BusyRooms,),
    reach=Gathered(BusyRooms, merge_busiest),
)
async def busiest(state: State, request: Request) -> Response:
    limit, own = number(request, "limit", 10, 100), flag(request, "own")
    rooms = await state.node.busiest_rooms(limit, own=own)
    return json_answer(
        BusyRooms(rooms=[BusyRoom(name=text_of(r.name), messages_per_second=r.messages) for r in rooms])
    )


async def _placed(state: State, room: bytes, create: bool) -> None:
    """In a cluster: makes sure that this node's data plane knows the hub of a room that is placed by a record."""
    located = None if state.cluster is None else await state.cluster.locate(room, create)
    if located is None:
        return
    placements = {cls.name: cls.placement for cls in state.classes}
    if placements.get(located.room_class) != "ring":
        state.node.route_rooms(located.room_class, {room: located.hub})


async def _members(state: State, request: Request, room: bytes) -> list[NodeRef]:
    """The nodes of a room's hub, leader first, with the addresses that the cluster knows."""
    located = None if state.cluster is None else await state.cluster.locate(room, create=False)
    if located is None or not located.members:
        return [state.node_ref(request)]
    return [
        NodeRef(
            name=member.node,
            **{listener: member.addresses.get(listener) for listener in ("redis", "redis_cluster", "http")},
        )
        for member in located.members
    ]


def _unrecorded(state: State, room: bytes) -> dict[str, Any]:
    """A room whose class keeps no record of it; its future nodes are known nevertheless."""
    numbers = "epoch seq shard subscribers topics history history_bytes first_seq idle_ms".split()
    known = {"name": room, "class": state.node.room_of(room)[1], "hub": None, "in_memory": False}
    return known | dict.fromkeys(numbers, 0)


def room_name(state: State, request: Request) -> bytes:
    """The room of the path.

    Raises:
        TopicLengthError: the name is empty or too long.
    """
    room = path_name(request, "room")
    check_length(room, state.limits["topic_bytes_max"])
    return room
