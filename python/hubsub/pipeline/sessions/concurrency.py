"""Number of users in a room at once, hour by hour."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def concurrency(sessions: "DataFrame") -> "DataFrame":
    """Peak concurrency of each room and hour.

    Input: `room string, start timestamp, end timestamp, last_seen timestamp`, as returned by `sessions`.
    Output: `room string, hour timestamp` (its beginning, in UTC), `sessions bigint` (that touch the hour),
    `peak bigint` (most at one time).
    Grain: one row for each room and hour in which a session is open, also one that began hours before.
    Null: a null `end` is a session that is still open: it counts until it was last seen.

    A session lasts from its start until just before its end; one that ends where it began counts at that
    instant. A session that spans n hours costs n rows.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    hour = 3_600_000_000
    rows = sessions.select(
        "room",
        sf.unix_micros("start").alias("_start"),
        sf.unix_micros(sf.coalesce("end", "last_seen")).alias("_end"),
    )
    # The last instant of a session; hours are those of UTC, whatever zone Spark has.
    last = sf.greatest(sf.col("_start"), sf.col("_end") - 1)
    first_hour, last_hour = sf.floor(sf.col("_start") / hour), sf.floor(last / hour)
    rows = rows.withColumn("_hour", sf.explode(sf.sequence(first_hour, last_hour)))
    begin = sf.col("_hour") * hour
    rows = rows.withColumn("_from", sf.greatest("_start", begin)).withColumn(
        "_to", sf.least("_end", begin + hour)
    )

    # Order at one instant: ended sessions leave, then new ones enter, then those without duration leave.
    leaves_at = sf.when(sf.col("_from") == sf.col("_to"), 2).otherwise(0)
    steps = sf.array(
        sf.struct(sf.col("_from").alias("at"), sf.lit(1).alias("turn"), sf.lit(1).alias("step")),
        sf.struct(sf.col("_to").alias("at"), leaves_at.alias("turn"), sf.lit(-1).alias("step")),
    )
    rows = rows.select("room", "_hour", sf.explode(steps).alias("_s")).select("room", "_hour", "_s.*")
    order = (
        Window.partitionBy("room", "_hour").orderBy("at", "turn").rowsBetween(Window.unboundedPreceding, 0)
    )
    return (
        rows.withColumn("_present", sf.sum("step").over(order))
        .groupBy("room", "_hour")
        .agg(sf.count_if(sf.col("step") == 1).alias("sessions"), sf.max("_present").alias("peak"))
        .select("room", sf.timestamp_micros(sf.col("_hour") * hour).alias("hour"), "sessions", "peak")
    )
