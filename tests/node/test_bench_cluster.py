"""The cluster benchmarks, tiny: three real nodes, a real Redis Cluster, a real generator. No figure is
judged: each is measured, and all messages arrive. How many frames a message costs is tested by
`tests/cluster/test_frames.py`, which waits for the counters of the links.

The generator publishes a number of messages, not for a time: on a busy machine none may arrive within a window.
Benchmarks that kill no node share their clusters here: to start one takes longer than to measure it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from hubsub_bench import load, machine
from hubsub_bench.cluster import failover, forward, isolation, scaling
from hubsub_bench.cluster.hubsub import HubSubCluster
from hubsub_bench.cluster.places import place
from hubsub_bench.cluster.redis import RedisCluster
from hubsub_bench.cluster.rows import scenarios
from hubsub_bench.cluster.runner import run_cluster
from hubsub_bench.cluster.sockets import carried
from hubsub_bench.cluster.subject import Cluster, ClusterTarget
from hubsub_bench.machine import Cores
from hubsub_bench.report import RowFile, markdown_table
from hubsub_bench.runner import Result

pytestmark = pytest.mark.needs("hubsub-core", "cargo", "redis-server")

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = (1, 3)
KILLS = 3
PUBLISHES = 60
"""In each window of the generator in which it publishes."""


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
    run_load = load.run

    def by_number(address: str, pid: int | None, cores: Cores, params: Mapping[str, object]) -> load.Report:
        number = {} if params.get("publishers") == 0 else {"messages": PUBLISHES}
        return run_load(address, pid, cores, {**params, **number})

    monkeypatch.setattr(load, "run", by_number)
    monkeypatch.setattr(isolation, "RATE", 200.0)
    monkeypatch.setattr(isolation, "ROOMS", 2)
    monkeypatch.setattr(scaling, "ROOMS", 2)
    monkeypatch.setattr(forward, "MESSAGES", 50)


class Lasting:
    """A target whose clusters, one of each size, run until the end of the module.

    Args:
        target: The target.
        started: Returns its running cluster of that many nodes.
    """

    def __init__(self, target: ClusterTarget, started: Callable[[int], Cluster]) -> None:
        self.target, self.started = target, started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def running(self, nodes: int, directory: Path) -> AbstractContextManager[Cluster]:
        return nullcontext(self.started(nodes))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[ClusterTarget], ClusterTarget]]:
    """Makes a target `Lasting`. The Redis Cluster of both verbs is the same."""
    with ExitStack() as stack:

        @cache
        def started(kind: type[ClusterTarget], nodes: int) -> Cluster:
            target = HubSubCluster(limits=CALM) if kind is HubSubCluster else RedisCluster()
            return stack.enter_context(target.running(nodes, tmp_path_factory.mktemp("cluster")))

        yield lambda target: Lasting(target, partial(started, type(target)))


BOTH = (RedisCluster(), RedisCluster(sharded=True))
CALM = {"leader_lease_ms": 10_000, "leader_silence_ms": 5_000}
"""No leader lease may end where no node is killed: a new leader notifies the other nodes, and those frames
would count."""


def run(
    name: str, directory: Path, ours: ClusterTarget, peers: Sequence[ClusterTarget] = BOTH
) -> list[Result]:
    """Runs a benchmark and checks the files that it leaves."""
    data, out = directory / "data", directory / "out"
    data.mkdir()
    out.mkdir()
    rows = RowFile(out, machine.describe())
    results = run_cluster(
        scenarios(NODES)[name],
        ours,
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


def test_a_third_node_of_a_broadcast_carries_what_it_does_not_want(tmp_path: Path, lasting: Any) -> None:
    classic, sharded = run("isolation", tmp_path, lasting(HubSubCluster()), [*map(lasting, BOTH)])
    assert sharded.summary(isolation.FRAMES).ours is not None and sharded.summary(isolation.FRAMES).peer == 0
    # The last of them may be in flight when the third node is asked.
    assert classic.summary(isolation.FRAMES).peer and classic.rows[-1].reports[-1]["messages"] > 0
    assert classic.rows[-1].reports[-1]["busy"]["links"] > 128, "a payload at least"
    for figure in (isolation.LINKS, isolation.IDLE, isolation.BUSY):
        assert classic.summary(figure).peer is not None and classic.summary(figure).ours is not None, figure
    assert classic.summary(isolation.CLIENTS).peer == classic.summary(isolation.CLIENTS).ours == 0


def test_each_size_of_cluster_has_its_cost_per_delivery(tmp_path: Path, lasting: Any) -> None:
    (result,) = run("scaling", tmp_path, lasting(HubSubCluster()), [lasting(BOTH[0])])
    for figure in (scaling.RATIO, *map(scaling.cpu_of, NODES)):
        assert result.summary(figure).peer and result.summary(figure).ours, figure
    assert result.summary(scaling.IDLE).peer is not None and result.summary(scaling.IDLE).ours is not None


def test_a_publish_elsewhere_and_frames_between_nodes_are_measured(tmp_path: Path, lasting: Any) -> None:
    classic, sharded = run("forward", tmp_path, lasting(HubSubCluster()), [*map(lasting, BOTH)])
    for figure in (forward.RATIO, forward.LOCAL_P50, forward.AWAY_P50, forward.LOCAL_P99, forward.AWAY_P99):
        assert classic.summary(figure).peer and classic.summary(figure).ours, figure
    assert classic.summary(forward.FRAMES).peer == 2, "a broadcast to two, one of which has a subscriber"
    assert classic.summary(forward.FRAMES).ours
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


@pytest.mark.soak  # tests/unit/test_bench_cluster.py has this row, and the test of a single node here a kill.
def test_the_deaths_of_nodes_are_measured_where_rooms_get_another(tmp_path: Path) -> None:
    (result,) = run("failover", tmp_path, HubSubCluster(), BOTH[:1])
    assert {row.target for row in result.rows} == {"HubSub"}
    assert (result.summary(failover.KILLS).ours, result.summary(failover.NEVER).ours) == (KILLS, 0)
    assert result.summary(failover.P50).ours
