"""/v1/rooms/{room}/presence and occupancy, the same from any node (docs/presence.md)."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.params import number
from hubsub.api.reach import Gathered
from hubsub.api.rooms import room_name
from hubsub.api.routes import Param, Routes
from hubsub.api.state import State
from hubsub.names import text_of


class Member(Struct, kw_only=True):
    """A member of a room."""

    key: Annotated[str, Meta(description="Who it is. One key may be there several times.")]
    ref: Annotated[str, Meta(description="Which one: no other member ever has it.")]
    meta: Annotated[
        msgspec.Raw,
        Meta(
            description="What it says of itself: an object, as it came.", extra_json_schema={"type": "object"}
        ),
    ]


class Presence(Struct, kw_only=True):
    """Members of a room."""

    room: str
    count: Annotated[int, Meta(description="Members in the whole cluster, those that are not listed too.")]
    members: Annotated[list[Member], Meta(description="By key.")]


routes = Routes("rooms")


@routes(
    "GET",
    "/v1/rooms/{room}/presence",
    "Who is in a room, on all nodes",
    (Param("limit", "Lists at most so many; `count` is of all.", "integer", minimum=1),),
    answer=(Presence,),
    errors=("topic_length", "timed_out"),
)
async def show_presence(state: State, request: Request) -> Response:
    room = room_name(state, request)
    limit = number(request, "limit", 1_000, state.limits["http_page_max"])
    count, members = await state.node.members(room)
    rows = [Member(key=m.key, ref=m.ref, meta=msgspec.Raw(m.meta)) for m in members[:limit]]
    return json_answer(Presence(room=text_of(room), count=count, members=rows))


class Occupancy(Struct, kw_only=True):
    """Number of subscribers, publishers and members of a room in the whole cluster."""

    room: str
    subscribers: Annotated[int, Meta(description="Subscriptions to topics of the room; patterns are none.")]
    by_protocol: Annotated[
        dict[str, int],
        Meta(
            description="The same, by what subscribers speak: `redis`, `mqtt` (sessions without their clients, too), "
            "`phoenix` and `events`, each of them."
        ),
    ]
    publishers: Annotated[
        int, Meta(description="Connections that published to the room within the last minute.")
    ]
    members: Annotated[int, Meta(description="Members, those that are not listed too.")]


def merge_occupancy(state: State, request: Request, parts: list[Occupancy]) -> Occupancy:
    """Adds up the counts of all nodes."""
    first = parts[0]
    return Occupancy(
        room=first.room,
        subscribers=sum(part.subscribers for part in parts),
        by_protocol={name: sum(part.by_protocol[name] for part in parts) for name in first.by_protocol},
        publishers=sum(part.publishers for part in parts),
        members=sum(part.members for part in parts),
    )


@routes(
    "GET",
    "/v1/rooms/{room}/occupancy",
    "How many are in a room: who hears it, who publishes to it, and members",
    answer=(Occupancy,),
    errors=("topic_length", "timed_out"),
    reach=Gathered(Occupancy, merge_occupancy),
)
async def show_occupancy(state: State, request: Request) -> Response:
    room = room_name(state, request)
    found = await state.node.occupancy(room)
    return json_answer(
        Occupancy(
            room=text_of(room),
            subscribers=sum(found.by_protocol.values()),
            by_protocol=found.by_protocol,
            publishers=found.publishers,
            members=found.members,
        )
    )
