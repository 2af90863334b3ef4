"""Turns, rates and files of the benchmark, with a generator that only reports the request it got."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hubsub_bench import BenchError
from hubsub_bench.brokers import RunningBroker, parse_peer
from hubsub_bench.cli import app
from hubsub_bench.load import find_program, run
from hubsub_bench.machine import Cores, Machine, share_cores
from hubsub_bench.mqtt_scenarios import MQTT_BY_NAME
from hubsub_bench.report import RowFile, directory, lines, markdown_table, number
from hubsub_bench.runner import run_scenario
from hubsub_bench.scenarios import BY_NAME
from hubsub_bench.servers import Running, RunningServer, note_build
from hubsub_bench.stats import Verdict

GENERATOR = """import json, sys
words = [word for word in sys.argv[1:] if word != "--spin"]
options = dict(zip(words[::2], words[1::2]))
speed = float(options["--target"].split(":")[1])
rate = float(options.get("--rate", 0))
print(json.dumps({{
    "build_profile": "{profile}",
    "scenario": {{"spin": True, "rate": rate}},
    "window": {{"delivered_per_second": 1e6 / speed, "published_per_second": 1e6 / speed, "threads": []}},
    "total": dict.fromkeys(
        ["lost", "doubled", "reordered", "misrouted", "corrupt", "errors", "disconnected", "idle_disconnected"], 0),
    "latency": {{"count": 1, "p50_ns": rate, "p99_ns": rate, "p999_ns": rate, "curve": [[0.5, rate, 1]]}},
    "server": {{"cpu_ns_per_delivery": speed * 1000, "samples": []}},
}}))
"""
MACHINE = Machine("cpu", 4, 1, "Linux", "cubic", "3.11", "abc1234", "2026-01-02T03:04:05+00:00")


def generator(path: Path, monkeypatch: pytest.MonkeyPatch, profile: str = "release") -> None:
    # Started by a shell script, since a shebang cannot name a Python whose path has a space.
    script, program = path / "load.py", path / "hubsub-load"
    script.write_text(GENERATOR.format(profile=profile))
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HUBSUB_LOAD", str(program))


@dataclass
class FakeServer:
    """Its port is its µs of CPU per delivery."""

    name: str
    cpu_us: int
    turns: list[str] = field(default_factory=list)
    protocols: frozenset[str] = frozenset({"redis"})
    mqtt: str | None = None

    @contextmanager
    def running(self, cores: Cores, shards: int) -> Iterator[Running]:
        self.turns.append(self.name)
        yield Running(f"127.0.0.1:{self.cpu_us}", None, self.name, "release", mqtt=self.mqtt)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeServer, FakeServer]:
    generator(tmp_path, monkeypatch)
    monkeypatch.setattr("hubsub_bench.machine.busy_seconds", lambda: 0.0)  # On a quiet machine.
    turns: list[str] = []
    return FakeServer("HubSub", 4, turns), FakeServer("Redis", 8, turns)


def test_servers_take_turns_and_the_order_alternates(pair: tuple[FakeServer, FakeServer]) -> None:
    ours, peer = pair
    run_scenario(BY_NAME["w2"], ours, peer, pairs=3)
    assert ours.turns == ["HubSub", "Redis", "Redis", "HubSub", "HubSub", "Redis"]


def test_result_has_the_ratio_of_the_pairs(pair: tuple[FakeServer, FakeServer]) -> None:
    result = run_scenario(BY_NAME["w2"], *pair, pairs=2)
    summary = result.summary("CPU per delivery")
    assert (summary.ours, summary.peer, summary.ratio) == (4.0, 8.0, 2.0)
    assert summary.verdict is Verdict.GOAL


def test_half_of_the_peers_capacity_is_offered_to_both(pair: tuple[FakeServer, FakeServer]) -> None:
    result = run_scenario(BY_NAME["half"], *pair, pairs=1)
    assert {row.target: row.reports[0]["scenario"]["rate"] for row in result.rows} == {
        "HubSub": 62_500.0,
        "Redis": 62_500.0,
    }


def test_half_of_its_own_capacity_is_offered_to_each(pair: tuple[FakeServer, FakeServer]) -> None:
    result = run_scenario(BY_NAME["half-own"], *pair, pairs=1)
    assert {row.target: row.reports[0]["scenario"]["rate"] for row in result.rows} == {
        "HubSub": 125_000.0,
        "Redis": 62_500.0,
    }


def test_without_a_peer_only_ours_runs(pair: tuple[FakeServer, FakeServer]) -> None:
    ours, _ = pair
    result = run_scenario(BY_NAME["w2"], ours, None, pairs=2)
    assert ours.turns == ["HubSub", "HubSub"]
    assert result.summary("CPU per delivery").ratio is None


def test_a_peer_that_does_not_speak_what_a_row_needs_takes_no_part(
    pair: tuple[FakeServer, FakeServer],
) -> None:
    ours, peer = pair
    ours.mqtt = "127.0.0.1:5"
    result = run_scenario(MQTT_BY_NAME["mqtt-w5"], ours, peer, pairs=1)
    assert ours.turns == ["HubSub"]
    assert result.peer is None
    assert result.rows[0].figures["CPU per delivery"] == 5.0, "by the listener for MQTT"


def test_a_node_without_a_listener_for_mqtt_is_named(pair: tuple[FakeServer, FakeServer]) -> None:
    with pytest.raises(BenchError, match="no listener for MQTT"):
        run_scenario(MQTT_BY_NAME["mqtt-w5"], pair[0], None, pairs=1)


def test_qos_0_is_judged_by_the_same_nodes_redis_clients(pair: tuple[FakeServer, FakeServer]) -> None:
    ours, _ = pair
    ours.mqtt = "127.0.0.1:5"
    result = run_scenario(MQTT_BY_NAME["mqtt-w4"], ours, None, pairs=2)
    summary = result.summary("deliveries per CPU second, by those of Redis")
    assert (summary.ours, summary.verdict) == (0.8, Verdict.BELOW)


def test_table_names_figures_ratio_bound_and_verdict(pair: tuple[FakeServer, FakeServer]) -> None:
    result = run_scenario(BY_NAME["w2"], *pair, pairs=2)
    first = next(iter(lines([result])))
    assert first.cells() == (
        "w2",
        "CPU per delivery",
        "4 µs",
        "8 µs",
        "2.00 (2.00–2.00)",
        "1.15 / 1.25",
        "goal",
    )
    table = markdown_table([result])
    assert "| w2 | CPU per delivery | 4 µs | 8 µs | 2.00 (2.00–2.00) | 1.15 / 1.25 | goal |" in table
    assert "- `w2`: chat: 1000 rooms × 10" in table and "not to be trusted" not in table


def test_markdown_says_what_is_not_to_be_trusted(pair: tuple[FakeServer, FakeServer]) -> None:
    result = run_scenario(BY_NAME["w2"], *pair, pairs=1)
    result.rows[0] = replace(result.rows[0], complaints=("3 deliveries were lost",))
    assert "\n  - not to be trusted: HubSub: 3 deliveries were lost\n" in markdown_table([result])


@pytest.mark.parametrize("url", ["nope://x", "redis://127.0.0.1:x", "redis://127.0.0.1:1"])
def test_a_peer_that_cannot_be_measured_is_refused_before_any_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator(tmp_path, monkeypatch)
    monkeypatch.setattr("hubsub_bench.machine.need_descriptors", lambda _: None)
    with pytest.raises(BenchError):
        app(["one", "--against", url, "--out", str(tmp_path / "out")], standalone_mode=False)
    assert not (tmp_path / "out").exists()


def test_rows_file_holds_the_machine_and_every_raw_run(
    tmp_path: Path, pair: tuple[FakeServer, FakeServer]
) -> None:
    rows = RowFile(tmp_path, MACHINE)
    run_scenario(BY_NAME["w2"], *pair, pairs=1, on_row=rows.add)
    machine, *runs = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (machine["kind"], machine["commit"]) == ("machine", "abc1234")
    assert [(run["target"], run["pair"], run["build_profile"]) for run in runs] == [
        ("HubSub", 0, "release"),
        ("Redis", 0, "release"),
    ]
    assert runs[0]["reports"][0]["server"]["cpu_ns_per_delivery"] == 4000.0


def test_results_never_overwrite_others(tmp_path: Path) -> None:
    assert directory(tmp_path, MACHINE).name == "2026-01-02-abc1234"
    assert directory(tmp_path, MACHINE).name == "2026-01-02-abc1234-2"
    assert directory(tmp_path, MACHINE).name == "2026-01-02-abc1234-3"


def test_a_debug_generator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator(tmp_path, monkeypatch, profile="debug")
    with pytest.raises(BenchError, match="debug build"):
        run("127.0.0.1:1", None, Cores(frozenset(), frozenset(), 1), {"rooms": 1})


def test_a_missing_generator_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBSUB_LOAD", str(tmp_path / "none"))
    with pytest.raises(BenchError, match="HUBSUB_LOAD is no program"):
        find_program()


def test_only_redis_urls_can_be_measured() -> None:
    cores = Cores(frozenset(), frozenset(), 1)
    with pytest.raises(BenchError, match="cannot be measured"), RunningServer("nats://x").running(cores, 1):
        pass
    assert parse_peer("redis-server").name == "Redis"
    assert parse_peer("mosquitto").name == "Mosquitto"
    broker = parse_peer("mqtt://localhost")
    assert isinstance(broker, RunningBroker)
    assert broker.address() == "localhost:1883"


def test_cores_are_parted_between_server_and_generator() -> None:
    assert share_cores(1, {0, 1, 2, 3}) == Cores(frozenset({0}), frozenset({1, 2, 3}), 3)
    assert share_cores(2, {0, 1, 2, 3}) == Cores(frozenset({0, 1}), frozenset({2, 3}), 2)


def test_too_few_cores_are_not_parted() -> None:
    assert share_cores(2, {5, 6}) == Cores(frozenset(), frozenset(), 2)


def test_two_generators_part_the_cores_if_there_are_two() -> None:
    live, beside = share_cores(2, {0, 1, 2, 3}).two_loads()
    assert (live.load, live.load_threads) == ({2}, 1) and (beside.load, beside.load_threads) == ({3}, 1)
    assert live.server == beside.server == {0, 1}
    alone = share_cores(2, {0, 1, 2})
    assert alone.two_loads() == (alone, alone)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "µs", "–"),
        (0.3481, "µs", "0.348 µs"),
        (1234567.0, "/s", "1,234,567/s"),
        (0.0, "B", "0 B"),
        (1.21, "×", "1.21×"),
    ],
)
def test_numbers_have_three_digits_and_their_unit(value: float | None, unit: str, text: str) -> None:
    assert number(value, unit) == text


@pytest.mark.parametrize(("profile", "lines"), [("release", 1), ("dist", 0)])
def test_a_build_that_is_not_that_of_the_wheels_is_said_once(
    profile: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    note_build.cache_clear()
    note_build(profile)
    note_build(profile)
    assert capsys.readouterr().err.count("note: the server is") == lines
