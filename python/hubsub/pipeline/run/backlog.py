"""Watermarks that wait for the backlog: a job's results for the past do not depend on the size of its batches.

A watermark follows the latest event of all rooms. In a backlog that is read in several batches, a room whose
events are older than another's by more than the watermark's delay would lose them, although only the reading
is late. The watermark therefore does not move until the query has caught up with the end that the log had
when the query started. Then it follows the latest event of all records read. A restarted query has a backlog
again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hubsub.pipeline.options import CAUGHT_UP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEVERAL_OPERATORS = "spark.sql.streaming.statefulOperator.allowMultiple"
"""While it is true, which is Spark's default, a query has one watermark."""

_FAR_FUTURE_S = 253_402_300_799
"""The end of the year 9999."""


def patient(records: "DataFrame") -> "DataFrame":
    """A stream of records whose later watermark waits until the query has caught up.

    Input: `caught_up boolean` and any other columns.
    Output: the other columns.
    Grain: one row for each row.
    Null: as the input.

    Spark moves the watermark of a query to the least of those of its columns. This adds one that is as old as
    possible for records of the backlog and as new as possible for all others. Start the query under
    `two_watermarks`.
    """
    from pyspark.sql import functions as sf

    waits_until = sf.timestamp_seconds(sf.when(sf.col(CAUGHT_UP), sf.lit(_FAR_FUTURE_S)).otherwise(sf.lit(0)))
    return (
        records.withColumn("_waits", waits_until)
        .withWatermark("_waits", "0 seconds")
        .drop("_waits", CAUGHT_UP)
    )


@contextmanager
def two_watermarks(spark: "SparkSession") -> Iterator[None]:
    """A query started in this block may have two watermarks, but only one stateful operator.

    A query takes the session's settings when it starts, and its checkpoint keeps this one.
    """
    before = spark.conf.get(_SEVERAL_OPERATORS, None)
    spark.conf.set(_SEVERAL_OPERATORS, "false")
    try:
        yield
    finally:
        spark.conf.unset(_SEVERAL_OPERATORS) if before is None else spark.conf.set(_SEVERAL_OPERATORS, before)
