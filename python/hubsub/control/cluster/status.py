"""State of the cluster as one node sees it, for `GET /v1/cluster` and the command line.

Invariant: the size is bounded by the coordinator's nodes and hubs; rooms are counted, never listed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hubsub.control.cluster import voters
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.membership import Membership
from hubsub.control.cluster.records import EPHEMERAL, NodeRecord
from hubsub.control.cluster.room_limits import RoomRecords
from hubsub.control.cluster.view import OBSERVERS_MIN, Peer, Stored, Timing
from hubsub.control.cluster.watch_cache import WatchCache

MOVES_SHOWN = 32

CROWDED = 0.95
"""Share of the limit of room records above which status shows a warning."""


def status_of(
    context: Context,
    known: WatchCache,
    membership: Membership,
    controller: Controller,
    *,
    cluster: str,
    warnings: Sequence[str],
    kind: str,
    waiting: int,
    room_records: RoomRecords,
) -> dict[str, Any]:
    """Nodes with their states, hubs with leaders and terms, the controller, and all problems.

    Args:
        context: Store, data plane and clock.
        known: Watch cache of the node.
        membership: Registration of the node.
        controller: Source of the node's recent steps.
        cluster: Id of the cluster.
        warnings: Configuration differences found at the start.
        kind: Scheme of the coordinator's URL.
        waiting: Rooms that lookups wait for.
        room_records: Counts and limits of room records.

    Returns:
        The body of `GET /v1/cluster`; nodes sorted by name, hubs by id.
    """
    now, timing, failed = context.clock(), context.timing, context.coordinator.failed
    peers = context.plane.peers(0)
    held = known.controller
    nodes = []
    for name, stored in sorted(known.nodes.items()):
        peer = peers.get((name, stored.record.incarnation))
        nodes.append(
            {
                "name": name,
                "state": _state(name == membership.name, stored, peer, now, timing),
                "incarnation": stored.record.incarnation,
                "since_ms": stored.record.since_ms,
                "roles": list(stored.record.roles),
                "zone": stored.record.zone,
                "capacity": stored.record.capacity,
                "version": stored.record.version,
                "addresses": dict(stored.record.addresses),
                "hubs_led": sum(hub.record.leader == name for hub in known.hubs.values()),
            }
        )
    hubs = [
        {
            "hub": hub,
            "class": stored.record.room_class,
            "index": stored.record.index,
            "term": stored.record.term,
            "leader": stored.record.leader,
            "members": list(stored.record.members),
            "proposed": None if stored.record.proposed is None else stored.record.proposed.leader,
        }
        for hub, stored in sorted(known.hubs.items())
    ]
    return {
        "cluster": cluster,
        "node": membership.name,
        "incarnation": membership.incarnation,
        "controller": None if held is None else held.record.node,
        "controller_term": None if held is None else held.record.controller_term,
        "voters": None
        if known.voters is None
        else {"nodes": list(known.voters.record.nodes), "before": list(known.voters.record.before)},
        "coordinator": {"kind": kind, "failed": failed, "heard_ago_s": _heard_ago_s(membership, now)},
        "nodes": nodes,
        "hubs": hubs,
        "classes": {name: stored.record.version for name, stored in sorted(known.classes.items())},
        "rooms_with_record": sum(room_records.counts.values()),
        "rooms_waiting": waiting,
        "moves": [
            {"hub": step.hub, "why": step.why, "leader": step.after.leader, "ago_s": round(now - at_s, 3)}
            for at_s, step in controller.steps[-MOVES_SHOWN:]
        ],
        "wrong": [
            *([f"the coordinator of this node has failed: {failed}"] if failed else []),
            *_wrong(known, membership, nodes, peers, now, timing),
            *_crowded(room_records),
            *(
                f"hub {hub} cannot be opened here: {why}"
                for hub, why in sorted(context.plane.open_errors.items())
            ),
            *warnings,
        ],
    }


def _heard_ago_s(membership: Membership, now: float) -> float | None:
    """Seconds since the coordinator certainly answered this node: since the request of its current lease.
    While the watches work, this node's state of the cluster is no older. None: no lease."""
    lease = membership.lease
    return None if lease is None else round(max(0.0, now - (lease.deadline - lease.ttl_s)), 3)


def _state(is_me: bool, stored: Stored[NodeRecord], peer: Peer | None, now: float, timing: Timing) -> str:
    if stored.record.is_draining:
        return "draining"
    if is_me:
        return "up"
    if peer is None or peer.heard_s is None:
        return "not seen"
    if peer.is_dead:
        return "dead"
    if now - peer.heard_s > timing.silence_s:
        return "silent"
    if len(peer.suspected_by) >= OBSERVERS_MIN:
        return "suspected"
    return "up" if peer.is_ready else "joining"


def _wrong(
    known: WatchCache, membership: Membership, nodes: Sequence[Any], peers: Any, now: float, timing: Timing
) -> Iterator[str]:
    lease = membership.lease
    if lease is None:
        yield "this node is not registered: the coordinator let it go; it registers again when it can"
    elif now > lease.deadline:
        yield (
            "the coordinator is away: what exists goes on, nothing is failed over, rooms without a record wait"
        )
    if known.controller is None:
        yield "no controller: nothing is failed over"
    for node in nodes:
        if node["state"] in ("not seen", "dead", "silent", "suspected"):
            yield f"node {node['name']}: {node['state']}"
    yield from _adopted(known)
    yield from _orphaned(known)
    if known.voters is not None:
        heard = {name for (name, _), p in peers.items() if p.heard_s and now - p.heard_s <= timing.silence_s}
        dead = voters.dead_nodes(known.nodes, peers)
        if not voters.is_majority(known.voters.record, heard | {membership.name}, dead):
            counted = ", ".join(known.voters.record.nodes)
            yield f"this node hears no majority of {counted}"
    for directory, why in sorted(known.refused.items()):
        yield f"the coordinator will not serve {directory or 'its root'}: {why}"
    for why in known.unreadable.values():
        yield why


def _crowded(records: RoomRecords) -> Iterator[str]:
    used, bytes_max = records.size, records.limits.bytes_max
    if used >= CROWDED * bytes_max:
        yield (
            f"the records of rooms take {used} bytes, of {bytes_max} at most (room_records_bytes_max): "
            "new rooms are refused, or soon will be"
        )


def _adopted(known: WatchCache) -> Iterator[str]:
    """Reports the founder's hubs that have no hub record yet: only the founder, which has their logs, can
    begin to lead them."""
    founder = None if known.cluster is None else known.cluster.record.founder
    if founder is None or founder.node in known.nodes:
        return
    for room_class, hubs in sorted(founder.hubs.items()):
        missing = [hub for hub in hubs if hub not in known.hubs]
        if missing:
            yield (
                f"{len(missing)} hubs of class {room_class} wait for node {founder.node}, which founded the cluster "
                "and has their records"
            )


def _orphaned(known: WatchCache) -> Iterator[str]:
    """Reports hubs whose leader is not registered. A hub without a log gets another leader as soon as the
    controller may replace it; one with a log waits for its own leader, which has it on disk."""
    if not known.ready.is_set():
        return  # Before, node records that are not read yet would look missing.
    of_nodes: dict[tuple[str, bool], Counter[str]] = {}
    for stored in known.hubs.values():
        record = stored.record
        if record.leader not in known.nodes:
            stored_class = known.classes.get(record.room_class)
            is_logged = stored_class is not None and stored_class.record.durability != EPHEMERAL
            of_nodes.setdefault((record.leader, is_logged), Counter())[record.room_class] += 1
    for (leader, is_logged), hubs in sorted(of_nodes.items()):
        classes = ", ".join(f"{room_class} ({count})" for room_class, count in sorted(hubs.items()))
        what = "has their logs: start it again" if is_logged else "is to be replaced as their leader"
        yield f"{hubs.total()} hubs wait, of node {leader}, which is not registered and {what}; classes {classes}"
