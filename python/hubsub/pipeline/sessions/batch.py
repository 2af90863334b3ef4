"""Sessions of a bounded frame, by window functions: one shuffle by room and user."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hubsub.pipeline.sessions.rules import ORDER, TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def sessions(moves: "DataFrame", timeout: timedelta = TIMEOUT, now: datetime | None = None) -> "DataFrame":
    """Sessions by the rules of `hubsub.pipeline.sessions.rules`.

    Input: the output of `rules.moves`.
    Output: `room string, user string, start timestamp, end timestamp, last_seen timestamp, duration_s double,
    messages bigint` (messages and actions), `opened_by string, closed_by string`.
    Grain: one row for each session.
    Null: `end` and `duration_s` are null where `closed_by` is `open`, else nothing is.

    Args:
        timeout: Silence after which a session is over.
        now: Sessions that have not timed out by this time are `open`. None: all are over.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    user = Window.partitionBy("room", "user").orderBy(*ORDER)
    limit = sf.lit(timeout // timedelta(microseconds=1))
    rows = moves.withColumn("_t", sf.unix_micros(sf.max("at").over(user)))
    rows = rows.withColumn("_silence", sf.col("_t") - sf.lag("_t").over(user))
    # A session is open before a row if the row before it was no leave and is not too long ago.
    open_before = sf.coalesce(
        (sf.lag("kind").over(user) != "leave") & (sf.col("_silence") <= limit), sf.lit(False)
    )
    rows = rows.withColumn("_open", open_before)
    opens = (sf.col("kind") == "join") | ((sf.col("kind") != "leave") & ~sf.col("_open"))
    rows = rows.where(sf.col("_open") | (sf.col("kind") != "leave")).withColumn("_opens", opens)
    rows = rows.withColumn("_session", sf.count_if("_opens").over(user))

    position = sf.struct(*ORDER)
    found = rows.groupBy("room", "user", "_session").agg(
        sf.min("_t").alias("_start"),
        sf.max("_t").alias("_last"),
        sf.count_if(sf.col("kind").isin("message", "action")).alias("messages"),
        sf.min_by("kind", position).alias("_first_kind"),
        sf.max_by("kind", position).alias("_last_kind"),
    )
    after = Window.partitionBy("room", "user").orderBy("_session")
    rejoined = (sf.lead("_first_kind").over(after) == "join") & (
        sf.lead("_start").over(after) - sf.col("_last") <= limit
    )
    found = found.withColumn("_rejoined", sf.when(rejoined, sf.lead("_start").over(after)))

    timed_out = sf.col("_last") + limit
    is_open = sf.lit(False) if now is None else timed_out >= sf.unix_micros(sf.lit(now).cast("timestamp"))
    end = (
        sf.when(sf.col("_last_kind") == "leave", sf.col("_last"))
        .when(sf.col("_rejoined").isNotNull(), sf.col("_rejoined"))
        .when(~is_open, timed_out)
    )
    closed_by = (
        sf.when(sf.col("_last_kind") == "leave", "leave")
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
