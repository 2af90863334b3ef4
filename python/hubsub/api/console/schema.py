"""Bodies of the console's routes and events."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from hubsub.api.schema import BusyRoom


class PeerNow(Struct, kw_only=True):
    """Summary of the links to one peer."""

    node: str
    links: int
    up: Annotated[int, Meta(description="Of these.")]
    round_trip_us: Annotated[int | None, Meta(description="Of the fastest; null: not known.")]
    heard_ms: Annotated[float | None, Meta(description="Of the most silent one that was ever heard.")]
    reason: Annotated[str | None, Meta(description="Why one that is not up ended the last time.")]


class NodeNow(Struct, kw_only=True):
    """State and counters of a node since its start; a rate is a difference of two samples by that of `uptime_s`."""

    name: str
    incarnation: int
    uptime_s: float
    version: str
    role: list[str]
    zone: str
    state: Literal["up", "draining"]
    http: str | None
    hubs_led: Annotated[int | None, Meta(description="Null: a node alone leads all.")]
    shards: int
    reasons: Annotated[list[str], Meta(description="What an operator must see to, as /readyz says it.")]
    cpu_s: Annotated[float, Meta(description="Of the whole process.")]
    resident_bytes: Annotated[int | None, Meta(description="Null where the system does not tell.")]
    counts: Annotated[
        dict[str, int], Meta(description="Gauges, and counters (`…_total`), of all its shards together.")
    ]
    peers: list[PeerNow]
    busiest: Annotated[list[BusyRoom], Meta(description="Its busiest rooms, by a sketch.")]


class NodesNow(Struct, kw_only=True):
    """All nodes that answer, by name."""

    nodes: list[NodeNow]


class TailRecord(Struct, kw_only=True):
    """A record at the end of a room's history. Long parts are truncated."""

    position: str
    timestamp_us: int
    topic: str
    publisher: str
    headers: dict[str, str]
    payload: Annotated[str | None, Meta(description="Its beginning, where all of it is UTF-8.")]
    payload_base64: Annotated[str | None, Meta(description="Likewise, where it is not.")]
    payload_bytes: Annotated[int, Meta(description="Of all of it.")]


class Tail(Struct, kw_only=True):
    """Records not yet sent to the listener, oldest first, and why there are none."""

    records: list[TailRecord]
    kept: Annotated[bool, Meta(description="False: the room's class keeps no history.")]
    room: Annotated[msgspec.Raw, Meta(description="What GET /v1/rooms/{room} answers, or its error.")]
