"""Runs the rows of the pipeline: each in a directory of its own, with a Spark of its own."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from hubsub_bench.disk import need_space
from hubsub_bench.machine import share_cores
from hubsub_bench.runner import Result, Row
from hubsub_bench.servers import Target
from hubsub_bench.site import Site
from hubsub_bench.spark import engine
from hubsub_bench.spark.bench import Bench
from hubsub_bench.spark.kafka import Kafka
from hubsub_bench.spark.rows import KAFKA, OURS, PipelineScenario

ROW_BYTES = 600
"""Bytes of a record of 128 bytes: in the log, in an Arrow file, in an archive."""


def run_pipeline(
    scenario: PipelineScenario,
    server: Target,
    *,
    data: Path,
    records: int,
    log_bytes: int,
    pairs: int,
    seconds: float,
    shards: int,
    kafka: Kafka | None = None,
    conf: Mapping[str, str] | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Result]:
    """Runs one row of the pipeline.

    Args:
        scenario: The row.
        server: The node.
        data: Where directories are created; on the disk that is measured.
        records: Rows that Spark reads.
        log_bytes: Size of a log that is only drained.
        pairs: Runs of each target.
        seconds: Length of a measured window, if a row has windows.
        shards: Shards of the node, and its cores; Spark has the others.
        kafka: A peer, if there is one.
        conf: Settings of Spark.
        on_row: Called after every run.

    Returns:
        One result for each peer, or a single one.

    Raises:
        BenchError: something could not be run.
    """
    cores = share_cores(shards)
    need_space(data, max(records * ROW_BYTES, log_bytes))
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubsub-bench-", dir=data)))
        site = Site(server, cores, shards, directory, size=log_bytes, seconds=seconds)
        settings = dict(conf or {})
        if kafka is not None and scenario.peers:
            settings |= kafka.conf(settings)
        spark = stack.enter_context(engine.running(cores, settings)) if scenario.spark else None
        if spark is not None:
            site.keep("versions", spark.ask("versions"))
        bench = Bench(
            site,
            cores,
            directory,
            records=records,
            log_bytes=log_bytes,
            pairs=pairs,
            engine=spark,
            kafka=kafka,
        )
        for pair, target, figures in scenario.runs(bench):
            row = site.row(scenario.name, pair, target, figures)
            site.wrong.clear()
            site.reports.clear()
            rows.append(row)
            on_row(row)
    return results(scenario, rows, kafka)


def results(scenario: PipelineScenario, rows: list[Row], kafka: Kafka | None) -> list[Result]:
    """Results of a row for tables: one for each peer, or a single one.

    Args:
        scenario: The row.
        rows: Its runs.
        kafka: The peer, if there is one.
    """
    if not scenario.peers:
        return [Result(scenario, OURS, None, rows)]
    return [
        Result(
            scenario.beside(name, peer, bound),
            OURS,
            peer,
            [row for row in rows if row.target in (OURS, peer)],
        )
        for name, peer, bound in scenario.peers
        if kafka is not None or peer != KAFKA
    ]
