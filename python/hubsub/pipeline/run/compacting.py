"""The run of `hubsub pipeline compact`: merges an archive's small files, and removes old replaced ones."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from hubsub.pipeline.archive import Table, compact, sweep
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.runner import POLL_S, Ending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")


@dataclass(frozen=True)
class Compacted:
    """Result of a run."""

    days: list[tuple[str, int, int]]
    """Date, number of files before and after."""
    removed: int
    """Number of removed files."""


def run(
    spark: "SparkSession", table: Table, grace: timedelta, ending: Ending, progress: Progress
) -> Compacted | None:
    """Compacts and sweeps until done or a signal comes; None after a signal.

    Args:
        spark: The session.
        table: The archive.
        grace: Replaced files are retained for this time.
        ending: Detects signals.
        progress: Shows progress.
    """

    def work() -> Compacted:
        days = compact(spark, table, at=lambda point: _end(ending))
        for date, before, after in days:
            progress.write(f"{date}: {before} files are {after}")
        return Compacted(days, sweep(table, grace.total_seconds()))

    with ending.gently():
        return _until(ending, spark.interruptAll, work)


def summary(done: Compacted, grace: str) -> list[str]:
    """A run's result as lines for people.

    >>> summary(Compacted([], 0), "24 hours")
    ['nothing to compact: no day has four small files']
    """
    lines = ["nothing to compact: no day has four small files"]
    if done.days:
        before, after = sum(day[1] for day in done.days), sum(day[2] for day in done.days)
        days = "1 day" if len(done.days) == 1 else f"{len(done.days):,} days"
        lines = [f"{days} compacted: {before:,} files are {after:,}"]
    if done.removed:
        lines.append(
            f"{done.removed:,} files removed that were replaced or left behind {grace} ago or earlier"
        )
    return lines


class _Ended(Exception):
    """Raised after a signal."""


def _end(ending: Ending) -> None:
    if ending.signal is not None:
        raise _Ended


def _until(ending: Ending, interrupt: Callable[[], object], work: Callable[[], _T]) -> _T | None:
    """Does work in a thread, so that signals are handled while Spark is busy; None if one came before it was done."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        while not wait([future], POLL_S).done:
            if ending.signal is not None:
                interrupt()
    error = future.exception()
    # An error after a signal is caused by it.
    if error is not None and ending.signal is not None:
        return None
    return future.result()
