"""Whether a room's records are all there: the seqs of an epoch have no gaps, so what is missing can be told.

The grain that shows it is the room's epoch, over everything that was read: inside a window only windows by the
records' own times hold neighbours, and a hole between two windows is in neither.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def missing(activity: "DataFrame") -> "DataFrame":
    """How much is missing in each epoch of each room, from the rows of `activity`.

    Input: `room, epoch, window_start, window_end, messages, first_seq, last_seq`.
    Output: `room string, epoch bigint, since timestamp, until timestamp, messages, first_seq, last_seq, missing
    bigint`.
    Grain: one row for each room and epoch. `missing` is 0 where nothing is, inside windows and between them,
    whatever time the windows are by.
    Null: nothing is null.

    It counts seqs. What stood in a room and came into no window, such as a record without an event time where windows
    are by those, is missing here, too: `events.bad` has it.
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
    """Where records are missing, from the records themselves; batch only.

    Input: `room string, epoch bigint, seq bigint`.
    Output: `room, epoch, first_missing bigint, last_missing bigint`.
    Grain: one row for each run of missing seqs; no row where all are there.
    Null: nothing is null. What is before a room's first record here is no hole: history ends somewhere.
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
