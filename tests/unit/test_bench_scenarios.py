"""The benchmark's table of scenarios: requests to the generator, and evaluation of its reports."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from hubsub_bench.cli import app
from hubsub_bench.load import Report
from hubsub_bench.mqtt_scenarios import MQTT_BY_NAME, MQTT_SCENARIOS
from hubsub_bench.scenarios import BY_NAME, SCENARIOS, Figures


def report(**changes: Any) -> Report:
    """A clean run; `total__lost=3` sets a nested value."""
    memory = {"server": {"rss": 1_000_000}, "kernel": {"slab": 0}}
    raw: dict[str, Any] = {
        "scenario": {"spin": False, "rate": 0.0},
        "window": {
            "delivered_per_second": 1000.0,
            "published_per_second": 100.0,
            "threads": [{"publishes": True, "busy": 0.5}],
        },
        "total": dict.fromkeys(
            "lost doubled reordered misrouted corrupt errors disconnected idle_disconnected".split(), 0
        ),
        "latency": {"count": 10, "p50_ns": 1_000, "p99_ns": 2_000, "p999_ns": 3_000},
        "slow": [{"bytes": 0, "closed_s": 1.5}, {"bytes": 0, "closed_s": None}],
        "server": {
            "cpu_ns_per_delivery": 500.0,
            "samples": [
                {"moment": "before", **memory},
                {"moment": "connected", "server": {"rss": 151_000_000}, "kernel": None},
                {"moment": "end", "server": {"rss": 16_000_000}, "kernel": None},
            ],
        },
    }
    for path, value in changes.items():
        part, _, name = path.partition("__")
        raw[part][name] = value
    return Report(raw)


class FakeLoad:
    """Returns reports in order and records the requests; the smaller measurements always have the same
    result."""

    pid = 7

    def __init__(self, reports: list[Report]) -> None:
        self.reports = reports
        self.asked: list[Mapping[str, object]] = []

    def __call__(self, params: Mapping[str, object], /, *, leaves_a_core: bool = False) -> Report:
        self.asked.append(params)
        return self.reports[len(self.asked) - 1]

    def measure(self, what: str, params: Mapping[str, object]) -> Mapping[str, Any]:
        made = {"sessions": 1_000, "seconds": 2.0, "before": 1_000_000, "after": 1_500_000}
        return made | {"topics": 99_999, "doubled": 1}

    @contextmanager
    def beside(self, what: str, params: Mapping[str, object]) -> Iterator[Callable[[], Mapping[str, Any]]]:
        yield lambda: self.measure(what, params)


def figures(
    name: str, reports: list[Report], rate: float | None = None
) -> tuple[Figures, list[Mapping[str, object]]]:
    load = FakeLoad(reports)
    return {**BY_NAME, **MQTT_BY_NAME}[name].measure(load, rate), load.asked


def test_every_figure_of_every_scenario_is_measured() -> None:
    for scenario in (*SCENARIOS, *MQTT_SCENARIOS):
        found, _ = figures(scenario.name, [report(), report()], rate=50.0)
        assert {figure.name for figure in scenario.figures} <= set(found)
        assert all(found[figure.name] is not None for figure in scenario.figures)


def test_a_core_scenario_quotes_cpu_and_rate() -> None:
    found, _ = figures("w2", [report()])
    assert found == {"CPU per delivery": 0.5, "delivered per second": 1000.0}


def test_rows_of_mqtt_ask_for_their_qos() -> None:
    for name, qos in (("mqtt-w5", 1), ("mqtt-fanout-0", None), ("mqtt-fanout-2", 2)):
        _, asked = figures(name, [report()])
        assert [(params["protocol"], params.get("qos")) for params in asked] == [("mqtt", qos)]


def test_what_a_broker_keeps_is_measured_by_session_and_beside_others() -> None:
    found, _ = figures("mqtt-absent", [])
    assert found == {"resident, each": 500.0, "made": 500.0}
    found, asked = figures("mqtt-retained", [report(), report(latency__p99_ns=5_000)])
    assert found["p99 of the others, beside"] == 2.5
    assert (found["arrived"], found["arrived twice"]) == (99_999.0, 1.0)
    assert [params["rate"] for params in asked] == [2_000.0, 2_000.0]


def test_latency_runs_open_loop_at_the_given_rate() -> None:
    found, asked = figures("half", [report()], rate=1234.0)
    assert asked[0]["rate"] == 1234.0
    assert found["p99"] == 2.0


def test_idle_memory_is_shared_out_over_the_connections() -> None:
    found, asked = figures("idle", [report()])
    assert asked[0]["idle"] == 15_000
    assert (found["resident, settled"], found["resident, at once"]) == (1000.0, 10_000.0)


def test_rooms_compares_many_with_few_on_one_server() -> None:
    found, asked = figures("rooms", [report(), report(server__cpu_ns_per_delivery=550.0)])
    assert [params["rooms"] for params in asked] == [1_000, 100_000]
    assert found["100,000 rooms to 1,000"] == pytest.approx(1.1)


def test_slow_subscribers_are_measured_beside_the_same_without_them() -> None:
    found, asked = figures("slow", [report(), report(window__delivered_per_second=900.0)])
    assert ["slow" in params for params in asked] == [False, True]
    assert (found["others' deliveries kept"], found["slow ones closed"]) == (0.9, 1.0)


def test_a_run_without_costs_has_no_such_figure() -> None:
    found, _ = figures("w1", [report(server__cpu_ns_per_delivery=None)])
    assert found["CPU per delivery"] is None


@pytest.mark.parametrize(
    "count", ["lost", "doubled", "reordered", "misrouted", "corrupt", "errors", "disconnected"]
)
def test_any_wrong_delivery_is_complained_of(count: str) -> None:
    assert report(**{f"total__{count}": 3}).complaints() == [f"3 {count}"]


def test_a_generator_at_its_limit_is_complained_of_unless_it_spins() -> None:
    busy = {"window__threads": [{"publishes": False, "busy": 0.97}]}
    assert report(**busy).complaints() == ["the generator is the bottleneck (97% of a core)"]
    assert report(**busy, scenario__spin=True).complaints() == []


def test_a_paced_publisher_may_keep_its_core_busy_but_a_subscriber_may_not() -> None:
    paced = {"scenario__rate": 100.0}
    assert report(**paced, window__threads=[{"publishes": True, "busy": 1.0}]).complaints() == []
    assert report(**paced, window__threads=[{"publishes": False, "busy": 1.0}]).complaints() != []


def test_help_lists_every_scenario() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(f" {name} " in shown for name in [*BY_NAME, "all", "capacity"])
