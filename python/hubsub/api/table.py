"""All routes."""

from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api import clients, cluster, hubs, merges, nodes, publish, queries, records, rooms, stages
from hubsub.api.answers import json_answer
from hubsub.api.cluster_schema import ClusterInfo
from hubsub.api.openapi import document
from hubsub.api.reach import AllTold, AtNode, AtRoom, Gathered, Somewhere
from hubsub.api.routes import Param, Route
from hubsub.api.schema import (
    BatchAnswer,
    BatchCommit,
    BusyRooms,
    ClassList,
    Client,
    ClientList,
    GivenUp,
    HistoryPage,
    Hub,
    HubPage,
    LogInfo,
    NodeInfo,
    NodeList,
    NodeRef,
    OffsetAnswer,
    PublishBatch,
    PublishItem,
    PublishResult,
    PublishResults,
    QueryList,
    QueryReport,
    Ready,
    Room,
    RoomPage,
    StageAnswer,
    Stat,
    Version,
)
from hubsub.api.state import State


async def openapi(state: State, request: Request) -> Response:
    return json_answer(openapi_document())


@cache
def openapi_document() -> dict[str, Any]:
    """The document of `ROUTES`."""
    return document(ROUTES)


OWN = Param("own", "Also the node's own, whose names begin with `$`.", "boolean")
LIMIT = Param("limit", "Entries of the page; http_page_max bounds it.", "integer", minimum=1)
NODE = Param("node", "Name of the node that has it; without it, the one that is asked.")
TEXT = "text/plain"
LOG = Param("log", "Identity of the log that is meant: another one refuses.")
STAGE_ERRORS = ("no_stages", "disk_full", "log_failed", "quarantined")
STREAM_ERRORS = ("no_such_hub", "not_allowed", "other_log", "quarantined", "log_failed", "disk_full")

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
        (
            Param(
                "create",
                "Makes it if it is not there; without a history in its class, tells who will hold it.",
                "boolean",
            ),
        ),
        answer=(Room,),
        errors=("no_such_room", "topic_length", "too_many_rooms", "room_creation_rate"),
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
            Param("after", "Behind this position; without it, the last ones."),
            Param("topic", "Of this topic only."),
        ),
        answer=(HistoryPage,),
        errors=("topic_length",),
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
        (Param("Idempotency-Key", "The same key gets the same answer, and one publish.", place="header"),),
        body=(PublishItem, PublishBatch),
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
        (Param("sort", "By this number.", choices=clients.SORTS), LIMIT),
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
        "/v1/hubs",
        "Hubs that have a log, by id",
        hubs.list_hubs,
        (
            Param("class", "Of this class only; without it, of all but the node's own."),
            Param("after", "Hubs behind this id: the `next` of the page before.", "integer", minimum=0),
            LIMIT,
        ),
        answer=(HubPage,),
        errors=("no_such_class",),
        tag="hubs",
        reach=Gathered(HubPage, merges.hubs),
    ),
    Route(
        "GET",
        "/v1/hubs/{hub}",
        "A hub, by its name or id",
        hubs.show_hub,
        answer=(Hub,),
        errors=("no_such_hub",),
        tag="hubs",
        reach=Somewhere(),
    ),
    Route(
        "GET",
        "/v1/log",
        "The log: its identity, and the hubs that have what is asked for",
        records.show_log,
        (
            Param("subscribe", "Hubs of these rooms: names with commas between, or given more than once."),
            Param(
                "subscribePattern",
                "Hubs that may have rooms which match: a glob, or an MQTT filter. Of the node's own rooms only "
                "`$stats/…`, and by patterns that begin with `$`.",
            ),
            Param("class", "Of this class only."),
        ),
        answer=(LogInfo,),
        errors=("no_such_class", "not_allowed"),
        tag="log",
        reach=Gathered(LogInfo, merges.logs, is_whole=True),
    ),
    Route(
        "GET",
        "/v1/hubs/{hub}/records",
        "A range of a hub's log as an Arrow IPC stream",
        records.read_records,
        (
            Param("from", "First offset; the oldest that is kept.", "integer", minimum=0),
            Param("until", "The offset behind the last; behind what is committed.", "integer", minimum=0),
            LOG,
            Param("room", "Of this room; more than once: of one of them."),
            Param("room_prefix", "Of rooms whose name begins so."),
            Param(
                "room_pattern", "Of rooms that match this glob or MQTT filter; more than once: one of them."
            ),
            Param("topic", "Of this topic; more than once: of one of them."),
            Param("topic_prefix", "Of topics that begin so."),
            Param(
                "topic_filter", "Of topics that match this MQTT filter or glob; more than once: one of them."
            ),
            Param("device", "Of this device; more than once: of one of them."),
            Param("since_us", "With this timestamp or a later one, in µs.", "integer", minimum=0),
            Param("until_us", "With an earlier timestamp than this, in µs.", "integer", minimum=0),
            Param("columns", f"With commas between: {', '.join(records.COLUMNS)}. All, if not given."),
            Param("compression", "Of the batches' buffers.", choices=("none", "lz4")),
            Param("batch_rows", f"Of a batch at most; {records.BATCH_ROWS:,}.", "integer", minimum=1),
            Param(
                "batch_bytes",
                f"Of names, headers and payloads after which a batch ends; {records.BATCH_BYTES:,}.",
                "integer",
                minimum=1,
            ),
        ),
        media_type=records.MEDIA_TYPE,
        errors=(*STREAM_ERRORS, "offsets_lost", "offset_unknown", "too_many_streams"),
        tag="log",
    ),
    Route(
        "GET",
        "/v1/hubs/{hub}/offset",
        "Where a time begins in a hub's log",
        records.show_offset,
        (Param("timestamp_us", "In µs since 1970.", "integer", minimum=0), LOG),
        answer=(OffsetAnswer,),
        errors=STREAM_ERRORS,
        tag="log",
        reach=Somewhere(),
    ),
    Route(
        "GET",
        "/v1/queries",
        "How far the queries of data pipelines have read, and whose batches are held",
        queries.list_queries,
        answer=(QueryList,),
        tag="log",
        reach=Gathered(QueryList, merges.queries),
    ),
    Route(
        "PUT",
        "/v1/queries/{query}",
        "Tells how far a query has read",
        queries.report_query,
        body=(QueryReport,),
        status=204,
        errors=("body_too_large", "too_busy", "other_log"),
        tag="log",
        reach=AllTold(),
    ),
    Route(
        "DELETE",
        "/v1/queries/{query}",
        "Forgets a query",
        queries.drop_query,
        status=204,
        errors=("no_such_query",),
        tag="log",
        reach=AllTold(),
    ),
    Route(
        "PUT",
        "/v1/queries/{query}/stages/{attempt}",
        "Keeps rows to publish, an Arrow IPC stream; nobody gets them before their batch is committed",
        stages.stage,
        (Param("topic", "That of all rows, which then have no column for it."),),
        answer=(StageAnswer,),
        errors=(
            "bad_rows",
            "topic_length",
            "payload_length",
            "not_allowed",
            "stage_exists",
            "stage_too_large",
            "too_many_stages",
            "stages_full",
            *STAGE_ERRORS,
        ),
        tag="queries",
    ),
    Route(
        "DELETE",
        "/v1/queries/{query}/stages/{attempt}",
        "Drops rows that are not committed",
        stages.abort,
        status=204,
        errors=("stage_committed", *STAGE_ERRORS),
        tag="queries",
    ),
    Route(
        "POST",
        "/v1/queries/{query}/batches/{batch}",
        "Publishes the rows of these attempts, once; may be repeated until it is answered",
        stages.commit,
        body=(BatchCommit,),
        answer=(BatchAnswer,),
        errors=(
            "stages_missing",
            "batch_passed",
            "batch_given_up",
            "batch_moving",
            "stage_lost",
            "body_too_large",
            "too_many_rooms",
            "room_creation_rate",
            *STAGE_ERRORS,
        ),
        tag="queries",
    ),
    Route(
        "DELETE",
        "/v1/queries/{query}/batches/{batch}",
        "Gives up what is left of a held batch, so that its query goes on with the next; may be repeated",
        stages.give_up,
        answer=(GivenUp,),
        errors=("batch_not_held", "batch_moving", *STAGE_ERRORS),
        tag="queries",
    ),
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
        "GET", "/v1/classes", "Room classes in order of precedence", nodes.list_classes, answer=(ClassList,)
    ),
    Route("GET", "/v1/openapi.json", "This document", openapi),
    Route(
        "GET",
        "/nodes",
        "The nodes as clients reach them",
        nodes.nodes_plain,
        (Param("room", "The nodes of this room, leader first."),),
        answer=(list[NodeRef],),
        reach=Gathered(list[NodeRef], merges.plain_nodes),
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
