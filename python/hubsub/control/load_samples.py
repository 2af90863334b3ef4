"""Load samples: a node's activity between two measurements, for the room `$stats/load`.

`Measurement` and `sample` are pure; `measure` reads the node, `report` publishes. docs/protocol/load-samples.md defines
the fields.

Invariants: a sample has only counted or estimated values; unknown values are absent. The number of samples is
bounded: the node, its shards, its hubs with a log and `ROOMS_MAX` rooms.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from hubsub.control.resource_usage import cpu_s
from hubsub.errors import HubSubError
from hubsub.names import text_of
from hubsub.node import BusyRoom, Item, Node, publish_own
from hubsub.node.status import Hub

ROOM = b"$stats/load"

VERSION = 1
"""Version of the fields; raised when one is removed or changes its meaning."""

ROOMS_MAX = 32
"""Limit of busiest rooms; each costs a query for its subscribers."""

ROOM_BYTES_MAX = 1_024
"""A room with a longer name is left out, so that no sample exceeds some kilobytes."""

OFF_MS = 1_000
"""Interval at which a node without samples checks whether they were turned on."""

RATES = ("messages_per_second", "deliveries_per_second", "bytes_in_per_second", "bytes_out_per_second")
SHARD_RATES = dict(
    zip(RATES, ("published_total", "delivered_total", "bytes_in_total", "bytes_out_total"), strict=True)
)
HUB_RATES = dict(zip(RATES, ("latest", "deliveries", "bytes_in", "bytes_out"), strict=True))
"""Rate in a sample to the total that it is computed from."""

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A node's counters at one moment; they count from its start."""

    at_us: int
    """Wall-clock time, in µs since 1970."""
    clock_s: float
    """Monotonic time, in seconds."""
    cpu_s: float
    """CPU seconds of the whole process."""
    shards: Sequence[Mapping[str, int]]
    """Metrics by shard, as in `Core.metrics`."""
    hubs: Sequence[Hub]
    """Hubs with a log, as in `Core.log`."""
    rooms: Mapping[bytes, Mapping[str, Any]]
    """The busiest rooms, the busiest first, as `node.status.Room`, and `busy`: the estimated `BusyRoom`."""


def sample(node: str, before: Measurement, after: Measurement) -> list[dict[str, Any]]:
    """The load between two measurements: a flat row for the node, each shard, each hub with a log, each busy room.

    Args:
        node: Name of the node.
        before: The earlier measurement.
        after: The later measurement.

    Returns:
        The rows in that order; none if no time has passed.
    """
    seconds = after.clock_s - before.clock_s
    if seconds <= 0:
        return []
    at = datetime.fromtimestamp(after.at_us / 1e6, UTC).isoformat(timespec="milliseconds")
    head = {"version": VERSION, "at": at.replace("+00:00", "Z"), "seconds": round(seconds, 6), "node": node}

    def per_second(now: float, then: float) -> float:
        return round((now - then) / seconds, 3)

    shards = [
        {
            "shard": number,
            **{rate: per_second(now[total], then[total]) for rate, total in SHARD_RATES.items()},
            "connections": now["connections"],
            "rooms": now["rooms"],
            # Both are extrapolated from some of the loop's turns, so the sum may slightly exceed 1.
            "cpu_share": min(1.0, per_second(_busy_s(now), _busy_s(then))),
        }
        for number, (now, then) in enumerate(zip(after.shards, before.shards, strict=True))
    ]
    whole = {
        name: round(sum(shard[name] for shard in shards), 3)
        for name in shards[0]
        if name not in ("shard", "cpu_share")
    }
    whole["cpu_share"] = per_second(after.cpu_s, before.cpu_s)
    if after.hubs:
        whole["log_bytes"] = sum(hub.bytes for hub in after.hubs)
    return [
        head | {"kind": "node"} | whole,
        *(head | {"kind": "shard"} | shard for shard in shards),
        *(head | {"kind": "hub"} | hub for hub in _hubs(before, after, per_second)),
        *(head | {"kind": "room"} | room for room in _rooms(before, after, per_second)),
    ]


PerSecond = Callable[[float, float], float]


def _hubs(before: Measurement, after: Measurement, per_second: PerSecond) -> list[dict[str, Any]]:
    then = {hub.id: hub for hub in before.hubs}
    return [
        {
            "hub": hub.name,
            "class": hub.room_class,
            "shard": hub.shard,
            **{
                rate: per_second(getattr(hub, total), getattr(then[hub.id], total))
                for rate, total in HUB_RATES.items()
            },
            "rooms": hub.rooms,
            "log_bytes": hub.bytes,
        }
        for hub in after.hubs
        # A quarantined hub does nothing, and its contents are unknown.
        if hub.id in then and hub.state != "quarantined"
    ]


def _rooms(before: Measurement, after: Measurement, per_second: PerSecond) -> list[dict[str, Any]]:
    rows = []
    for name, room in after.rooms.items():
        if len(name) > ROOM_BYTES_MAX:
            continue
        then = before.rooms.get(name)
        is_counted = then is not None and then["epoch"] == room["epoch"] and then["seq"] <= room["seq"]
        busy: BusyRoom = room["busy"]
        rate = per_second(room["seq"], then["seq"]) if then is not None and is_counted else busy.messages
        # Scale the sketch's bytes by the counted rate.
        share = rate / busy.messages
        rows.append(
            {
                "room": text_of(name),
                "hub": room["hub"],
                "class": room["class"],
                "shard": room["shard"],
                "messages_per_second": round(rate, 3),
                "estimated": not is_counted,
                "bytes_in_per_second": round(busy.bytes_in * share, 3),
                "bytes_out_per_second": round(busy.bytes_out * share, 3),
                "subscribers": room["subscribers"],
            }
        )
    return rows


def _busy_s(shard: Mapping[str, int]) -> float:
    return (shard["socket_ns_total"] + shard["routing_ns_total"]) / 1e9


# -- on a node --


async def measure(node: Node) -> Measurement:
    rooms = {}
    for busy in await node.busiest_rooms(ROOMS_MAX):
        room = await node.room(busy.name)
        if room is not None:
            rooms[busy.name] = {**room, "busy": busy}
    status = node.log()
    return Measurement(
        at_us=time.time_ns() // 1_000,
        clock_s=time.monotonic(),
        cpu_s=cpu_s(),
        shards=node.metrics()["shards"],
        hubs=() if status is None else status.hubs,
        rooms=rooms,
    )


async def publish(node: Node, rows: Sequence[Mapping[str, Any]]) -> None:
    """Publishes samples, in order.

    Raises:
        HubSubError: the log does not accept them.
    """
    items = [
        Item(ROOM, json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode(), {}, "")
        for row in rows
    ]
    await publish_own(node, items)


async def report(node: Node, interval_ms: Callable[[], int]) -> None:
    """Publishes a sample per interval until cancelled; none while the interval is 0.

    Samples that the log refuses are not repeated: the next ones cover a longer time.
    """
    if node.config.data is None:
        return
    before, has_logged = await _try_measure(node), False
    while True:
        interval = interval_ms()
        await asyncio.sleep((interval or OFF_MS) / 1_000)
        if not interval:
            before = None
            continue
        after = await _try_measure(node)
        if before is None or after is None:
            before = after or before
            continue
        try:
            await publish(node, sample(node.name, before, after))
            before, has_logged = after, False
        except HubSubError as error:
            if not has_logged:
                log.warning("load samples are not stored", code=error.code, reason=str(error))
            has_logged = True


async def _try_measure(node: Node) -> Measurement | None:
    try:
        return await measure(node)
    except HubSubError as error:
        log.debug("no load sample", code=error.code, reason=str(error))
        return None
