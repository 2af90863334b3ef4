"""Messages, bytes, publishers and delays of each room and window of time.

One aggregation, so it works unchanged in batch and in streaming: append mode outputs each window once, when
the watermark has passed its end.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ROOM_BYTES_MAX = 1_000
ACCURACY = 1_000
"""Of the percentiles: the error of their rank is at most one in `ACCURACY` rows."""
DELAY_MAX = timedelta(days=1)
"""An event published later than this is historical, from a replayed or imported log; it has no delay."""
QUERY_HEADER = "hubsub-query"
"""Header of a message: the name of the query that publishes it; also in its payload."""


def activity(
    events: "DataFrame",
    window: str = "1 minute",
    watermark: str | None = None,
    arrived: "Column | None" = None,
) -> "DataFrame":
    """Activity of each room and window.

    Input: `room string, epoch bigint, seq bigint, timestamp timestamp, event_time timestamp, publisher
    string, payload binary`, as returned by `events.good`.
    Output: `room, epoch, window_start, window_end timestamp, messages bigint, bytes bigint` (of payloads),
    `publishers bigint` (distinct ones, by a HyperLogLog sketch: exact for few, within 2 % for many),
    `first_seq, last_seq, missing bigint, delay_ms_p50, delay_ms_p95, delay_ms_p99 double, late bigint`.
    Grain: one row for each room, epoch and window that has a message. A room that was recreated within a
    window has a row for each epoch, as their seqs are independent.
    Null: a null publisher counts as none, a null payload as 0 bytes. `missing` is null where event times
    differ from record timestamps: then a window need not hold neighbouring records; use `missing()` over all
    windows. `delay_ms_…` are null if no message of the window has a delay. Rows without room or event time
    are left out.

    A message's delay is its record's timestamp (or `arrived`) minus its event time; below zero if the
    sender's clock is ahead. It has none if its event time is its record's own (there is no `--event-time`),
    or more than `DELAY_MAX`, a day, earlier: such a log is replayed or imported.

    `late` counts the messages that came later than the watermark allows, whatever their delay: batch counts
    them in their window; streaming drops those whose window was already output, and its progress counts them.

    Args:
        events: The input.
        window: Length of the windows, as Spark writes intervals; they tumble, aligned to midnight UTC.
            Default 1 minute.
        watermark: How late an event may come, as an interval. Streaming needs one in append mode.
        arrived: When a message arrived; None takes the record's timestamp. For a stream without timestamps of
            its own pass `current_timestamp()`: the delay then shows how far reading lags, up to `DELAY_MAX`.
    """
    from pyspark.sql import functions as sf

    rows = events.where("room IS NOT NULL AND event_time IS NOT NULL")
    own_time = sf.lit(False) if arrived is not None else sf.col("event_time") == sf.col("timestamp")
    arrived = sf.col("timestamp") if arrived is None else arrived
    behind_us = sf.unix_micros(arrived) - sf.unix_micros("event_time")
    is_past = behind_us > sf.lit(DELAY_MAX // timedelta(microseconds=1))
    rows = rows.withColumn("_behind_ms", behind_us / sf.lit(1e3))
    delay_ms = sf.when(~own_time & ~is_past, sf.col("_behind_ms"))
    late: Column = sf.lit(0).cast("bigint")
    if watermark is not None:
        allowed = sf.expr(f"unix_micros(timestamp'1970-01-01 00:00:00Z' + INTERVAL '{watermark}') / 1e3")
        late = sf.count_if(sf.col("_behind_ms") > allowed)
        rows = rows.withWatermark("event_time", watermark)
    span = sf.col("last_seq") - sf.col("first_seq") + 1 - sf.col("messages")
    windows = rows.groupBy("room", "epoch", sf.window("event_time", window).alias("_window")).agg(
        sf.count("*").alias("messages"),
        sf.coalesce(sf.sum(sf.octet_length("payload")), sf.lit(0)).alias("bytes"),
        sf.hll_sketch_estimate(sf.hll_sketch_agg("publisher")).alias("publishers"),
        sf.min("seq").alias("first_seq"),
        sf.max("seq").alias("last_seq"),
        sf.bool_and(sf.col("event_time") == sf.col("timestamp")).alias("_in_order"),
        sf.percentile_approx(delay_ms, list(PERCENTILES.values()), ACCURACY).alias("_delays"),
        late.alias("late") if watermark is not None else sf.sum(late).alias("late"),
    )
    return windows.select(
        "room",
        "epoch",
        sf.col("_window.start").alias("window_start"),
        sf.col("_window.end").alias("window_end"),
        "messages",
        "bytes",
        "publishers",
        "first_seq",
        "last_seq",
        sf.when(sf.col("_in_order"), span).alias("missing"),
        *(sf.col("_delays")[at].alias(f"delay_ms_{name}") for at, name in enumerate(PERCENTILES)),
        "late",
    )


def messages(
    rows: "DataFrame", final: bool = True, prefix: str = "$stats/room/", query: str | None = None
) -> "DataFrame":
    """Rows of `activity` as messages for the sink.

    Input: the output of `activity`.
    Output: `topic string` (the prefix and the room), `payload binary` (the row as JSON, times in UTC,
    `final`, and `query` if given), `headers map<string,string>` (`hubsub-query`, if `query` is given).
    Grain: one message for each row.
    Null: columns that are null are left out of the JSON.

    Args:
        rows: The input.
        final: Whether these windows are complete, the default; else each may get a later version.
        prefix: Prefix of the topics, default `$stats/room/`. A room whose name is longer than 1,000 bytes is
            replaced by the SHA-256 of its name, since topics have a limit; its payload has the name.
        query: Name of the query that publishes them: several may report the same room.
    """
    from pyspark.sql import functions as sf

    options = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX"}
    further = [sf.lit(final).alias("final"), *([] if query is None else [sf.lit(query).alias("query")])]
    payload = sf.to_json(sf.struct(*rows.columns, *further), options).cast("binary")
    named = [] if query is None else [sf.lit(QUERY_HEADER), sf.lit(query)]
    headers = sf.create_map(*named).cast("map<string,string>")
    short = sf.octet_length("room") <= ROOM_BYTES_MAX
    level = sf.when(short, sf.col("room")).otherwise(sf.sha2("room", 256))
    topic = sf.concat(sf.lit(prefix), level)
    return rows.select(topic.alias("topic"), payload.alias("payload"), headers.alias("headers"))
