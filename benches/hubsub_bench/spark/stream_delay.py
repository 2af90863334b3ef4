"""Delay of a stream: from a record's timestamp until `foreachBatch` has the row."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONGEST_BATCHES = 20
"""Number of slowest batches that are reported with their stages."""


class StreamDelay:
    """A running stream that records the arrival of its rows.

    Args:
        spark: The session.
        options: Options of the source.
        place: Directory of its checkpoint.
    """

    def __init__(self, spark: "SparkSession", options: Mapping[str, str], place: Path) -> None:
        self._noted: list[tuple[list[int], int]] = []
        frame = spark.readStream.format("hubsub").options(**options).load().select("timestamp", "payload")
        writer = frame.writeStream.foreachBatch(self._note).trigger(processingTime="0 seconds")
        self._query = writer.option("checkpointLocation", str(place)).start()

    def _note(self, frame: "DataFrame", _batch: int) -> None:
        stamps = frame.toArrow().column("timestamp")
        seen = time.time_ns() // 1_000
        self._noted.append((stamps.cast("int64").to_pylist(), seen))

    def stop(self, since_us: int, until_us: int) -> dict[str, Any]:
        """Ends the stream.

        Returns:
            Count and percentiles in ms of the records whose timestamp is in `[since_us, until_us)`, and the
            stages of the slowest batches.
        """
        self._query.stop()
        if (failed := self._query.exception()) is not None:
            raise failed
        late = lateness(self._noted, since_us, until_us)
        progress = [p for p in self._query.recentProgress if p["numInputRows"]]
        spent = [{name: int(ms) for name, ms in p["durationMs"].items()} for p in progress]
        spent.sort(key=lambda ms: -ms["triggerExecution"])
        quantiles = {
            name: quantile(late, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        }
        batches = {
            "batches": len(self._noted),
            "longest": spent[:LONGEST_BATCHES],
            "middle": spent[len(spent) // 2 :][:5],
        }
        return {"rows": len(late), **quantiles, "max": late[-1] if late else None, **batches}


def lateness(noted: Iterable[tuple[list[int], int]], since_us: int, until_us: int) -> list[float]:
    """Delay of each record of a window, in ms, ascending.

    Args:
        noted: For each batch the timestamps of its records, and the time of their arrival; µs since 1970.
        since_us: Start of the window, µs since 1970.
        until_us: End of the window, exclusive.
    """
    return sorted((seen - at) / 1_000 for stamps, seen in noted for at in stamps if since_us <= at < until_us)


def quantile(ordered: list[float], share: float) -> float | None:
    """The smallest value that at least this share of the values do not exceed; None without values.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    if not ordered:
        return None
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]
