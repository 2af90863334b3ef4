"""The resolved configuration: all that the rest of the program sees, and the classes that a node has of its own."""

import socket
from collections.abc import Mapping
from typing import Literal

import msgspec

from hubsub.config.kinds import Secret, split_address
from hubsub.config.limits import LIMITS
from hubsub.errors import without_secrets

Source = Literal["default", "file", "environment", "flag"]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a room remembers; 0 means no limit."""

    messages: int = 0
    bytes: int = 0
    age_ms: int = 0
    archive_wait: int = 0
    """Bytes of a hub up to which what is not archived is kept beyond the others; 0: it is not."""


class RoomClass(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved room class; the keys are those of `[[class]]`."""

    name: str
    match: tuple[str, ...] = ()
    room: str = "topic"
    device: str | None = None
    device_state: str | None = None
    device_actions: str | None = None
    durability: str = "ephemeral"
    members: int = 1
    history: History | None = None
    keeps_latest: bool = False
    """Whether a room is its latest record, for ever: of the node's own classes."""
    on_slow: str = "disconnect"
    on_gap: str = "continue"
    share_strategy: str = "round-robin"
    placement: str = "least-busy"
    on_partition: str = "pause"
    payload_bytes_max: int = 64 << 20
    idle_ms: int = 0
    browser_events: bool = True
    presence: str = "asked"
    presence_records: bool = False
    occupancy_records: bool = False
    commit_delay_ms: int = 0

    @property
    def is_logged(self) -> bool:
        """Whether its records go into the log."""
        return self.durability != "ephemeral"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved configuration: all that the rest of the program sees.

    Addresses are `HOST:PORT` or None for off; times are ms, sizes bytes.
    """

    node: str
    data: str | None
    memory: int
    shards: int
    role: tuple[str, ...]
    zone: str
    advertise: str | None
    redis: str | None
    redis_cluster: str | None
    mqtt: str | None
    ws: str | None
    ws_origins: tuple[str, ...]
    hosts: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    phoenix_topics: tuple[str, ...]
    http: str | None
    link: str | None
    raft: str | None
    cluster_secret: Secret | None
    join: tuple[str, ...]
    coordinator: str
    insecure_open: bool
    mqtt_strict: bool
    mqtt_long_ids: bool
    mqtt_wills_recorded: bool
    inflight_store: str
    hash_tags: bool
    log_level: str
    log_format: str
    limits: Mapping[str, int]
    classes: tuple[RoomClass, ...]
    sources: Mapping[str, Source]
    """Key (`limits.NAME` for a limit) to where its value came from."""

    def __repr__(self) -> str:
        """Without the passwords that URLs may have."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("coordinator", "inflight_store"):
            values[name] = without_secrets(values[name])
        return f"Config({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which clients call the node: those of `hosts`, `advertise`, of its listeners and the machine's."""
        listeners = (split_address(address)[0] for address in (self.http, self.ws) if address)
        advertised = (self.advertise,) if self.advertise else ()
        return (*self.hosts, *advertised, *listeners, socket.gethostname())

    @property
    def is_clustered(self) -> bool:
        """Whether it is to be a node of a cluster: all that makes one needs a listener for links."""
        return self.link is not None

    @property
    def all_classes(self) -> tuple[RoomClass, ...]:
        """The node's own classes, if it has any, before those of the configuration."""
        return (*self._of_nodes, *system_classes(self.data, self.limits, self.speaks_mqtt), *self.classes)

    @property
    def speaks_mqtt(self) -> bool:
        """Whether MQTT clients can connect."""
        return self.mqtt is not None or self.ws is not None

    @property
    def _of_nodes(self) -> tuple[RoomClass, ...]:
        """Where nodes say how they are, who is in a room and how many, and those of a cluster who holds a client id; a
        lone one asks nobody."""
        if self.speaks_mqtt:
            names = [CLAIMS, MEMBERS, SYS] if self.is_clustered else [MEMBERS, SYS]
        else:
            names = [MEMBERS] if any(cls.occupancy_records for cls in self.classes) else []
        return tuple(RoomClass(name=name, match=(f"{name}/#",), placement="ring") for name in names)

    def core_limits(self) -> dict[str, int]:
        """The limits that the data plane keeps."""
        return {limit.name: self.limits[limit.name] for limit in LIMITS if limit.owner == "core"}


CLAIMS = "$claim"
"""The class of the rooms of client ids."""

MEMBERS = "$members"
"""The class of the rooms in which nodes say who is in a room."""

SYS = "$SYS"
"""The class of what nodes say of themselves to MQTT clients."""

CONSUMERS = "$consumer"
"""The class of the rows that say where named consumers are."""

OWN = (CLAIMS, MEMBERS, SYS, "$stage", "$queries", CONSUMERS, "$queue", "$stats", "$system")
"""The node's own classes, and the first level of their rooms."""

RESERVED = "$"
"""Names that begin with it are the node's own."""

PUBLIC = "$stats"
"""The one of the node's own classes whose rooms anybody may read."""

SYSTEM = "$system"
"""The class of rows: rooms that are their latest record, such as a topic's retained message."""

QUERIES_BYTES = 64 << 20
"""Of the records that say how far each query's batches are: some 300,000 of them."""

STATS_BYTES = 64 << 20

STATS_AGE_MS = 7 * 86_400_000
"""What the node says of itself is of use for a while; the bound that holds on a busy node is that of bytes."""


def system_classes(
    data: str | None, limits: Mapping[str, int], speaks_mqtt: bool = False
) -> tuple[RoomClass, ...]:
    """The node's own classes. Without a data directory there is that of rows alone, in memory, where clients of MQTT
    have something to keep.

    Those of stages forget nothing by age: what a batch still needs must not go while a node is down.
    """
    system = RoomClass(
        name=SYSTEM,
        match=(f"{SYSTEM}/#",),
        durability="durable" if data else "ephemeral",
        # Each room is its latest record, and retention leaves it alone.
        history=History(messages=1),
        keeps_latest=True,
        placement="ring",
        payload_bytes_max=2**32,
    )
    if not data:
        return (system,) if speaks_mqtt else ()
    least = limits["log_segment_bytes"]

    def own(name: str, room: str, durability: str, size: int, age_ms: int = 0) -> RoomClass:
        # A log removes whole segments, and not the one that it writes.
        history = History(bytes=max(size, least) + least, age_ms=age_ms)
        return RoomClass(
            name=name,
            match=(f"{name}/#",),
            room=room,
            durability=durability,
            history=history,
            on_slow="catch-up",
            # In a cluster a record for each room would stay there for each stage that ever was.
            placement="ring",
            payload_bytes_max=2**32,
        )

    consumers = RoomClass(
        name=CONSUMERS,
        match=(f"{CONSUMERS}/#",),
        durability="durable",
        # The place of each is its latest row, however long ago that was written.
        history=History(messages=1),
        keeps_latest=True,
        placement="ring",
        payload_bytes_max=2**32,
    )
    return (
        own("$stage", "$stage/+/+", "durable", limits["stage_bytes_max"]),
        own("$queries", "$queries/+", "durable", QUERIES_BYTES),
        consumers,
        own("$queue", "topic", "durable", limits["mqtt_session_entries_bytes_max"]),
        own("$stats", "topic", "durable", STATS_BYTES, STATS_AGE_MS),
        system,
    )
