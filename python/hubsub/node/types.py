"""Types that the control plane exchanges with a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from hubsub.config import RoomClass

T = TypeVar("T")


class Ticket(int, Generic[T]):
    """The number of a request of the core, which answers a T."""


class Rows(list[tuple[Any, ...]], Generic[T]):
    """Tuples with the fields of T, as the core makes them."""


class Member(NamedTuple):
    key: str
    ref: str
    """Unique: no other member ever has it."""
    meta: bytes
    """The member's metadata, a JSON object."""


class Occupancy(NamedTuple):
    """Counts of a room on one node."""

    by_protocol: dict[str, int]
    """Number of subscriptions to its topics, by protocol."""
    publishers: int
    members: int


class Consumer(NamedTuple):
    """A consumer group with a persisted position in a topic."""

    group: bytes
    topic: bytes
    position: tuple[int, int]
    """Epoch and seq of the record up to which all are acknowledged."""
    lag: int
    """Records of its room after the position that are not acknowledged."""
    given: int
    """Of these, the records delivered to members."""
    members: int
    """In the whole cluster."""


class BusyRoom(NamedTuple):
    """A room and its rates per second, estimated from a sample of its records."""

    name: bytes
    messages: float
    bytes_in: float
    """Bytes of topic and payload."""
    bytes_out: float
    """As `bytes_in`, counted once per receiving subscriber."""


class Published(NamedTuple):
    """An accepted record; epoch and seq are 0 if no room stored it."""

    receivers: int
    epoch: int
    seq: int
    is_duplicate: bool = False
    """True if its producer had sent it before; then this is the position of the earlier record."""


class Item(NamedTuple):
    """A record to publish."""

    topic: bytes
    payload: bytes
    headers: Mapping[str, str]
    publisher: str
    producer: tuple[int, int] | None = None
    """Producer id and sequence number, both from 1; see `hubsub.names.producer_id`."""


class Failed(NamedTuple):
    """A record of a batch that was refused."""

    code: str
    message: str


class PublishedRows(NamedTuple):
    """Result of publishing the rows of a chunk."""

    again: int
    """Number of rows that were published before."""
    refused: list[tuple[int, Failed]]
    """By place in the chunk."""


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A hub, as passed to the broker."""

    hub: int
    room_class: str
    index: int
    """Its index among the class's hubs, from 0."""
    term: int
    leader: tuple[str, int] | None
    """Node and incarnation, possibly of this process, which then leads the hub; None: it has no leader."""


class ClassRow(NamedTuple):
    """A class, as passed to the broker, in order of precedence."""

    definition: RoomClass
    hubs: int
    """Number of its hubs in the cluster; never changes."""
    placement: str
    version: int
    """Incremented with each change, from 1."""
    is_removed: bool
    """Whether it gets no new rooms."""


class PeerEvent(NamedTuple):
    """A state change of a peer, another node with which this one may have links."""

    kind: str
    """`up` (all its links are up), `suspected`, `heard` (again), `down` (a link ended), `refused`, `dead`."""
    node: str
    incarnation: int
    code: str | None
    """With `down`: `stopping`, `goodbye`, `left`, `eof`, `silent`, `broken_rule`, `unregistered`. With `down`
    and `refused` also the code of a refusal (docs/protocol/link.md).
    """
    text: str | None
    """The reason, for people."""


class LeaseEvent(NamedTuple):
    """A change of this node's leader leases, or of a controller's knowledge of other nodes."""

    kind: str
    """`opened`, `closed`: its leader lease runs (again), or has ended. `began`, `gave_up`: its shard was
    ordered to lead the hub in that term, or has stopped leading it. `acknowledges`: it acknowledges the controller
    of that controller term from now on, 0 for none. `changed`: another part of `lead_snapshot`, except times,
    has changed.
    """
    hub: int | None
    term: int | None
    controller_term: int | None


class LeasePeer(NamedTuple):
    """This node's knowledge of a process. Times are seconds of `time.monotonic()`."""

    heard_s: float
    acknowledged_s: float | None
    """Since when it is known to acknowledge the controller term of the snapshot; None: it does not."""
    acknowledged_until_s: float | None
    """Until when it is known to have acknowledged it since then, by round trips."""
    lease_until_s: float | None
    """End of the last leader lease that was granted to it in this controller term."""
    gave_up: frozenset[tuple[int, int]]
    """Hubs and terms that it will never lead again."""
    suspects: frozenset[str]


class LeaseSnapshot(NamedTuple):
    """The input of a controller's decisions at one moment. Times are seconds of `time.monotonic()`."""

    now_s: float
    controller_term: int
    """The controller term; 0: this node has none."""
    confirmed_s: float
    """When a majority or the coordinator last confirmed the controller term."""
    alone_s: float | None
    """When a majority of the voters last had no controller, by round trips; None: this node has one."""
    voters: int
    """Revision of the voters that grants name."""
    voters_s: float
    """Since when that revision is in force."""
    until_s: float | None
    """End of this node's own leader lease; None before the first."""
    acknowledged_term: int
    """Controller term that this node acknowledges; 0: it hears no controller."""
    peers: Mapping[tuple[str, int], LeasePeer]
    """By node and incarnation: all processes that were heard, this one too."""


class HistoryRow(NamedTuple):
    epoch: int
    seq: int
    timestamp_us: int
    topic: bytes
    publisher: str
    payload: bytes
    headers: Mapping[str, str]


class RedisClusterNode(NamedTuple):
    """A node, as announced to Redis cluster clients."""

    name: str
    """The slots are distributed by the names alone."""
    id: str
    """The node's id from `hubsub.names.redis_cluster_id`."""
    host: str
    """Empty: the host that the client connected to."""
    port: int
