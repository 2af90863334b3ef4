"""The rows of the benchmark and their bounds, in one table.

A scenario measures one server that was started for it: it runs the generator once or more and returns figures
by name. The same parameters go to every server.

Definitions (all payloads 128 bytes; a publish is in flight until its reply came; publishers and subscribers
are separate connections):

- W1: 1 publisher, 1 in flight, 1 room with 1000 subscribers.
- W1b: 16 publishers, 4 in flight each, the same room.
- W2: 100 publishers, 4 in flight each, rooms picked at random of 1000 with 10 subscribers each: 10,000
  subscribing connections.
- W3: 200 publishers, 64 in flight each, each into a room of its own with one subscriber.
- W4: 1 publisher, 256 in flight, 1 subscriber.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from hubsub_bench.load import Report
from hubsub_bench.stats import Bound

Params: TypeAlias = Mapping[str, object]
"""Options of the generator by name, with `_` for `-`."""


class Load(Protocol):
    """Runs the generator against the measured server."""

    @property
    def pid(self) -> int | None:
        """The server's process, if known."""

    def __call__(self, params: Params, /, *, leaves_a_core: bool = False) -> Report:
        """A run of publishers and subscribers; it may leave a core to a measurement in the background."""

    def measure(self, what: str, params: Params) -> Mapping[str, Any]:
        """One of the generator's smaller measurements of MQTT: its JSON object."""

    def beside(self, what: str, params: Params) -> AbstractContextManager[Callable[[], Mapping[str, Any]]]:
        """The same in the background; yields a function that waits for its end."""


Figures: TypeAlias = dict[str, float | None]

W1: Params = {"rooms": 1, "subscribers": 1000, "publishers": 1, "in_flight": 1}
W1B: Params = {"rooms": 1, "subscribers": 1000, "publishers": 16, "in_flight": 4}
W2: Params = {"rooms": 1000, "subscribers": 10, "publishers": 100, "in_flight": 4}
W3: Params = {"rooms": 200, "subscribers": 1, "publishers": 200, "publish_to": "own", "in_flight": 64}
W4: Params = {"rooms": 1, "subscribers": 1, "publishers": 1, "in_flight": 256, "publisher_threads": 1}
FANOUT: Params = {"rooms": 2, "subscribers": 500, "publishers": 16, "in_flight": 4}
ONE: Params = {"rooms": 1, "subscribers": 1, "publishers": 1, "in_flight": 1, "publisher_threads": 1}
SPREAD: Params = {"subscribers": 1, "connections": 1000, "publishers": 100, "in_flight": 16}
SLOW: Params = {"rooms": 1, "subscribers": 100, "publishers": 16, "in_flight": 4, "payload": 1024}

IDLE_CONNECTIONS = 15_000
IDLE_HOLD_S = 16
"""Redis releases the buffers of idle clients gradually over about 12 s."""
SLOW_READERS = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a scenario.

    Args:
        name: Name in tables.
        unit: Printed after the number.
        lower_is_better: Direction, default true.
        bound: Its floor and goal.
    """

    name: str
    unit: str
    lower_is_better: bool = True
    bound: Bound = field(default_factory=Bound)


@dataclass(frozen=True, slots=True)
class BaseScenario:
    """The properties that rows of all kinds share.

    Args:
        name: Name of the row.
        title: Description for tables.
        figures: Its figures and their bounds.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Scenario(BaseScenario):
    """One row of the benchmark.

    Args:
        measure: Runs it against one server: `(load, rate)` to figures by name. `rate` is the open loop's
            publishes a second, if the scenario uses one.
        shards: Cores of the server.
        half_of: Parameters of a closed-loop run that determines the rate, half of what was reached there.
        rate_of: Whose capacity that is: the `peer`'s for both servers, or each server's `own`.
        protocols: Required protocols; a peer that lacks one is left out.
    """

    measure: Callable[[Load, float | None], Figures]
    shards: int = 1
    half_of: Params | None = None
    rate_of: str = "peer"
    protocols: frozenset[str] = frozenset({"redis"})


def saturate(params: Params, load: Load, _rate: float | None) -> Figures:
    """Deliveries of a saturated server, and their cost.

    Args:
        params: Options of the generator.
        load: Runs the generator.
    """
    report = load(params)
    return {
        "CPU per delivery": report.cpu_us_per_delivery,
        "delivered per second": report.delivered_per_second,
    }


def _latency(params: Params, load: Load, rate: float | None) -> Figures:
    # A sleeping generator would count its own wake-up as latency.
    params = {**params, "spin": True}
    report = load(params if rate is None else {**params, "rate": rate, "publisher_threads": 1})
    return {name: report.latency_us(name) for name in ("p50", "p99", "p999")}


def _idle(params: Params, load: Load, _rate: float | None) -> Figures:
    report = load(
        {
            **params,
            "subscribers": 0,
            "publishers": 0,
            "idle": IDLE_CONNECTIONS,
            "seconds": IDLE_HOLD_S,
            "threads": 1,
        }
    )
    before = report.memory("before")
    settled, connected = report.memory("end"), report.memory("connected")

    def each(after: int | None) -> float | None:
        return None if after is None or before is None else (after - before) / IDLE_CONNECTIONS

    return {"resident, settled": each(settled), "resident, at once": each(connected)}


def _rooms(load: Load, _rate: float | None) -> Figures:
    few = load({**SPREAD, "rooms": 1_000}).cpu_us_per_delivery
    many = load({**SPREAD, "rooms": 100_000}).cpu_us_per_delivery
    return {
        "100,000 rooms to 1,000": many / few if many is not None and few else None,
        "CPU per delivery, 1,000 rooms": few,
        "CPU per delivery, 100,000 rooms": many,
    }


def _slow(load: Load, _rate: float | None) -> Figures:
    without = load(SLOW)
    beside = load({**SLOW, "slow": SLOW_READERS})
    connected, end = beside.memory("connected"), beside.memory("end")
    return {
        "others' deliveries kept": beside.delivered_per_second / without.delivered_per_second,
        "p99 of the others": beside.latency_us("p99"),
        "slow ones closed": float(sum(reader["closed_s"] is not None for reader in beside.raw["slow"])),
        "memory gained": None if connected is None or end is None else (end - connected) / 2**20,
    }


CPU = "CPU per delivery"
RATE = "delivered per second"
BY_OWN = "deliveries per CPU second, by those of Redis"


def _by_own(params: Params, protocol: str, load: Load, _rate: float | None) -> Figures:
    redis = load({**params, "protocol": "redis"}).cpu_us_per_delivery
    other = load({**params, "protocol": protocol}).cpu_us_per_delivery
    return {
        BY_OWN: redis / other if redis is not None and other else None,
        CPU: other,
        "CPU per delivery, Redis": redis,
    }


def by_own_row(name: str, title: str, params: Params, protocol: str, floor: float) -> Scenario:
    """A row for clients of a protocol, in turn with Redis clients of the same node.

    Args:
        name: Name of the row.
        title: Description for tables.
        params: Options of the generator.
        protocol: The protocol.
        floor: Least deliveries per CPU second, relative to those of Redis.
    """
    figures = (
        Figure(BY_OWN, "×", lower_is_better=False, bound=Bound(floor, of="value")),
        Figure(CPU, "µs"),
        Figure("CPU per delivery, Redis", "µs"),
    )
    measure = partial(_by_own, params, protocol)
    return Scenario(name, title, figures, measure, protocols=frozenset({protocol, "redis"}))


def idle_row(name: str, title: str, bound: Bound, protocol: str = "redis") -> Scenario:
    """A row for the memory of idle clients of a protocol.

    Args:
        name: Name of the row.
        title: Description for tables.
        bound: Bound of the settled memory per connection, in bytes.
        protocol: The protocol, default `redis`.
    """
    figures = (Figure("resident, settled", "B", bound=bound), Figure("resident, at once", "B"))
    measure = partial(_idle, {"protocol": protocol})
    return Scenario(name, title, figures, measure, protocols=frozenset({protocol}))


def _core(name: str, title: str, params: Params, floor: float, goal: float) -> Scenario:
    figures = (Figure(CPU, "µs", bound=Bound(floor, goal)), Figure(RATE, "/s", lower_is_better=False))
    return Scenario(name, title, figures, partial(saturate, params))


def _cores(name: str, title: str, params: Params, floor: float, goal: float) -> Scenario:
    figures = (Figure(RATE, "/s", lower_is_better=False, bound=Bound(floor, goal)), Figure(CPU, "µs"))
    return Scenario(name, title, figures, partial(saturate, params), shards=2)


NO_WORSE = Bound(floor=1.0)

SCENARIOS: tuple[Scenario, ...] = (
    _core("w1", "1 room × 1000 subscribers, one publish in flight", W1, 0.97, 1.05),
    _core("w1b", "1 room × 1000, 16 publishers × 4 in flight", W1B, 1.1, 1.2),
    _core("w2", "chat: 1000 rooms × 10, 100 publishers × 4", W2, 1.15, 1.25),
    _core("w3", "point to point: 200 rooms × 1, 64 in flight", W3, 1.6, 1.9),
    _core("w4", "firehose: 1 → 1, 256 in flight", W4, 2.0, 2.6),
    _cores("two-fanout", "two cores: 2 rooms × 500, 16 publishers × 4", FANOUT, 1.7, 2.1),
    _cores("two-w2", "two cores: 1000 rooms × 10, 100 publishers × 4", W2, 1.5, 1.9),
    _cores("two-w3", "two cores: 200 rooms × 1, 64 in flight", W3, 1.5, 1.9),
    idle_row(
        "idle",
        f"{IDLE_CONNECTIONS:,} connections, each subscribed to a room of its own",
        Bound(700, 450, of="value"),
    ),
    Scenario(
        "rooms",
        "100,000 rooms beside 1,000, on 1000 connections, 100 publishers × 16",
        (
            Figure("100,000 rooms to 1,000", "×", bound=Bound(1.2, of="value")),
            Figure("CPU per delivery, 1,000 rooms", "µs"),
            Figure("CPU per delivery, 100,000 rooms", "µs"),
        ),
        _rooms,
    ),
    Scenario(
        "slow",
        f"1 room × 100 beside {SLOW_READERS} subscribers that never read, 1 KiB payloads",
        (
            Figure("others' deliveries kept", "×", lower_is_better=False),
            Figure("p99 of the others", "µs"),
            Figure("memory gained", "MiB"),
            Figure("slow ones closed", "", lower_is_better=False),
        ),
        _slow,
    ),
    Scenario(
        "one",
        "latency with one publish in flight, 1 → 1",
        (Figure("p50", "µs", bound=NO_WORSE), Figure("p99", "µs"), Figure("p999", "µs")),
        partial(_latency, ONE),
    ),
    Scenario(
        "half",
        "latency of chat (W2) at half of the peer's capacity, open loop",
        (Figure("p50", "µs"), Figure("p99", "µs", bound=NO_WORSE), Figure("p999", "µs", bound=NO_WORSE)),
        partial(_latency, W2),
        half_of=W2,
    ),
    Scenario(
        "half-own",
        "latency of chat (W2) at half of each server's own capacity, open loop",
        (Figure("p50", "µs"), Figure("p99", "µs", bound=NO_WORSE), Figure("p999", "µs", bound=NO_WORSE)),
        partial(_latency, W2),
        half_of=W2,
        rate_of="own",
    ),
)

BY_NAME: dict[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}
