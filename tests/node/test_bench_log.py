"""The benchmarks of nodes with history, tiny: real servers, a real log, a real generator. No figure is
judged.

Durable publishes are measured over a number of them, not over a time: on a busy machine none may be acknowledged
within a window.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hubsub_bench import load, log_scenarios, machine
from hubsub_bench.log_runner import run_log_scenario
from hubsub_bench.log_scenarios import LOG_BY_NAME
from hubsub_bench.report import RowFile, markdown_table
from hubsub_bench.servers import HubSubServer, RedisServer

pytestmark = pytest.mark.needs("hubsub-core", "cargo", "redis-server")

REPOSITORY = Path(__file__).resolve().parents[2]
PUBLISHES, PUBLISHES_ONE = 2_000, 50
"""Durable publishes of many connections, and of one with one in flight."""


@pytest.fixture(scope="module")
def generator() -> Path:
    """The unoptimized generator that the crates' tests built."""
    subprocess.run(["cargo", "build", "--quiet", "--locked", "-p", "hubsub-load"], cwd=REPOSITORY, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "debug" / "hubsub-load"


@pytest.mark.parametrize("name", list(LOG_BY_NAME))
def test_a_tiny_run_measures_every_figure_and_leaves_nothing(
    name: str, generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBSUB_LOAD", str(generator))
    monkeypatch.setattr(load, "REFUSED_PROFILE", "")
    # A test machine may pause for longer than a benchmark machine.
    monkeypatch.setattr(load, "PATIENCE_S", 30.0)
    monkeypatch.setitem(log_scenarios.DURABLE, "messages", PUBLISHES)
    monkeypatch.setitem(log_scenarios.DURABLE_ONE, "messages", PUBLISHES_ONE)
    monkeypatch.setattr("hubsub_bench.disk.IN_MEMORY", ())
    monkeypatch.setattr("hubsub_bench.disk.SPARE_BYTES", 0)
    monkeypatch.setattr(log_scenarios, "SLOW_SUBSCRIBERS", 50)
    monkeypatch.setattr(log_scenarios, "ROUNDS", 1)
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    rows = RowFile(out, machine.describe())
    scenario = LOG_BY_NAME[name]
    result = run_log_scenario(
        scenario,
        HubSubServer(),
        RedisServer(),
        data=data,
        size=3_000_000,
        pairs=1,
        seconds=0.3,
        shards=1,
        on_row=rows.add,
    )
    targets = ["HubSub", "Redis"] if scenario.has_peer else ["HubSub"]
    assert [row.target for row in result.rows] == targets
    for row in result.rows:
        assert all(row.figures[figure.name] is not None for figure in scenario.figures), row.figures
        # All sent messages arrived, in order and once. Speed is not checked.
        assert [text for text in row.complaints if "bottleneck" not in text and "busy" not in text] == []
    assert list(data.iterdir()) == []
    assert f"| {name} | {scenario.figures[0].name} |" in markdown_table([result])
    kept = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in kept] == ["machine", *["run"] * len(targets)]
    assert str(tmp_path) not in (out / "rows.jsonl").read_text()
