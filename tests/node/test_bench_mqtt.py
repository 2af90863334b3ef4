"""The MQTT benchmarks, tiny: real nodes, a real generator. No figure is judged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hubsub_bench import load, scenarios
from hubsub_bench.brokers import RunningBroker
from hubsub_bench.machine import share_cores
from hubsub_bench.mqtt_scenarios import MQTT_BY_NAME
from hubsub_bench.runner import run_scenario
from hubsub_bench.servers import HubSubServer

pytestmark = pytest.mark.needs("hubsub-core", "cargo")

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> Path:
    """The unoptimized generator that the crates' tests built."""
    subprocess.run(["cargo", "build", "--quiet", "--locked", "-p", "hubsub-load"], cwd=REPOSITORY, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "debug" / "hubsub-load"


@pytest.mark.parametrize("name", ["mqtt-w1", "mqtt-w5", "mqtt-fanout-2", "mqtt-idle"])
def test_a_tiny_run_measures_every_figure_of_a_node_and_of_a_broker(
    name: str, generator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBSUB_LOAD", str(generator))
    monkeypatch.setattr(load, "REFUSED_PROFILE", "")
    monkeypatch.setattr(scenarios, "IDLE_CONNECTIONS", 50)
    monkeypatch.setattr(scenarios, "IDLE_HOLD_S", 0.1)
    scenario = MQTT_BY_NAME[name]
    # Another node plays the external broker that already runs.
    with HubSubServer().running(share_cores(1), 1) as other:
        peer = RunningBroker(f"mqtt://{other.mqtt}", other.pid)
        peer.check()
        result = run_scenario(scenario, HubSubServer(), peer, pairs=1, seconds=0.2)
    assert result.peer == ("peer" if scenario.protocols == {"mqtt"} else None)
    for row in result.rows:
        assert all(row.figures[figure.name] is not None for figure in scenario.figures), row.figures
        # All sent messages arrived, in order and once. Speed is not checked.
        assert [text for text in row.complaints if "bottleneck" not in text and "busy" not in text] == []
