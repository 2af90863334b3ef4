"""Interface between the control plane and the data plane of this node's process: links, leader leases and routes.

The node implements `Plane` (in Rust: links, leader leases, the broker); tests use a fake. It calls back
through `PlaneEvents`. All of it belongs to one event loop: both sides are called in it.

Invariants: a call replaces all state from the previous call, except for `pins`, which adds. Only `ask` waits
for another node.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from hubsub.control.cluster.placement import Load
from hubsub.control.cluster.records import ClassRecord
from hubsub.control.cluster.view import Claims, Peer, ProcessId, Tables

RPC_BYTES_MAX = 512 << 10
"""Bytes of one request or response: they share a link's urgent lane, with a queue of 1 MiB, with leader leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another node's process that may have links with this one."""

    name: str
    incarnation: int
    addresses: Mapping[str, str]
    """Protocol to `HOST:PORT`; peers dial `link`."""
    shards: int
    may_lead: bool
    """Whether it may lead hubs: nodes that may must confirm pattern subscriptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A hub, from its record."""

    hub: int
    room_class: str
    index: int
    """Index within its class; the ring maps rooms to it."""
    term: int
    leader: ProcessId | None
    """None: no process can lead it in this term any more."""
    members: tuple[str, ...]
    acting_leader: ProcessId | None = None
    """Acting leader on this side of a network partition, without a leader lease; None: there is none."""
    gives_up: bool = False
    """Whether its leader must give it up and stop asking for its lease: another one follows in the next term."""
    revision: int = 0
    """Revision of the record."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The room and class of a topic."""

    room: bytes
    room_class: str
    index: int
    """Index of the hub that the ring of its class selects for it."""


class PlaneEvents(Protocol):
    """Callbacks of the plane."""

    def changed(self) -> None:
        """Called when something that `Plane.peers` returns has changed by itself: a link is up, suspected,
        heard again or down; a process died; hubs were given up, or `Plane.claims` of them changed; another
        controller term is acknowledged. Not called for each heartbeat and lease renewal."""

    async def on_request(self, node: str, body: bytes) -> bytes:
        """Answers a request of another node."""


class Plane(Protocol):
    """The data plane, as the control plane uses it."""

    @property
    def open_errors(self) -> Mapping[int, str]:
        """Hubs that this process should lead and cannot open, with the error."""

    def claims(self) -> Claims:
        """State of its logged hubs that may be moved away."""

    def unmovable(self) -> Set[int]:
        """Logged hubs that stay with this process when it leaves: they have records, or cannot be opened or closed."""

    def attach(self, events: PlaneEvents) -> None:
        """Sets the callbacks; called once, before anything else."""

    def roster(self, neighbours: Sequence[Neighbour]) -> None:
        """Sets the peers that may have links with this process; links with others end."""

    def classes(self, classes: Mapping[str, ClassRecord]) -> None:
        """Sets all classes; called before the routes of their hubs."""

    def class_versions(self) -> Mapping[str, int]:
        """Version of the classes that this node and each of its peers uses (`classes.version_of`)."""

    def routes(self, rows: Sequence[Route]) -> None:
        """Sets all hubs. This process asks for the leader leases of hubs that name it as leader and that it
        need not give up."""

    def pins(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        """Sets the hubs of rooms that the ring does not decide, or whose hub changed; None: the ring decides,
        or the room must be looked up again. Called after `routes` of these hubs."""

    def voters(self, revision: int, nodes: tuple[str, ...], before: tuple[str, ...]) -> None:
        """Sets the voters, whose majority lets a leader lease be prolonged while there is no controller; see
        `voters.may_extend_lease`.

        Args:
            revision: Revision of their record.
            nodes: Names of the voters.
            before: Names of the previous voters while those count; empty: none.
        """

    async def grants(
        self, controller_term: int, until_s: float, confirmed_s: float, tables: Tables, voters: int
    ) -> None:
        """Sets the leader leases that this process may grant as the controller. Returns when nothing is
        granted by earlier tables.

        Args:
            controller_term: Controller term, which heartbeats carry as long as it runs.
            until_s: Monotonic time when granting ends. A time in the past ends the controller term.
            confirmed_s: A time at or after which the coordinator held this term. The term runs for one leader
                lease from then, and longer as long as a majority of the voters is known to acknowledge it.
            tables: By process; one without a table is granted nothing.
            voters: Revision of the voters that each grant names.
        """

    def is_cut_off(self) -> bool:
        """Whether this process has no leader lease and hears no controller. `PlaneEvents.changed` is called when
        that changes."""

    def confirmed_s(self, controller_term: int) -> float:
        """When a controller term was last confirmed, by a majority or by the coordinator: it runs for one
        leader lease from then."""

    def alone_s(self) -> float | None:
        """When a majority of the voters, including this process, last had no controller; None: this process has one."""

    def peers(self, controller_term: int) -> Mapping[ProcessId, Peer]:
        """A consistent snapshot of each process that was heard, including this one; `acknowledged_s` is for this
        controller term."""

    async def ask(self, node: str, body: bytes) -> bytes:
        """Sends a request to another node and returns the response of its `PlaneEvents.on_request`. The caller
        limits the time, by cancelling.

        Raises:
            PeerError: it did not answer, or cannot be asked now.
        """

    def topic_route(self, topic: bytes) -> TopicRoute:
        """Returns the room and class of a topic, and the hub index on the ring."""

    async def unused(self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool) -> Sequence[bytes]:
        """Returns the unused ones of these rooms.

        Args:
            hub: A hub of an ephemeral class that this process leads in that term.
            term: Term of its record.
            rooms: Names.
            gives_up: Whether this process stops serving the unused rooms until it receives their hub again.

        Raises:
            HubSubError: it is not known which are unused.
        """

    async def load(self) -> Load | None:
        """Load of this node since the last call; None: not known yet."""
