"""When each record is due, and what goes out together; no clock and no publishing here.

A plan gives each record `due_s`, seconds after the replay begins, and `slice`, the span of time that it belongs
to. Who publishes takes slice after slice when its time has come, each with `part`, which keeps rooms in order.

Invariant: within a room `due_s` never falls in the order of its records, whatever its times say; so slices keep
the order, too.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from hubsub.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = ("timestamp", "epoch", "seq")
"""The order of a room's records: its seqs, and its epochs by their times."""
SLICE = timedelta(seconds=1)


def paced(rows: "DataFrame", factor: float = 1.0, slice: timedelta = SLICE) -> "DataFrame":  # noqa: A002
    """Records at the pace at which they came, times a factor.

    Input: the columns of the archive, of which `room, epoch, seq, timestamp` decide.
    Output: the input, `due_s double`, `slice bigint`, from 0.
    Grain: one row for each record. Null: rows without a timestamp or room are left out; nothing added is null.

    Args:
        rows: Records; the earliest of them is due at 0.
        factor: 2 is twice as fast.
        slice: Span of time that goes out together.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    if not factor > 0:
        raise OptionError("the factor of a replay must be above 0", factor, "2 is twice as fast as it was")
    rows = rows.where("timestamp IS NOT NULL AND room IS NOT NULL")
    begin = rows.agg(sf.min("timestamp").alias("_begin"))
    order = Window.partitionBy("room").orderBy(*ORDER)
    rows = rows.crossJoin(sf.broadcast(begin))
    since = sf.unix_micros(sf.max("timestamp").over(order)) - sf.unix_micros("_begin")
    rows = rows.withColumn("due_s", since / sf.lit(1e6) / sf.lit(float(factor))).drop("_begin")
    return rows.withColumn("slice", _slice(slice))


def steady(rows: "DataFrame", rate: float, slice: timedelta = SLICE) -> "DataFrame":  # noqa: A002
    """Records at a steady rate, in the order in which they came.

    Input, output, grain and null rule: as `paced`.

    No step brings all rows into one partition: seconds are counted first, then rows within each.

    Args:
        rows: Records.
        rate: Records a second, over all rooms.
        slice: Span of time that goes out together.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    if not rate > 0:
        raise OptionError("the rate of a replay must be above 0", rate, "in records a second")
    rows = rows.where("timestamp IS NOT NULL AND room IS NOT NULL")
    # The order of a room goes before its times: a record is not due before the one before it.
    room = Window.partitionBy("room").orderBy(*ORDER)
    rows = rows.withColumn("_at", sf.max("timestamp").over(room)).withColumn(
        "_nth", sf.row_number().over(room)
    )
    rows = rows.withColumn("_second", sf.floor(sf.unix_micros("_at") / 1_000_000))
    counts = rows.groupBy("_second").agg(sf.count("*").alias("_count"))
    before = Window.partitionBy(sf.lit(0)).orderBy("_second").rowsBetween(Window.unboundedPreceding, -1)
    counts = counts.withColumn("_before", sf.coalesce(sf.sum("_count").over(before), sf.lit(0))).drop(
        "_count"
    )
    within = Window.partitionBy("_second").orderBy("_at", "room", "_nth")
    rows = rows.join(counts, "_second").withColumn("_n", sf.col("_before") + sf.row_number().over(within) - 1)
    rows = rows.withColumn("due_s", sf.col("_n") / sf.lit(float(rate)))
    return rows.drop("_at", "_nth", "_second", "_before", "_n").withColumn("slice", _slice(slice))


def part(plan: "DataFrame", first: int, last: int | None = None) -> "DataFrame":
    """What goes out in slices `first` to `last` (default: that one), as rows for the sink.

    Input: the output of `paced` or `steady`.
    Output: `topic string, payload binary, headers map<string,string>`.
    Grain: one row for each record of these slices; a room's rows are in one partition, in its order.
    Null: as the records.
    """
    from pyspark.sql import functions as sf

    chosen = plan.where(sf.col("slice").between(first, first if last is None else last))
    ordered = chosen.repartition("room").sortWithinPartitions("room", *ORDER)
    return ordered.select("topic", "payload", "headers")


def _slice(length: timedelta) -> "Column":
    from pyspark.sql import functions as sf

    if length <= timedelta(0):
        raise OptionError("a slice of a replay must be longer than 0", length)
    return sf.floor(sf.col("due_s") / sf.lit(length.total_seconds())).cast("bigint")
