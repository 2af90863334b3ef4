"""The cluster as this node sees it."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.cluster_schema import ClusterInfo, Link, PeerLinks
from hubsub.api.state import State
from hubsub.errors import NoClusterError


async def show(state: State, request: Request) -> Response:
    """Raises `NoClusterError` on a node alone."""
    if state.cluster is None:
        raise NoClusterError(hint="GET /v1/nodes tells of this node")
    return json_answer(msgspec.convert(state.cluster.status(), ClusterInfo))


def links(state: State) -> list[PeerLinks]:
    """Those of this node, by peer."""
    return [
        PeerLinks(
            node=peer["node"],
            incarnation=peer["incarnation"],
            links=[
                Link(
                    state=link["state"],
                    reason=link["text"],
                    heard_ms=None if link["heard_ms"] is None else round(link["heard_ms"], 3),
                    round_trip_us=link["round_trip_us"],
                )
                for link in peer["links"]
            ],
        )
        for peer in state.node.link_peers()
    ]
