"""Sessions of a bounded frame, by window functions: one shuffle by room and user."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hubsub.pipeline.sessions.rules import ORDER, TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def sessions(moves: "DataFrame", timeout: timedelta = TIMEOUT, now: datetime | None = None) -> "DataFrame":
    """Sessions by the rules of `hubsub.pipeline.sessions.rules`.

    Input: the output of `rules.moves`.
    Output: `room string, user string, start timestamp, end timestamp, last_seen timestamp, duration_s double,
    messages bigint` (messages and actions), `opened_by string, closed_by string`.
    Grain: one row for each session.
    Null: `end` and `duration_s` are null where `closed_by` is `open`, else nothing is.

    Args:
        moves: The input.
        timeout: Silence after which a session ends; default 30 minutes.
        now: Sessions that time out after this time are `open`. None: all have ended.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    user = Window.partitionBy("room", "user").orderBy(*ORDER)
    limit = sf.lit(timeout // timedelta(microseconds=1))
    rows = moves.withColumn("_t", sf.unix_micros(sf.max("at").over(user)))
    rows = rows.withColumn("_silence", sf.col("_t") - sf.lag("_t").over(user))
    rows = _counted(rows, limit)
    # A session is open before a row if the previous row was no final leave and is not older than the
    # time-out.
    rows = rows.withColumn("_closes", (sf.col("kind") == "leave") & (sf.col("_in") == 0))
    open_before = ~sf.lag("_closes").over(user) & (sf.col("_silence") <= limit)
    rows = rows.withColumn("_open", sf.coalesce(open_before, sf.lit(False)))
    comes = (sf.col("kind") == "join") & sf.col("ref").isNull()
    opens = comes | ((sf.col("kind") != "leave") & ~sf.col("_open"))
    rows = rows.where(sf.col("_open") | (sf.col("kind") != "leave")).withColumn("_opens", opens)
    rows = rows.withColumn("_session", sf.count_if("_opens").over(user))

    position = sf.struct(*ORDER)
    found = rows.groupBy("room", "user", "_session").agg(
        sf.min("_t").alias("_start"),
        sf.max("_t").alias("_last"),
        sf.count_if(sf.col("kind").isin("message", "action")).alias("messages"),
        sf.min_by("kind", position).alias("_first_kind"),
        sf.max_by("_closes", position).alias("_left"),
    )
    after = Window.partitionBy("room", "user").orderBy("_session")
    rejoined = (sf.lead("_first_kind").over(after) == "join") & (
        sf.lead("_start").over(after) - sf.col("_last") <= limit
    )
    found = found.withColumn("_rejoined", sf.when(rejoined, sf.lead("_start").over(after)))

    timed_out = sf.col("_last") + limit
    is_open = sf.lit(False) if now is None else timed_out > sf.unix_micros(sf.lit(now).cast("timestamp"))
    end = (
        sf.when(sf.col("_left"), sf.col("_last"))
        .when(sf.col("_rejoined").isNotNull(), sf.col("_rejoined"))
        .when(~is_open, timed_out)
    )
    closed_by = (
        sf.when(sf.col("_left"), "leave")
        .when(sf.col("_rejoined").isNotNull(), "join")
        .when(is_open, "open")
        .otherwise("timeout")
    )
    return found.select(
        "room",
        "user",
        sf.timestamp_micros("_start").alias("start"),
        sf.timestamp_micros(end).alias("end"),
        sf.timestamp_micros("_last").alias("last_seen"),
        ((end - sf.col("_start")) / sf.lit(1e6)).alias("duration_s"),
        "messages",
        sf.when(sf.col("_first_kind") == "join", "join").otherwise("message").alias("opened_by"),
        closed_by.alias("closed_by"),
    )


def _counted(rows: "DataFrame", limit: "Column") -> "DataFrame":
    """Adds `_in`: the number of the user's refs in the room after each row; a silence above the limit removes all."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    user = Window.partitionBy("room", "user")
    of_moves = sf.col("kind").isin("join", "leave")
    rows = rows.withColumn("_stay", sf.count_if(sf.col("_silence") > limit).over(user.orderBy(*ORDER)))
    rows = rows.withColumn("_ref", sf.when(of_moves, sf.col("ref")))
    # A ref that is in cannot join again, and one that is out cannot leave again.
    of_ref = Window.partitionBy("room", "user", "_stay", "_ref").orderBy(*ORDER)
    was_in = sf.lag("kind", 1, "leave").over(of_ref) == "join"
    step = sf.when(
        of_moves & sf.col("_ref").isNotNull() & (was_in != (sf.col("kind") == "join")), 1
    ).otherwise(0)
    rows = rows.withColumn("_step", sf.when(sf.col("kind") == "join", step).otherwise(-step))
    of_stay = Window.partitionBy("room", "user", "_stay").orderBy(*ORDER)
    return rows.withColumn("_in", sf.sum("_step").over(of_stay)).drop("_ref", "_step")
