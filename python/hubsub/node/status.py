"""The state of a node and of its log, as the core reports it.

A `Struct` is decoded from JSON, with the fields of the Rust struct that has the same meaning; the REST API shows some
as they are, so their fields have descriptions. A `TypedDict` is a dict of the core.
"""

from collections.abc import Callable
from os import PathLike
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

from msgspec import Meta, Struct, field
from msgspec.json import decode

T = TypeVar("T")

Position: TypeAlias = tuple[int, int]
"""Epoch and seq of a record."""

HubTerm: TypeAlias = tuple[int, int]
"""Id of a hub, and a term of it."""


class Json(bytes, Generic[T]):
    """JSON of a T."""


def read(text: Json[T], kind: type[T]) -> T:
    return decode(text, type=kind)


class Client(Struct, kw_only=True):
    """A connection. Counts are totals; `_1s` and `_60s` are rates per second, averaged over that time.

    These are 0 except for MQTT clients: `keep_alive_s`; `inflight`, unacknowledged messages of QoS 1 and 2,
    of at most `inflight_max`; `waiting`, records that wait until there is room among these or on the socket.
    """

    id: Annotated[int, Meta(description="Of the node that has it.")]
    node: str
    shard: int
    addr: str
    laddr: str
    name: Annotated[str, Meta(description="As CLIENT SETNAME set it; of MQTT: the client id.")]
    lib_name: str
    lib_ver: str
    protocol: str
    age_s: float
    idle_s: float
    subscriptions: int
    patterns: int
    pending_bytes: int
    keep_alive_s: int
    inflight: int
    inflight_max: int
    waiting: int
    dropped: int
    lagging: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    messages_in_1s: float
    messages_out_1s: float
    bytes_in_1s: float
    bytes_out_1s: float
    messages_in_60s: float
    messages_out_60s: float
    bytes_in_60s: float
    bytes_out_60s: float


class Session(Struct, kw_only=True):
    """An MQTT session that outlives its connection."""

    client_id: str
    node: str
    shard: int
    client: Annotated[int | None, Meta(description="Id of its connection; null while there is none.")]
    expiry_s: Annotated[int | None, Meta(description="How long it outlives that; null: for ever.")]
    ends_in_s: Annotated[
        int | None, Meta(description="Until it ends, while there is no connection; null: not by itself.")
    ]
    subscriptions: int
    unacknowledged: Annotated[
        int, Meta(description="Messages that the client was sent and has not acknowledged.")
    ]
    queued: Annotated[int, Meta(description="Messages that wait for it.")]
    queued_bytes: int
    dropped: Annotated[int, Meta(description="Messages that gave way to later ones while it was away.")]


class TraceStep(Struct, kw_only=True):
    """A step of a followed record on this node."""

    epoch: int
    seq: int
    at_us: int
    shard: int
    kind: str
    count: int | None
    """Subscribers; of `logged`: the offset in the hub's log."""
    peer_shard: int | None
    peer_node: int | None
    """`Peer.id` of the other node."""


class TraceSteps(Struct, kw_only=True):
    """The steps of followed records on this node."""

    after: tuple[int, int] | None
    until: tuple[int, int] | None
    """All shards have all steps of the positions from `after`, exclusive, to `until`; as epoch and seq."""
    is_full: bool
    """Whether a shard takes no more records."""
    steps: list[TraceStep]


class HubState(Struct, kw_only=True):
    """The state of a hub that the REST API shows too. Offsets count the records of all its rooms, from 1."""

    id: Annotated[int, Meta(description="The number of its directory.")]
    room_class: str = field(name="class")
    index: int
    durability: str
    shard: int
    state: Annotated[
        Literal["open", "damaged", "full", "failed", "quarantined"],
        Meta(description="An open or damaged one takes records; one that is full or failed is still read."),
    ]
    reason: Annotated[str | None, Meta(description="Why it is not open.")]
    damaged: Annotated[
        str | None, Meta(description="What was found damaged since the start; the rest is served.")
    ]
    earliest: Annotated[int, Meta(description="Offset of the oldest record kept, or of the next one.")]
    latest: Annotated[int, Meta(description="Last offset given out; 0 before the first.")]
    committed: Annotated[int, Meta(description="Last offset that is acknowledged and delivered.")]
    synced: Annotated[int, Meta(description="Last offset that is on disk.")]
    bytes: Annotated[int, Meta(description="Of all its segments.")]
    archived: Annotated[
        int | None, Meta(description="First offset that is not archived; null where no archive has told.")
    ]
    archive_waiting_bytes: Annotated[
        int, Meta(description="Of segments that stay for the archive alone (`history.archive_wait`).")
    ]
    archive_lost: Annotated[
        int, Meta(description="Records removed since the start that were not archived, for want of disk.")
    ]
    segments: int
    index_bytes: Annotated[int, Meta(description="Memory that finds its rooms and records.")]
    first_timestamp_us: Annotated[int | None, Meta(description="Of its oldest record; null without one.")]
    last_timestamp_us: int | None


class Hub(HubState, kw_only=True):
    """A hub that has a log on this node."""

    opened: int
    """Offset after the last one when it was opened."""
    rooms: int
    """Rooms with records; 0 if unknown."""
    deliveries: int
    """Of its records to subscribers, since the start."""
    bytes_in: int
    """Bytes of topics and payloads of its records, since the start."""
    bytes_out: int
    """As `bytes_in`, counted once per receiving subscriber."""

    @property
    def name(self) -> str:
        return f"{self.room_class}-{self.index}"


class Log(Struct, kw_only=True):
    state: Literal["open", "full", "failed"]
    identity: str
    """Random number of its directory, in hexadecimal."""
    reason: str | None
    """Why it accepts no records."""
    figures: dict[str, int]
    """Counters, whose names end in `_total`, and gauges."""
    syncs: list[tuple[int | None, int]]
    """A histogram: upper bound in µs, None for the last, and number of syncs."""
    hubs: list[Hub]
    """All hubs, by id."""


class Store(Struct, kw_only=True):
    """The store of MQTT sessions, if it is a file or a server."""

    state: Literal["open", "away"]
    reason: str | None
    """Why it does not answer."""
    figures: dict[str, int]


class Metrics(TypedDict):
    shards: list[dict[str, int]]
    node: dict[str, int]


Room = TypedDict(
    "Room",
    {
        "name": bytes,
        "class": str,
        "epoch": int,
        "seq": int,  # Of its last record.
        "shard": int,
        "hub": str,  # CLASS-INDEX.
        "in_memory": bool,  # Else it is only in the log, and the last four are None.
        "subscribers": int,
        "topics": int,  # With subscribers.
        "history": int | None,  # Records.
        "history_bytes": int | None,
        "first_seq": int | None,
        "idle_ms": int | None,
    },
)
"""A room in memory or in the log."""


class Lanes(TypedDict):
    """A counter of a link, by priority of frames."""

    urgent: int
    live: int
    reads: int


class Link(TypedDict):
    """A link to a peer, with totals of all its connections. Values that are not known yet are None."""

    state: Literal["waiting", "dialing", "up", "suspected", "refused"]
    code: str | None  # Why it last ended.
    text: str | None
    heard_ms: float | None  # How long ago.
    round_trip_us: int | None
    offset_us: int | None  # How far the peer's clock is ahead.
    offset_error_us: int | None
    controller_term: int  # The peer's last values: its own controller term,
    acknowledged_term: int  # the one that it acknowledges, 0 for none,
    classes: int  # and the version of its classes.
    frames_in: int
    bytes_in: int
    bytes_out: int
    dropped_bytes: int
    suspicions: int
    sent: Lanes  # Frames.
    sent_bytes: Lanes
    refused: Lanes  # Frames.


class Peer(TypedDict):
    """Another node with which this one may have links."""

    node: str
    id: int  # Of this process, never reused.
    incarnation: int
    addresses: list[str]
    links: list[Link]


Scan: TypeAlias = dict[str, Any]
"""A stream of a hub's records, all of: `hub` (id), `from` and `until` (offsets or None: all retained and committed
ones), `rooms`, `topics`, `devices` (lists of bytes), `room_prefix`, `topic_prefix` (bytes), `room_patterns`,
`topic_filters` (lists of patterns as of classes), `since_us`, `until_us` (int or None), `columns` (names), `lz4`
(bool), `batch_rows`, `batch_bytes`. An empty condition is ignored.
"""


# -- a log that no node uses --

Directory: TypeAlias = str | PathLike[str]

Progress: TypeAlias = Callable[[int, int], object] | None
"""Called with the bytes read so far and those of all segments; an exception in it ends the call."""


ManifestHub = TypedDict(
    "ManifestHub",
    {
        "hub": int,
        "class": str,
        "index": int,
        "segments": int,
        "bytes": int,
        "earliest": int,
        "next": int,  # The offset after the last.
        "continuous_from": int,  # Rooms whose last record is below this offset begin a new epoch.
        "lost": list[tuple[int, int]],  # First and last offset of each loss that was accepted.
        "quarantined": str | None,  # Why.
    },
)


class Manifest(TypedDict):
    format: int
    identity: str  # In hexadecimal.
    cluster: str | None  # Id of the one that numbers its hubs.
    clean: bool  # Whether the node ended cleanly.
    checkpoint: int  # Frame up to which segments hold everything.
    journals: tuple[int, int]  # First and last.
    hubs: list[ManifestHub]


class VerifiedHub(ManifestHub):
    """A hub whose records were read; `next` is after all of them."""

    records: int  # In segments.
    journal_records: int  # After those.
    problems: list[str]


class Verified(TypedDict):
    """A log whose records were read."""

    problems: list[str]
    journal_records: int
    hubs: list[VerifiedHub]


RepairedHub = TypedDict(
    "RepairedHub",
    {
        "hub": int,
        "class": str,
        "problems": list[str],
        "kept": int,  # Records.
        "kept_from_journals": int,
        "lost": list[tuple[int, int]],  # First and last offset of each loss.
        "unknown_from": int | None,  # More may be lost from this offset on.
        "earliest": int,
        "next": int,
        "set_aside": list[str],  # Paths.
    },
)


class Repaired(TypedDict):
    """A repair, or its plan."""

    problems: list[str]
    manifest: str | None  # Why it is written again.
    done: bool
    left: list[str]  # Problems that remain.
    hubs: list[RepairedHub]


class LogRecord(TypedDict):
    hub: int
    offset: int
    term: int
    epoch: int
    seq: int
    timestamp_us: int
    kind: Literal["message", "room deleted", "tombstone"]
    room: bytes
    topic: bytes
    publisher: str
    producer: int | None  # It and `sequence` are None if no producer numbered the record.
    sequence: int | None
    headers: dict[str, str]
    payload: bytes


# -- the embedded coordinator --

Listed: TypeAlias = tuple[list[tuple[str, bytes, int]], bool]
"""Rows of name, value and revision; and whether there are more."""

Committed: TypeAlias = (
    tuple[Literal["committed"], list[int]]
    | tuple[Literal["mismatch"], int, int]
    | tuple[Literal["no_lease"], int]
)
"""Revisions; or the place of an expectation and the key's revision; or a lease that does not exist."""

Cursor: TypeAlias = tuple[int, str | None]

Watched: TypeAlias = tuple[bool, bool, list[tuple[str, bytes | None, int]], Cursor]
"""Whether a complete directory begins, whether it ends, rows as of `Listed` (value None: deleted), the next cursor."""


class CoordinatorStatus(TypedDict):
    """A member's knowledge of the cluster; it asks no other."""

    node: int
    cluster: str  # In hexadecimal.
    term: int
    leader: int | None
    members: dict[int, tuple[str, str, bool]]  # Name, address, and whether it votes.
    applied: int
    log_bytes: int
    store_bytes: int
    store_bytes_max: int
    failed: str | None
