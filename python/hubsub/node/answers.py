"""What a node is given and what it answers, as the control plane has it."""

from collections.abc import Mapping
from typing import NamedTuple


class Member(NamedTuple):
    """Somebody who is in a room."""

    key: str
    ref: str
    """No other one ever has it."""
    meta: bytes
    """What it says of itself: an object of JSON."""


class Occupancy(NamedTuple):
    """How many of a node are in a room."""

    by_protocol: dict[str, int]
    """Subscriptions to its topics."""
    publishers: int
    members: int


class Consumer(NamedTuple):
    """A group that keeps its place in a topic."""

    group: bytes
    topic: bytes
    position: tuple[int, int]
    """Epoch and seq of the record up to which all is acknowledged."""
    lag: int
    """Records of its room behind that which are not."""
    given: int
    """Of these, what members have."""
    members: int
    """In the whole cluster."""


class BusyRoom(NamedTuple):
    """A room and what it does in a second, by a sketch that looks at some of its records."""

    name: bytes
    messages: float
    bytes_in: float
    """Of topic and payload."""
    bytes_out: float
    """The same for each subscriber that a record goes to."""


class Published(NamedTuple):
    """A record that was taken; epoch and seq are 0 where no room took it."""

    receivers: int
    epoch: int
    seq: int
    is_duplicate: bool = False
    """Its producer had sent it before: this is where it stands since."""


class Item(NamedTuple):
    """A record to publish."""

    topic: bytes
    payload: bytes
    headers: Mapping[str, str]
    publisher: str
    producer: tuple[int, int] | None = None
    """Who numbered it and that number, both from 1; see `hubsub.names.producer_id`."""


class Failed(NamedTuple):
    """A record of a batch that was refused."""

    code: str
    message: str


class PublishedRows(NamedTuple):
    """What came of the rows of a chunk."""

    again: int
    """How many were there already."""
    refused: list[tuple[int, Failed]]
    """By place in the chunk."""


class PeerEvent(NamedTuple):
    """What became of a peer: another node with which this one may have links."""

    kind: str
    """`up` (all its links stand), `suspected`, `heard` (again), `down` (a link ended), `refused`, `dead`."""
    node: str
    incarnation: int
    code: str | None
    """Of `down`: `stopping`, `goodbye`, `left`, `eof`, `silent`, `broken_rule`, `unregistered`; of that and `refused`
    also the code of a refusal (docs/protocol/link.md)."""
    text: str | None
    """Why, for a person."""


class LeadEvent(NamedTuple):
    """What became of this node's leads, or of what a controller knows of others."""

    kind: str
    """`opened`, `closed`: its lead runs (again), or has ended. `began`, `gave_up`: its shard was told to lead the hub
    in that term, or leads it no more. `heeds`: it heeds the controller of that mandate from now on, 0 for none.
    `changed`: something else of `lead_snapshot`, but for times."""
    hub: int | None
    term: int | None
    mandate: int | None


class LeadPeer(NamedTuple):
    """What this node knows of a process; times are seconds of `time.monotonic()`."""

    heard_s: float
    heeds_s: float | None
    """Since when it is known to heed the mandate of the snapshot; None: it does not."""
    heeds_until_s: float | None
    """Until when it is known to have heeded it since then, by round trips."""
    lead_until_s: float | None
    """End of the last lead that was granted to it under this mandate."""
    gave_up: frozenset[tuple[int, int]]
    """Hubs and terms that it will never lead again."""
    suspects: frozenset[str]


class LeadSnapshot(NamedTuple):
    """What a controller decides by, at one moment; times are seconds of `time.monotonic()`."""

    now_s: float
    mandate: int
    """0: this node has none."""
    confirmed_s: float
    """When that was confirmed last, by a majority or by the coordinator."""
    alone_s: float | None
    """When a majority of the census had no controller last, by round trips; None: this node has one."""
    census: int
    """Revision that grants name."""
    census_s: float
    """Since when."""
    until_s: float | None
    """End of this node's own lead; None before the first."""
    heeds: int
    """Mandate that this node heeds; 0: it hears no controller."""
    peers: Mapping[tuple[str, int], LeadPeer]
    """By node and incarnation: all that were heard, this one too."""


class HistoryRow(NamedTuple):
    """A record as history holds it."""

    epoch: int
    seq: int
    timestamp_us: int
    topic: bytes
    publisher: str
    payload: bytes
    headers: Mapping[str, str]


class ClusterNode(NamedTuple):
    """A node as Redis cluster clients are told of it."""

    name: str
    """By the names alone the slots are dealt."""
    id: str
    """Of `hubsub.names.redis_cluster_id`."""
    host: str
    """Empty: the one that the client came to."""
    port: int
