"""The resolved configuration, which is all that other packages see, and the node's internal classes."""

import socket
from collections.abc import Mapping
from typing import Literal

import msgspec

from hubsub.config.kinds import Secret, split_address
from hubsub.config.limits import LIMITS
from hubsub.errors import without_secrets

Source = Literal["default", "file", "environment", "flag"]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a room's history; 0 means no limit."""

    messages: int = 0
    bytes: int = 0
    age_ms: int = 0
    archive_wait: int = 0
    """Bytes per hub up to which unarchived records are retained beyond the other limits; 0: they are not."""


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
    """Whether a room retains exactly its latest record, forever. Only internal classes set it."""
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
        return self.durability != "ephemeral"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved configuration.

    Addresses are `HOST:PORT`, or None if off; times are in ms, sizes in bytes.
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
    """Source of each value, by key (`limits.NAME` for a limit)."""

    def __repr__(self) -> str:
        """Hides passwords in URLs."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("coordinator", "inflight_store"):
            values[name] = without_secrets(values[name])
        return f"Config({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def names(self) -> tuple[str, ...]:
        """Host names of the node for clients: `hosts`, `advertise`, its listeners' and the machine's."""
        listeners = (split_address(address)[0] for address in (self.http, self.ws) if address)
        advertised = (self.advertise,) if self.advertise else ()
        return (*self.hosts, *advertised, *listeners, socket.gethostname())

    @property
    def is_clustered(self) -> bool:
        """Whether this is a node of a cluster; every such node has a listener for links."""
        return self.link is not None

    @property
    def all_classes(self) -> tuple[RoomClass, ...]:
        """The node's internal classes, followed by those of the configuration."""
        return (*self._of_nodes, *system_classes(self.data, self.limits, self.speaks_mqtt), *self.classes)

    @property
    def speaks_mqtt(self) -> bool:
        return self.mqtt is not None or self.ws is not None

    @property
    def _of_nodes(self) -> tuple[RoomClass, ...]:
        """Internal classes of node statistics, presence and, in a cluster, holders of client ids; a single
        node knows these itself."""
        if self.speaks_mqtt:
            names = [CLAIMS, MEMBERS, SYS] if self.is_clustered else [MEMBERS, SYS]
        else:
            names = [MEMBERS] if any(cls.occupancy_records for cls in self.classes) else []
        return tuple(RoomClass(name=name, match=(f"{name}/#",), placement="ring") for name in names)

    def core_limits(self) -> dict[str, int]:
        return {limit.name: self.limits[limit.name] for limit in LIMITS if limit.owner == "core"}


CLAIMS = "$claim"
"""Class of the rooms of MQTT client ids."""

MEMBERS = "$members"
"""Class of the rooms in which nodes publish the members of a room."""

SYS = "$SYS"
"""Class of the statistics that nodes publish for MQTT clients."""

CONSUMERS = "$consumer"
"""Class of the entries with the positions of named consumers."""

OWN = (CLAIMS, MEMBERS, SYS, "$stage", "$queries", CONSUMERS, "$queue", "$stats", "$system")
"""The node's internal classes; the name is also the first level of their rooms."""

RESERVED = "$"
"""Prefix of the node's internal names."""

PUBLIC = "$stats"
"""The only internal class whose rooms anybody may read."""

SYSTEM = "$system"
"""Class of entries: rooms that retain exactly their latest record, such as a topic's retained message."""

QUERIES_BYTES = 64 << 20
"""Size of the history of queries' batch progress, in bytes: some 300,000 records."""

STATS_BYTES = 64 << 20

STATS_AGE_MS = 7 * 86_400_000
"""Retention of a node's statistics, in ms; on a busy node `STATS_BYTES` limits them first."""


def system_classes(
    data: str | None, limits: Mapping[str, int], speaks_mqtt: bool = False
) -> tuple[RoomClass, ...]:
    """The node's internal classes with a history.

    Without a data directory there is at most the class of entries, in memory, for MQTT. Classes of stages
    expire nothing by age: records that a batch still needs must survive the downtime of a node.

    Args:
        data: Data directory, or None.
        limits: All limits by name.
        speaks_mqtt: Whether MQTT clients can connect; default False.

    Returns:
        The classes, in order of precedence.
    """
    system = RoomClass(
        name=SYSTEM,
        match=(f"{SYSTEM}/#",),
        durability="durable" if data else "ephemeral",
        # Each room retains exactly its latest record, which retention does not remove.
        history=History(messages=1),
        keeps_latest=True,
        placement="ring",
        payload_bytes_max=2**32,
    )
    if not data:
        return (system,) if speaks_mqtt else ()
    least = limits["log_segment_bytes"]

    def own(name: str, room: str, durability: str, size: int, age_ms: int = 0) -> RoomClass:
        # A log removes only whole segments, and never the active one.
        history = History(bytes=max(size, least) + least, age_ms=age_ms)
        return RoomClass(
            name=name,
            match=(f"{name}/#",),
            room=room,
            durability=durability,
            history=history,
            on_slow="catch-up",
            # Otherwise the coordinator would keep a placement record of every stage forever.
            placement="ring",
            payload_bytes_max=2**32,
        )

    consumers = RoomClass(
        name=CONSUMERS,
        match=(f"{CONSUMERS}/#",),
        durability="durable",
        # Each position is the room's latest entry, regardless of its age.
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
