"""The controller's view at one moment: state from its watches, its links, and the leader leases that it grants.
The protocol is in docs/protocol/control-plane.md.

State from a watch is a `Stored`: a record and the revision of its key. State from a link is a `Peer`. Processes
are named by node and incarnation, because a restarted process has no state of its predecessor. Times are
seconds of the monotonic clock of the controller's node.

Invariant: tables and `lease_until_s` are read together: no grant happens in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from hubsub.control.cluster.hub_ring import Place
from hubsub.control.cluster.records import (
    ClassRecord,
    ControllerRecord,
    Founder,
    HubRecord,
    NodeRecord,
    Record,
    VotersRecord,
)

R_co = TypeVar("R_co", bound=Record, covariant=True)

ProcessId = tuple[str, int]
"""Node name and incarnation of a process."""

HubTerm = tuple[int, int]
"""A hub's number and one of its terms."""

Tables = Mapping[ProcessId, frozenset[HubTerm]]
"""Leader leases that each process may get."""

OBSERVERS_MIN = 2
"""Observers that must suspect a node before it gets no new hubs: a single one may be cut off itself."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[R_co]):
    """A record, and the revision of its key."""

    record: R_co
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Timing of leader leases, in seconds."""

    lease_s: float = 1.0
    """Duration of a leader lease, from just before the request to the deadline."""
    drift: float = 0.01
    """Maximum relative rate difference of two clocks."""
    margin_s: float = 0.05
    """From a deadline to the end of the last turn that was started before it."""
    silence_s: float = 0.5
    """A peer that was not heard for this long counts as not heard."""

    @classmethod
    def of(cls, limits: Mapping[str, int]) -> Self:
        """Reads the timing from a configuration.

        Args:
            limits: With `leader_lease_ms`, `leader_guard_ms` and `leader_silence_ms`.
        """
        return cls(
            lease_s=limits["leader_lease_ms"] / 1e3,
            margin_s=limits["leader_guard_ms"] / 1e3,
            silence_s=limits["leader_silence_ms"] / 1e3,
        )

    @property
    def guard_s(self) -> float:
        """Extra wait after the end of a leader lease, by the granter's clock."""
        return self.lease_s * self.drift + self.margin_s

    @property
    def wait_s(self) -> float:
        """After this time no leader lease that was requested before its start is held any more."""
        return self.lease_s + self.guard_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """State of one process, as known to the controller's node."""

    heard_s: float | None = None
    """When it was last heard."""
    acknowledged_s: float | None = None
    """Since when it is known to acknowledge this controller term; None: it does not."""
    acknowledged_until_s: float | None = None
    """Until when it is known, by round trips, to have acknowledged the term since then without a break."""
    suspected_by: frozenset[str] = frozenset()
    lease_until_s: float | None = None
    """When its last leader lease ends: granting time plus `lease_s`."""
    is_ready: bool = False
    """Whether it holds all patterns, and all interest that concerns it."""
    dead_s: float | None = None
    """When it sent a goodbye, or was proved dead: its link ended without one and its port refuses
    connections; None: neither."""
    gave_up: frozenset[HubTerm] = frozenset()
    """Hubs and terms that it will never lead again. It may drop terms older than the hub's current one."""

    @property
    def is_dead(self) -> bool:
        return self.dead_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """State of the logged hubs that a process leads, as it reports it; see docs/adr/0016-empty-hubs-are-dealt.md."""

    empty: frozenset[int] = frozenset()
    """Hubs that had no record when it reported."""
    sealed: Mapping[int, int] = field(default_factory=dict)
    """Hubs that are to be given up, with the revision of the record that asks for it: they have no record,
    and accept none while that revision is current."""
    retained: Mapping[int, int] = field(default_factory=dict)
    """Hubs that were to be given up, with the same revision, but turned out to have a record: the process
    continues to lead them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All state that a decision is based on."""

    controller: Stored[ControllerRecord]
    now: float
    """The moment of the view."""
    timing: Timing
    """The same in the whole cluster."""
    elected_s: float
    """When this node learned of its election. Leases of the previous controller may run for one more lease duration."""
    nodes: Mapping[str, Stored[NodeRecord]] = field(default_factory=dict)
    classes: Mapping[str, ClassRecord] = field(default_factory=dict)
    hubs: Mapping[int, Stored[HubRecord]] = field(default_factory=dict)
    founder: Founder | None = None
    """Node whose hubs have their numbers already; None: there is none."""
    voters: Stored[VotersRecord] | None = None
    voters_s: float = 0.0
    """Since when all leader leases are granted with these voters or later ones."""
    peers: Mapping[ProcessId, Peer] = field(default_factory=dict)
    """All processes that were heard since the controller's node started, including its own."""
    tables: Tables = field(default_factory=dict)
    """Leases that the controller's node may grant: by the current tables, and by those that are being passed to it."""
    claims: Mapping[ProcessId, Claims] = field(default_factory=dict)
    """Latest claims of each process."""
    replacing: frozenset[HubTerm] = frozenset()
    """Terms that a sent commit ends and whose outcome is unknown: the response is missing, or the watch has
    not delivered the write. These commits are retried, never withdrawn."""

    @property
    def me(self) -> str:
        return self.controller.record.node

    def peer(self, name: str) -> Peer | None:
        """State of the process that is registered under a name; None: not known."""
        stored = self.nodes.get(name)
        return None if stored is None else self.peers.get((name, stored.record.incarnation))

    def is_heard(self, peer: Peer | None) -> bool:
        """Whether a process was heard within the silence timeout."""
        return (
            peer is not None
            and not peer.is_dead
            and peer.heard_s is not None
            and self.now - peer.heard_s <= self.timing.silence_s
        )

    def spread_places(self) -> frozenset[Place]:
        """Nodes that the hubs are spread over, with those briefly silent: else each silence would move hubs."""
        return frozenset(
            _place(name, stored.record)
            for name, stored in self.nodes.items()
            if _may_hold(stored.record) and (peer := self.peer(name)) and peer.is_ready and not peer.is_dead
        )

    def candidates(self) -> frozenset[Place]:
        """Nodes that could lead a hub at once: ready, heard, not suspected, with a current leader lease."""
        return self.spread_places() & self.heard_places()

    def heard_places(self) -> frozenset[Place]:
        """Nodes that could lead a hub at once, except that they may not be ready."""
        return frozenset(
            _place(name, stored.record)
            for name, stored in self.nodes.items()
            if _may_hold(stored.record)
            and (peer := self.peer(name))
            and self.is_heard(peer)
            and peer.lease_until_s is not None
            and peer.lease_until_s > self.now
            and len(peer.suspected_by) < OBSERVERS_MIN
        )


def _may_hold(node: NodeRecord) -> bool:
    return node.holds_hubs and not node.is_draining


def _place(name: str, node: NodeRecord) -> Place:
    return Place(name, node.capacity, node.zone)
