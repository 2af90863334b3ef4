"""Current activity of a node, polled each second by the console and `hubsub top`."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.cluster import links
from hubsub.api.cluster_schema import PeerLinks
from hubsub.api.console.schema import NodeNow, NodesNow, PeerNow
from hubsub.api.hubs import hub_troubles
from hubsub.api.reach import Gathered
from hubsub.api.routes import Routes
from hubsub.api.schema import BusyRoom
from hubsub.api.state import State
from hubsub.control.resource_usage import cpu_s, resident_bytes
from hubsub.names import text_of
from hubsub.version import VERSION

COUNTED = (
    "connections mqtt_connections mqtt_sessions rooms rooms_logged output_bytes mailbox_bytes published_total "
    "delivered_total bytes_in_total bytes_out_total dropped_total gap_records_total slow_closed_total "
    "socket_ns_total routing_ns_total"
).split()
"""Shard metrics that are summed over the shards."""

BUSIEST = 20
"""Number of busiest rooms reported per node."""

routes = Routes("console")


def merged(state: State, request: Request, parts: Sequence[NodesNow]) -> NodesNow:
    """Merges the lists of all nodes into one, sorted by node name."""
    return NodesNow(nodes=sorted((node for part in parts for node in part.nodes), key=lambda node: node.name))


@routes(
    "GET",
    "/v1/console/now",
    "What all nodes are and have done since their start",
    answer=(NodesNow,),
    reach=Gathered(NodesNow, merged),
)
async def show_now(state: State, request: Request) -> Response:
    return json_answer(NodesNow(nodes=[await now(state, request)]))


async def now(state: State, request: Request) -> NodeNow:
    node, cluster = state.node, state.cluster
    shards = node.metrics()["shards"]
    busiest = await node.busiest_rooms(BUSIEST)
    return NodeNow(
        name=node.name,
        incarnation=node.incarnation,
        uptime_s=round(node.uptime_s, 3),
        version=VERSION,
        role=list(state.config.role),
        zone=state.config.zone,
        state="draining" if state.stopping or (cluster is not None and cluster.is_draining) else "up",
        http=state.node_ref(request).http,
        hubs_led=None if cluster is None else cluster.hubs_led,
        shards=node.shards,
        reasons=_reasons(state),
        cpu_s=cpu_s(),
        resident_bytes=resident_bytes(),
        counts={name: sum(shard[name] for shard in shards) for name in COUNTED},
        peers=[_peer(peer) for peer in links(state)],
        busiest=[BusyRoom(name=text_of(r.name), messages_per_second=r.messages) for r in busiest],
    )


def _peer(peer: PeerLinks) -> PeerNow:
    heard = [link.heard_ms for link in peer.links if link.heard_ms is not None]
    trips = [link.round_trip_us for link in peer.links if link.round_trip_us is not None]
    ended = (link.reason for link in peer.links if link.state != "up" and link.reason)
    return PeerNow(
        node=peer.node,
        links=len(peer.links),
        up=sum(link.state == "up" for link in peer.links),
        round_trip_us=min(trips, default=None),
        heard_ms=max(heard, default=None),
        reason=next(ended, None),
    )


def _reasons(state: State) -> list[str]:
    """Problems of this node's log and of its coordinator member."""
    found = []
    if state.cluster is not None and state.cluster.coordinator_failed is not None:
        found.append(f"its part of the coordinator has failed: {state.cluster.coordinator_failed}")
    log = state.node.log()
    if log is not None:
        if log.state != "open":
            found.append(f"its log is {log.state}: {log.reason or 'no reason given'}")
        found += hub_troubles(log)
    return found
