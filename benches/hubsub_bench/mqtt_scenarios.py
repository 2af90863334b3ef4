"""The rows of MQTT: the workloads of the Redis rows by MQTT clients, beside HubSub's own Redis rows or a broker.

Definitions (payloads 128 bytes; a publish is in flight until PUBACK, with QoS 2 until PUBCOMP; with QoS 0 it
has no reply: a ping after each quarter of the window replaces it):

- `mqtt-w1` … `mqtt-w4`: W1 to W4 with QoS 0, in turn with the same rows by Redis clients of the same node.
  The figure is deliveries per CPU second, MQTT relative to Redis.
- `mqtt-w5`: 200 publishers, 16 in flight each, each into a room of its own with one subscriber, QoS 1 both
  ways.
- `mqtt-fanout-0`, `-1`, `-2`: 4 publishers, 4 in flight each, one room with 1000 subscribers, QoS 0, 1, 2.
- `mqtt-idle`: connections with a clean session and one subscription each.
- `mqtt-absent`: 100,000 sessions of QoS 1, each with one subscription, of absent clients.
- `mqtt-retained`: 100,000 retained messages of 64 bytes; then W5's rooms at 2,000 publishes a second, without
  and with further clients that, one after the other, subscribe to all retained messages by a wildcard.
"""

from functools import partial

from hubsub_bench.scenarios import (
    CPU,
    RATE,
    W1,
    W2,
    W3,
    W4,
    Figure,
    Figures,
    Load,
    Params,
    Scenario,
    by_own_row,
    idle_row,
    saturate,
)
from hubsub_bench.stats import Bound

MQTT = frozenset({"mqtt"})

W5: Params = {
    "protocol": "mqtt",
    "qos": 1,
    "rooms": 200,
    "subscribers": 1,
    "publishers": 200,
    "publish_to": "own",
    "in_flight": 16,
}
FANOUT: Params = {"protocol": "mqtt", "rooms": 1, "subscribers": 1000, "publishers": 4, "in_flight": 4}
PACED: Params = {**W5, "rate": 2_000.0, "publisher_threads": 1}
KEPT = 100_000
"""Number of absent sessions, and of retained messages."""
COLLECT_S = 8
"""Seconds in which clients collect them, one after the other: as long as the other measurement and its start. """


def _absent(load: Load, _rate: float | None) -> Figures:
    asked: Params = {"count": KEPT} if load.pid is None else {"count": KEPT, "pid": load.pid}
    made = load.measure("absent", asked)
    before, after = made["before"], made["after"]
    return {
        "resident, each": (after - before) / made["sessions"] if before and after else None,
        "made": made["sessions"] / made["seconds"],
    }


def _retained(load: Load, _rate: float | None) -> Figures:
    load.measure("retain", {"count": KEPT})
    without = load(PACED, leaves_a_core=True).latency_us("p99")
    with load.beside("collect", {"count": KEPT, "seconds": COLLECT_S}) as collected:
        beside = load(PACED, leaves_a_core=True).latency_us("p99")
        came = collected()
    return {
        "p99 of the others, beside": beside / without if beside is not None and without else None,
        "arrived": float(came["topics"]),
        "arrived twice": float(came["doubled"]),
        "time": came["seconds"],
    }


def _own(name: str, title: str, params: Params) -> Scenario:
    return by_own_row(name, f"QoS 0: {title}", params, "mqtt", floor=0.9)


def _beside(name: str, title: str, params: Params, bound: Bound | None = None) -> Scenario:
    figures = (
        Figure(CPU, "µs", bound=bound or Bound()),
        Figure(RATE, "/s", lower_is_better=False),
    )
    return Scenario(name, title, figures, partial(saturate, params), protocols=MQTT)


MQTT_SCENARIOS: tuple[Scenario, ...] = (
    _own("mqtt-w1", "1 room × 1000 subscribers, one publish in flight", W1),
    _own("mqtt-w2", "chat, 1000 rooms × 10, 100 publishers × 4", W2),
    _own("mqtt-w3", "point to point, 200 rooms × 1, 64 in flight", W3),
    _own("mqtt-w4", "firehose, 1 → 1, 256 in flight", W4),
    _beside("mqtt-w5", "QoS 1: point to point, 200 rooms × 1, 16 in flight", W5, Bound(4.0, 8.0)),
    _beside("mqtt-fanout-0", "QoS 0: 1 room × 1000, 4 publishers × 4", FANOUT),
    _beside("mqtt-fanout-1", "QoS 1: 1 room × 1000, 4 publishers × 4", {**FANOUT, "qos": 1}, Bound(1.5)),
    _beside("mqtt-fanout-2", "QoS 2: 1 room × 1000, 4 publishers × 4", {**FANOUT, "qos": 2}),
    idle_row(
        "mqtt-idle",
        "MQTT connections with a clean session, each subscribed to a topic of its own",
        Bound(1024, of="value"),
        "mqtt",
    ),
    Scenario(
        "mqtt-absent",
        f"{KEPT:,} sessions of absent MQTT clients",
        (
            Figure("resident, each", "B", bound=Bound(1024, of="value")),
            Figure("made", "/s", lower_is_better=False),
        ),
        _absent,
        protocols=MQTT,
    ),
    Scenario(
        "mqtt-retained",
        f"{KEPT:,} retained messages for one client, beside 2,000 publishes a second",
        (
            Figure("p99 of the others, beside", "×", bound=Bound(1.5, of="value")),
            Figure("arrived", "", lower_is_better=False, bound=Bound(KEPT, of="value")),
            Figure("arrived twice", ""),
            Figure("time", "s"),
        ),
        _retained,
        protocols=MQTT,
    ),
)

MQTT_BY_NAME: dict[str, Scenario] = {scenario.name: scenario for scenario in MQTT_SCENARIOS}
