"""The voters: a controller must hear a majority of them before it replaces any leader. They change by joint
consensus (Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm, 2014, section 6).
The protocol is in docs/protocol/control-plane.md.

Invariants: a leader lease that is held relies on the voters of the record or on its `before`. A node whose
voters are older than those its leader lease was granted with does not prolong it by itself.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from math import inf
from types import MappingProxyType

from hubsub.control.cluster.commits import Change, Put
from hubsub.control.cluster.records import VOTERS, NodeRecord, VotersRecord, format_of, node_key
from hubsub.control.cluster.view import Peer, ProcessId, Stored, View

GONE_MAX = 16
"""Maximum number of dead nodes that count: each adds an expectation to a commit."""


def is_majority(voters: VotersRecord, names: Collection[str], dead: Collection[str] = ()) -> bool:
    """Whether nodes are more than half of the voters, and of the previous voters while those count.

    Args:
        voters: The voters.
        names: The nodes.
        dead: Other nodes that count among the previous voters only; default: none.
    """
    return _is_most(voters.nodes, names) and _is_most(voters.before, {*names, *dead})


def may_extend_lease(voters: VotersRecord, without_controller: Collection[str]) -> bool:
    """Whether a node that hears no controller may prolong its own leader lease, from the time before it asked
    the others.

    Args:
        voters: Voters known to it; no older than those that its lease was granted with.
        without_controller: Itself, and the nodes that answered that they hear none either.
    """
    return bool(voters.nodes) and is_majority(voters, without_controller)


def is_heard(view: View) -> bool:
    """Whether the controller hears a majority of the voters that acknowledges it."""
    dead = dead_nodes(view.nodes, view.peers)
    return view.voters is not None and is_majority(view.voters.record, _acknowledging(view), dead)


def settled_s(view: View) -> float:
    """When all leader leases that this controller did not grant have ended.

    Returns:
        Time in seconds of that clock; infinite while it hears no majority.
    """
    if view.voters is None:
        return inf
    since = _acknowledging(view)
    voters = view.voters.record
    begun_s = _majority_since(voters.nodes, since)
    if voters.before:
        begun_s = max(
            begun_s, _majority_since(voters.before, {**since, **dead_nodes(view.nodes, view.peers)})
        )
    return max(begun_s, view.elected_s) + view.timing.wait_s


def is_proved(view: View, ends_s: float) -> bool:
    """Whether one majority has acknowledged this controller term without a break for one maximum leader
    lease, up to a time.

    Then nodes have prolonged no leader lease among themselves that is held at that time: each would need a
    majority that acknowledges no controller. A write that relies on this expects the records of `expected`.

    Args:
        view: State known to the controller.
        ends_s: The time, seconds, of the clock of all times in `view`.
    """
    acknowledging = {
        name
        for name, (_, peer) in _latest(view.peers).items()
        if peer.acknowledged_s is not None
        and peer.acknowledged_s <= ends_s - view.timing.wait_s
        and peer.acknowledged_until_s is not None
        and peer.acknowledged_until_s >= ends_s
    }
    dead = {
        name
        for name, since_s in dead_nodes(view.nodes, view.peers).items()
        if since_s <= ends_s - view.timing.wait_s
    }
    return view.voters is not None and is_majority(view.voters.record, acknowledging, dead)


def dead_nodes(
    nodes: Mapping[str, Stored[NodeRecord]], peers: Mapping[ProcessId, Peer]
) -> Mapping[str, float]:
    """The registered nodes whose process is dead, with the time when that became known; at most `GONE_MAX`."""
    latest = _latest(peers)
    found = {
        name: peer.dead_s
        for name, (incarnation, peer) in sorted(latest.items())
        if name in nodes
        and nodes[name].record.incarnation == incarnation
        and peer.dead_s is not None
        # If it was heard later, it was not dead.
        and (peer.heard_s is None or peer.heard_s <= peer.dead_s)
    }
    return dict(islice(found.items(), GONE_MAX))


def expected(view: View) -> Mapping[str, int]:
    """Node records of the dead processes, key to revision: while unchanged, no new process of these names can
    have helped to prolong a lease."""
    return {node_key(name): view.nodes[name].revision for name in dead_nodes(view.nodes, view.peers)}


def next_change(view: View) -> Change | None:
    """Computes the next change of the voters towards the registered nodes.

    A node that is not registered is removed, which takes a majority of the previous voters.

    Returns:
        The change; None if there is nothing to do yet.
    """
    registered = tuple(sorted(view.nodes))
    if view.voters is None:
        return _put(VotersRecord(nodes=registered), 0) if registered else None
    voters, revision = view.voters.record, view.voters.revision
    if voters.before:
        ends_s = max(settled_s(view), view.voters_s + view.timing.wait_s)
        if view.now >= ends_s and is_proved(view, ends_s):
            return _put(VotersRecord(nodes=voters.nodes, rest=voters.rest), revision, expected(view))
    if voters.nodes == registered or not registered:
        return None
    before = voters.before or voters.nodes
    return _put(VotersRecord(nodes=registered, before=before, rest=voters.rest), revision)


def without(view: View, names: Iterable[str]) -> Change | None:
    """Removes voters that an operator knows to be gone, for a cluster that lost its majority.

    Nothing checks this: if a removed node is alive and leads hubs, it may lead them at the same time as its
    successor.
    """
    if view.voters is None:
        return None
    dead_nodes = set(names)
    voters = view.voters.record
    nodes, before = (
        tuple(n for n in counted if n not in dead_nodes) for counted in (voters.nodes, voters.before)
    )
    return _put(VotersRecord(nodes=nodes, before=before, rest=voters.rest), view.voters.revision)


def _put(voters: VotersRecord, revision: int, expect: Mapping[str, int] = MappingProxyType({})) -> Change:
    return Change({VOTERS: revision, **expect}, (Put(VOTERS, format_of(voters)),))


def _acknowledging(view: View) -> Mapping[str, float]:
    """Nodes that are heard and acknowledge this controller term, with the time since when."""
    return {
        name: peer.acknowledged_s
        for name, (_, peer) in _latest(view.peers).items()
        if peer.acknowledged_s is not None and view.is_heard(peer)
    }


def _latest(peers: Mapping[ProcessId, Peer]) -> Mapping[str, tuple[int, Peer]]:
    """By name, the incarnation and state of its latest process."""
    latest: dict[str, int] = {}
    for name, incarnation in peers:
        latest[name] = max(incarnation, latest.get(name, 0))
    return {name: (incarnation, peers[name, incarnation]) for name, incarnation in latest.items()}


def _is_most(counted: Collection[str], names: Collection[str]) -> bool:
    """Whether nodes are more than half of `counted`; true if that is empty."""
    return not counted or 2 * sum(name in names for name in counted) > len(counted)


def _majority_since(counted: Collection[str], since: Mapping[str, float]) -> float:
    times = sorted(since[name] for name in counted if name in since)
    needed = len(counted) // 2 + 1
    return times[needed - 1] if len(times) >= needed else inf
