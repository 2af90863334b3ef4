"""Interface to a node's data plane that `rim.CorePlane` needs, as implemented by `hubsub.node.Node`: links,
leader leases, routes, logs.

Times are seconds of `time.monotonic()`. Hubs and terms are numbers from 1. Callbacks run in the event loop,
in order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hubsub.config import RoomClass
from hubsub.errors import HubClosedError

if TYPE_CHECKING:
    from hubsub.node.status import Log


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A hub, as passed to the broker."""

    hub: int
    room_class: str
    index: int
    term: int
    leader: tuple[str, int] | None
    """Node and incarnation, possibly of this process, which then leads the hub; None: no leader."""


class ClassRow(NamedTuple):
    """A class, as passed to the broker, in order of precedence."""

    definition: RoomClass
    hubs: int
    """Number of its hubs in the cluster; never changes."""
    placement: str
    version: int
    is_removed: bool


class PeerNews(Protocol):
    """A peer event, as `hubsub.node.PeerEvent`."""

    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def code(self) -> str | None: ...


class LeadNews(Protocol):
    """A change of leader leases: `opened`, `closed`, `began`, `gave_up`, `heeds`, `changed`."""

    @property
    def kind(self) -> str: ...


class Links(Protocol):
    """Peers, and requests between control planes."""

    on_peer: Callable[[Any], None] | None
    """Called with a `PeerNews` when a peer's state changes."""
    on_asked: Callable[[str, int, bytes], None] | None
    """Takes a peer's name, the number for `link_answer`, and the request."""

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None: ...
    def link_peers(self) -> list[dict[str, Any]]: ...
    def link_status(self, classes: int) -> None:
        """Sets the status that this process announces to peers: the version of its classes."""

    async def link_ask(self, node: str, body: bytes) -> bytes: ...
    def link_answer(self, node: str, number: int, body: bytes) -> None: ...


class LeadPeer(Protocol):
    """A peer's lease state, as `hubsub.node.LeadPeer`."""

    @property
    def heard_s(self) -> float: ...
    @property
    def heeds_s(self) -> float | None: ...
    @property
    def heeds_until_s(self) -> float | None: ...
    @property
    def lead_until_s(self) -> float | None: ...
    @property
    def gave_up(self) -> frozenset[tuple[int, int]]: ...
    @property
    def suspects(self) -> frozenset[str]: ...


class LeadSnapshot(Protocol):
    """A snapshot of lease state, as `hubsub.node.LeadSnapshot`."""

    @property
    def mandate(self) -> int: ...
    @property
    def confirmed_s(self) -> float: ...
    @property
    def alone_s(self) -> float | None: ...
    @property
    def until_s(self) -> float | None: ...
    @property
    def heeds(self) -> int: ...
    @property
    def peers(self) -> Mapping[tuple[str, int], LeadPeer]: ...


class Leads(Protocol):
    """Leader leases of ephemeral hubs."""

    on_lead: Callable[[Any], None] | None
    """Called with a `LeadNews` when leader leases change."""

    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None:
        """All `(hub, term, gives_up)` whose records name this process."""

    def lead_census(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None: ...

    async def lead_tables(
        self,
        mandate: int,
        until_s: float,
        confirmed_s: float,
        tables: Mapping[tuple[str, int], Collection[tuple[int, int]]],
        census: int,
    ) -> None:
        """Sets the leader leases that the controller may grant. Returns when nothing is granted by earlier
        tables.

        Args:
            mandate: Controller term.
            until_s: When granting ends.
            confirmed_s: When the coordinator last confirmed the term.
            tables: Hubs and their terms, by process.
            census: Revision of the voters.
        """

    async def lead_resign(self, mandate: int) -> None:
        """Ends granting in a controller term. Returns when nothing is granted any more."""

    def lead_snapshot(self) -> LeadSnapshot: ...


class Routes(Protocol):
    """Cluster state that the broker routes by."""

    on_ready: Callable[[], None] | None
    """Called when `route_ready` has changed."""
    on_room_miss: Callable[[str, bytes, bool], None] | None
    """Takes class and name of a room whose hub is not known, and whether to place it if it has none. Answer
    with `route_rooms`, `route_refuse` or `route_absent`."""
    on_locate: Callable[[int, bytes], None] | None
    """Takes a request number and a topic that a client looks up. Answer with `route_located`."""

    def route_classes(self, classes: Sequence[ClassRow]) -> None:
        """Sets all classes; call it before their hubs and rooms are passed."""

    def route_hubs(self, rows: Sequence[RouteRow]) -> None:
        """Sets all hubs. Hubs of logged classes that this process leads are open already."""

    def route_serves(self, hubs: Sequence[int]) -> None:
        """Sets all hubs that this process serves without a leader lease while their routes name it as
        leader."""

    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        """Sets the hubs of some rooms; None: the ring decides, or the room must be looked up again."""

    def route_refuse(self, rooms: Sequence[bytes], code: str = HubClosedError.code) -> None:
        """Refuses rooms of `on_room_miss`, with the error code for the clients that wait for them."""

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        """Reports rooms of `on_room_miss` that have no hub and were not to be placed."""

    async def route_unused(
        self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool = False
    ) -> Sequence[bytes]:
        """Returns the unused ones of these rooms.

        Args:
            hub: A hub without a log that this process leads.
            term: Term in which it leads the hub.
            rooms: Names.
            gives_up: Whether the data plane also drops the hub of the unused rooms and looks it up again when
                they are used; default: no.
        """

    def route_located(
        self, number: int, members: Sequence[tuple[str, str]] | None, code: str = HubClosedError.code
    ) -> None:
        """Answers `on_locate`.

        Args:
            number: Number of the request.
            members: Names and Redis addresses of the members that have the room, leader first; None: refused.
            code: Error code of a refusal.
        """

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        """Returns the room of a topic, its class, and the index of the hub that the ring selects for it."""

    def route_ready(self) -> Sequence[tuple[str, int]]:
        """The processes, including this one, that have announced that they hold all patterns and all interest
        that concerns them."""


class Hubs(Protocol):
    """Hubs of the node's log."""

    async def open_hub(self, hub: int, room_class: str, index: int) -> Any: ...
    async def close_hub(self, hub: int) -> int | None:
        """Returns the last assigned offset; 0: the hub has no record; None: it was not open."""

    def log(self) -> "Log | None":
        """The log and its open hubs; None without a log."""


class DataPlane(Links, Leads, Routes, Hubs, Protocol):
    """All of these interfaces, and the node's metrics."""

    def metrics(self) -> Mapping[str, Any]:
        """Returns `shards`: per shard, counters and gauges by name."""
