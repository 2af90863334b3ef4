"""The rows of browsers: Phoenix channels over WebSockets, beside HubSub's own Redis rows.

Definitions (payloads of 128 bytes, which are JSON; Redis clients publish for the browsers):

- `phoenix-fanout`: 4 publishers, 4 in flight each, one room with 1000 subscribers over WebSockets, in turn
  with the same by Redis clients of the same node. The figure is deliveries per CPU second, WebSockets
  relative to Redis.
- `phoenix-idle`: connections that have joined one topic each, which is a room of its own.
- `phoenix-joins`: 1000 connections that join and leave 100 topics, 10,000 joins a second; beside them 100
  others that send ten heartbeats a second.
"""

from hubsub_bench.load import latency_us
from hubsub_bench.mqtt_scenarios import FANOUT
from hubsub_bench.scenarios import Figure, Figures, Load, Params, Scenario, by_own_row, idle_row
from hubsub_bench.stats import Bound

JOINS = 10_000
"""Rate of joins, per second."""
JOINS_S = 5.0
LATE_US_MAX = 1_000_000
"""Limit for a heartbeat meanwhile; a page gives its server up after 10 s."""


def _joins(load: Load, _rate: float | None) -> Figures:
    asked: Params = {"protocol": "phoenix", "rate": JOINS, "seconds": JOINS_S}
    found = load.measure("joins", asked)
    return {
        "joined": found["joined"] / found["seconds"],
        "p99 of a join": latency_us(found["joins"], "p99"),
        "p99 of a heartbeat beside": latency_us(found["heartbeats"], "p99"),
        "unanswered": float(found["unanswered"] + found["errors"]),
    }


PHOENIX_SCENARIOS: tuple[Scenario, ...] = (
    by_own_row(
        "phoenix-fanout", "pages: 1 room × 1000 WebSockets, 4 publishers × 4", FANOUT, "phoenix", floor=0.85
    ),
    idle_row(
        "phoenix-idle",
        "WebSockets that have joined a topic of their own each",
        Bound(1024, of="value"),
        "phoenix",
    ),
    Scenario(
        "phoenix-joins",
        f"{JOINS:,} joins a second by 1000 pages, beside 100 others",
        (
            # All scheduled joins, except those of the last moment.
            Figure("joined", "/s", lower_is_better=False, bound=Bound(0.99 * JOINS, of="value")),
            Figure("p99 of a join", "µs"),
            Figure("p99 of a heartbeat beside", "µs", bound=Bound(LATE_US_MAX, of="value")),
            Figure("unanswered", "", bound=Bound(0, of="value")),
        ),
        _joins,
        protocols=frozenset({"phoenix"}),
    ),
)

PHOENIX_BY_NAME: dict[str, Scenario] = {scenario.name: scenario for scenario in PHOENIX_SCENARIOS}
