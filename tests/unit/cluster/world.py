"""A simulated cluster: a coordinator, processes with clocks of their own, and links that break; all from one
seed.

Processes do what docs/adr/0013-a-cluster.md and `view` require of nodes: they register, elect, request leader
leases, extend them among themselves while there is no controller, and give up hubs when asked to. The
controller among them runs `decide`. `World.tick` advances the time by 50 ms and checks these invariants with
the one true time:

- no hub is ever led by two processes, nor a term of it;
- a replaced process does not lead at that moment;
- every write of a controller expects the revision of `controller`.
"""

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_
from typing import TypeVar

from hubsub.control.cluster.commits import CONTROLLER, Commit
from hubsub.control.cluster.failover import Decision, decide
from hubsub.control.cluster.records import (
    VOTERS,
    ClassRecord,
    ControllerRecord,
    HubRecord,
    NodeRecord,
    Record,
    VotersRecord,
    format_of,
    hub_key,
    node_key,
    parse,
)
from hubsub.control.cluster.view import HubTerm, Peer, ProcessId, Stored, Timing, View
from hubsub.control.cluster.voters import may_extend_lease

TICK_S = 0.05
LEASE_S = 2.0
TIMING = Timing()

R = TypeVar("R", bound=Record)

Decide = Callable[[View], Decision]


class Store:
    """The coordinator's entries: key to (value, revision, owner of the lease)."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[bytes, int, Process | None]] = {}
        self.revision = 0

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, tuple[bytes, "Process | None"]]) -> bool:
        if any(self.entries.get(key, (b"", 0, None))[1] != revision for key, revision in expect.items()):
            return False
        for key, (value, owner) in puts.items():
            self.revision += 1
            self.entries[key] = (value, self.revision, owner)
        return True

    def get(self, cls: type[R], key: str) -> Stored[R] | None:
        value, revision, _ = self.entries.get(key, (b"", 0, None))
        return Stored(parse(cls, key, value), revision) if revision else None

    def controller(self) -> Stored[ControllerRecord] | None:
        return self.get(ControllerRecord, CONTROLLER)

    def hubs(self) -> Mapping[int, Stored[HubRecord]]:
        return {int(name): kept for name, kept in self.page(HubRecord, "hubs/").items()}

    def nodes(self) -> Mapping[str, Stored[NodeRecord]]:
        return self.page(NodeRecord, "nodes/")

    def voters(self) -> Stored[VotersRecord] | None:
        return self.get(VotersRecord, VOTERS)

    def page(self, cls: type[R], directory: str) -> Mapping[str, Stored[R]]:
        keys = tuple(
            (key, entry[0], entry[1]) for key, entry in self.entries.items() if key.startswith(directory)
        )
        return _page(cls, keys)


@functools.lru_cache(maxsize=64)
def _page(cls: type[R], entries: tuple[tuple[str, bytes, int], ...]) -> Mapping[str, Stored[R]]:
    return {
        key.partition("/")[2]: Stored(parse(cls, key, value), revision) for key, value, revision in entries
    }


@dataclass(eq=False)
class Process:
    """A node's process; all times are of its own clock."""

    id: ProcessId
    rate: float
    offset: float
    is_alive: bool = True
    is_draining: bool = False
    lease_s: float = 0.0
    """The earliest time at which its lease at the coordinator may end."""
    hubs: Mapping[int, Stored[HubRecord]] = field(default_factory=dict)
    nodes: Mapping[str, Stored[NodeRecord]] = field(default_factory=dict)
    voters: Stored[VotersRecord] | None = None
    # State of a leader.
    leads_until_s: float = -1.0
    covers: frozenset[HubTerm] = frozenset()
    covered_by_s: float = -1.0
    gave_up: set[HubTerm] = field(default_factory=set)
    heeds: int | None = None
    heeds_who: ProcessId | None = None
    heeds_heard_s: float = -1.0
    phase: int = 0
    votes: dict[float, set[str]] = field(default_factory=dict)
    # State of a controller.
    controller_term: Stored[ControllerRecord] | None = None
    elected_s: float = 0.0
    voters_s: float = 0.0
    peers: dict[ProcessId, Peer] = field(default_factory=dict)
    phases: dict[ProcessId, int] = field(default_factory=dict)
    stamps: dict[ProcessId, float] = field(default_factory=dict)
    """For each process, the time in its last heartbeat, by its clock; the next heartbeat to it echoes that.
    """
    tables: list[Mapping[ProcessId, frozenset[HubTerm]]] = field(default_factory=list)
    """The first one applies, the others are in flight."""
    replacing: list[set[HubTerm]] = field(default_factory=list)
    """The hub terms that each commit in flight ends."""

    def claim(self) -> frozenset[HubTerm]:
        return (
            frozenset(
                (hub, kept.record.term)
                for hub, kept in self.hubs.items()
                if (kept.record.leader, kept.record.incarnation) == self.id
            )
            - self.gave_up
        )


class World:
    """The nodes and the network between them."""

    def __init__(
        self, seed: int, nodes: int, classes: Mapping[str, ClassRecord], decide: Decide = decide
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.store = Store()
        self.classes = classes
        self.decide = decide
        self.processes: dict[str, Process] = {}
        self.cut: set[frozenset[str]] = set()
        self.away: set[str] = set()
        """Nodes that cannot reach the coordinator."""
        self.queue: list[tuple[float, Callable[[], None]]] = []
        self.incarnations = self.mandates = 0
        self.terms: dict[HubTerm, ProcessId] = {}
        self.replaced = 0
        for i in range(nodes):
            self.start(f"n{i}")

    # -- faults --

    def start(self, name: str) -> None:
        self.incarnations += 1
        rate = 1 + self.random.uniform(-0.4, 0.4) * TIMING.drift
        self.processes[name] = Process((name, self.incarnations), rate, self.random.uniform(0, 1_000))

    def kill(self, name: str) -> None:
        self.processes[name].is_alive = False

    def split(self, side: set[str], coordinator_with: set[str]) -> None:
        self.cut = {frozenset((a, b)) for a in side for b in self.processes if b not in side}
        self.away = set(self.processes) - coordinator_with

    def heal(self) -> None:
        self.cut, self.away = set(), set()

    # -- queries --

    def clock(self, process: Process) -> float:
        return process.offset + self.now * process.rate

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.is_alive]

    def leads(self, process: Process) -> frozenset[HubTerm]:
        is_lead = process.is_alive and self.clock(process) < process.leads_until_s
        return process.covers - process.gave_up if is_lead else frozenset()

    def led(self) -> dict[int, str]:
        return {hub: process.id[0] for process in self.alive() for hub, _ in self.leads(process)}

    def controller(self) -> str:
        kept = self.store.controller()
        assert kept is not None
        return kept.record.node

    # -- time --

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.tick()

    def tick(self) -> None:
        self.now += TICK_S
        due = sorted((entry for entry in self.queue if entry[0] <= self.now), key=lambda entry: entry[0])
        self.queue = [entry for entry in self.queue if entry[0] > self.now]
        for _, action in due:
            action()
        self._expire()
        for process in self.random.sample(self.alive(), len(self.alive())):
            self._turn(process)
        self.check()

    def check(self) -> None:
        seen: dict[int, ProcessId] = {}
        for process in self.alive():
            for hub, term in self.leads(process):
                assert hub not in seen, f"{self.now:.2f}: hub {hub}: {seen[hub]} and {process.id} lead"
                assert self.terms.setdefault((hub, term), process.id) == process.id, f"term {term} of {hub}"
                seen[hub] = process.id

    # -- the coordinator's side --

    def _reaches(self, process: Process) -> bool:
        return process.is_alive and process.id[0] not in self.away

    def _expire(self) -> None:
        """A lease ends some time after its deadline, never before."""
        for key, (_, _, owner) in list(self.store.entries.items()):
            if owner is None:
                continue
            if self.clock(owner) > owner.lease_s + 0.1:
                del self.store.entries[key]

    def _with_coordinator(self, process: Process) -> None:
        if not self._reaches(process) or self.random.random() < 0.3:
            return
        now = self.clock(process)
        name, incarnation = process.id
        process.lease_s = now + LEASE_S
        key = node_key(name)
        kept = self.store.nodes().get(name)
        if kept is None or (
            kept.record.incarnation == incarnation and kept.record.is_draining != process.is_draining
        ):
            record = NodeRecord(incarnation=incarnation, is_draining=process.is_draining)
            self.store.commit({key: kept.revision if kept else 0}, {key: (format_of(record), process)})
        process.hubs, process.nodes = self.store.hubs(), self.store.nodes()
        voters = self.store.voters()
        if voters != process.voters:
            process.voters, process.voters_s = voters, now
        for hub, kept_hub in process.hubs.items():
            hub_record = kept_hub.record
            if hub_record.proposed is not None and (hub_record.leader, hub_record.incarnation) == process.id:
                process.gave_up.add((hub, hub_record.term))
            process.gave_up |= {(h, t) for h, t in process.covers if h == hub and t < hub_record.term}
        held = self.store.controller()
        if held is None and kept is not None and kept.record.incarnation == incarnation:
            self.mandates += 1
            controller_term = ControllerRecord(
                node=name, incarnation=incarnation, controller_term=self.mandates
            )
            self.store.commit({CONTROLLER: 0}, {CONTROLLER: (format_of(controller_term), process)})
            process.controller_term, process.elected_s, process.voters_s = self.store.controller(), now, now
            process.tables, process.replacing = [{}], []
            process.peers = {
                id_: with_(peer, lease_until_s=None, acknowledged_s=None, acknowledged_until_s=None)
                for id_, peer in process.peers.items()
            }
            process.phases.clear()
        elif (
            process.controller_term is not None
            and held is not None
            and held.revision != process.controller_term.revision
        ):
            process.controller_term = None

    # -- the links --

    def _linked(self, a: Process, b: Process) -> bool:
        return a.is_alive and b.is_alive and frozenset((a.id[0], b.id[0])) not in self.cut

    def _send(self, a: Process, b: Process, action: Callable[[], None]) -> None:
        def arrive() -> None:
            if self._linked(a, b):
                action()

        if self.random.random() > 0.05:
            self.queue.append((self.now + self.random.uniform(0, 0.12), arrive))

    def _has_mandate(self, process: Process) -> bool:
        return process.controller_term is not None and self.clock(process) < process.lease_s

    def _turn(self, process: Process) -> None:
        self._with_coordinator(process)
        now = self.clock(process)
        if process.heeds is not None and now - process.heeds_heard_s > TIMING.silence_s:
            process.heeds = None
        for other in self.alive():
            self._beat(process, other)
        self._ask(process)
        if self._has_mandate(process) and self.random.random() < 0.6:
            self._control(process)

    def _beat(self, a: Process, b: Process) -> None:
        controller_term = (
            a.controller_term.record.controller_term
            if a.controller_term is not None and self._has_mandate(a)
            else None
        )
        heeds, phase, gave_up = a.heeds, a.phase, frozenset(a.gave_up)
        sent_s, answered_s = self.clock(a), self.clock(b) if a is b else a.stamps.get(b.id)

        def arrive() -> None:
            now = self.clock(b)
            if controller_term is not None and controller_term >= (b.heeds or 0):
                if b.heeds != controller_term:
                    b.heeds, b.heeds_who, b.phase = controller_term, a.id, b.phase + 1
                b.heeds_heard_s = now
            b.stamps[a.id] = max(sent_s, b.stamps.get(a.id, 0.0))
            peer = b.peers.get(a.id, Peer())
            until_s = peer.acknowledged_until_s
            mine = b.controller_term.record.controller_term if b.controller_term is not None else None
            acknowledged_s = None if mine is None or heeds != mine else peer.acknowledged_s
            if mine is not None and heeds == mine and (acknowledged_s is None or b.phases.get(a.id) != phase):
                b.phases[a.id], acknowledged_s, until_s = phase, now, None
            if acknowledged_s is not None and answered_s is not None and b.phases.get(a.id) == phase:
                until_s = max(answered_s, until_s or 0.0)
            b.peers[a.id] = with_(
                peer,
                heard_s=now,
                acknowledged_s=acknowledged_s,
                acknowledged_until_s=until_s,
                is_ready=True,
                gave_up=peer.gave_up | gave_up,
            )

        arrive() if a is b else self._send(a, b, arrive)

    def _ask(self, process: Process) -> None:
        asked_s = self.clock(process)
        if process.heeds is not None and process.heeds_who is not None:
            controller = self.processes[process.heeds_who[0]]
            claim = process.claim()

            def arrive() -> None:
                if controller.id != process.heeds_who or not self._has_mandate(controller):
                    return
                table = controller.tables[0].get(process.id)
                if table is None:
                    return
                peer = controller.peers.get(process.id, Peer())
                until = self.clock(controller) + TIMING.lease_s
                controller.peers[process.id] = with_(peer, lease_until_s=until)
                self._send(controller, process, lambda: granted(claim & table))

            def granted(hubs: frozenset[HubTerm]) -> None:
                if asked_s > process.covered_by_s:
                    process.gave_up |= (claim & process.covers) - hubs
                    process.covers, process.covered_by_s = hubs, asked_s
                    process.leads_until_s = max(process.leads_until_s, asked_s + TIMING.lease_s)
                    self.check()

            self._send(process, controller, arrive)
            return
        process.votes = {at: names for at, names in process.votes.items() if at > asked_s - 1} | {
            asked_s: {process.id[0]}
        }
        for other in self.alive():
            if other is not process:
                self._send(process, other, lambda other=other: self._none_either(process, other, asked_s))

    def _none_either(self, process: Process, other: Process, asked_s: float) -> None:
        if other.heeds is not None or other.controller_term is not None:
            return

        def arrive() -> None:
            names = process.votes.get(asked_s, set())
            names.add(other.id[0])
            holds = self.clock(process) < process.leads_until_s and process.heeds is None
            if holds and process.voters is not None and may_extend_lease(process.voters.record, names):
                process.leads_until_s = max(process.leads_until_s, asked_s + TIMING.lease_s)
                self.check()

        self._send(other, process, arrive)

    # -- the controller --

    def _control(self, c: Process) -> None:
        assert c.controller_term is not None
        now = self.clock(c)
        for id_, peer in list(c.peers.items()):
            process = self.processes[id_[0]]
            is_reachable = frozenset((c.id[0], id_[0])) not in self.cut
            if is_reachable and (process.id != id_ or not process.is_alive) and not peer.is_dead:
                c.peers[id_] = with_(peer, dead_s=now)
        view = View(
            controller=c.controller_term,
            now=now,
            timing=TIMING,
            elected_s=c.elected_s,
            nodes=c.nodes,
            classes=self.classes,
            hubs=c.hubs,
            voters=c.voters,
            voters_s=c.voters_s,
            peers=dict(c.peers),
            tables={id_: frozenset().union(*(t.get(id_, ()) for t in c.tables)) for id_ in c.peers},
            replacing=frozenset().union(*c.replacing),
        )
        decision = self.decide(view)
        tables = c.tables
        tables.append(decision.tables)
        self.queue.append((self.now + 0.07, lambda: tables.__delitem__(0)))
        ends = {hub_key(step.hub): step.ended_term for step in decision.steps if step.ended_term is not None}
        for commit in decision.commits:
            assert commit.expect[CONTROLLER] == c.controller_term.revision
            self._commit(c, commit, {ends[write.key] for write in commit.writes if write.key in ends})

    def _commit(self, c: Process, commit: Commit, ends: set[HubTerm]) -> None:
        replacing = c.replacing
        replacing.append(ends)

        def arrive() -> None:
            if not self._reaches(c):
                # The outcome is unknown, so the commit is tried again.
                if c.is_alive and c.controller_term is not None:
                    self.queue.append((self.now + 0.1, arrive))
                return
            before = self.store.hubs()
            puts: dict[str, tuple[bytes, Process | None]] = {}
            for write in commit.writes:
                puts[write.key] = (write.value, None)
            if self.store.commit(commit.expect, puts):
                self._check_replaced(before)
            c.hubs = self.store.hubs()
            replacing.remove(ends)

        self.queue.append((self.now + self.random.uniform(0, 0.15), arrive))

    def _check_replaced(self, before: Mapping[int, Stored[HubRecord]]) -> None:
        for hub, kept in self.store.hubs().items():
            old = before[hub].record if hub in before else None
            if old is None or old == kept.record:
                continue
            assert kept.record.term - old.term in (0, 1)
            if (old.leader, old.incarnation) == (kept.record.leader, kept.record.incarnation):
                continue
            assert kept.record.term == old.term + 1
            self.replaced += 1
            process = self.processes[old.leader]
            if process.id == (old.leader, old.incarnation):
                assert (hub, old.term) not in self.leads(process), (
                    f"{self.now:.2f}: {process.id} led hub {hub}"
                )
