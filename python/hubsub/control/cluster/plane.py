"""The data plane as the control plane of a cluster sees it: links, leads and routes of this node's process.

`Plane` is filled in by the node (in Rust: links, the lead machine, the broker) and played in tests. It calls
back through `Face`. All of it belongs to one event loop: calls come from it, and `Face` is called in it.

Invariants: what is given replaces all of what was given before, but for `pins`, which adds. Nothing here waits
for another node, but for `ask`.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from hubsub.control.cluster.busy import Load
from hubsub.control.cluster.records import ClassRecord
from hubsub.control.cluster.view import Claims, Peer, ProcessId, Tables

ASK_BYTES_MAX = 512 << 10
"""Of one question or answer: they share a link's urgent lane with leads, whose queue is 1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another process that may have links with this one."""

    name: str
    incarnation: int
    addresses: Mapping[str, str]
    """Protocol to `HOST:PORT`; `link` is where it is dialed."""
    shards: int
    may_lead: bool
    """Whether hubs may be given to it: patterns are confirmed by those nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A hub, as its record says."""

    hub: int
    room_class: str
    index: int
    """Which one of its class: what the ring names."""
    term: int
    leader: ProcessId | None
    """None: nobody leads it in this term any more."""
    members: tuple[str, ...]
    acts: ProcessId | None = None
    """Who acts as its leader on this side of a split network, without a lead."""
    gives_up: bool = False
    """Its leader is to give it up and to claim it no more: another one follows in the next term."""
    revision: int = 0
    """Of the record."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a topic belongs to, as the classes have it."""

    room: bytes
    room_class: str
    index: int
    """Of the hub that the ring of its class has for it."""


class Face(Protocol):
    """What the plane calls."""

    def changed(self) -> None:
        """Something that `Plane.peers` tells has changed by itself: a link up, suspected, heard again, down; a
        process dead; hubs given up, or `Plane.claims` of them; another mandate heeded. Not for each heartbeat and each
        lead."""

    async def asked(self, node: str, body: bytes) -> bytes:
        """The answer to what another node asked."""


class Plane(Protocol):
    """See the module."""

    @property
    def troubles(self) -> Mapping[int, str]:
        """Hubs that this process is to lead and cannot open, and why."""

    def claims(self) -> Claims:
        """What this process knows of its logged hubs that may be given away."""

    def stays(self) -> Set[int]:
        """Logged hubs that stay with this process when it leaves: they have records, or cannot be opened or
        closed."""

    def attach(self, face: Face) -> None:
        """Once, before anything else."""

    def roster(self, neighbours: Sequence[Neighbour]) -> None:
        """Who may have links with this process; links of others are ended."""

    def classes(self, classes: Mapping[str, ClassRecord]) -> None:
        """All classes, before routes of their hubs."""

    def class_versions(self) -> Mapping[str, int]:
        """Of this node and its peers, the version of the classes that each acts by (`classes.version_of`)."""

    def routes(self, rows: Sequence[Route]) -> None:
        """All hubs. This process claims the leads of those that name it and that it is not to give up."""

    def pins(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        """Rooms of a class that are not where the ring has them, or where they were found before; None: they are
        where the ring has them, or are found again. After `routes` of their hubs."""

    def census(self, revision: int, nodes: tuple[str, ...], before: tuple[str, ...]) -> None:
        """Whose majority lets a lead go on while there is no controller; see `census.keeps_lead`."""

    async def grants(
        self, mandate: int, until_s: float, confirmed_s: float, tables: Tables, census: int
    ) -> None:
        """What this process, the controller, may grant. Returns when nothing is granted by tables of before.

        Args:
            mandate: Its number, which heartbeats carry as long as it runs.
            until_s: Monotonic time; nothing is granted from then on. One that has passed ends the mandate.
            confirmed_s: A time at or after which the coordinator had this mandate. It runs for one lead from then, and
                longer as long as a majority of the census is known to heed it.
            tables: A process that has no table is granted nothing.
            census: Revision of the census that each grant names.
        """

    def is_cut_off(self) -> bool:
        """Whether this process has no lead and hears no controller. `Face.changed` is called when that changes."""

    def confirmed_s(self, mandate: int) -> float:
        """When a mandate was confirmed last, by a majority or by the coordinator: it runs for one lead from then."""

    def alone_s(self) -> float | None:
        """When a majority of the census, this process among it, had no controller last; None: this one has one."""

    def peers(self, mandate: int) -> Mapping[ProcessId, Peer]:
        """What is known at one moment of each process that was heard, this one too; `heeds_s` of this mandate."""

    async def ask(self, node: str, body: bytes) -> bytes:
        """What `Face.asked` of another node answers; who asks does not wait forever, and cancels it.

        Raises:
            PeerError: it did not answer, or cannot be asked now.
        """

    def named(self, topic: bytes) -> Named:
        """Room, class and ring of a topic."""

    async def unused(self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool) -> Sequence[bytes]:
        """Those of these rooms that nobody uses, of a hub of an ephemeral class that this process leads in that term.

        Args:
            hub: Theirs.
            term: As its record has it.
            rooms: Their names.
            gives_up: Whether this process serves these no more, until it is told where they are.

        Raises:
            HubSubError: it cannot say.
        """

    async def load(self) -> Load | None:
        """What this node did since it was asked last; None: it is not known yet."""
