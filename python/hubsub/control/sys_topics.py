"""Values of a node for MQTT clients, under the usual topics of brokers: `$SYS/broker/…`.

A single node is the broker. In a cluster each node publishes its own values under its name
(`$SYS/broker/NODE/…`): rooms belong to the whole cluster, so two nodes would otherwise overwrite each other's
values.

`Measurement`, `Loads` and `values` are pure; `report` reads the node and publishes. docs/protocol/mqtt-sys.md lists
the topics.

Invariant: a value that the node does not count is not published.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from hubsub.errors import HubSubError
from hubsub.node import Item, Node, publish_own
from hubsub.version import VERSION

ROOT = "$SYS/broker"

OFF_S = 1.0
"""Interval at which a node with this turned off checks whether it was turned on."""

MINUTES = (1, 5, 15)

GAUGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("clients/connected", ("mqtt_connections",)),
    ("clients/disconnected", ("mqtt_sessions_offline",)),
    ("subscriptions/count", ("mqtt_subscriptions",)),
    ("retained messages/count", ("retained_messages",)),
)
"""Current values: the topic, and the metrics whose sum it is."""

COUNTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("messages/received", "messages/received", ("mqtt_packets_total",)),
    ("messages/sent", "messages/sent", ("mqtt_packets_sent_total",)),
    ("publish/messages/received", "publish/received", ("mqtt_published_total",)),
    ("publish/messages/sent", "publish/sent", ("mqtt_delivered_total",)),
    ("publish/messages/dropped", "publish/dropped", ("mqtt_unsent_total", "dropped_total")),
    ("bytes/received", "bytes/received", ("mqtt_bytes_in_total",)),
    ("bytes/sent", "bytes/sent", ("mqtt_bytes_out_total",)),
)
"""Totals since the start: the topic, the topic of its load, and the metrics."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Measurement:
    """A node's metrics, summed over its shards, at one moment."""

    clock_s: float
    """Monotonic time, in seconds."""
    metrics: Mapping[str, int]

    def sum(self, names: Sequence[str]) -> int | None:
        """The sum of these metrics; None if the node does not have one of them."""
        if not all(name in self.metrics for name in names):
            return None
        return sum(self.metrics[name] for name in names)


@dataclass
class Loads:
    """Rates per minute, as exponential moving averages over 1, 5 and 15 minutes."""

    averages: dict[str, float] = field(default_factory=dict)
    """By topic; empty before the first measurement."""

    def take(self, before: Measurement, after: Measurement) -> None:
        """Adds the interval between two measurements."""
        seconds = after.clock_s - before.clock_s
        if seconds <= 0:
            return
        for _, load, names in COUNTERS:
            now, then = after.sum(names), before.sum(names)
            if now is None or then is None:
                continue
            per_minute = (now - then) * 60 / seconds
            for minutes in MINUTES:
                topic = f"load/{load}/{minutes}min"
                weight = math.exp(-seconds / (60 * minutes))
                self.averages[topic] = self.averages.get(topic, 0.0) * weight + per_minute * (1 - weight)


def values(measure: Measurement, uptime_s: float, clients_max: int, loads: Loads) -> dict[str, str]:
    """The values to publish, by topic below the root, in a fixed order.

    Args:
        measure: The current measurement.
        uptime_s: Seconds since the node's start.
        clients_max: Largest number of connected clients in any measurement.
        loads: Averages up to this measurement.
    """
    published = {"version": f"hubsub version {VERSION}", "uptime": f"{int(uptime_s)} seconds"}
    gauges = {topic: measure.sum(names) for topic, names in GAUGES}
    here = (gauges["clients/connected"], gauges["clients/disconnected"])
    gauges["clients/total"] = sum(count for count in here if count is not None)
    gauges["clients/maximum"] = clients_max
    gauges |= {topic: measure.sum(names) for topic, _, names in COUNTERS}
    published |= {topic: str(value) for topic, value in gauges.items() if value is not None}
    return published | {topic: f"{value:.2f}" for topic, value in loads.averages.items()}


def items(root: str, published: Mapping[str, str]) -> list[Item]:
    return [Item(f"{root}/{topic}".encode(), value.encode(), {}, "") for topic, value in published.items()]


# -- on a node --


def measure(node: Node) -> Measurement:
    summed: dict[str, int] = {}
    for shard in node.metrics()["shards"]:
        for name, value in shard.items():
            summed[name] = summed.get(name, 0) + value
    return Measurement(time.monotonic(), summed)


async def report(node: Node, interval_ms: Callable[[], int]) -> None:
    """Publishes the values once per interval until cancelled; nothing while the interval is 0."""
    root = f"{ROOT}/{node.name}" if node.config.is_clustered else ROOT
    start_s = time.monotonic()
    before, loads, clients_max, has_logged = measure(node), Loads(), 0, False
    while True:
        interval = interval_ms()
        await asyncio.sleep(interval / 1_000 or OFF_S)
        after = measure(node)
        loads.take(before, after)
        before = after
        clients_max = max(clients_max, after.sum(("mqtt_connections",)) or 0)
        if not interval:
            continue
        published = values(after, after.clock_s - start_s, clients_max, loads)
        try:
            await publish_own(node, items(root, published))
            has_logged = False
        except HubSubError as error:
            if not has_logged:
                log.warning("values of $SYS are not told", code=error.code, reason=str(error))
            has_logged = True
