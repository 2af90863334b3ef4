"""What the controller knows at one moment: what watches gave, what its links say, which leads it grants.

What a watch gave is a `Kept`: a record and the revision of its key. What a link says of a process is a `Peer`;
processes are named by node and incarnation, because one that starts again under its name has nothing of the one
before. Times are seconds of the monotonic clock of the controller's node.

**Leads.** A node may lead ephemeral hubs until the deadline of its lead: the time, on its own clock, before it asked,
plus `Timing.lead_s`. It asks the controller's node over the link, hubs or not, and names the hubs and terms that it
means to lead, its *claim*. It is granted, as long as the controller's mandate runs, what of the claim is in the *table*
that the controller gave for this process; it leads that and nothing else from then on. What it led and is granted
no more it has given up; what it did not lead yet it may claim again, since its watch may have been first. So a grant
needs no Python, and what a table has no more is over when the last lead is.

**Heeding.** A heartbeat names the mandate that its sender heeds, none if it hears no controller, and a number that is
another one each time that it begins to heed. `Peer.heeds_s` is when the controller's node first heard that number,
`Peer.heeds_until_s` when the last ping left that was answered with it. That a process was heard of late does not say
that it heeds now: it may have stopped since, and have helped a leader to prolong.

Invariant: tables and `lead_until_s` are read together: no grant lies between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from hubsub.control.cluster.records import (
    CensusRecord,
    ClassRecord,
    ControllerRecord,
    Founder,
    HubRecord,
    NodeRecord,
    Record,
)
from hubsub.control.cluster.ring import Place

R_co = TypeVar("R_co", bound=Record, covariant=True)

ProcessId = tuple[str, int]
"""Node and incarnation."""

HubTerm = tuple[int, int]
"""A hub's number and one of its terms."""

Tables = Mapping[ProcessId, frozenset[HubTerm]]
"""What each process may be granted to lead."""

OBSERVERS_MIN = 2
"""So many others must suspect a node before it is given nothing new: one may be cut off itself."""


@dataclass(frozen=True, slots=True)
class Kept(Generic[R_co]):
    """A record, and the revision that its key has with it."""

    record: R_co
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things may take, seconds."""

    lead_s: float = 1.0
    """From the time before it was asked for to a lead's deadline."""
    drift: float = 0.01
    """By how much of itself a clock may run faster or slower than another."""
    margin_s: float = 0.05
    """From a deadline to the end of the turn that looked at it last."""
    silence_s: float = 0.5
    """A peer that was not heard for so long is not heard."""

    @classmethod
    def of(cls, limits: Mapping[str, int]) -> Self:
        """As a configuration has it.

        Args:
            limits: With `lead_ms`, `lead_guard_ms` and `lead_silence_ms`.
        """
        return cls(
            lead_s=limits["lead_ms"] / 1e3,
            margin_s=limits["lead_guard_ms"] / 1e3,
            silence_s=limits["lead_silence_ms"] / 1e3,
        )

    @property
    def guard_s(self) -> float:
        """What is waited behind the end of a lead, as the granting clock has it."""
        return self.lead_s * self.drift + self.margin_s

    @property
    def wait_s(self) -> float:
        """From a moment to when no lead that was asked for before it is held any more."""
        return self.lead_s + self.guard_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What the controller's node knows of one process."""

    heard_s: float | None = None
    """When it heard from it last."""
    heeds_s: float | None = None
    """Since when it knows that it heeds this mandate; none: it does not."""
    heeds_until_s: float | None = None
    """Until when it knows that it has heeded it since then, without a break: by round trips."""
    suspected_by: frozenset[str] = frozenset()
    lead_until_s: float | None = None
    """When the last lead that was granted to it ends: granting time plus `lead_s`."""
    is_ready: bool = False
    """It holds all patterns, and all interest that concerns it."""
    dead_s: float | None = None
    """When it said goodbye, or was proved dead: its link ended without one and its port refuses; none: neither."""
    gave_up: frozenset[HubTerm] = frozenset()
    """What it will never lead again. It may forget what is older than the hub's term."""

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, as far as is known."""
        return self.dead_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a process says of the logged hubs that it leads; see docs/adr/0016-empty-hubs-are-dealt.md."""

    empty: frozenset[int] = frozenset()
    """Those without a record a moment ago."""
    sealed: Mapping[int, int] = field(default_factory=dict)
    """Hubs that are to be given up by the record of this revision, have no record, and take none as long as the
    record stands."""
    kept: Mapping[int, int] = field(default_factory=dict)
    """Likewise, those that turned out to have one, and that it goes on to lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a decision is made from."""

    controller: Kept[ControllerRecord]
    elected_s: float
    """When the answer came that made this one the controller. Leads of the one before may run for one lead more."""
    nodes: Mapping[str, Kept[NodeRecord]] = field(default_factory=dict)
    classes: Mapping[str, ClassRecord] = field(default_factory=dict)
    hubs: Mapping[int, Kept[HubRecord]] = field(default_factory=dict)
    founder: Founder | None = None
    """Whose hubs have their numbers already; None: nobody's."""
    census: Kept[CensusRecord] | None = None
    census_s: float = 0.0
    """Since when all leads are granted with this census or a later one."""
    peers: Mapping[ProcessId, Peer] = field(default_factory=dict)
    """Of all processes that were heard since the controller's node started, itself among them."""
    tables: Tables = field(default_factory=dict)
    """What the controller's node may grant: by the tables that apply, and by those that are under way to it."""
    claims: Mapping[ProcessId, Claims] = field(default_factory=dict)
    """As processes said last."""
    replacing: frozenset[HubTerm] = frozenset()
    """Terms that a commit was asked to end, of which it is not known yet whether it did: the answer is missing,
    or the watch has not given what it wrote. They are asked for again, never taken back."""

    @property
    def me(self) -> str:
        """The controller's node."""
        return self.controller.record.node

    def peer(self, name: str) -> Peer | None:
        """What is known of the process that is registered under a name."""
        kept = self.nodes.get(name)
        return None if kept is None else self.peers.get((name, kept.record.incarnation))

    def is_heard(self, peer: Peer | None, now: float, timing: Timing) -> bool:
        """Whether a process was heard of late."""
        return (
            peer is not None
            and not peer.is_dead
            and peer.heard_s is not None
            and now - peer.heard_s <= timing.silence_s
        )

    def homes(self) -> frozenset[Place]:
        """The nodes that share the hubs for good: those of short silence too, or all would move with each."""
        return frozenset(
            _place(name, kept.record)
            for name, kept in self.nodes.items()
            if _may_hold(kept.record) and (peer := self.peer(name)) and peer.is_ready and not peer.is_dead
        )

    def candidates(self, now: float, timing: Timing) -> frozenset[Place]:
        """The nodes that could lead a hub at once: ready, heard, with a lead that runs, not suspected."""
        return self.homes() & self.heard_places(now, timing)

    def heard_places(self, now: float, timing: Timing) -> frozenset[Place]:
        """Likewise, but perhaps not ready."""
        return frozenset(
            _place(name, kept.record)
            for name, kept in self.nodes.items()
            if _may_hold(kept.record)
            and (peer := self.peer(name))
            and self.is_heard(peer, now, timing)
            and peer.lead_until_s is not None
            and peer.lead_until_s > now
            and len(peer.suspected_by) < OBSERVERS_MIN
        )


def _may_hold(node: NodeRecord) -> bool:
    return node.holds_hubs and not node.is_draining


def _place(name: str, node: NodeRecord) -> Place:
    return Place(name, node.capacity, node.zone)
