"""The controller of a cluster: who it is, and what it does as long as it is.

Every node that holds hubs *stands*: when there is no controller, or the one there is proved dead, it writes
`controller` under its own lease, and the first that does is elected, with the next mandate number. The controller then
takes turns: it gathers what it knows, decides (`leads.decide`), gives the tables to its data plane, and only then asks
for the commits (`writes`). While commits are under way, turns go on granting and decide nothing new.

**Who stands.** A controller needs a majority of the census to replace anybody. So a node that hears none stands later
than one that does, and a controller that hears none while the others are registered, so not dead, hands over. Where
nobody hears a majority somebody is elected all the same: it changes nothing, but what is granted goes on.

**What it begins from.** A watch may be behind what was written before the election. So who is elected reads hubs, nodes
and the census once, linearizably (`start`), and waits until its watches have given all of that, before it grants
or asks for anything. Meanwhile its mandate is told to nobody, and nodes go on among themselves.

**Beside one that is not heard.** A mandate runs for one lead from when a majority of the census was known to heed it,
or the coordinator to have it (`Plane.grants`): its node sees to the first, a read here (`_confirm`) to the second,
where there is no majority. So nobody waits for the lease of a controller that a majority has stopped to heed: who is in
that majority is elected beside it, and waits, as everybody who is elected, for one lead from then on.

**What is not known.** An election of unknown outcome is read, not repeated; for all else see `writes`.

Invariants: nothing is granted or asked for within `STOP_S` of the lease's deadline. A mandate ends with its lease, with
another's revision of `controller`, or when it is handed over; before that nothing is granted any more.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

import structlog

from hubsub.control.cluster import census
from hubsub.control.cluster.commits import CONTROLLER
from hubsub.control.cluster.follow import Follow
from hubsub.control.cluster.leads import MOVES_MAX, Decision, Step, decide
from hubsub.control.cluster.membership import Membership
from hubsub.control.cluster.plane import Plane
from hubsub.control.cluster.records import (
    MANDATE,
    ControllerRecord,
    MandateRecord,
    format_of,
    parse,
)
from hubsub.control.cluster.start import Start, read
from hubsub.control.cluster.told import Told
from hubsub.control.cluster.view import Claims, Kept, Peer, ProcessId, Tables, Timing, View
from hubsub.control.cluster.writes import BackOff, Writes
from hubsub.coordination import Coordinator, Delete, Lease, Put
from hubsub.errors import (
    CoordinatorError,
    ExpectationError,
    RecordDamagedError,
    RecordFormatError,
)

TURN_S: Final = 0.1
"""Between turns when nothing happens: leads end by time, and the plane has to know of a lease that was renewed."""

PAUSE_S: Final = 0.01
"""Between turns however much happens."""

STOP_S: Final = 0.2
"""Before its lease's deadline a controller asks for nothing and grants nothing: a turn that began is over by then."""

LATE_S: Final = 0.5
"""How much later a node stands that hears no majority."""

FRESH_LEADS: Final = 2
"""So many leads long a controller that was just elected may be heeded by nobody: it has to read first what there is."""

ALONE_S: Final = 3.0
"""A controller that has heard no majority for so long hands over, if the others are registered."""

ALONE_S_MAX: Final = 60.0
"""It stands no more for `ALONE_S` then, doubled each time that nobody else was elected."""

MOVES_KEPT: Final = 1_024
"""The latest changes of leaders and steps on the way to them, for who asks what moved and why."""

Peers = Mapping[ProcessId, Peer]

log = structlog.get_logger("hubsub.cluster")


@dataclass(slots=True)
class Mandate:
    """What this node has while it is the controller."""

    kept: Kept[ControllerRecord]
    lease: Lease
    elected_s: float
    writes: Writes
    tables: Tables = field(default_factory=dict)
    """What may be granted."""
    census: int = -1
    """Revision of the census that grants name."""
    census_s: float = 0.0
    alone_since_s: float | None = None
    """Since when it has heard no majority."""
    confirmed_s: float = 0.0
    """When the coordinator had the mandate last."""
    confirming: asyncio.Task[None] | None = None
    begun: "Start | None" = None
    """What the store had when it was elected; None: it has not been read yet."""


class Controller:
    """Stands, and takes the turns of a controller while it is one.

    Args:
        coordinator: Where it is elected and commits.
        plane: What grants.
        follow: What is known; `wake` is to be called when it changed.
        membership: Whose lease a mandate stands on.
        stands: Whether this node may be the controller.
        timing: The same in the whole cluster.
        clock: Monotonic, seconds: that of leases.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        plane: Plane,
        follow: Follow,
        membership: Membership,
        *,
        stands: bool,
        timing: Timing,
        clock: Callable[[], float],
        moves_max: int = MOVES_MAX,
    ) -> None:
        self.claims: dict[ProcessId, Claims] = {}
        """What nodes said last of their logged hubs."""
        self.steps: list[tuple[float, Step]] = []
        """The latest that this node decided, and when: at most `MOVES_KEPT`."""
        self._coordinator = coordinator
        self._plane = plane
        self._follow = follow
        self._membership = membership
        self._stands = stands
        self._timing = timing
        self._clock = clock
        self._moves_max = moves_max
        self._mandate: Mandate | None = None
        self._asked: dict[int, Lease] = {}
        """Mandate number and lease of elections that are not known to have failed."""
        self._vacant_s: float | None = None
        """Since when there is no controller."""
        self._seen = (0, 0.0)
        """Revision of `controller`, and since when it is known."""
        self._rests_until_s = 0.0
        self._rest_s = ALONE_S
        self._back_off = BackOff(clock)
        self._told = Told(clock)
        self._wake = asyncio.Event()
        self._turning = asyncio.Lock()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(membership.task_ended)

    @property
    def me(self) -> ProcessId:
        return self._membership.name, self._membership.incarnation

    @property
    def revision(self) -> int | None:
        """Of `controller`, while this node is the controller and may act; each of its writes expects it."""
        mandate = self._mandate
        if mandate is None or mandate.begun is None or not self._may_act(mandate):
            return None
        return mandate.kept.revision if mandate.begun.is_given(self._follow) else None

    def wake(self) -> None:
        """Something changed."""
        self._wake.set()

    def view(self) -> View | None:
        """All that this node knows as the controller; None: it is not."""
        mandate = self._mandate
        if mandate is None:
            return None
        known = self._follow
        return View(
            controller=mandate.kept,
            elected_s=mandate.elected_s,
            nodes=dict(known.nodes),
            classes={name: kept.record for name, kept in known.classes.items()},
            hubs=dict(known.hubs),
            founder=None if known.cluster is None else known.cluster.record.founder,
            census=known.census,
            # One that has just come is granted with from the next tables on.
            census_s=mandate.census_s if mandate.census == known.census_revision else inf,
            peers=self._plane.peers(mandate.kept.record.mandate),
            tables=mandate.tables,
            claims=dict(self.claims),
            replacing=frozenset(mandate.writes.replacing),
        )

    async def stop(self) -> None:
        """Ends it: hands over, if it is the controller, so that nobody has to wait for its lease."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        async with self._turning:
            await self._hand_over("the node stops")

    # -- time --

    async def _run(self) -> None:
        await self._follow.ready.wait()
        while True:
            async with self._turning:
                self._wake.clear()
                try:
                    await self._turn()
                except (CoordinatorError, RecordFormatError, RecordDamagedError) as error:
                    self._back_off.fail(error)
            await asyncio.sleep(PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await self._wake.wait()

    async def _turn(self) -> None:
        if self._mandate is not None:
            await self._check()
        if self._mandate is None:
            await self._stand()
        if self._mandate is not None and self._may_act(self._mandate):
            await self._control(self._mandate)
            self._told.tell()

    # -- being elected --

    async def _stand(self) -> None:
        now, lease, held = self._clock(), self._membership.lease, self._follow.controller
        if held is not None and self._is_asked(held.record, lease):
            assert lease is not None
            self._begin(held, lease)
            return
        if held is not None and (held.record.node, held.record.incarnation) == self.me:
            # It was handed over, and that was not written: nobody else can be elected until it is.
            if now >= self._back_off.until_s:
                await self._coordinator.commit({CONTROLLER: held.revision}, [Delete(CONTROLLER)])
            return
        peers = self._plane.peers(0)
        if held is not None and self._seen[0] != held.revision:
            self._seen = held.revision, now
        if held is not None and not self._is_past(held.record, peers) and not self._is_deserted(now):
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
            not self._stands
            or self._coordinator.failed is not None
            or self._membership.is_draining
            or self._follow.is_blind
            or not self._is_registered()
        ):
            return
        if self._hears_majority(peers, now) or now >= self._vacant_s + LATE_S:
            await self._elect(lease, held)

    async def _elect(self, lease: Lease, held: Kept[ControllerRecord] | None) -> None:
        last = await self._coordinator.get(MANDATE)
        number = 1 + (0 if last is None else parse(MandateRecord, MANDATE, last.value).last)
        record = ControllerRecord(node=self.me[0], incarnation=self.me[1], mandate=number)
        expect = {
            CONTROLLER: 0 if held is None else held.revision,
            MANDATE: 0 if last is None else last.revision,
        }
        writes = [
            Put(CONTROLLER, format_of(record), lease),
            Put(MANDATE, format_of(MandateRecord(last=number))),
        ]
        # If the outcome stays unknown the watch says it; a later try expects that this one was not made.
        self._asked[number] = lease
        try:
            made = await self._coordinator.commit(expect, writes)
        except ExpectationError:
            return
        self._begin(Kept(record, made[CONTROLLER]), lease)

    def _begin(self, kept: Kept[ControllerRecord], lease: Lease) -> None:
        self._asked.clear()
        self._vacant_s = None
        self._back_off.reset()
        writes = Writes(
            self._coordinator,
            self._follow,
            self._back_off,
            self._clock,
            self.wake,
            self._membership.task_ended,
        )
        self._mandate = Mandate(kept=kept, lease=lease, elected_s=self._clock(), writes=writes)
        log.info("elected controller", node=self.me[0], mandate=kept.record.mandate)

    def _is_asked(self, record: ControllerRecord, lease: Lease | None) -> bool:
        return (
            lease is not None
            and self._asked.get(record.mandate) is lease
            and (record.node, record.incarnation) == self.me
        )

    def _is_past(self, record: ControllerRecord, peers: Peers) -> bool:
        """Whether the controller's process has ended, as far as is proved."""
        peer, registered = peers.get((record.node, record.incarnation)), self._follow.nodes.get(record.node)
        is_followed = registered is not None and registered.record.incarnation > record.incarnation
        return is_followed or (peer is not None and peer.is_dead)

    def _is_deserted(self, now: float) -> bool:
        """Whether a majority, this node in it, has no controller, though one is elected and had its time to begin."""
        alone_s = self._plane.alone_s()
        is_fresh = now < self._seen[1] + FRESH_LEADS * self._timing.lead_s
        return not is_fresh and alone_s is not None and now - alone_s <= self._timing.silence_s

    def _heard(self, peers: Peers, now: float) -> set[str]:
        """Nodes, this one among them."""
        return {self.me[0]} | {
            name
            for (name, _), peer in peers.items()
            if peer.heard_s is not None and not peer.is_dead and now - peer.heard_s <= self._timing.silence_s
        }

    def _hears_majority(self, peers: Peers, now: float) -> bool:
        known = self._follow.census
        dead = census.gone(self._follow.nodes, peers)
        return known is None or census.is_majority(known.record, self._heard(peers, now), dead)

    def _is_registered(self) -> bool:
        kept = self._follow.nodes.get(self.me[0])
        return kept is not None and kept.record.incarnation == self.me[1]

    # -- ceasing --

    async def _check(self) -> None:
        """Ends a mandate that is over."""
        mandate, held = self._mandate, self._follow.controller
        assert mandate is not None
        is_other = held is not None and held.revision > mandate.kept.revision
        if is_other or mandate.writes.is_over or mandate.lease is not self._membership.lease:
            await self._end("another one is elected" if is_other else "the lease is lost")
            return
        if not self._may_act(mandate):
            return
        if self._coordinator.failed is not None:
            await self._end("the coordinator of this node has failed")
        elif self._membership.is_draining:
            await self._hand_over("the node drains")
        elif self._is_alone(mandate):
            self._rests_until_s = self._clock() + self._rest_s
            self._rest_s = min(2 * self._rest_s, ALONE_S_MAX)
            await self._hand_over("others are registered, and it does not hear a majority")

    async def _end(self, why: str) -> None:
        mandate, self._mandate = self._mandate, None
        assert mandate is not None
        if mandate.confirming is not None:
            mandate.confirming.cancel()
        self._told.tell(is_end=True)
        log.info("controller no more", node=self.me[0], mandate=mandate.kept.record.mandate, why=why)
        await mandate.writes.end()
        await self._plane.grants(mandate.kept.record.mandate, self._clock(), 0.0, {}, mandate.census)

    async def _hand_over(self, why: str) -> None:
        mandate = self._mandate
        if mandate is None:
            return
        await self._end(why)
        try:
            await self._coordinator.commit({CONTROLLER: mandate.kept.revision}, [Delete(CONTROLLER)])
        except CoordinatorError as error:
            log.info("handing over was not written; the lease ends it", reason=error.message)

    def _may_act(self, mandate: Mandate) -> bool:
        return mandate.lease.held and self._clock() < mandate.lease.deadline - STOP_S

    def _is_alone(self, mandate: Mandate) -> bool:
        """Whether a majority is not heard and could be by another."""
        now, known = self._clock(), self._follow.census
        peers = self._plane.peers(mandate.kept.record.mandate)
        heard = self._heard(peers, now)
        others = self._follow.nodes.keys() - heard
        if (
            known is None
            or census.is_majority(known.record, heard, census.gone(self._follow.nodes, peers))
            or not census.is_majority(known.record, others)
        ):
            mandate.alone_since_s = None
            return False
        if mandate.alone_since_s is None:
            mandate.alone_since_s = now
        return now - mandate.alone_since_s >= ALONE_S

    # -- a turn --

    async def _control(self, mandate: Mandate) -> None:
        if not mandate.confirmed_s:
            await self._confirm(mandate)
        self._see_confirmed(mandate)
        if mandate.begun is None or mandate.begun.is_late(self._clock()):
            mandate.begun = await read(self._coordinator, self._follow, self._clock())
        if not mandate.confirmed_s or not mandate.begun.is_given(self._follow):
            return
        await mandate.writes.arrived()
        view = self.view()
        assert view is not None
        decision = decide(view, self._clock(), self._timing, self._moves_max)
        await self._grant(mandate, decision)
        if self._mandate is not mandate or not self._may_act(mandate):
            return
        if decision.tables != view.tables:
            self.wake()
        has_to_wait = (
            mandate.writes.must_wait or self._clock() < self._back_off.until_s or self._follow.is_blind
        )
        if decision.commits and not has_to_wait:
            self._note(decision.steps)
            mandate.writes.ask(decision)

    def _see_confirmed(self, mandate: Mandate) -> None:
        """Where no majority confirms the mandate the coordinator is asked, in a task: turns go on."""
        confirmed_s = max(mandate.confirmed_s, self._plane.confirmed_s(mandate.kept.record.mandate))
        is_due = self._clock() >= confirmed_s + self._timing.lead_s / 3
        if is_due and (mandate.confirming is None or mandate.confirming.done()):
            mandate.confirming = asyncio.create_task(self._confirm_in_time(mandate))
            mandate.confirming.add_done_callback(self._membership.task_ended)

    async def _confirm_in_time(self, mandate: Mandate) -> None:
        with suppress(CoordinatorError, TimeoutError):
            async with asyncio.timeout(self._timing.lead_s):
                await self._confirm(mandate)
        self.wake()

    async def _confirm(self, mandate: Mandate) -> None:
        """Asks the coordinator whether it has the mandate still; if not, the watch will say so."""
        asked_s = self._clock()
        if await self._coordinator.holds(CONTROLLER, mandate.kept.revision):
            mandate.confirmed_s = asked_s

    async def _grant(self, mandate: Mandate, decision: Decision) -> None:
        """Gives the tables; until the plane has them what it had may be granted too."""
        revision = self._follow.census_revision
        both = {
            id_: mandate.tables.get(id_, frozenset()) | decision.tables.get(id_, frozenset())
            for id_ in mandate.tables.keys() | decision.tables.keys()
        }
        mandate.tables = both
        until_s = mandate.lease.deadline - STOP_S
        await self._plane.grants(
            mandate.kept.record.mandate, until_s, mandate.confirmed_s, decision.tables, revision
        )
        mandate.tables = decision.tables
        if revision != mandate.census:
            mandate.census, mandate.census_s = revision, self._clock()

    def _note(self, steps: Sequence[Step]) -> None:
        self.steps += [(self._clock(), step) for step in steps]
        del self.steps[:-MOVES_KEPT]
        self._told.note(steps)
