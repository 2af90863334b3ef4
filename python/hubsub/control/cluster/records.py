"""The values that the coordinator keeps, as JSON objects: what is read from a key and written to it.

Every value has a `format`. Fields that this version does not know are kept when it writes the value again, so
that an older controller loses nothing of a newer one; what it must not ignore raises the format, and a value of
a newer format is refused with both versions named.

Invariant: `parse(cls, key, format_of(record)) == record`. Room records are packed otherwise: see `rooms`.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from hubsub.errors import RecordDamagedError, RecordFormatError

FORMAT: Final = 1
"""Of all values here. It is raised when a version that does not know the change would do harm."""

CLUSTER, INCARNATION, CENSUS, MANDATE = "meta/cluster", "meta/incarnation", "meta/census", "meta/mandate"
META = "meta"
NODES, HUBS, CLASSES, ROOMS = "nodes", "hubs", "classes", "rooms"
"""Directories."""

EPHEMERAL = "ephemeral"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What all values have."""

    rest: Mapping[str, Any] = {}
    """Fields that this version does not know, as they were read."""


R = TypeVar("R", bound=Record)


class Founder(msgspec.Struct, frozen=True, kw_only=True):
    """Whose hubs became the cluster's: see `founding`."""

    node: str
    log: str
    """Identity of the log in its data directory."""
    hubs: Mapping[str, tuple[int, ...]]
    """Of each class, the numbers that they have there, by index."""


class ClusterRecord(Record, frozen=True, kw_only=True):
    """`meta/cluster`: written by the first node; its settings by a node that starts while no other is registered."""

    id: str
    settings: Mapping[str, Any] = {}
    """What all nodes must have alike, by the names of the configuration; see `classes.settings_of`."""
    founder: Founder | None = None
    """None: there was no log when the cluster began."""


class IncarnationRecord(Record, frozen=True, kw_only=True):
    """`meta/incarnation`: the last one that was given to anybody."""

    last: int


class MandateRecord(Record, frozen=True, kw_only=True):
    """`meta/mandate`: the number of the last election; `controller` itself goes with its lease."""

    last: int


class NodeRecord(Record, frozen=True, kw_only=True):
    """`nodes/NAME`: written by the node, bound to its lease."""

    incarnation: int
    addresses: Mapping[str, str] = {}
    """Protocol to `HOST:PORT`, as clients and peers reach it."""
    roles: tuple[str, ...] = ("edge", "hub")
    zone: str = ""
    capacity: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """What it can carry beside others; by default its shards."""
    shards: int = 1
    version: str = ""
    process: str = ""
    """Machine and process number, for who looks for it."""
    since_ms: int = 0
    """When the process registered, since 1970, by its own clock."""
    keeps_log: bool = True
    """Whether it can hold hubs of logged classes."""
    is_draining: bool = False
    """It wants to end: it is given nothing, and its hubs go to others."""

    @property
    def holds_hubs(self) -> bool:
        """Whether it may lead or hold one."""
        return "hub" in self.roles


class ControllerRecord(Record, frozen=True, kw_only=True):
    """`controller`: written by who is elected, bound to its lease."""

    node: str
    incarnation: int
    mandate: int
    """One more with each election."""


class ClassRecord(Record, frozen=True, kw_only=True):
    """`classes/NAME`: what placement has to know of a class; all else of it is in `definition`."""

    version: int
    hubs: int
    """How many the class has, for good."""
    members: int = 1
    durability: str = EPHEMERAL
    placement: str = "least-busy"
    on_partition: str = "pause"
    is_removed: bool = False
    """It keeps its rooms and gets no new ones."""
    order: int = 0
    """Of two classes that match a room it has the one of the lower order."""
    definition: Mapping[str, Any] = {}


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub is to become when its leader has given it up."""

    leader: str
    members: tuple[str, ...]


class HubRecord(Record, frozen=True, kw_only=True):
    """`hubs/ID`: who leads a hub. Only the controller writes it."""

    room_class: str = msgspec.field(name="class")
    index: int
    """Which one of its class, from 0: what a ring's hash of a room names."""
    term: int
    """One more with each change of leader, incarnation or members; from 1."""
    leader: str
    incarnation: int
    """Of the leader: a process that starts again under its name does not lead what the one before it led."""
    members: tuple[str, ...]
    """Nodes, the leader first."""
    proposed: Proposed | None = None


class CensusRecord(Record, frozen=True, kw_only=True):
    """`meta/census`: whose majority a controller must hear; see `census`."""

    nodes: tuple[str, ...]
    """Names, in order."""
    before: tuple[str, ...] = ()
    """Those of the census before it, as long as leads may stand on that one; none: nothing changes now."""


def format_of(record: Record) -> bytes:
    """A record as the coordinator keeps it."""
    known = msgspec.to_builtins(record)
    del known["rest"]
    return msgspec.json.encode({"format": FORMAT, **record.rest, **known})


def parse(cls: type[R], key: str, value: bytes) -> R:
    """The record of a key.

    Raises:
        RecordFormatError: a newer version wrote it.
        RecordDamagedError: it is no such record.
    """
    try:
        fields = msgspec.json.decode(value, type=dict[str, Any])
        format_seen = fields.pop("format")
        if not isinstance(format_seen, int):
            raise TypeError("format is no number")
        if format_seen > FORMAT:
            raise RecordFormatError(value=f"{key} has format {format_seen}, this version reads {FORMAT}")
        rest = {name: fields.pop(name) for name in fields.keys() - _known(cls)}
        return msgspec.convert(fields | {"rest": rest}, cls)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise RecordDamagedError(value=f"{key}: {error}") from error


def hub_key(hub: int) -> str:
    """The key of a hub."""
    return f"{HUBS}/{hub}"


def node_key(name: str) -> str:
    """The key of a node."""
    return f"{NODES}/{name}"


@functools.cache
def _known(cls: type[Record]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(cls)) - {"rest"}
