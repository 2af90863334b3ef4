"""Detects missing records of a room: the seqs of an epoch have no gaps, so missing ones can be counted.

The check needs all records read of an epoch. A single window shows gaps only if windows are by the records'
own timestamps, and a gap between two windows is in neither.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def missing(activity: "DataFrame") -> "DataFrame":
    """Number of missing records in each epoch of each room, from the rows of `activity`.

    Input: `room, epoch, window_start, window_end, messages, first_seq, last_seq`.
    Output: `room string, epoch bigint, since timestamp, until timestamp, messages, first_seq, last_seq,
    missing bigint`.
    Grain: one row for each room and epoch. `missing` is 0 if no record is missing, inside windows and between
    them, whatever time the windows are by.
    Null: nothing is null.

    It counts seqs. Records that are in no window also count as missing, such as those without an event time
    where windows are by event time: `events.bad` has them.
    """
    from pyspark.sql import functions as sf

    return (
        activity.groupBy("room", "epoch")
        .agg(
            sf.min("window_start").alias("since"),
            sf.max("window_end").alias("until"),
            sf.sum("messages").alias("messages"),
            sf.min("first_seq").alias("first_seq"),
            sf.max("last_seq").alias("last_seq"),
        )
        .withColumn("missing", sf.col("last_seq") - sf.col("first_seq") + 1 - sf.col("messages"))
    )


def holes(records: "DataFrame") -> "DataFrame":
    """Runs of missing records, from the records themselves; batch only.

    Input: `room string, epoch bigint, seq bigint`.
    Output: `room, epoch, first_missing bigint, last_missing bigint`.
    Grain: one row for each run of missing seqs; no row if none is missing.
    Null: nothing is null.

    Records before a room's first record here do not count: history ends somewhere.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    before = sf.lag("seq").over(Window.partitionBy("room", "epoch").orderBy("seq"))
    return (
        records.select("room", "epoch", "seq", before.alias("_before"))
        .where(sf.col("seq") > sf.col("_before") + 1)
        .select(
            "room",
            "epoch",
            (sf.col("_before") + 1).alias("first_missing"),
            (sf.col("seq") - 1).alias("last_missing"),
        )
    )
