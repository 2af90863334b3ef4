"""Replay as a run: slices of an archive into rooms through the sink, each once, at their times.

A slice is a batch of the sink under the replay's own query, whose number the node knows; which ones are out is kept
in the checkpoint as well. Killed in between, the next run sends that slice again and the node drops it.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hubsub.errors import OptionError
from hubsub.pipeline.archive import open_table, read
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.replay import paced, part, steady
from hubsub.pipeline.replay.plan import SLICE
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.lineage import join
from hubsub.pipeline.run.pace import Pace
from hubsub.pipeline.run.runner import POLL_S, Ending
from hubsub.pipeline.run.settings import Settings
from hubsub.pipeline.run.tally import Tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DONE = "slices"
"""Directory in the checkpoint: a file for each slice that is out."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is to be replayed, and how.

    Args:
        archive: URI of the archive.
        table_format: The archive's.
        factor: Times as fast as it was.
        rate: Records a second instead; None takes the factor.
        prefix: Put before each topic.
        where: SQL condition on archived records, or None.
    """

    archive: str
    table_format: str = "parquet"
    factor: float = 1.0
    rate: float | None = None
    prefix: str = ""
    where: str | None = None

    def options(self) -> Mapping[str, str]:
        """What changes its meaning, as a lineage keeps it."""
        pace = f"rate {self.rate:g}" if self.rate is not None else f"factor {self.factor:g}"
        return {
            "from": Store(self.archive).uri,
            "pace": pace,
            "prefix": self.prefix,
            "where": self.where or "",
        }


def replay(
    spark: "SparkSession", settings: Settings, asked: Replay, ending: Ending, progress: Progress
) -> Tally:
    """Replays until all is out or a signal comes.

    Returns:
        How far it came: batches and records of this run.

    Raises:
        OptionError: there is nothing in the archive.
    """
    table = open_table(asked.archive, asked.table_format)
    state, files = table.contents()
    if not files:
        raise OptionError(
            "there is no archive with records", table.uri, "`hubsub pipeline archive` makes one"
        )
    # Later commits are none of this replay's: their records would move what is numbered already.
    options = dict(asked.options()) | {"offsets": str(dict(sorted(state.offsets.items())))}
    line = join("replay", settings.checkpoint, None, options)
    kept = Store(settings.checkpoint)
    rows = read(spark, table, files)
    if asked.where is not None:
        rows = rows.where(asked.where)
    plan = (paced(rows, asked.factor) if asked.rate is None else steady(rows, asked.rate)).persist()
    try:
        counts = {row["slice"]: row["count"] for row in plan.groupBy("slice").count().collect()}
        done = max((int(path.rpartition("/")[2]) for path, _, _ in kept.list(DONE)), default=None)
        pace = Pace(sorted(counts), SLICE // timedelta(milliseconds=1) / 1e3, done, time.monotonic())
        left = sum(count for number, count in counts.items() if done is None or number > done)
        began, tally = time.monotonic(), Tally(lag=left)
        while pace and ending.signal is None:
            wait = pace.wait_s(time.monotonic())
            if wait > 0:
                time.sleep(min(wait, POLL_S))
                continue
            number = pace.take()
            _publish(part(plan, number), settings, line.query, number, asked.prefix)
            kept.create(f"{DONE}/{number}", b"")
            sent = counts[number]
            tally = Tally(
                batches=tally.batches + 1,
                records=tally.records + sent,
                lag=tally.lag - sent,
                rate=(tally.records + sent) / max(time.monotonic() - began, 1e-3),
            )
            progress.show("replay", tally)
        progress.show("replay", tally, last=True)
        return tally
    finally:
        with contextlib.suppress(Exception):
            plan.unpersist()


def _publish(rows: "DataFrame", settings: Settings, query: str, batch: int, prefix: str) -> None:
    from pyspark.sql import functions as sf

    rows = rows.withColumn("topic", sf.concat(sf.lit(prefix), "topic"))
    options = {"servers": settings.servers, **settings.options, "query": query, "batch": str(batch)}
    rows.write.format("hubsub").options(**options).mode("append").save()
