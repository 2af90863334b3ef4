"""Nodes, classes, health, and the short paths that older tools use (/nodes, /s/…)."""

from collections.abc import Sequence

from msgspec import structs
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from hubsub.api.answers import json_answer
from hubsub.api.cluster import links
from hubsub.api.hubs import hub_troubles
from hubsub.api.metrics import prometheus
from hubsub.api.params import path_name
from hubsub.api.reach import AtNamedRoom, Gathered, Somewhere
from hubsub.api.routes import Param, Routes
from hubsub.api.schema import NodeInfo, NodeList, NodeRef, Ready, Stat, Version
from hubsub.api.state import State
from hubsub.errors import CoordinatorFailedError, LogFailedError, NoSuchNodeError, StoppingError
from hubsub.names import text_of
from hubsub.node import BUILD_PROFILE, CORE_VERSION
from hubsub.version import VERSION


def _info(state: State, request: Request) -> NodeInfo:
    node, cluster = state.node, state.cluster
    return NodeInfo(
        **structs.asdict(state.node_ref(request)),
        role=list(state.config.role),
        shards=node.shards,
        version=VERSION,
        build_profile=BUILD_PROFILE,
        incarnation=node.incarnation,
        uptime_s=round(node.uptime_s, 3),
        running=node.running,
        zone=state.config.zone,
        state="draining" if cluster is not None and cluster.is_draining else "up",
        hubs_led=None if cluster is None else cluster.hubs_led,
        peers=links(state),
    )


routes = Routes()
TEXT = "text/plain"


def merge_nodes(state: State, request: Request, lists: Sequence[NodeList]) -> NodeList:
    """Nodes sorted by name."""
    all_of = [node for part in lists for node in part.nodes]
    return NodeList(nodes=sorted(all_of, key=lambda node: node.name))


def merge_plain(state: State, request: Request, lists: Sequence[list[NodeRef]]) -> list[NodeRef]:
    """Sorted by node name."""
    return sorted((node for part in lists for node in part), key=lambda node: node.name)


@routes("GET", "/v1/nodes", "All nodes", answer=(NodeList,), reach=Gathered(NodeList, merge_nodes))
async def list_nodes(state: State, request: Request) -> Response:
    return json_answer(NodeList(nodes=[_info(state, request)]))


@routes("GET", "/v1/nodes/{node}", "A node", answer=(NodeInfo,), errors=("no_such_node",), reach=Somewhere())
async def show_node(state: State, request: Request) -> Response:
    wanted = text_of(path_name(request, "node"))
    if wanted != state.node.name:
        raise NoSuchNodeError(value=wanted, hint="GET /v1/nodes lists them")
    return json_answer(_info(state, request))


@routes(
    "GET",
    "/nodes",
    "The nodes as clients reach them",
    (Param("room", "The nodes of this room, leader first; all of them where it has no place yet."),),
    answer=(list[NodeRef],),
    reach=AtNamedRoom(Gathered(list[NodeRef], merge_plain)),
)
async def nodes_plain(state: State, request: Request) -> Response:
    """This node only. The route's reach collects all nodes, or with `?room=` asks the leader for the room's nodes."""
    return json_answer([state.node_ref(request)])


@routes("GET", "/s/ping", "Answers pong", media_type=TEXT)
async def ping(state: State, request: Request) -> Response:
    return PlainTextResponse("pong")


@routes("GET", "/s/ver", "What runs here", answer=(Version,))
async def version(state: State, request: Request) -> Response:
    return json_answer(Version(version=VERSION, core=CORE_VERSION, build_profile=BUILD_PROFILE))


@routes("GET", "/s/stat", "Counters and gauges", answer=(Stat,))
async def stat(state: State, request: Request) -> Response:
    metrics = state.node.metrics()
    return json_answer(
        Stat(
            name=state.node.name,
            version=VERSION,
            uptime_s=round(state.node.uptime_s, 3),
            node=metrics["node"],
            shards=metrics["shards"],
        )
    )


@routes("GET", "/metrics", "Prometheus metrics", media_type=TEXT)
async def metrics(state: State, request: Request) -> Response:
    return Response(prometheus(state), media_type="text/plain; version=0.0.4; charset=utf-8")


@routes("GET", "/livez", "Whether the process lives", media_type=TEXT)
async def live(state: State, request: Request) -> Response:
    return PlainTextResponse("ok")


@routes("GET", "/readyz", "Whether it serves", answer=(Ready,), errors=("log_failed", "coordinator_failed"))
async def ready(state: State, request: Request) -> Response:
    if state.stopping or not state.node.running:
        raise StoppingError()
    if state.cluster is not None and state.cluster.coordinator_failed is not None:
        raise CoordinatorFailedError(
            value=state.cluster.coordinator_failed,
            hint="what exists is served until others take its hubs; mend the cause, then start the node again",
        )
    reasons = []
    store = state.node.inflight_store()
    if store is not None and store.state != "open":
        reasons.append(f"MQTT clients whose sessions are kept are refused: {store.reason}")
    log = state.node.log()
    if log is None:
        return json_answer(Ready(log="none", reasons=reasons))
    reasons += hub_troubles(log)
    if log.state == "failed":
        raise LogFailedError(
            "the log has failed, records of replicated and durable classes are refused",
            "; ".join([log.reason or "no reason given", *reasons]),
            "what was written is still served; mend the disk, then start the node again",
        )
    if log.state == "full":
        reasons.insert(0, f"records of replicated and durable classes are refused: {log.reason}")
    return json_answer(Ready(log=log.state, reasons=reasons))
