"""What `rim.CorePlane` needs of a node's data plane, as `hubsub.node.Node` has it: links, leads, routes, logs.

Times are seconds of `time.monotonic()`. Hubs are numbers from 1, terms from 1. Callbacks come in the event loop, in
order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hubsub.config import RoomClass
from hubsub.errors import HubClosedError


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A hub, as the broker is told of it."""

    hub: int
    room_class: str
    index: int
    term: int
    leader: tuple[str, int] | None
    """Node and incarnation; this process is the leader where it is named. None: nobody is."""


class ClassRow(NamedTuple):
    """A class, as the broker is told of it, in order of precedence."""

    definition: RoomClass
    hubs: int
    """How many it has in the cluster, for good."""
    placement: str
    version: int
    is_removed: bool


class PeerNews(Protocol):
    """As `hubsub.node.PeerEvent`."""

    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def code(self) -> str | None: ...


class LeadNews(Protocol):
    """What became of leads: `opened`, `closed`, `began`, `gave_up`, `heeds`, `changed`."""

    @property
    def kind(self) -> str: ...


class Links(Protocol):
    """Who the peers are, and questions between control planes."""

    on_peer: Callable[[Any], None] | None
    """Takes `PeerNews`."""
    on_asked: Callable[[str, int, bytes], None] | None
    """Takes a peer's name, the number for `link_answer`, and the question."""

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None: ...
    def link_peers(self) -> list[dict[str, Any]]: ...
    def link_status(self, classes: int) -> None:
        """What this process says of itself from now on: the version of its classes."""

    async def link_ask(self, node: str, body: bytes) -> bytes: ...
    def link_answer(self, node: str, number: int, body: bytes) -> None: ...


class LeadPeer(Protocol):
    """As `hubsub.node.LeadPeer`."""

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
    """As `hubsub.node.LeadSnapshot`."""

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
    """Who may lead which ephemeral hubs, and until when."""

    on_lead: Callable[[Any], None] | None
    """Takes `LeadNews`."""

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
        """What the controller of a mandate may grant, until then: hubs and terms by process. Returns when nothing is
        granted by those before."""

    async def lead_resign(self, mandate: int) -> None:
        """Likewise, of no mandate any more."""

    def lead_snapshot(self) -> LeadSnapshot: ...


class Routes(Protocol):
    """What the broker knows of the cluster."""

    on_ready: Callable[[], None] | None
    """`route_ready` has changed."""
    on_room_miss: Callable[[str, bytes, bool], None] | None
    """Takes class and name of a room whose place is not known, and whether it gets one if it has none; `route_rooms`,
    `route_refuse` or `route_absent` answers."""
    on_locate: Callable[[int, bytes], None] | None
    """Takes a number and a topic that a client asks for; `route_located` answers."""

    def route_classes(self, classes: Sequence[ClassRow]) -> None:
        """All of them, before hubs and rooms of them."""

    def route_hubs(self, rows: Sequence[RouteRow]) -> None:
        """All hubs. Those of logged classes that this process leads are open."""

    def route_serves(self, hubs: Sequence[int]) -> None:
        """All hubs that this process serves without a lead, as its rows name it."""

    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        """Where some rooms are; None: where the ring has them, or it is to be asked again."""

    def route_refuse(self, rooms: Sequence[bytes], code: str = HubClosedError.code) -> None:
        """Rooms of `on_room_miss` that get no place, and the code that who waits for them is told."""

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        """Rooms of `on_room_miss` that have no place, and were to get none."""

    async def route_unused(
        self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool = False
    ) -> Sequence[bytes]:
        """Those of these rooms that nobody uses, of a hub without a log that this process leads in that term;
        `gives_up`: it has no place for them from then on."""

    def route_located(
        self, number: int, members: Sequence[tuple[str, str]] | None, code: str = HubClosedError.code
    ) -> None:
        """Names and Redis addresses of those that have the room of `on_locate`, its leader first; None: it is
        refused with the code."""

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        """Room, class, and the index of the hub that the ring has for it."""

    def route_ready(self) -> Sequence[tuple[str, int]]:
        """The processes that hold all patterns and all interest that concerns them, as they said; this one too."""


class Hubs(Protocol):
    """The hubs of its log."""

    async def open_hub(self, hub: int, room_class: str, index: int) -> Any: ...
    async def close_hub(self, hub: int) -> int | None:
        """The last offset that it gave out; 0: it has no record. None: it was not open."""

    def log(self) -> Mapping[str, Any] | None:
        """`hubs`: of each that is open, `id` and `latest`, its last offset. None without a log."""


class DataPlane(Links, Leads, Routes, Hubs, Protocol):
    """All of it, and what the node did."""

    def metrics(self) -> Mapping[str, Any]:
        """`shards`: counters and gauges of each, by name."""
