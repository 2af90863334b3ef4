"""All routes. `log_table` has those of the log, `device_table` of devices, `consumer_table` of consumers,
`retained_table` of retained messages, `console.table` of the console.
"""

from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api import (
    classes,
    clients,
    cluster,
    merges,
    moves,
    nodes,
    presence,
    publish,
    rooms,
    sessions,
    streams,
)
from hubsub.api.answers import json_answer
from hubsub.api.cluster_schema import ClusterInfo, MoveList, MoveOrder, MoveResult, ReachedAddresses
from hubsub.api.console.table import CONSOLE_ROUTES
from hubsub.api.consumer_table import CONSUMER_ROUTES
from hubsub.api.device_table import DEVICE_ROUTES
from hubsub.api.log_table import LOG_ROUTES
from hubsub.api.openapi import document
from hubsub.api.presence import Occupancy, Presence
from hubsub.api.reach import (
    AtNamedRoom,
    AtNode,
    AtRoom,
    Gathered,
    Somewhere,
    WhereKnown,
)
from hubsub.api.retained_table import RETAINED_ROUTES
from hubsub.api.routes import LIMIT, POSITION, Param, Route, key_of
from hubsub.api.schema import (
    AppliedClasses,
    BusyRooms,
    ClassList,
    Client,
    ClientList,
    HistoryPage,
    NodeInfo,
    NodeList,
    NodeRef,
    PublishBatch,
    PublishOne,
    PublishResult,
    PublishResults,
    Ready,
    Room,
    RoomClass,
    RoomPage,
    Stat,
    Version,
)
from hubsub.api.sessions import Session, SessionPage
from hubsub.api.state import State


async def openapi(state: State, request: Request) -> Response:
    return json_answer(openapi_document())


@cache
def openapi_document() -> dict[str, Any]:
    """The document of `ROUTES`."""
    return document(ROUTES)


OWN = Param("own", "Also the node's own, whose names begin with `$`.", "boolean")
NODE = Param("node", "Name of the node that has it; without it, the one that is asked.")
TEXT = "text/plain"
CLASS_ERRORS = (
    "class_change",
    "no_cluster",
    "no_controller",
    "expectation_failed",
    "coordinator_unreachable",
    "coordinator_unknown",
)

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/rooms",
        "Rooms in order of name",
        rooms.list_rooms,
        (
            Param("match", "Redis glob over names."),
            Param("after", "Names behind this one: the `next` of the page before."),
            LIMIT,
            OWN,
        ),
        answer=(RoomPage,),
        tag="rooms",
        reach=Gathered(RoomPage, merges.rooms),
    ),
    Route(
        "GET",
        "/v1/rooms/{room}",
        "A room, and the nodes that hold it",
        rooms.show_room,
        answer=(Room,),
        errors=("no_such_room", "topic_length"),
        tag="rooms",
        reach=AtRoom(),
    ),
    Route(
        "POST",
        "/v1/rooms/{room}",
        "A room, made if it is not there; without a history in its class, who will hold it",
        rooms.place_room,
        answer=(Room,),
        errors=("topic_length", "too_many_rooms", "room_creation_rate"),
        tag="rooms",
        reach=AtRoom(),
    ),
    Route(
        "PUT",
        "/v1/rooms/{room}",
        "Makes a room whose class keeps a history",
        rooms.create_room,
        answer=(Room,),
        errors=("topic_length", "too_many_rooms", "room_creation_rate"),
        tag="rooms",
        reach=AtRoom(),
    ),
    Route(
        "DELETE",
        "/v1/rooms/{room}",
        "Deletes a room without subscribers, with its history",
        rooms.delete_room,
        status=204,
        errors=("no_such_room", "room_in_use", "topic_length"),
        tag="rooms",
        reach=AtRoom(),
    ),
    Route(
        "GET",
        "/v1/rooms/{room}/history",
        "What a room remembers, oldest first",
        rooms.history,
        (
            Param(
                "count", "At most so many records; history_reply_records_max bounds it.", "integer", minimum=1
            ),
            Param("after", "Behind this position; without it, the last ones.", pattern=POSITION),
            Param("topic", "Of this topic only."),
        ),
        answer=(HistoryPage,),
        errors=("topic_length",),
        tag="rooms",
        reach=WhereKnown(),
    ),
    Route(
        "GET",
        "/v1/rooms/{room}/presence",
        "Who is in a room, on all nodes",
        presence.show_presence,
        (Param("limit", "Lists at most so many; `count` is of all.", "integer", minimum=1),),
        answer=(Presence,),
        errors=("topic_length", "timed_out"),
        tag="rooms",
    ),
    Route(
        "GET",
        "/v1/rooms/{room}/occupancy",
        "How many are in a room: who hears it, who publishes to it, and members",
        presence.show_occupancy,
        answer=(Occupancy,),
        errors=("topic_length", "timed_out"),
        tag="rooms",
        reach=Gathered(Occupancy, presence.merge_occupancy),
    ),
    Route(
        "GET",
        "/v1/rooms/{room}/events",
        "A topic's records as server-sent events: where they are",
        streams.room_events,
        (
            Param("after", "Behind this position; the header Last-Event-ID goes before it."),
            Param("rewind", "So many of the last ones first, or those of a time: 20, 10s."),
            Param("token", "Who asks."),
        ),
        status=307,
        media_type="text/event-stream",
        errors=("not_found", "elsewhere"),
        tag="rooms",
    ),
    Route(
        "GET",
        "/v1/busiest",
        "The busiest rooms, by a sketch",
        rooms.busiest,
        (Param("limit", "At most 100.", "integer", minimum=1), OWN),
        answer=(BusyRooms,),
        tag="rooms",
        reach=Gathered(BusyRooms, merges.busiest),
    ),
    Route(
        "POST",
        "/v1/publish",
        "Publishes a record, or a batch in order; what a producer numbers is kept once",
        publish.publish,
        (key_of("one publish"),),
        body=(PublishOne, PublishBatch),
        answer=(PublishResult, PublishResults),
        errors=(
            "topic_length",
            "payload_length",
            "body_too_large",
            "idempotency_mismatch",
            "too_many_rooms",
            "room_creation_rate",
            "publish_rate",
            "not_allowed",
            "disk_full",
            "log_failed",
            "quarantined",
            "not_logged",
            "sequence_too_old",
            "sequence_passed",
            "sequence_reused",
        ),
        tag="rooms",
    ),
    Route(
        "GET",
        "/v1/clients",
        "Connections, the largest first",
        clients.list_clients,
        (
            Param("sort", "By this number.", choices=clients.SORTS),
            Param("client_id", "MQTT clients with this id; more than once: with one of them."),
            LIMIT,
        ),
        answer=(ClientList,),
        tag="clients",
        reach=Gathered(ClientList, merges.clients),
    ),
    Route(
        "GET",
        "/v1/clients/{id}",
        "A connection",
        clients.show_client,
        (NODE,),
        answer=(Client,),
        errors=("no_such_client", "no_such_node"),
        tag="clients",
        reach=AtNode(),
    ),
    Route(
        "DELETE",
        "/v1/clients/{id}",
        "Closes a connection",
        clients.kill_client,
        (NODE,),
        status=204,
        errors=("no_such_client", "no_such_node"),
        tag="clients",
        reach=AtNode(),
    ),
    Route(
        "GET",
        "/v1/sessions",
        "MQTT sessions that outlive their connections, in order of client id",
        sessions.list_sessions,
        (
            Param("client_id", "That of this client id."),
            Param("after", "Sessions behind this client id: the `next` of the page before."),
            LIMIT,
        ),
        answer=(SessionPage,),
        tag="sessions",
        reach=Gathered(SessionPage, merges.sessions),
    ),
    Route(
        "GET",
        "/v1/sessions/{client_id}",
        "An MQTT session",
        sessions.show_session,
        (NODE,),
        answer=(Session,),
        errors=("no_such_session", "no_such_node"),
        tag="sessions",
        reach=AtNode(),
    ),
    Route(
        "DELETE",
        "/v1/sessions/{client_id}",
        "Ends an MQTT session, with its connection and all that waits for it",
        sessions.end_session,
        (NODE,),
        status=204,
        errors=("no_such_session", "no_such_node"),
        tag="sessions",
        reach=AtNode(),
    ),
    *DEVICE_ROUTES,
    *CONSUMER_ROUTES,
    *RETAINED_ROUTES,
    *LOG_ROUTES,
    *CONSOLE_ROUTES,
    Route(
        "GET",
        "/v1/cluster",
        "The cluster as this node sees it",
        cluster.show,
        (NODE,),
        answer=(ClusterInfo,),
        errors=("no_cluster",),
        reach=AtNode(),
    ),
    Route(
        "POST",
        "/v1/rooms/{room}/move",
        "Moves a room of an ephemeral class to another hub",
        moves.move_room,
        body=(MoveOrder,),
        answer=(MoveResult,),
        errors=("room_move", "no_cluster", "no_controller", "topic_length"),
        tag="rooms",
    ),
    Route(
        "GET",
        "/v1/moves",
        "What the controller moved of late, and why",
        moves.list_moves,
        answer=(MoveList,),
        errors=("no_cluster", "no_controller"),
    ),
    Route(
        "GET",
        "/v1/cluster/reached",
        "Which addresses of the other nodes a node reaches",
        cluster.reached,
        (NODE,),
        answer=(ReachedAddresses,),
        errors=("no_cluster",),
        reach=AtNode(),
    ),
    Route(
        "GET",
        "/v1/nodes",
        "All nodes",
        nodes.list_nodes,
        answer=(NodeList,),
        reach=Gathered(NodeList, merges.nodes),
    ),
    Route(
        "GET",
        "/v1/nodes/{node}",
        "A node",
        nodes.show_node,
        answer=(NodeInfo,),
        errors=("no_such_node",),
        reach=Somewhere(),
    ),
    Route(
        "GET", "/v1/classes", "Room classes in order of precedence", classes.list_classes, answer=(ClassList,)
    ),
    Route(
        "POST",
        "/v1/classes",
        "Makes classes what is given, on all nodes of the cluster while they run; others stay",
        classes.apply_classes,
        body=(list[dict[str, Any]],),
        answer=(AppliedClasses,),
        errors=(*CLASS_ERRORS, "body_too_large"),
    ),
    Route(
        "GET",
        "/v1/classes/{class}",
        "A room class",
        classes.show_class,
        answer=(RoomClass,),
        errors=("no_such_class",),
    ),
    Route(
        "DELETE",
        "/v1/classes/{class}",
        "Lets a class get no new rooms; those that it has go on",
        classes.remove_class,
        status=204,
        errors=(*CLASS_ERRORS, "no_such_class"),
    ),
    Route("GET", "/v1/openapi.json", "This document", openapi),
    Route(
        "GET",
        "/nodes",
        "The nodes as clients reach them",
        nodes.nodes_plain,
        (Param("room", "The nodes of this room, leader first; all of them where it has no place yet."),),
        answer=(list[NodeRef],),
        reach=AtNamedRoom(Gathered(list[NodeRef], merges.plain_nodes)),
    ),
    Route("GET", "/s/ping", "Answers pong", nodes.ping, media_type=TEXT),
    Route("GET", "/s/ver", "What runs here", nodes.version, answer=(Version,)),
    Route("GET", "/s/stat", "Counters and gauges", nodes.stat, answer=(Stat,)),
    Route("GET", "/livez", "Whether the process lives", nodes.live, media_type=TEXT),
    Route(
        "GET",
        "/readyz",
        "Whether it serves",
        nodes.ready,
        answer=(Ready,),
        errors=("log_failed", "coordinator_failed"),
    ),
    Route("GET", "/metrics", "Prometheus metrics", nodes.metrics, media_type=TEXT),
)
