"""Runs rows of a cluster in pairs, as `runner` does: each run on new nodes, in a directory of its own."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hubsub_bench import BenchError
from hubsub_bench.cluster import scaling
from hubsub_bench.cluster.rows import Asked, ClusterScenario
from hubsub_bench.cluster.subject import ClusterTarget
from hubsub_bench.runner import Result, Row, in_turn

T = TypeVar("T")
ON_ROW: Callable[[Row], None] = lambda row: None  # noqa: E731


def run_cluster(
    scenario: ClusterScenario,
    ours: ClusterTarget,
    peers: Sequence[ClusterTarget],
    *,
    data: Path,
    nodes: Sequence[int],
    pairs: int = 3,
    seconds: float = 5.0,
    kills: int = 100,
    rate: float | None = None,
    on_row: Callable[[Row], None] = ON_ROW,
) -> list[Result]:
    """Runs one row in turns between all targets.

    Args:
        scenario: The row.
        ours: HubSub.
        peers: The other clusters.
        data: Where directories for the nodes are created.
        nodes: Sizes of clusters, ascending.
        pairs: Runs of each target.
        seconds: Length of each measured window.
        kills: Number of kills of `failover`.
        rate: Publishes a second and node of `scaling`; default: one that keeps the machine half busy with the
            largest cluster, measured first, the lowest of all targets.
        on_row: Called after every run.

    Returns:
        One result per peer, each with all of our runs; a single one without peers.

    Raises:
        BenchError: a server or the generator could not be run, or is a debug build.
    """
    asked = Asked(nodes, seconds, kills, rate or 0.0, data)
    peers = [peer for peer in peers if peer.has_failover or not scenario.is_of_failover]
    targets, rows = (ours, *peers), list[Row]()
    if scenario.measure is scaling.measure and rate is None:
        asked.rate = min(_in_directory(scaling.calibrated, target, asked)[0] for target in targets)
    for pair, target in in_turn(targets, min(pairs, scenario.pairs_max or pairs)):
        figures, run = _in_directory(scenario.measure, target, asked)
        row = Row(
            scenario=scenario.name,
            pair=pair,
            target=target.name,
            version=run.version,
            build_profile=run.build_profile,
            figures=figures,
            complaints=list(dict.fromkeys(run.complaints)),
            others_busy=0.0,
            reports=run.reports,
        )
        rows.append(row)
        on_row(row)
    return [_result(scenario, ours, peer, rows, index) for index, peer in enumerate(peers or (None,))]


def _result(
    scenario: ClusterScenario,
    ours: ClusterTarget,
    peer: ClusterTarget | None,
    rows: Sequence[Row],
    index: int,
) -> Result:
    if peer is None:
        return Result(scenario, ours.name, None, list(rows))
    # A table has one peer per line: further ones get their own lines.
    named = scenario if index == 0 else replace(scenario, name=f"{scenario.name}, {peer.name}")
    return Result(named, ours.name, peer.name, [row for row in rows if row.target in (ours.name, peer.name)])


def _in_directory(
    work: Callable[[ClusterTarget, Asked], T], target: ClusterTarget, asked: Asked
) -> tuple[T, Asked]:
    """Runs `work` in a new directory, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="hubsub-bench-", dir=asked.directory) as directory:
        run = replace(asked, directory=Path(directory), complaints=[], reports=[])
        try:
            return work(target, run), run
        except BenchError as error:
            raise BenchError(f"{target.name}: {error.what}", error.value, error.hint) from error
