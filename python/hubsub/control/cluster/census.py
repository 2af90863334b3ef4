"""Whom a controller must hear before it replaces anybody.

A node that hears no controller may go on leading while it hears a majority that has none either: nobody can have been
elected then who replaces it. That holds only if its majority and the controller's have a node in common, so both
count the same set, and it must not shrink when nodes fall silent: *registered* nodes lapse with their leases, and what
is left on the coordinator's side of a split would be its own majority. So the set is a record, `meta/census`, and
changes like the members of a Raft cluster do, by joint consensus (Ongaro, Ousterhout: In Search of an Understandable
Consensus Algorithm, 2014, section 6): while the record has a `before`, both sets count, on both sides.

For the same reason a mandate is not enough. A leader's majority may have told it, just before they heard of
the new controller, that they have none. So a new controller waits out one lead from when a majority heeds it, not from
its election: `settled_s`. And that a majority was heard of late does not say that it heeds now: what is over by time
alone needs a majority that is known, by round trips, to have heeded until then: `is_proved`.

While it changes, who comes and goes changes the record again, beside the same `before`: each of these needs a majority
of that one, so any two of them have a node in common.

**The dead** help nobody to prolong. So in `before` a process that is proved dead counts with those that heed, from when
that was known: else a founder that dies while its first nodes are counted would take failover with it. It counts as
long as its own record stands. The next process of its name has no link before it has replaced that record, and what is
written because of the dead expects the record as it was. Of the census that comes a majority has to live.

Invariants: a lead that is held stands on the census of the record or on its `before`. A node whose knowledge of the
census is older than the one its lead was granted with does not prolong it by itself.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from math import inf
from types import MappingProxyType

from hubsub.control.cluster.commits import Change, Put
from hubsub.control.cluster.records import CENSUS, CensusRecord, NodeRecord, format_of, node_key
from hubsub.control.cluster.view import Kept, Peer, ProcessId, Timing, View

GONE_MAX = 16
"""So many dead nodes are counted at most: each is an expectation of a commit."""


def is_majority(census: CensusRecord, names: Collection[str], dead: Collection[str] = ()) -> bool:
    """Whether nodes are more than half of the census, and of the one before as long as that counts.

    Args:
        census: It.
        names: The nodes.
        dead: Others that count in the one before.
    """
    return _is_most(census.nodes, names) and _is_most(census.before, {*names, *dead})


def keeps_lead(census: CensusRecord, without_controller: Collection[str]) -> bool:
    """Whether a node that hears no controller may prolong its own lead, from the time before it asked them.

    Args:
        census: As it knows it; no older than the one that its lead was granted with.
        without_controller: Itself, and the nodes that answered that they hear none either.
    """
    return bool(census.nodes) and is_majority(census, without_controller)


def is_heard(view: View, now: float, timing: Timing) -> bool:
    """Whether the controller hears a majority."""
    dead = gone(view.nodes, view.peers)
    return view.census is not None and is_majority(view.census.record, _heeding(view, now, timing), dead)


def settled_s(view: View, now: float, timing: Timing) -> float:
    """From when on no lead is held that this controller did not grant; infinite while it hears no majority."""
    if view.census is None:
        return inf
    since = _heeding(view, now, timing)
    census = view.census.record
    begun_s = _majority_since(census.nodes, since)
    if census.before:
        begun_s = max(begun_s, _majority_since(census.before, {**since, **gone(view.nodes, view.peers)}))
    return max(begun_s, view.elected_s) + timing.wait_s


def is_proved(view: View, ends_s: float, timing: Timing) -> bool:
    """Whether one majority has heeded this mandate without a break for one longest lead, up to a time.

    Then no lead is held at that time that nodes prolonged among themselves: each took a majority that heeds nobody.
    What is written because of it expects `expected`.
    """
    heeded = {
        name
        for name, (_, peer) in _latest(view.peers).items()
        if peer.heeds_s is not None
        and peer.heeds_s <= ends_s - timing.wait_s
        and peer.heeds_until_s is not None
        and peer.heeds_until_s >= ends_s
    }
    dead = {
        name for name, since_s in gone(view.nodes, view.peers).items() if since_s <= ends_s - timing.wait_s
    }
    return view.census is not None and is_majority(view.census.record, heeded, dead)


def gone(nodes: Mapping[str, Kept[NodeRecord]], peers: Mapping[ProcessId, Peer]) -> Mapping[str, float]:
    """The registered nodes whose process is dead, and since when that is known: `GONE_MAX` of them at most."""
    latest = _latest(peers)
    found = {
        name: peer.dead_s
        for name, (incarnation, peer) in sorted(latest.items())
        if name in nodes
        and nodes[name].record.incarnation == incarnation
        and peer.dead_s is not None
        # Or it was not dead.
        and (peer.heard_s is None or peer.heard_s <= peer.dead_s)
    }
    return dict(islice(found.items(), GONE_MAX))


def expected(view: View) -> Mapping[str, int]:
    """The records that say in whose names nobody else can have helped to prolong: keys and revisions."""
    return {node_key(name): view.nodes[name].revision for name in gone(view.nodes, view.peers)}


def changed(view: View, now: float, timing: Timing) -> Change | None:
    """The next step of the census towards the nodes that are there; none if there is nothing to do yet.

    Who is not registered is in it no more; that takes a majority of those who were.
    """
    registered = tuple(sorted(view.nodes))
    if view.census is None:
        return _put(CensusRecord(nodes=registered), 0) if registered else None
    census, revision = view.census.record, view.census.revision
    if census.before:
        ends_s = max(settled_s(view, now, timing), view.census_s + timing.wait_s)
        if now >= ends_s and is_proved(view, ends_s, timing):
            return _put(CensusRecord(nodes=census.nodes, rest=census.rest), revision, expected(view))
    if census.nodes == registered or not registered:
        return None
    before = census.before or census.nodes
    return _put(CensusRecord(nodes=registered, before=before, rest=census.rest), revision)


def without(view: View, names: Iterable[str]) -> Change | None:
    """The census without nodes that an operator knows to be gone: what a cluster that lost its majority needs.

    Nothing checks it: a leader that lives on among them may lead beside its successor.
    """
    if view.census is None:
        return None
    gone = set(names)
    census = view.census.record
    nodes, before = (tuple(n for n in counted if n not in gone) for counted in (census.nodes, census.before))
    return _put(CensusRecord(nodes=nodes, before=before, rest=census.rest), view.census.revision)


def _put(census: CensusRecord, revision: int, expect: Mapping[str, int] = MappingProxyType({})) -> Change:
    return Change({CENSUS: revision, **expect}, (Put(CENSUS, format_of(census)),))


def _heeding(view: View, now: float, timing: Timing) -> Mapping[str, float]:
    """The nodes that are heard and heed this mandate, and since when."""
    return {
        name: peer.heeds_s
        for name, (_, peer) in _latest(view.peers).items()
        if peer.heeds_s is not None and view.is_heard(peer, now, timing)
    }


def _latest(peers: Mapping[ProcessId, Peer]) -> Mapping[str, tuple[int, Peer]]:
    """A name stands for its latest process: its incarnation, and what is known of it."""
    latest: dict[str, int] = {}
    for name, incarnation in peers:
        latest[name] = max(incarnation, latest.get(name, 0))
    return {name: (incarnation, peers[name, incarnation]) for name, incarnation in latest.items()}


def _is_most(counted: Collection[str], names: Collection[str]) -> bool:
    """Whether nodes are more than half of those that count; of nobody nothing is asked."""
    return not counted or 2 * sum(name in names for name in counted) > len(counted)


def _majority_since(counted: Collection[str], since: Mapping[str, float]) -> float:
    times = sorted(since[name] for name in counted if name in since)
    needed = len(counted) // 2 + 1
    return times[needed - 1] if len(times) >= needed else inf
