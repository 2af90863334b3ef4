"""Runs a scenario with a log, as `runner` does: each run in a directory of its own that is removed afterwards."""

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

from hubsub_bench.disk import need_space
from hubsub_bench.log_scenarios import LogScenario
from hubsub_bench.machine import Others, crowded, share_cores, spent_s
from hubsub_bench.runner import Result, Row, in_turn
from hubsub_bench.servers import Target
from hubsub_bench.site import Site

SIZE = 10 * 10**9
"""Bytes of a log that is filled."""


def run_log_scenario(
    scenario: LogScenario,
    ours: Target,
    peer: Target | None,
    *,
    data: Path,
    size: int = SIZE,
    pairs: int = 3,
    seconds: float = 5.0,
    shards: int | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Runs a scenario with a log in pairs.

    Args:
        scenario: The row.
        ours: HubSub.
        peer: The other server; None: there is none.
        data: Where directories are created; on the disk that is measured.
        size: Bytes of the log, if the scenario fills one.
        pairs: Runs of each server, at most as many as the scenario allows.
        seconds: Length of each measured window.
        shards: Shards of HubSub, and cores of both servers; default: the scenario's.
        on_row: Called after every run.

    Raises:
        BenchError: a server or the generator could not be run, is a debug build, or the disk has too little
            room.
    """
    shards = shards or scenario.shards
    cores = share_cores(shards)
    targets = [ours] if peer is None or not scenario.has_peer else [ours, peer]
    result = Result(scenario, ours.name, targets[1].name if len(targets) > 1 else None)
    need_space(data, size)
    for pair, target in in_turn(targets, min(pairs, scenario.pairs_max or pairs)):
        with tempfile.TemporaryDirectory(prefix="hubsub-bench-", dir=data) as directory:
            # Sampled when no child runs.
            meter = Others(lambda: spent_s(resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
            site = Site(target, cores, shards, Path(directory), size=size, seconds=seconds)
            figures = scenario.stages(site)
            others = meter.busy()
        site.wrong += crowded(others)
        row = site.row(scenario.name, pair, target.name, figures, others)
        result.rows.append(row)
        on_row(row)
    return result
