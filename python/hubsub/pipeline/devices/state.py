"""The latest value of each device, topic and key.

Invariant: the order of two readings depends only on the two. In one epoch the greater seq is later; of two
epochs (which compare for equality only) the one whose record has the later time. Repeated or reordered
readings therefore change nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = ("device", "topic", "key")
STATE = "value string, epoch bigint, seq bigint, timestamp_us bigint"
OUTPUT = f"device string, topic string, key string, {STATE}"


def latest(readings: "DataFrame") -> "DataFrame":
    """The latest reading of each device, topic and key; batch.

    Input: the output of `readings`.
    Output: the same columns.
    Grain: one row for each device, topic and key.
    Null: a null `value` can be the latest one like any other.
    """
    from pyspark.sql import functions as sf

    row = sf.struct("value", "seq", "timestamp")
    in_epoch = readings.groupBy(*KEY, "epoch").agg(sf.max_by(row, "seq").alias("_row"))
    row = sf.struct("_row.value", "epoch", "_row.seq", "_row.timestamp")
    order = sf.struct("_row.timestamp", "epoch")
    return in_epoch.groupBy(*KEY).agg(sf.max_by(row, order).alias("_row")).select(*KEY, "_row.*")


def merged(state: "DataFrame", changes: "DataFrame") -> "DataFrame":
    """Merges later readings into a table of latest ones; a sink replaces its old table by the result.

    Input: twice the output of `latest` or `streamed`.
    Output, grain and null: as `latest`.

    Merging the same changes again, or older ones, gives the same table.
    """
    return latest(state.unionByName(changes))


def streamed(readings: "DataFrame") -> "DataFrame":
    """The readings that change the latest state, as they come.

    Input: the output of `readings`, as a stream. It needs the RocksDB state store.
    Output: the same columns.
    Grain: at most one row for each device, topic and key in a batch, the latest, and only if it is later than
    all before. Update mode: a table takes it by `merged`, or by its key.
    Null: as `latest`.

    The state is one row for each device, topic and key and is never removed: devices are few, and their last
    value counts.
    """
    from pyspark.sql import functions as sf

    # Times go to Python and back as numbers, which have no time zones.
    at = sf.unix_micros("timestamp").alias("timestamp_us")
    rows = readings.select(*KEY, "value", "epoch", "seq", at)
    found = rows.groupBy(*KEY).transformWithState(_processor(), OUTPUT, outputMode="Update", timeMode="None")
    return found.select(*KEY, "value", "epoch", "seq", sf.timestamp_micros("timestamp_us").alias("timestamp"))


def _processor() -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Latest(StatefulProcessor):
        """The latest reading of one device, topic and key."""

        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("latest", STATE)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            before: Any = self.state.get() if self.state.exists() else None
            found = before
            for row in rows:
                reading = (row["value"], row["epoch"], row["seq"], row["timestamp_us"])
                if found is None or _order(reading, found) > _order(found, reading):
                    found = reading
            if found != before:
                self.state.update(found)
                value, epoch, seq, at = found
                names = dict(zip(KEY, key, strict=True))
                yield Row(**names, value=value, epoch=epoch, seq=seq, timestamp_us=at)

    return Latest()


def _order(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[int, int]:
    """The sort key of a reading compared with another."""
    _, epoch, seq, at = one
    return (seq, 0) if epoch == other[1] else (at, epoch)
