"""The cluster as this node sees it, and the addresses that this node reaches."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.cluster_schema import ClusterInfo, Link, PeerLinks, ReachedAddress, ReachedAddresses
from hubsub.api.reach import AtNode
from hubsub.api.routes import NODE, Routes
from hubsub.api.state import State
from hubsub.config import split_address
from hubsub.errors import NoClusterError

REACH_S = 2.0
"""Time limit for one connection attempt, in seconds."""
AT_ONCE = 32
"""Addresses tried at once: so all of the largest cluster take less time than a node waits for another's reply."""

routes = Routes()


@routes(
    "GET",
    "/v1/cluster",
    "The cluster as this node sees it",
    (NODE,),
    answer=(ClusterInfo,),
    errors=("no_cluster",),
    reach=AtNode(),
)
async def show(state: State, request: Request) -> Response:
    """Raises `NoClusterError` on a single node."""
    return json_answer(_seen(state))


@routes(
    "GET",
    "/v1/cluster/reached",
    "Which addresses of the other nodes a node reaches",
    (NODE,),
    answer=(ReachedAddresses,),
    errors=("no_cluster",),
    reach=AtNode(),
)
async def reached(state: State, request: Request) -> Response:
    """Tries to connect to each address that the other nodes advertise. Links are not tried: `/v1/nodes`
    reports their state.

    Raises:
        NoClusterError: on a single node.
    """
    seen, slots = _seen(state), asyncio.Semaphore(AT_ONCE)

    async def tried(node: str, listener: str, address: str) -> ReachedAddress:
        async with slots:
            problem = await _problem(address)
        return ReachedAddress(node=node, listener=listener, address=address, problem=problem)

    addresses = await asyncio.gather(
        *(
            tried(member.name, listener, address)
            for member in seen.nodes
            if member.name != seen.node
            for listener, address in sorted(member.addresses.items())
            if listener != "link"
        )
    )
    return json_answer(ReachedAddresses(node=seen.node, addresses=list(addresses)))


def _seen(state: State) -> ClusterInfo:
    if state.cluster is None:
        raise NoClusterError(hint="GET /v1/nodes tells of this node")
    return msgspec.convert(state.cluster.status(), ClusterInfo)


async def _problem(address: str) -> str | None:
    """Why the connection failed; None when it succeeded."""
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(*split_address(address))
    except TimeoutError:
        return f"no answer in {REACH_S:g} s"
    except ConnectionRefusedError:
        return "nobody listens"
    except (OSError, UnicodeError) as error:
        return str(error)
    writer.close()
    return None


def links(state: State) -> list[PeerLinks]:
    """Links of this node, grouped by peer."""
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
            clock_offset_us=best["offset_us"],
            clock_error_us=best["offset_error_us"],
        )
        for peer in state.node.link_peers()
        for best in [best_clock(peer["links"])]
    ]


def best_clock(links: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The link to a peer with the smallest clock error; any link if no clock offset is known."""
    return min(links, key=lambda link: (link["offset_error_us"] is None, link["offset_error_us"] or 0))
