"""The cluster benchmarks, tiny: three real nodes, a real Redis Cluster, a real generator. No figure is
judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hubsub.bench import load, machine
from hubsub.bench.cluster import failover, forward, isolation, scaling
from hubsub.bench.cluster.hubsub import HubSubCluster
from hubsub.bench.cluster.places import place
from hubsub.bench.cluster.redis import RedisCluster
from hubsub.bench.cluster.rows import scenarios
from hubsub.bench.cluster.runner import run_cluster
from hubsub.bench.cluster.sockets import carried
from hubsub.bench.report import RowFile, markdown_table
from hubsub.bench.runner import Result

pytestmark = pytest.mark.needs("hubsub-core", "cargo", "redis-server")

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = (1, 3)
KILLS = 3


@pytest.fixture(scope="module")
def generator() -> Path:
    """The unoptimized generator that the crates' tests built."""
    subprocess.run(["cargo", "build", "--quiet", "--locked", "-p", "hubsub-load"], cwd=REPOSITORY, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "debug" / "hubsub-load"


@pytest.fixture(autouse=True)
def tiny(generator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBSUB_LOAD", str(generator))
    monkeypatch.setattr(load, "REFUSED_PROFILE", "")
    # A test machine may pause for longer than a benchmark machine.
    monkeypatch.setattr(load, "PATIENCE_S", 30.0)
    monkeypatch.setattr(isolation, "RATE", 200.0)
    monkeypatch.setattr(isolation, "ROOMS", 2)
    monkeypatch.setattr(scaling, "ROOMS", 2)
    monkeypatch.setattr(forward, "MESSAGES", 50)


BOTH = (RedisCluster(), RedisCluster(sharded=True))
CALM = {"leader_lease_ms": 10_000, "leader_silence_ms": 5_000}
"""No leader lease may end where no node is killed: a new leader notifies the other nodes, and those frames
would count."""


def run(name: str, directory: Path, peers: Sequence[RedisCluster] = BOTH) -> list[Result]:
    """Runs a benchmark and checks the files that it leaves."""
    data, out = directory / "data", directory / "out"
    data.mkdir()
    out.mkdir()
    rows = RowFile(out, machine.describe())
    results = run_cluster(
        scenarios(NODES)[name],
        HubSubCluster(limits={} if name == "failover" else CALM),
        peers,
        data=data,
        nodes=NODES,
        pairs=1,
        seconds=0.3,
        kills=KILLS,
        rate=20.0,
        on_row=rows.add,
    )
    assert list(data.iterdir()) == []
    kept = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    able = [peer for peer in peers if peer.has_failover or name != "failover"]
    assert [line["kind"] for line in kept] == ["machine", *["run"] * (1 + len(able))]
    assert str(directory) not in (out / "rows.jsonl").read_text()
    table = markdown_table(results)
    assert all(f"| {name}, {peer.name} | " in table for peer in able[1:])
    for row in (row for result in results for row in result.rows):
        # All sent messages arrived, in order and once. Speed is not checked.
        assert [text for text in row.complaints if not is_expected(text)] == [], row
    return results


def is_expected(complaint: str) -> bool:
    return any(word in complaint for word in ("bottleneck", "busy"))


def test_a_third_node_of_a_broadcast_carries_what_it_does_not_want(tmp_path: Path) -> None:
    classic, sharded = run("isolation", tmp_path)
    frames = sharded.summary(isolation.FRAMES)
    assert frames.ours == frames.peer == 0
    sent = classic.rows[-1].reports[-1]["messages"]
    broadcast = classic.summary(isolation.FRAMES).peer
    assert broadcast is not None and broadcast >= sent > 0
    links = classic.summary(isolation.LINKS).peer
    assert links is not None and links > 128, "a payload at least"
    assert classic.summary(isolation.CLIENTS).peer == classic.summary(isolation.CLIENTS).ours == 0


def test_each_size_of_cluster_has_its_cost_per_delivery(tmp_path: Path) -> None:
    (result,) = run("scaling", tmp_path, BOTH[:1])
    for figure in (scaling.RATIO, *map(scaling.cpu_of, NODES)):
        assert result.summary(figure).peer and result.summary(figure).ours, figure
    assert result.summary(scaling.IDLE).peer is not None and result.summary(scaling.IDLE).ours is not None


def test_a_publish_elsewhere_and_frames_between_nodes_are_measured(tmp_path: Path) -> None:
    classic, sharded = run("forward", tmp_path)
    for figure in (forward.RATIO, forward.LOCAL_P50, forward.AWAY_P50, forward.LOCAL_P99, forward.AWAY_P99):
        assert classic.summary(figure).peer and classic.summary(figure).ours, figure
    assert classic.summary(forward.FRAMES).peer == 2, "a broadcast to two, one of which has a subscriber"
    assert classic.summary(forward.FRAMES).ours == 1
    assert sharded.summary(forward.LOCAL_P50).peer and sharded.summary(forward.AWAY_P50).peer is None


def test_a_node_says_where_rooms_live_what_it_carries_and_comes_back_from_the_dead(tmp_path: Path) -> None:
    with HubSubCluster().running(1, tmp_path) as cluster:
        (member,) = cluster.members()
        assert cluster.version.startswith("HubSub ") and cluster.controller() in (None, member.name)
        assert place(cluster, [member], 3).numbers == [0, 1, 2]
        assert (cluster.frames("n1").sent, cluster.frames("n1").received) == (0, 0)
        assert carried(member.pid, member.node_ports).links.both == 0
        cluster.kill("n1")
        assert cluster.members() == []
        cluster.start("n1")
        (again,) = cluster.members()
        assert (again.address, again.node_ports) == (member.address, member.node_ports)
        assert again.pid != member.pid
        # The node serves: a separate connection reads the room's placement.
        assert set(cluster.places([7]).values()) == {"n1"}
        assert carried(again.pid, member.node_ports).clients.both >= 0


def test_room_records_are_made_elected_over_and_read_by_a_node_that_joins(tmp_path: Path) -> None:
    script = REPOSITORY / "benches" / "room_records.py"
    command = [sys.executable, script, "--backends", "memory,embedded", "--rooms", "300", "--out", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    _, *rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["target"] for row in rows] == ["memory", "embedded"]
    for row in rows:
        figures = row["figures"]
        # The 300 rooms, the first room, the one after the election, and the new node's.
        assert figures["rooms"] == 303 and row["complaints"] == []
        assert figures["created per second"] > 0 and figures["elected and placed"] > 0
        assert (figures["coordinator's memory"] is None) == (row["target"] == "memory")


def test_the_deaths_of_nodes_are_measured_where_rooms_get_another(tmp_path: Path) -> None:
    (result,) = run("failover", tmp_path, BOTH[:1])
    assert {row.target for row in result.rows} == {"HubSub"}
    assert (result.summary(failover.KILLS).ours, result.summary(failover.NEVER).ours) == (KILLS, 0)
    assert result.summary(failover.P50).ours
