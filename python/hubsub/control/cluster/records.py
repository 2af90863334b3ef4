"""The values stored in the coordinator, as JSON objects.

Every value has a `format`. Unknown fields are preserved when this version writes the value again, so that an
older controller loses nothing of a newer one. A change that an older version must not ignore raises the
format; a value of another format is refused with an error that names both versions.

Invariant: `parse(cls, key, format_of(record)) == record`. Room records have another encoding: see `buckets`.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from hubsub.errors import RecordDamagedError, RecordFormatError

FORMAT: Final = 2
"""Format of all values here. Raised when a version that does not know the change would do harm."""

CLUSTER, INCARNATION, VOTERS, CONTROLLER_TERM = (
    "meta/cluster",
    "meta/incarnation",
    "meta/voters",
    "meta/controller-term",
)
META = "meta"
NODES, HUBS, CLASSES, ROOMS = "nodes", "hubs", "classes", "rooms"
"""Directories in the coordinator."""

EPHEMERAL = "ephemeral"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records."""

    rest: Mapping[str, Any] = {}
    """Unknown fields, as they were read."""


R = TypeVar("R", bound=Record)


class Founder(msgspec.Struct, frozen=True, kw_only=True):
    """The node whose hubs the cluster began with: see `bootstrap`."""

    node: str
    log: str
    """Identity of the log in its data directory."""
    hubs: Mapping[str, tuple[int, ...]]
    """By class, the ids of its hubs there, by index."""


class ClusterRecord(Record, frozen=True, kw_only=True):
    """`meta/cluster`: written by the first node. A node that starts while no other is registered may update
    the settings."""

    id: str
    settings: Mapping[str, Any] = {}
    """Settings that all nodes must share, by the names of the configuration; see `classes.settings_of`."""
    founder: Founder | None = None
    """None: there was no log when the cluster began."""


class IncarnationRecord(Record, frozen=True, kw_only=True):
    """`meta/incarnation`: the latest incarnation that was issued."""

    last: int


class ControllerTermRecord(Record, frozen=True, kw_only=True):
    """`meta/controller-term`: the latest controller term; `controller` itself ends with its lease."""

    last: int


class NodeRecord(Record, frozen=True, kw_only=True):
    """`nodes/NAME`: written by the node, bound to its lease."""

    incarnation: int
    addresses: Mapping[str, str] = {}
    """Protocol to `HOST:PORT`, as clients and peers reach it."""
    roles: tuple[str, ...] = ("edge", "hub")
    zone: str = ""
    capacity: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Relative to the other nodes; default: its shards."""
    shards: int = 1
    version: str = ""
    process: str = ""
    """`HOST:PID`, for operators who look for the process."""
    since_ms: int = 0
    """When the process registered, ms since 1970 by its own clock."""
    keeps_log: bool = True
    """Whether it can hold hubs of logged classes."""
    is_draining: bool = False
    """It is about to leave: it gets no hubs or rooms, and its hubs move to other nodes."""

    @property
    def holds_hubs(self) -> bool:
        """Whether it may be a member of hubs."""
        return "hub" in self.roles


class ControllerRecord(Record, frozen=True, kw_only=True):
    """`controller`: written by the node that is elected, bound to its lease."""

    node: str
    incarnation: int
    controller_term: int
    """Controller term; each election increments it."""


class ClassRecord(Record, frozen=True, kw_only=True):
    """`classes/NAME`: the fields that placement needs, and the whole class in `definition`."""

    version: int
    hubs: int
    """Number of its hubs; never changes."""
    members: int = 1
    durability: str = EPHEMERAL
    placement: str = "least-busy"
    on_partition: str = "pause"
    is_removed: bool = False
    """The class keeps its rooms and gets no new ones."""
    order: int = 0
    """If several classes match a room, the lowest order wins."""
    definition: Mapping[str, Any] = {}


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """The next leader and members of a hub, once its leader has given it up."""

    leader: str
    members: tuple[str, ...]


class HubRecord(Record, frozen=True, kw_only=True):
    """`hubs/ID`: leader and members of a hub. Only the controller writes it."""

    room_class: str = msgspec.field(name="class")
    index: int
    """Index within its class, from 0; the ring maps the hash of a room's name to it."""
    term: int
    """From 1; each change of leader, incarnation or members increments it."""
    leader: str
    incarnation: int
    """Incarnation of the leader: a restarted process does not lead what its predecessor led."""
    members: tuple[str, ...]
    """Node names, leader first."""
    proposed: Proposed | None = None


class VotersRecord(Record, frozen=True, kw_only=True):
    """`meta/voters`: the voters, whose majority a controller must hear; see `voters`."""

    nodes: tuple[str, ...]
    before: tuple[str, ...] = ()
    """The previous voters, while leader leases may rely on them; empty: no change is in progress."""


def format_of(record: Record) -> bytes:
    """Encodes a record for the coordinator."""
    known = msgspec.to_builtins(record)
    del known["rest"]
    return msgspec.json.encode({"format": FORMAT, **record.rest, **known})


def parse(cls: type[R], key: str, value: bytes) -> R:
    """Decodes a record.

    Raises:
        RecordFormatError: another version wrote it.
        RecordDamagedError: it is no such record.
    """
    try:
        fields = msgspec.json.decode(value, type=dict[str, Any])
        format_seen = fields.pop("format")
        if not isinstance(format_seen, int):
            raise TypeError("format is no number")
        if format_seen != FORMAT:
            raise RecordFormatError(value=f"{key} has format {format_seen}, this version reads {FORMAT}")
        rest = {name: fields.pop(name) for name in fields.keys() - _known(cls)}
        return msgspec.convert(fields | {"rest": rest}, cls)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise RecordDamagedError(value=f"{key}: {error}") from error


def hub_key(hub: int) -> str:
    return f"{HUBS}/{hub}"


def node_key(name: str) -> str:
    return f"{NODES}/{name}"


@functools.cache
def _known(cls: type[Record]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(cls)) - {"rest"}
