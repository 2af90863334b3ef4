"""Moves of rooms to another hub, and the latest moves. Any node accepts a request; the controller carries it out."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.cluster_schema import MoveList, MoveNote, MoveOrder, MoveResult
from hubsub.api.params import body, decode
from hubsub.api.rooms import room_name
from hubsub.api.routes import Routes
from hubsub.api.state import State
from hubsub.control.cluster.node import ClusterNode
from hubsub.errors import NoClusterError
from hubsub.names import text_of

WORDS: Final = {
    "dead": "its leader is dead",
    "lead ended": "its leader was not heard for as long as it may lead",
    "gave up": "handed over by its leader",
    "members": "the same leader, other members",
    "new": "a new hub",
    "started again": "its node started again",
}
"""Descriptions of the controller's own reasons."""

routes = Routes()


@routes(
    "POST",
    "/v1/rooms/{room}/move",
    "Moves a room of an ephemeral class to another hub",
    body=(MoveOrder,),
    answer=(MoveResult,),
    errors=("room_move", "no_cluster", "no_controller", "topic_length"),
    tag="rooms",
)
async def move_room(state: State, request: Request) -> Response:
    """Raises `MoveError` if the room cannot move there, `NoControllerError` if there is no controller now."""
    room, cluster = room_name(state, request), _cluster(state)
    order: MoveOrder = decode(await body(state, request), MoveOrder)
    hub = await cluster.move(room, order.to)
    return json_answer(MoveResult(room=text_of(room), room_class=state.node.room_of(room)[1], hub=hub))


@routes(
    "GET",
    "/v1/moves",
    "What the controller moved of late, and why",
    answer=(MoveList,),
    errors=("no_cluster", "no_controller"),
)
async def list_moves(state: State, request: Request) -> Response:
    """Raises `NoControllerError` if there is no controller now."""
    rows = await _cluster(state).moves()
    notes = [
        MoveNote(
            **{
                name: getattr(row, name) for name in ("room_class", "before", "hub", "leader", "why", "ago_s")
            },
            room=None if row.room is None else text_of(row.room),
            words=WORDS.get(row.why, row.why),
            result="moved" if row.refused is None else "refused",
            reason=row.refused,
        )
        for row in rows
    ]
    return json_answer(MoveList(moves=notes))


def _cluster(state: State) -> ClusterNode:
    if state.cluster is None:
        raise NoClusterError("rooms are moved between the nodes of a cluster", hint="this node is alone")
    return state.cluster
