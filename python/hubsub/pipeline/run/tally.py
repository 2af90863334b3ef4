"""Summarizes Spark's progress reports. Pure.

Records are counted by offsets of the log, which each report holds: Spark's own `numInputRows` counts a row as
often as a job reads it. The count is thus of records read, before any filter.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tally:
    """Progress of a query in this run."""

    batches: int = 0
    """Batches that read something: Spark ends with one that reads nothing, and only moves the watermark."""
    records: int = 0
    """Number of records read."""
    lag: int = 0
    """Records that are committed and not read."""
    rate: float = 0.0
    """Records a second, of the last batch that had any."""
    late: int = 0
    """Rows dropped because they were older than the watermark."""
    first: Mapping[str, int] | None = None
    """Offsets at the start of the run."""
    last_batch: int = -1

    @property
    def total(self) -> int:
        """Records read at the end of the run, if no more are committed."""
        return self.records + self.lag

    def plus(self, report: Mapping[str, Any]) -> "Tally":
        """Adds a report in Spark's JSON form. A repeated report changes nothing."""
        batch = int(report["batchId"])
        source = report["sources"][0] if report.get("sources") else {}
        end = _hubs(source.get("endOffset"))
        if batch <= self.last_batch or end is None:
            return self
        start = _hubs(source.get("startOffset"))
        # New hubs begin with their first offset; so does a query without a start.
        first = dict(self.first) if self.first is not None else dict(start or {})
        first |= {hub: 1 for hub in end if hub not in first}
        records = sum(max(offset - first[hub], 0) for hub, offset in end.items())
        latest = _hubs(source.get("latestOffset")) or end
        seconds = report.get("durationMs", {}).get("triggerExecution", 0) / 1e3
        read = records - self.records
        return Tally(
            batches=self.batches + (read > 0),
            records=records,
            lag=sum(max(offset - end.get(hub, 1), 0) for hub, offset in latest.items()),
            rate=read / seconds if read > 0 and seconds > 0 else self.rate,
            late=self.late
            + sum(state.get("numRowsDroppedByWatermark", 0) for state in report["stateOperators"]),
            first=first,
            last_batch=batch,
        )


def _hubs(offset: object) -> dict[str, int] | None:
    """Hub to offset, from an offset of the source: an object, or JSON in a text."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None
    hubs = value.get("hubs") if isinstance(value, dict) else None
    return dict(hubs) if isinstance(hubs, dict) else None
