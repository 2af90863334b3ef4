"""How late a stream sees records: from a record's timestamp to `foreachBatch` having the row."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONGEST_BATCHES = 20
"""How many of the batches are told of, with where their time went."""


class Fresh:
    """A running stream whose batches are looked at as they come.

    Args:
        options: Of the source.
        place: Of its checkpoint.
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
            Count and percentiles in ms of the records whose timestamp is in `[since_us, until_us)`, and the stages
            of the slowest batches.
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
    """How late each record of a window was, in ms, in order.

    Args:
        noted: Of each batch the timestamps of its records, and when they were there; µs since 1970.
    """
    return sorted((seen - at) / 1_000 for stamps, seen in noted for at in stamps if since_us <= at < until_us)


def quantile(ordered: list[float], share: float) -> float | None:
    """The smallest value that is not below so large a share of them; None of no values.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    if not ordered:
        return None
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]
