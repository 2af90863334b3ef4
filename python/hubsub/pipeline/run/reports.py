"""Reports of results: small tables, computed by Spark. Only the displayed rows reach the driver."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOM_COLUMNS = (
    "room",
    "messages",
    "bytes",
    "publishers",
    "windows",
    "window_start",
    "window_end",
    "missing",
    "delay_ms_p50",
)


def rooms(windows: "DataFrame", limit: int) -> tuple[list[dict[str, Any]], int]:
    """The busiest rooms of a table of activity, and the number of rooms.

    Columns are named as those of the table: `window_start` is the first one's and `window_end` the last
    one's, `publishers` is the most in one window, `missing` counts over all windows of an epoch,
    `delay_ms_p50` is the median of the windows' medians.
    """
    from pyspark.sql import functions as sf

    from hubsub.pipeline.activity import missing

    gaps = missing(windows).groupBy("room").agg(sf.sum("missing").alias("missing"))
    found = (
        windows.groupBy("room")
        .agg(
            sf.sum("messages").alias("messages"),
            sf.sum("bytes").alias("bytes"),
            sf.max("publishers").alias("publishers"),
            sf.count("*").alias("windows"),
            sf.date_format(sf.min("window_start"), _TIME).alias("window_start"),
            sf.date_format(sf.max("window_end"), _TIME).alias("window_end"),
            sf.percentile_approx("delay_ms_p50", 0.5).alias("delay_ms_p50"),
        )
        .join(gaps, "room")
        .select(*ROOM_COLUMNS)
    ).persist()
    try:
        rows = found.orderBy(sf.desc("messages"), "room").limit(limit).collect()
        return [row.asDict() for row in rows], found.count()
    finally:
        found.unpersist()


def by_device(state: "DataFrame") -> "DataFrame":
    """Devices of a table of their latest values.

    Input: `device, topic, key string, timestamp timestamp`.
    Output: `device, topics bigint, keys bigint` (of all its topics), `last timestamp` (its latest value's).
    Grain: one row for each device.
    """
    from pyspark.sql import functions as sf

    topics, last = sf.count_distinct("topic").alias("topics"), sf.max("timestamp").alias("last")
    return state.groupBy("device").agg(topics, sf.count("*").alias("keys"), last)


def points(windows: "DataFrame") -> Iterator[tuple[str, datetime, int]]:
    """Room, start of the window and messages, of every row of a table of activity."""
    from pyspark.sql import functions as sf

    rows = windows.groupBy("room", "window_start").agg(sf.sum("messages").alias("messages"))
    # As a number: Spark returns times without a zone, in the machine's.
    for row in rows.select("room", sf.unix_micros("window_start").alias("at"), "messages").toLocalIterator():
        yield row["room"], datetime.fromtimestamp(row["at"] / 1e6, UTC), row["messages"]


def top(
    rows: "DataFrame", order: str, columns: tuple[str, ...], limit: int
) -> tuple[list[dict[str, Any]], int]:
    """The rows with the highest values of a column, and the number of all rows.

    Args:
        rows: The table.
        order: Column to sort by.
        columns: Columns to return; times as text in UTC.
        limit: Most rows to return.
    """
    from pyspark.sql import functions as sf

    times = {name for name, kind in rows.dtypes if kind == "timestamp"}
    shown = [sf.date_format(name, _TIME).alias(name) if name in times else sf.col(name) for name in columns]
    ordered = rows.orderBy(sf.desc(order), *(name for name in columns if name != order))
    return [row.asDict() for row in ordered.limit(limit).select(*shown).collect()], rows.count()


def reasons(letters: "DataFrame") -> list[dict[str, Any]]:
    from pyspark.sql import functions as sf

    rows = letters.groupBy("reason").agg(sf.count("*").alias("records")).orderBy(sf.desc("records"), "reason")
    return [row.asDict() for row in rows.collect()]


_TIME = "yyyy-MM-dd HH:mm:ss"
