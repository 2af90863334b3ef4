"""Leader election of hubs: computes from the controller's view and the time the records to write and the
leader leases to grant. The protocol is in docs/protocol/control-plane.md.

Invariants: each change of leader, incarnation or members increments the term; no term is used twice. Nothing
is written for a hub whose record was not read. Without a majority nothing is written at all, and granted
leases continue.
"""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from msgspec import structs

from hubsub.config import RESERVED
from hubsub.control.cluster import voters
from hubsub.control.cluster.commits import Change, Commit, Put, packed
from hubsub.control.cluster.hub_ring import Place, assign
from hubsub.control.cluster.records import (
    EPHEMERAL,
    ClassRecord,
    HubRecord,
    Proposed,
    format_of,
    hub_key,
)
from hubsub.control.cluster.view import Claims, HubTerm, ProcessId, Stored, Tables, View

MOVES_MAX = 4
"""Maximum number of hubs that move at a time: each is silent for two round trips to the coordinator."""

LEASE_ENDED = "lead ended"


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a hub's record and its reason, for logs and the list of moves."""

    hub: int
    before: HubRecord | None
    after: HubRecord
    why: str
    """`new`, `dead`, `lead ended`, `gave up`, `started again`, `members`, `propose`, `withdraw`, `has records`."""

    @property
    def ended_term(self) -> HubTerm | None:
        """The term that this step ends, for `View.replacing` from when its commit is sent; None: it ends none."""
        is_end = self.before is not None and self.after.term != self.before.term
        return (self.hub, self.after.term - 1) if is_end else None


@dataclass(frozen=True, slots=True)
class Decision:
    """Next actions of the controller's node: tables to grant by from now on, and commits to send."""

    tables: Tables
    commits: tuple[Commit, ...] = ()
    steps: tuple[Step, ...] = ()


def decide(view: View, moves_max: int = MOVES_MAX) -> Decision:
    """Decides the next actions.

    Args:
        view: State known to the controller.
        moves_max: Hubs that move at a time; default: `MOVES_MAX`.
    """
    settled_s = voters.settled_s(view)
    tables = _tables(view, settled_s)
    changes: list[Change] = []
    steps: list[Step] = []
    if view.voters is None or voters.is_heard(view):
        change = voters.next_change(view)
        if change is not None:
            changes.append(change)
    if voters.is_heard(view):
        steps = list(_steps(view, settled_s, tables, moves_max))
        gone = voters.expected(view)
        changes += [_change(view, step, gone if step.why == LEASE_ENDED else {}) for step in steps]
    return Decision(tables, tuple(packed(changes, view.controller.revision)), tuple(steps))


def hub_name(room_class: str, index: int) -> str:
    """Key of a hub on the ring: its class and index, which never change.

    All internal classes share one key per index, so that a query and its stages are on one node.
    """
    return f"{RESERVED if room_class.startswith(RESERVED) else room_class}/{index}"


def _steps(view: View, settled_s: float, tables: Tables, moves_max: int) -> Iterator[Step]:
    candidates = view.candidates()
    # A node is ready only once it knows all hubs, so the first hubs cannot wait for ready nodes. They have no
    # rooms yet.
    first = candidates or view.heard_places()
    if first:
        yield from _created(view, _targets(view, first), {place.name for place in first})
    if not candidates:
        return
    names = {place.name for place in candidates}
    targets, fallbacks = _targets(view, view.spread_places()), _targets(view, candidates)
    moving = sum(stored.record.proposed is not None for stored in view.hubs.values())
    for hub, stored in sorted(view.hubs.items()):
        record = stored.record
        room_class, name = view.classes.get(record.room_class), hub_name(record.room_class, record.index)
        if room_class is None or name not in targets or (hub, record.term) in view.replacing:
            continue
        target, proposed = targets[name], record.proposed
        if room_class.durability != EPHEMERAL:
            may_move = moving < moves_max and target[0] in names
            is_heard = view.is_heard(view.peers.get((record.leader, record.incarnation)))
            step = _restarted(view, hub, record) or _rebalanced(
                view, hub, stored, target, names, may_move=may_move and is_heard, may_go=is_heard
            )
            if step is not None:
                moving += step.why == "propose"
                yield step
            continue
        why = _loss_reason(view, hub, record, settled_s, tables)
        if why is not None:
            members = target if target[0] in names else fallbacks[name]
            if proposed is not None and proposed.leader in names:
                members = proposed.members
            yield Step(hub, record, _next_term(view, record, members), why)
        elif proposed is not None:
            if proposed.leader not in names:
                yield Step(hub, record, structs.replace(record, proposed=None), "withdraw")
        elif target != record.members and target[0] in names and moving < moves_max:
            moving += 1
            if target[0] == record.leader:
                yield Step(hub, record, _next_term(view, record, target), "members")
            else:
                after = structs.replace(record, proposed=Proposed(leader=target[0], members=target))
                yield Step(hub, record, after, "propose")


def _targets(view: View, places: frozenset[Place]) -> Mapping[str, tuple[str, ...]]:
    """The members that each hub should have; each class is spread separately. A hub of a logged class has
    one, on a node that can keep a log."""
    keepers = frozenset(place for place in places if view.nodes[place.name].record.keeps_log)
    rows = [(name, cls.durability == EPHEMERAL, cls.hubs, cls.members) for name, cls in view.classes.items()]
    ephemeral = frozenset((name, hubs, members) for name, is_ephemeral, hubs, members in rows if is_ephemeral)
    logged = frozenset((name, hubs, 1) for name, is_ephemeral, hubs, _ in rows if not is_ephemeral)
    return _spread(places, ephemeral) | _spread(keepers, logged)


@functools.lru_cache(maxsize=16)
def _spread(places: frozenset[Place], classes: frozenset[tuple[str, int, int]]) -> dict[str, tuple[str, ...]]:
    """Cached, because most decisions change neither nodes nor classes."""
    targets: dict[str, tuple[str, ...]] = {}
    for name, hubs, members in classes:
        targets |= assign(places, [hub_name(name, index) for index in range(hubs)], members)
    return targets


def _created(view: View, targets: Mapping[str, tuple[str, ...]], names: Collection[str]) -> Iterator[Step]:
    """Creates missing hubs. Those of the founder's log keep its numbers and start once the founder can lead them."""
    there = {(stored.record.room_class, stored.record.index) for stored in view.hubs.values()}
    founder = view.founder
    taken = {} if founder is None else founder.hubs
    # Ids begin at 1: the log has no hub 0.
    last = max([*view.hubs, *(hub for hubs in taken.values() for hub in hubs)], default=0)
    members: tuple[str, ...]
    for name, room_class in sorted(view.classes.items()):
        own = taken.get(name, ())
        for index in range(room_class.hubs):
            if (name, index) not in there:
                if founder is not None and index < len(own):
                    if founder.node not in names:
                        continue
                    hub, members = own[index], (founder.node,)
                elif (target := targets.get(hub_name(name, index))) is not None:
                    hub, members = last + 1, target
                    last = hub
                else:
                    # No available node keeps a log.
                    continue
                record = HubRecord(
                    room_class=name, index=index, term=0, leader=members[0], incarnation=0, members=members
                )
                yield Step(hub, None, _next_term(view, record, members), "new")


def _restarted(view: View, hub: int, record: HubRecord) -> Step | None:
    """Returns a logged hub to its node after the node restarted."""
    stored, peer = view.nodes.get(record.leader), view.peer(record.leader)
    if stored is None or stored.record.incarnation <= record.incarnation:
        return None
    if peer is not None and peer.is_ready and view.is_heard(peer):
        return Step(hub, record, _next_term(view, record, record.members), "started again")
    return None


def _rebalanced(
    view: View,
    hub: int,
    stored: Stored[HubRecord],
    target: tuple[str, ...],
    names: Collection[str],
    *,
    may_move: bool,
    may_go: bool,
) -> Step | None:
    """Moves a logged hub without a record to its home, after its leader has sealed it.

    A move is withdrawn if the leader is not heard (`may_go` is false): it would block other moves.
    """
    record, proposed = stored.record, stored.record.proposed
    claims = view.claims.get((record.leader, record.incarnation), Claims())
    if proposed is None:
        if may_move and hub in claims.empty and target[0] != record.leader:
            after = structs.replace(record, proposed=Proposed(leader=target[0], members=target))
            return Step(hub, record, after, "propose")
    elif proposed.leader not in names:
        return Step(hub, record, structs.replace(record, proposed=None), "withdraw")
    elif claims.sealed.get(hub) == stored.revision:
        return Step(hub, record, _next_term(view, record, proposed.members), "gave up")
    elif claims.retained.get(hub) == stored.revision:
        return Step(hub, record, structs.replace(record, proposed=None), "has records")
    elif not may_go:
        return Step(hub, record, structs.replace(record, proposed=None), "withdraw")
    return None


def _next_term(view: View, record: HubRecord, members: tuple[str, ...]) -> HubRecord:
    """The next term of a hub, led by the current process of the first of `members`."""
    return structs.replace(
        record,
        term=record.term + 1,
        leader=members[0],
        incarnation=view.nodes[members[0]].record.incarnation,
        members=members,
        proposed=None,
    )


def _change(view: View, step: Step, expect: Mapping[str, int]) -> Change:
    revision = 0 if step.before is None else view.hubs[step.hub].revision
    return Change({hub_key(step.hub): revision, **expect}, (Put(hub_key(step.hub), format_of(step.after)),))


def _loss_reason(view: View, hub: int, record: HubRecord, settled_s: float, tables: Tables) -> str | None:
    """Why the leader of a hub no longer leads it; None: it may still lead."""
    process = (record.leader, record.incarnation)
    peer = view.peers.get(process)
    if peer is not None and (hub, record.term) in peer.gave_up:
        return "gave up"
    if _is_dead(view, process):
        return "dead"
    may_be_granted = any((hub, record.term) in t.get(process, ()) for t in (view.tables, tables))
    ends_s = _ends_s(view, process, settled_s)
    if not may_be_granted and view.now >= ends_s and voters.is_proved(view, ends_s):
        return LEASE_ENDED
    return None


def _is_dead(view: View, process: ProcessId) -> bool:
    """Whether a process has ended; a newer incarnation of its node proves it."""
    peer, stored = view.peers.get(process), view.nodes.get(process[0])
    return (peer is not None and peer.is_dead) or (
        stored is not None and stored.record.incarnation > process[1]
    )


def _ends_s(view: View, process: ProcessId, settled_s: float) -> float:
    """When a process's leader lease ends if it gets no new one."""
    peer = view.peers.get(process)
    if peer is None or peer.lease_until_s is None:
        return settled_s
    return max(settled_s, peer.lease_until_s + view.timing.guard_s)


def _tables(view: View, settled_s: float) -> Tables:
    """The leader leases that each process may get: the hubs of its records, unless its lease ended.

    Every registered process has a table, so that it has a lease when it gets a hub. A process that is heard
    has one lease duration to ask again before it loses its hubs.
    """
    tables: dict[ProcessId, set[HubTerm]] = {}
    keeping: set[ProcessId] = set()
    for name, stored in view.nodes.items():
        process = (name, stored.record.incarnation)
        if not _is_dead(view, process):
            tables[process] = set()
            grace_s = view.timing.lease_s if view.is_heard(view.peers.get(process)) else 0.0
            if view.now < _ends_s(view, process, settled_s) + grace_s:
                keeping.add(process)
    for hub, stored_hub in view.hubs.items():
        process = (stored_hub.record.leader, stored_hub.record.incarnation)
        if process in keeping and (hub, stored_hub.record.term) not in view.replacing:
            tables[process].add((hub, stored_hub.record.term))
    return {process: frozenset(table) for process, table in tables.items()}


def acting(record: HubRecord, room_class: ClassRecord, heard: Mapping[str, int]) -> ProcessId | None:
    """Returns the acting leader of a hub on a side of a network partition without a controller, by the
    class's `on_partition`.

    With `serve` the leader continues; if it is not heard, the first other member that is heard acts.

    Args:
        record: The hub, as the node's watch delivered it.
        room_class: Its class.
        heard: Processes that are heard on this side, including this one: incarnation by node.

    Returns:
        Node and incarnation; None: the hub has no acting leader and waits.
    """
    if room_class.on_partition != "serve" or room_class.durability != EPHEMERAL:
        return None
    if heard.get(record.leader) == record.incarnation:
        return record.leader, record.incarnation
    others = (name for name in record.members if name != record.leader and name in heard)
    return next(((name, heard[name]) for name in others), None)
