"""The browser benchmarks, tiny: a real node, a real generator. No figure is judged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hubsub_bench import load, phoenix_scenarios, scenarios
from hubsub_bench.phoenix_scenarios import PHOENIX_BY_NAME
from hubsub_bench.runner import run_scenario
from hubsub_bench.servers import HubSubServer

pytestmark = pytest.mark.needs("hubsub-core", "cargo")

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> Path:
    """The unoptimized generator that the crates' tests built."""
    subprocess.run(["cargo", "build", "--quiet", "--locked", "-p", "hubsub-load"], cwd=REPOSITORY, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "debug" / "hubsub-load"


@pytest.mark.parametrize("name", PHOENIX_BY_NAME)
def test_a_tiny_run_measures_every_figure_of_pages(
    name: str, generator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBSUB_LOAD", str(generator))
    monkeypatch.setattr(load, "REFUSED_PROFILE", "")
    monkeypatch.setattr(scenarios, "IDLE_CONNECTIONS", 50)
    monkeypatch.setattr(scenarios, "IDLE_HOLD_S", 0.1)
    monkeypatch.setattr(phoenix_scenarios, "JOINS", 200)
    monkeypatch.setattr(phoenix_scenarios, "JOINS_S", 0.2)
    scenario = PHOENIX_BY_NAME[name]
    result = run_scenario(scenario, HubSubServer(), None, pairs=1, seconds=0.2)
    (row,) = result.rows
    assert all(row.figures[figure.name] is not None for figure in scenario.figures), row.figures
    if name == "phoenix-joins":
        assert row.figures["unanswered"] == 0
    # All sent messages arrived, in order and once. Speed is not checked.
    assert [text for text in row.complaints if "bottleneck" not in text and "busy" not in text] == []
