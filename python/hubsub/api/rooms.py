"""/v1/rooms: find, create and delete rooms, and read their history; /v1/busiest."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.params import check_length, flag, name, number, path_name, position
from hubsub.api.schema import (
    BusyRoom,
    BusyRooms,
    HistoryPage,
    NodeRef,
    Record,
    RoomPage,
    payload_fields,
    room_body,
)
from hubsub.api.state import State
from hubsub.config import RESERVED
from hubsub.errors import BadRequestError, NoSuchRoomError
from hubsub.names import text_of
from hubsub.node import HistoryRow

OWN = RESERVED.encode()
BEHIND_OWN = OWN + b"\xff"
"""Sorts after all internal names."""


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


async def show_room(state: State, request: Request) -> Response:
    room = room_name(state, request)
    await _placed(state, room, create=False)
    found = await state.node.room(room)
    if found is None:
        raise NoSuchRoomError(value=text_of(room), hint="a first subscriber makes it, or PUT, or POST")
    return json_answer(room_body(found, await _members(state, request, room)))


async def place_room(state: State, request: Request) -> Response:
    """A room, created if it does not exist. For a class without history, the nodes that would serve it."""
    room = room_name(state, request)
    await _placed(state, room, create=True)
    found = await state.node.room(room)
    if found is None:
        found = await state.node.room_create(room) or _unrecorded(state, room)
    return json_answer(room_body(found, await _members(state, request, room)))


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


async def delete_room(state: State, request: Request) -> Response:
    room = room_name(state, request)
    if not await state.node.room_delete(room):
        raise NoSuchRoomError(value=text_of(room))
    return Response(status_code=204)


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
    """Converts a record of the core."""
    return Record(
        position=f"{row.epoch}-{row.seq}",
        timestamp_us=row.timestamp_us,
        topic=text_of(row.topic),
        publisher=row.publisher,
        headers=dict(row.headers),
        **payload_fields(row.payload),
    )


async def busiest(state: State, request: Request) -> Response:
    limit, own = number(request, "limit", 10, 100), flag(request, "own")
    rooms = await state.node.busiest_rooms(limit, own=own)
    return json_answer(
        BusyRooms(rooms=[BusyRoom(name=text_of(r.name), messages_per_second=r.messages) for r in rooms])
    )


async def _placed(state: State, room: bytes, create: bool) -> None:
    """In a cluster: makes sure that this node's data plane knows the hub of a room that is placed by a
    record.
    """
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
            redis=member.addresses.get("redis"),
            redis_cluster=member.addresses.get("redis_cluster"),
            http=member.addresses.get("http"),
        )
        for member in located.members
    ]


def _unrecorded(state: State, room: bytes) -> dict[str, Any]:
    """A room whose class keeps no record of it; its future nodes are known nevertheless."""
    numbers = (
        "epoch",
        "seq",
        "shard",
        "subscribers",
        "topics",
        "history",
        "history_bytes",
        "first_seq",
        "idle_ms",
    )
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
