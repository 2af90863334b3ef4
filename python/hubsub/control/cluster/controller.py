"""The controller of a cluster: its election, and its work while it is elected.
The protocol is in docs/protocol/control-plane.md.

Invariants: nothing is granted or committed within `STOP_S` of the lease's deadline. A controller term ends
with its lease, with another node's revision of `controller`, or by handover; granting stops before that.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

import structlog

from hubsub.control.cluster import voters
from hubsub.control.cluster.commits import CONTROLLER
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller_writes import BackOff, ControllerWrites
from hubsub.control.cluster.failover import MOVES_MAX, Decision, Step, decide
from hubsub.control.cluster.initial_state import InitialState, read
from hubsub.control.cluster.membership import Membership
from hubsub.control.cluster.records import (
    CONTROLLER_TERM,
    ControllerRecord,
    ControllerTermRecord,
    format_of,
    parse,
)
from hubsub.control.cluster.step_log import StepLog
from hubsub.control.cluster.view import Claims, Peer, ProcessId, Stored, Tables, View
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination import Delete, Lease, Put
from hubsub.coordination.tasks import end, wait_set
from hubsub.errors import (
    CoordinatorError,
    ExpectationError,
    RecordDamagedError,
    RecordFormatError,
)

TURN_S: Final = 0.1
"""Interval between turns without events: leader leases end by time, and the plane must learn of renewed leases."""

PAUSE_S: Final = 0.01
"""Minimum interval between turns."""

STOP_S: Final = 0.2
"""A controller stops granting and committing this long before its lease ends: a turn that began is over by then."""

LATE_S: Final = 0.5
"""Extra delay of the candidacy of a node that hears no majority."""

FRESH_LEASES: Final = 2
"""Time, in leader leases, for which a newly elected controller may go unacknowledged: it has to read its
initial state first."""

ALONE_S: Final = 3.0
"""A controller that has heard no majority for this long hands over, if the other nodes are registered."""

ALONE_S_MAX: Final = 60.0
"""After that handover it is no candidate for `ALONE_S`, doubled up to this each time that no other node was elected."""

MOVES_RETAINED: Final = 1_024
"""Latest leader changes, and steps towards them, that are retained for `Controller.steps`."""

Peers = Mapping[ProcessId, Peer]

log = structlog.get_logger("hubsub.cluster")


@dataclass(slots=True)
class ControllerTerm:
    """State of this node while it is the controller: one controller term."""

    stored: Stored[ControllerRecord]
    lease: Lease
    elected_s: float
    writes: ControllerWrites
    tables: Tables = field(default_factory=dict)
    """The leader leases that may be granted, by process."""
    voters: int = -1
    """Revision of the voters that grants name; -1: none yet."""
    voters_s: float = 0.0
    alone_since_s: float | None = None
    """Since when it has heard no majority; None: it hears one."""
    confirmed_s: float = 0.0
    """When the coordinator last confirmed the term; 0: not yet."""
    confirming: asyncio.Task[None] | None = None
    initial: "InitialState | None" = None
    """State read from the store after the election; None: not read yet."""


class Controller:
    """Runs for election, and takes the turns of the controller while elected.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache; call `wake` when it changed.
        membership: Owner of the lease that a controller term depends on.
        is_candidate: Whether this node may be the controller.
        moves_max: Hubs that are moved at a time; default: `MOVES_MAX`.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        membership: Membership,
        *,
        is_candidate: bool,
        moves_max: int = MOVES_MAX,
    ) -> None:
        self._ctx = context
        self.claims: dict[ProcessId, Claims] = {}
        """Latest claims about logged hubs, by process."""
        self.steps: list[tuple[float, Step]] = []
        """Latest decided steps with their times, at most `MOVES_RETAINED`."""
        self._cache = cache
        self._membership = membership
        self._is_candidate = is_candidate
        self._moves_max = moves_max
        self._term: ControllerTerm | None = None
        self._elections: dict[int, Lease] = {}
        """Controller term to lease, of elections that are not known to have failed."""
        self._vacant_s: float | None = None
        """Since when there is no controller; None: there is one."""
        self._seen = (0, 0.0)
        """Revision of `controller`, and when it was first seen."""
        self._rests_until_s = 0.0
        self._rest_s = ALONE_S
        self._back_off = BackOff(context.clock)
        self._step_log = StepLog(context.clock)
        self._wake = asyncio.Event()
        self._turning = asyncio.Lock()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(context.ended)

    @property
    def me(self) -> ProcessId:
        return self._membership.name, self._membership.incarnation

    @property
    def revision(self) -> int | None:
        """Revision of `controller` that each write expects; None: this node is not the controller, or cannot act."""
        term = self._term
        if term is None or term.initial is None or not self._may_act(term):
            return None
        return term.stored.revision if term.initial.is_delivered(self._cache) else None

    def wake(self) -> None:
        """Runs a turn soon, because inputs changed."""
        self._wake.set()

    def view(self) -> View | None:
        """All that this node knows as the controller; None: it is not the controller."""
        term = self._term
        if term is None:
            return None
        known = self._cache
        return View(
            controller=term.stored,
            now=self._ctx.clock(),
            timing=self._ctx.timing,
            elected_s=term.elected_s,
            nodes=dict(known.nodes),
            classes={name: stored.record for name, stored in known.classes.items()},
            hubs=dict(known.hubs),
            founder=None if known.cluster is None else known.cluster.record.founder,
            voters=known.voters,
            # New voters apply to grants from the next tables on.
            voters_s=term.voters_s if term.voters == known.voters_revision else inf,
            peers=self._ctx.plane.peers(term.stored.record.controller_term),
            tables=term.tables,
            claims=dict(self.claims),
            replacing=frozenset(term.writes.replacing),
        )

    async def stop(self) -> None:
        """Stops taking turns. Hands over, if this node is the controller, so that no node has to wait for its lease."""
        await end(self._task)
        async with self._turning:
            await self._hand_over("the node stops")

    # -- time --

    async def _run(self) -> None:
        await self._cache.ready.wait()
        while True:
            async with self._turning:
                self._wake.clear()
                try:
                    await self._turn()
                except (CoordinatorError, RecordFormatError, RecordDamagedError) as error:
                    self._back_off.fail(error)
            await asyncio.sleep(PAUSE_S)
            await wait_set(self._wake, TURN_S)

    async def _turn(self) -> None:
        if self._term is not None:
            await self._check()
        if self._term is None:
            await self._run_for_election()
        if self._term is not None and self._may_act(self._term):
            await self._control(self._term)
            self._step_log.flush()

    # -- being elected --

    async def _run_for_election(self) -> None:
        now, lease, held = self._ctx.clock(), self._membership.lease, self._cache.controller
        if held is not None and self._is_own_election(held.record, lease):
            assert lease is not None
            self._begin(held, lease)
            return
        if held is not None and (held.record.node, held.record.incarnation) == self.me:
            # The handover was not written: no other node can be elected until it is.
            if now >= self._back_off.until_s:
                await self._ctx.coordinator.commit({CONTROLLER: held.revision}, [Delete(CONTROLLER)])
            return
        peers = self._ctx.plane.peers(0)
        if held is not None and self._seen[0] != held.revision:
            self._seen = held.revision, now
        if held is not None and not self._has_ended(held.record, peers) and not self._is_deserted(now):
            self._vacant_s, self._rest_s = None, ALONE_S
            self._back_off.reset()
            return
        if self._vacant_s is None:
            self._vacant_s = now
        if (
            lease is None
            or now >= lease.deadline - STOP_S
            or now < max(self._back_off.until_s, self._rests_until_s)
        ):
            return
        if (
            not self._is_candidate
            or self._ctx.coordinator.failed is not None
            or self._membership.is_draining
            or self._cache.is_blind
            or not self._is_registered()
        ):
            return
        if self._hears_majority(peers, now) or now >= self._vacant_s + LATE_S:
            await self._elect(lease, held)

    async def _elect(self, lease: Lease, held: Stored[ControllerRecord] | None) -> None:
        last = await self._ctx.coordinator.get(CONTROLLER_TERM)
        number = 1 + (0 if last is None else parse(ControllerTermRecord, CONTROLLER_TERM, last.value).last)
        record = ControllerRecord(node=self.me[0], incarnation=self.me[1], controller_term=number)
        expect = {
            CONTROLLER: 0 if held is None else held.revision,
            CONTROLLER_TERM: 0 if last is None else last.revision,
        }
        writes = [
            Put(CONTROLLER, format_of(record), lease),
            Put(CONTROLLER_TERM, format_of(ControllerTermRecord(last=number))),
        ]
        # If the outcome stays unknown, the watch shows it; a later attempt expects that this one was not
        # applied.
        self._elections[number] = lease
        try:
            made = await self._ctx.coordinator.commit(expect, writes)
        except ExpectationError:
            return
        self._begin(Stored(record, made[CONTROLLER]), lease)

    def _begin(self, stored: Stored[ControllerRecord], lease: Lease) -> None:
        self._elections.clear()
        self._vacant_s = None
        self._back_off.reset()
        writes = ControllerWrites(self._ctx, self._cache, self._back_off, self.wake)
        self._term = ControllerTerm(stored=stored, lease=lease, elected_s=self._ctx.clock(), writes=writes)
        log.info("elected controller", node=self.me[0], controller_term=stored.record.controller_term)

    def _is_own_election(self, record: ControllerRecord, lease: Lease | None) -> bool:
        return (
            lease is not None
            and self._elections.get(record.controller_term) is lease
            and (record.node, record.incarnation) == self.me
        )

    def _has_ended(self, record: ControllerRecord, peers: Peers) -> bool:
        """Whether the controller's process is proved to have ended."""
        peer, registered = peers.get((record.node, record.incarnation)), self._cache.nodes.get(record.node)
        is_followed = registered is not None and registered.record.incarnation > record.incarnation
        return is_followed or (peer is not None and peer.is_dead)

    def _is_deserted(self, now: float) -> bool:
        """Whether a majority that includes this node acknowledges no controller, although one is elected and
        had time to begin."""
        alone_s = self._ctx.plane.alone_s()
        is_fresh = now < self._seen[1] + FRESH_LEASES * self._ctx.timing.lease_s
        return not is_fresh and alone_s is not None and now - alone_s <= self._ctx.timing.silence_s

    def _heard(self, peers: Peers, now: float) -> set[str]:
        """Nodes heard recently, including this one."""
        return {self.me[0]} | {
            name
            for (name, _), peer in peers.items()
            if peer.heard_s is not None
            and not peer.is_dead
            and now - peer.heard_s <= self._ctx.timing.silence_s
        }

    def _hears_majority(self, peers: Peers, now: float) -> bool:
        known = self._cache.voters
        dead = voters.dead_nodes(self._cache.nodes, peers)
        return known is None or voters.is_majority(known.record, self._heard(peers, now), dead)

    def _is_registered(self) -> bool:
        stored = self._cache.nodes.get(self.me[0])
        return stored is not None and stored.record.incarnation == self.me[1]

    # -- ceasing --

    async def _check(self) -> None:
        """Ends the controller term if it is over or must be handed over."""
        term, held = self._term, self._cache.controller
        assert term is not None
        is_other = held is not None and held.revision > term.stored.revision
        if is_other or term.writes.is_over or term.lease is not self._membership.lease:
            await self._end("another one is elected" if is_other else "the lease is lost")
            return
        if not self._may_act(term):
            return
        if self._ctx.coordinator.failed is not None:
            await self._end("the coordinator of this node has failed")
        elif self._membership.is_draining:
            await self._hand_over("the node drains")
        elif self._is_alone(term):
            self._rests_until_s = self._ctx.clock() + self._rest_s
            self._rest_s = min(2 * self._rest_s, ALONE_S_MAX)
            await self._hand_over("others are registered, and it does not hear a majority")

    async def _end(self, why: str) -> None:
        term, self._term = self._term, None
        assert term is not None
        if term.confirming is not None:
            term.confirming.cancel()
        self._step_log.flush(is_end=True)
        log.info(
            "controller no more", node=self.me[0], controller_term=term.stored.record.controller_term, why=why
        )
        await term.writes.end()
        await self._ctx.plane.grants(
            term.stored.record.controller_term, self._ctx.clock(), 0.0, {}, term.voters
        )

    async def _hand_over(self, why: str) -> None:
        term = self._term
        if term is None:
            return
        await self._end(why)
        try:
            await self._ctx.coordinator.commit({CONTROLLER: term.stored.revision}, [Delete(CONTROLLER)])
        except CoordinatorError as error:
            log.info("handing over was not written; the lease ends it", reason=error.message)

    def _may_act(self, term: ControllerTerm) -> bool:
        return term.lease.held and self._ctx.clock() < term.lease.deadline - STOP_S

    def _is_alone(self, term: ControllerTerm) -> bool:
        """Whether this node has heard no majority for `ALONE_S` although the registered nodes that it does
        not hear are one."""
        now, known = self._ctx.clock(), self._cache.voters
        peers = self._ctx.plane.peers(term.stored.record.controller_term)
        heard = self._heard(peers, now)
        others = self._cache.nodes.keys() - heard
        if (
            known is None
            or voters.is_majority(known.record, heard, voters.dead_nodes(self._cache.nodes, peers))
            or not voters.is_majority(known.record, others)
        ):
            term.alone_since_s = None
            return False
        if term.alone_since_s is None:
            term.alone_since_s = now
        return now - term.alone_since_s >= ALONE_S

    # -- a turn --

    async def _control(self, term: ControllerTerm) -> None:
        if not term.confirmed_s:
            await self._confirm(term)
        self._confirm_if_due(term)
        if term.initial is None or term.initial.is_late(self._ctx.clock()):
            term.initial = await read(self._ctx.coordinator, self._cache, self._ctx.clock())
        if not term.confirmed_s or not term.initial.is_delivered(self._cache):
            return
        await term.writes.check_delivered()
        view = self.view()
        assert view is not None
        decision = decide(view, self._moves_max)
        await self._grant(term, decision)
        if self._term is not term or not self._may_act(term):
            return
        if decision.tables != view.tables:
            self.wake()
        has_to_wait = (
            term.writes.must_wait or self._ctx.clock() < self._back_off.until_s or self._cache.is_blind
        )
        if decision.commits and not has_to_wait:
            self._record_steps(decision.steps)
            term.writes.send(decision)

    def _confirm_if_due(self, term: ControllerTerm) -> None:
        """Asks the coordinator to confirm the term where no majority does, in a task, so that turns continue."""
        confirmed_s = max(term.confirmed_s, self._ctx.plane.confirmed_s(term.stored.record.controller_term))
        is_due = self._ctx.clock() >= confirmed_s + self._ctx.timing.lease_s / 3
        if is_due and (term.confirming is None or term.confirming.done()):
            term.confirming = asyncio.create_task(self._confirm_in_time(term))
            term.confirming.add_done_callback(self._ctx.ended)

    async def _confirm_in_time(self, term: ControllerTerm) -> None:
        with suppress(CoordinatorError, TimeoutError):
            async with asyncio.timeout(self._ctx.timing.lease_s):
                await self._confirm(term)
        self.wake()

    async def _confirm(self, term: ControllerTerm) -> None:
        """Asks the coordinator whether it still holds the term; if not, the watch will report that."""
        asked_s = self._ctx.clock()
        if await self._ctx.coordinator.holds(CONTROLLER, term.stored.revision):
            term.confirmed_s = asked_s

    async def _grant(self, term: ControllerTerm, decision: Decision) -> None:
        """Passes the tables to the plane; until that returns, the previous tables may be granted too."""
        revision = self._cache.voters_revision
        both = {
            id_: term.tables.get(id_, frozenset()) | decision.tables.get(id_, frozenset())
            for id_ in term.tables.keys() | decision.tables.keys()
        }
        term.tables = both
        until_s = term.lease.deadline - STOP_S
        await self._ctx.plane.grants(
            term.stored.record.controller_term, until_s, term.confirmed_s, decision.tables, revision
        )
        term.tables = decision.tables
        if revision != term.voters:
            term.voters, term.voters_s = revision, self._ctx.clock()

    def _record_steps(self, steps: Sequence[Step]) -> None:
        self.steps += [(self._ctx.clock(), step) for step in steps]
        del self.steps[:-MOVES_RETAINED]
        self._step_log.add(steps)
