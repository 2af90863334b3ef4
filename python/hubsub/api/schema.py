"""Request and response bodies of the REST API, one struct per body; the OpenAPI document is generated from them.

`log_schema` has the bodies of the log, `cluster_schema` those of a cluster.
"""

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from hubsub.api.cluster_schema import PeerLinks
from hubsub.api.routes import ATTEMPT, U32_MAX, digits
from hubsub.errors import BadRequestError
from hubsub.names import text_of
from hubsub.node.status import Client

NAME = "UTF-8; a byte that is not stands as %XX, and so does a % that two hex digits follow."

Next = Annotated[str | None, Meta(description="The next page's `after`; null on the last page.")]
NextOfShort = Annotated[
    str | None,
    Meta(
        description="The next page's `after`; null on the last page. A page may be short, and others follow."
    ),
]
Payload = Annotated[str | None, Meta(description="The payload where it is UTF-8.")]
PayloadBase64 = Annotated[str | None, Meta(description="The payload where it is not.")]


class ErrorBody(Struct, kw_only=True):
    """Body of every response with a status above 399."""

    code: Annotated[str, Meta(description="Stable: what programs go by.")]
    message: str
    hint: str | None = None
    hub: Annotated[str | msgspec.UnsetType, Meta(description="With `offsets_lost`: name of the hub.")] = (
        msgspec.UNSET
    )
    first: Annotated[
        int | msgspec.UnsetType,
        Meta(description="Likewise: the first offset that is missing. Nothing before it was left out."),
    ] = msgspec.UNSET
    end: Annotated[
        int | msgspec.UnsetType, Meta(description="Likewise: the first one behind it that is there.")
    ] = msgspec.UNSET


class NodeRef(Struct, kw_only=True):
    """A node with the addresses for clients."""

    name: str
    redis: str | None
    redis_cluster: str | None
    http: str | None


class Room(Struct, kw_only=True):
    """A room and the nodes that serve it."""

    name: Annotated[str, Meta(description=NAME)]
    room_class: str = msgspec.field(name="class")
    epoch: Annotated[str, Meta(description="Decimal, as text: it has 64 bits.")]
    seq: int
    position: Annotated[str, Meta(description="EPOCH-SEQ of its last record.")]
    shard: int
    hub: Annotated[str | None, Meta(description="Null while no hub keeps a record of it.")]
    in_memory: Annotated[
        bool, Meta(description="False: nobody has used it lately; what it remembers is on disk alone.")
    ]
    subscribers: int
    topics: int
    history: Annotated[
        int | None,
        Meta(
            description="Records of it in memory: all that it remembers, or in a class with a log the latest of "
            "them. Null for a room that is not in memory: the log is not read to count them."
        ),
    ]
    history_bytes: Annotated[int | None, Meta(description="Bytes of these; null likewise.")]
    first_seq: Annotated[int | None, Meta(description="Seq of the first of these; null likewise.")]
    idle_ms: Annotated[int | None, Meta(description="Since it was last used; null likewise.")]
    nodes: Annotated[list[NodeRef], Meta(description="Leader first.")]


class RoomPage(Struct, kw_only=True):
    """One page of rooms in order of name."""

    rooms: list[Room]
    next: Next


class Record(Struct, kw_only=True):
    """A record of a room's history."""

    position: str
    timestamp_us: int
    topic: Annotated[str, Meta(description=NAME)]
    publisher: str
    payload: Payload = None
    payload_base64: PayloadBase64 = None
    headers: dict[str, str]


class HistoryPage(Struct, kw_only=True):
    """A range of a room's history, oldest first."""

    recovered: Annotated[bool, Meta(description="False: `after` is not of this life of the room.")]
    records: list[Record]
    next: Annotated[str | None, Meta(description="The next page's `after`; null where there is no more.")]


ProducerName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description="Who numbers records, unique among publishers. Only for replicated and durable "
        "classes, and with `sequence` in each record; a batch's is for those that name none.",
    ),
]


class PublishItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """A record to publish; give `payload` or `payload_base64`."""

    topic: Annotated[str, Meta(min_length=1, description=NAME)]
    payload: str | None = None
    payload_base64: str | None = None
    headers: dict[str, str] = {}
    producer: ProducerName | None = None
    sequence: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=2**62,
                description="The producer's own number for it, rising; with the same one it is kept once.",
            ),
        ]
        | None
    ) = None

    def payload_bytes(self) -> bytes:
        if (self.payload is None) == (self.payload_base64 is None):
            raise BadRequestError(
                "give either payload or payload_base64", self.topic, "bytes that are no UTF-8 go as base64"
            )
        if self.payload is not None:
            return self.payload.encode()
        return from_base64(self.payload_base64 or "")


class PublishBatch(Struct, kw_only=True, forbid_unknown_fields=True):
    """Records to publish in order."""

    records: Annotated[list[PublishItem], Meta(min_length=1)]
    producer: ProducerName | None = None


class PublishOne(PublishItem, kw_only=True, forbid_unknown_fields=True):
    """A record to publish: one of `payload` and `payload_base64`, both or neither of `producer` and `sequence`."""


def _has(name: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _lacks(name: str) -> dict[str, Any]:
    return {"properties": {name: {"type": "null"}}}


_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_IN_BASE64 = {"properties": {"payload_base64": {"type": ["string", "null"], "pattern": _BASE64}}}
_ONE_PAYLOAD = {"oneOf": [_has("payload"), _has("payload_base64")], **_IN_BASE64}
_NUMBERED = {
    "oneOf": [
        {"allOf": [_has("producer"), _has("sequence")]},
        {"allOf": [_lacks("producer"), _lacks("sequence")]},
    ]
}
_OF_BATCH = {
    "oneOf": [
        {"allOf": [_has("producer"), {"properties": {"records": {"items": _has("sequence")}}}]},
        {"allOf": [_lacks("producer"), {"properties": {"records": {"items": _NUMBERED}}}]},
    ]
}

RULES: dict[str, dict[str, Any]] = {
    "PublishItem": _ONE_PAYLOAD,
    "PublishOne": {"allOf": [_ONE_PAYLOAD, _NUMBERED]},
    "PublishBatch": _OF_BATCH,
    "ActionOrder": {"not": {"allOf": [_has("payload"), _has("payload_base64")]}, **_IN_BASE64},
    "QueryReport": {"properties": {"offsets": {"propertyNames": {"pattern": f"^{digits(U32_MAX)}$"}}}},
    "BatchCommit": {"properties": {"attempts": {"uniqueItems": True, "items": {"pattern": f"^{ATTEMPT}$"}}}},
}
"""Per struct, JSON Schema constraints that combine several fields."""


class PublishResult(Struct, kw_only=True, omit_defaults=True):
    """Result for one record: `receivers`, `duplicate`, or `error`."""

    receivers: Annotated[int | None, Meta(description="Subscribers of the whole room that it goes to.")] = (
        None
    )
    position: Annotated[str | None, Meta(description="Absent where no room took the record.")] = None
    duplicate: Annotated[
        bool | None,
        Meta(
            description="Where there is a producer: true, the record was there already, at this position, "
            "and nobody got it again; `receivers` is absent."
        ),
    ] = None
    error: ErrorBody | None = None


class PublishResults(Struct, kw_only=True):
    """One result per record, in the same order."""

    results: list[PublishResult]


class ClientList(Struct, kw_only=True):
    """Clients, sorted with the largest first."""

    clients: list[Client]


class NodeInfo(NodeRef, kw_only=True):
    """A node of the cluster."""

    role: list[str]
    shards: int
    version: str
    build_profile: str
    incarnation: int
    uptime_s: float
    running: bool
    zone: str
    state: Annotated[
        Literal["up", "draining"], Meta(description="As it says itself; /v1/cluster has what others see.")
    ]
    hubs_led: Annotated[
        int | None, Meta(description="Hubs that it is to lead; null: a node alone leads all.")
    ]
    peers: Annotated[list[PeerLinks], Meta(description="Its links to the other nodes.")]


class NodeList(Struct, kw_only=True):
    """All nodes of the cluster."""

    nodes: list[NodeInfo]


class Ready(Struct, kw_only=True):
    """Readiness of a node. Damage to its log or session store does not make it unready: reads continue."""

    status: Literal["ready"] = "ready"
    log: Annotated[
        Literal["none", "open", "full"], Meta(description="`full`: publishes to logged classes are refused.")
    ]
    reasons: Annotated[list[str], Meta(description="What an operator must see to; mostly empty.")]


class HistoryLimits(Struct, kw_only=True):
    """Retention limits; 0 means no limit."""

    messages: int
    bytes: int
    age_ms: int
    archive_wait: Annotated[
        int, Meta(description="Bytes of a hub up to which what is not archived is kept; 0: it is not.")
    ]


class RoomClass(Struct, kw_only=True):
    """A resolved room class."""

    name: str
    version: Annotated[int | None, Meta(description="One more with each change; null on a node alone.")]
    state: Annotated[
        Literal["in_force", "removed"],
        Meta(description="`removed`: it keeps its rooms and gets no new ones."),
    ]
    hubs: Annotated[int | None, Meta(description="How many it has in the cluster; null on a node alone.")]
    match: list[str]
    room: str
    device: Annotated[str | None, Meta(description="What names the device of a topic; null: nothing.")]
    device_state: Annotated[str | None, Meta(description="Topic of its state, if the class says it.")]
    device_actions: Annotated[str | None, Meta(description="Topic of its actions, if the class says it.")]
    durability: str
    members: int
    history: HistoryLimits | None
    on_slow: str
    on_gap: str
    share_strategy: str
    placement: str
    on_partition: str
    payload_bytes_max: int
    idle_ms: int
    browser_events: Annotated[bool, Meta(description="Whether what browsers push is published.")]
    presence: Annotated[str, Meta(description="Who is a member of a room: `asked`, `all` or `off`.")]
    presence_records: Annotated[bool, Meta(description="Whether it is recorded who comes and goes.")]
    occupancy_records: Annotated[bool, Meta(description="Whether it is recorded how many are in a room.")]


class ClassList(Struct, kw_only=True):
    """All classes, in order of precedence; the last one is the default class."""

    classes: list[RoomClass]
    version: Annotated[
        int | None, Meta(description="Of all together, the larger the later; null on a node alone.")
    ]
    nodes: Annotated[
        list["ClassOnNode"],
        Meta(
            description="By name, in a cluster. One with a smaller version is behind: publishes wait for it."
        ),
    ]


class ClassOnNode(Struct, kw_only=False):
    """Version of the classes that a node uses."""

    name: str
    version: Annotated[int, Meta(description="As of the list; 0: it has not said.")]


class AppliedClasses(Struct, kw_only=True):
    """Result of applying classes."""

    changed: Annotated[list[str], Meta(description="Those that are new or other than before.")]


class BusyRoom(Struct, kw_only=True):
    """A room among the busiest. Its rate is an estimate from a sketch."""

    name: Annotated[str, Meta(description=NAME)]
    messages_per_second: float


class BusyRooms(Struct, kw_only=True):
    """The busiest rooms, sorted with the busiest first."""

    rooms: list[BusyRoom]


class Version(Struct, kw_only=True):
    """Versions of the package and the core, and the build profile."""

    version: str
    core: str
    build_profile: str


class Stat(Struct, kw_only=True):
    """The node's counters and gauges, and those of each shard."""

    name: str
    version: str
    uptime_s: float
    node: dict[str, Any]
    shards: list[dict[str, Any]]


def from_base64(text: str) -> bytes:
    """Decodes a `payload_base64`.

    Raises:
        BadRequestError: it is no base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one; characters beyond ASCII raise a plain one.
        raise BadRequestError("payload_base64 is no base64", error) from None


def payload_fields(payload: bytes) -> dict[str, str]:
    """Puts a payload into the one of the two fields that can hold it."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def room_body(room: Mapping[str, Any], nodes: list[NodeRef]) -> Room:
    fields = {k: v for k, v in room.items() if k not in ("name", "class", "epoch")}
    return Room(
        name=text_of(room["name"]),
        room_class=room["class"],
        epoch=str(room["epoch"]),
        position=f"{room['epoch']}-{room['seq']}",
        nodes=nodes,
        **fields,
    )
