"""Records of an archive for a replay, in windows and slices of time; the driver sees counts only.

The archive is read by day and window, so its size does not affect memory. The driver holds the counts of one
day by second and of one window by shorter steps; Spark holds one window's records, on disk if they are many.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from hubsub.pipeline.archive import DataFile, Table, read
from hubsub.pipeline.replay import Bounds, Span, between, counts, replayable, spans
from hubsub.pipeline.replay.plan import STEPS_US, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

WINDOW_ROWS_MAX = 1_000_000
WINDOW_BYTES_MAX = 256 << 20
"""Bytes of files, which are compressed."""


class Archived:
    """The records of an archive that are replayed.

    Args:
        spark: The session.
        table: The archive.
        files: Its files.
        until: Hub to the first offset after the replay.
        archived: Hub to the first offset that is not archived.
        where: SQL condition, or None.
    """

    def __init__(
        self,
        spark: "SparkSession",
        table: Table,
        files: list[DataFile],
        until: Mapping[int, int],
        archived: Mapping[int, int],
        where: str | None,
    ) -> None:
        self._spark, self._table, self._files = spark, table, files
        self._until = dict(until)
        self._is_whole = self._until == dict(archived)
        self._where = where

    @cached_property
    def _days(self) -> dict[str, tuple[int, int]]:
        """Number of records and first time of each day, in the order of days."""
        from pyspark.sql import functions as sf

        first = sf.min(sf.unix_micros("timestamp")).alias("first")
        found = self._rows(self._files).groupBy("date").agg(sf.count("*").alias("count"), first).collect()
        return {str(row["date"]): (row["count"], row["first"]) for row in sorted(found)}

    @cached_property
    def topics(self) -> set[str]:
        """The first and the last topic of each hub by name; a hub is of one class."""
        from pyspark.sql import functions as sf

        ends = sf.min("topic").alias("first"), sf.max("topic").alias("last")
        rows = self._rows(self._files).groupBy("hub").agg(*ends).collect()
        return {topic for row in rows for topic in (row["first"], row["last"])}

    @property
    def rows(self) -> int:
        return sum(count for count, _ in self._days.values())

    @property
    def origin_us(self) -> int:
        """When the first record was published; there is at least one."""
        return min(first for _, first in self._days.values())

    def slices(
        self, begin_us: int, bounds: Bounds, made: "Callable[[DataFrame], DataFrame]"
    ) -> "Iterator[tuple[Span, DataFrame]]":
        """Spans from a time on, in order, each with its rows for the sink.

        Args:
            begin_us: Nothing before it.
            bounds: Limits of a span.
            made: `outgoing`, which is called once for each window.
        """
        for window in self._windows(begin_us):
            rows = made(self.between(window.begin_us, window.end_us)).persist()
            try:
                for span in _cut(rows, bounds):
                    # A step may have begun before.
                    first = max(span.begin_us, window.begin_us)
                    yield replace(span, begin_us=first), between(rows, first, span.end_us)
            finally:
                with contextlib.suppress(Exception):  # Spark may be gone.
                    rows.unpersist()

    def _windows(self, begin_us: int) -> Iterator[Span]:
        """Spans of time that are read together; none is of two days."""
        first = _date(begin_us)
        for date in self._days:
            if date < first:
                continue
            files = [file for file in self._files if file.date == date]
            size, rows = sum(file.bytes for file in files), sum(file.rows for file in files)
            rows_max = min(WINDOW_ROWS_MAX, max(1, WINDOW_BYTES_MAX * rows // max(size, 1)))
            step = STEPS_US[0]
            buckets = _collect(between(self._rows(files), begin_us), step)
            for span in spans(buckets, step, Bounds(rows=rows_max, bytes=1 << 62)):
                yield replace(span, begin_us=max(span.begin_us, begin_us))

    def between(self, begin_us: int, end_us: int) -> "DataFrame":
        dates = _date(begin_us), _date(end_us - 1)
        files = [file for file in self._files if dates[0] <= file.date <= dates[1]]
        return between(self._rows(files), begin_us, end_us)

    def _rows(self, files: list[DataFile]) -> "DataFrame":
        from pyspark.sql import functions as sf

        rows = replayable(read(self._spark, self._table, files))
        if not self._is_whole:
            ends = [n for hub, end in self._until.items() for n in (sf.lit(hub), sf.lit(end).cast("bigint"))]
            rows = rows.where(sf.col("offset") < sf.element_at(sf.create_map(*ends), sf.col("hub")))
        return rows if self._where is None else rows.where(self._where)


def _cut(rows: "DataFrame", bounds: Bounds) -> list[Span]:
    """The slices of a window, counted as finely as needed."""
    length = bounds.grid[1] if bounds.grid else STEPS_US[0]
    steps = [step for step in STEPS_US if step <= length]
    for step in steps:
        buckets = _collect(rows, step)
        if not bounds.are_passed(buckets):
            break
    return spans(buckets, step, bounds)


def _collect(rows: "DataFrame", step_us: int) -> list[Bucket]:
    columns = counts(rows, step_us).toArrow().select(["begin_us", "rows", "bytes"])
    return list(zip(*(column.to_pylist() for column in columns.columns), strict=True))


def _date(at_us: int) -> str:
    return str(datetime.fromtimestamp(at_us // 1_000_000, UTC).date())
