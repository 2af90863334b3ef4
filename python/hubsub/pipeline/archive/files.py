"""Writes records to Parquet files on executors: one Spark job that returns the names of the files.

No file is renamed or removed: each attempt of a task writes under unique names, and only the names of
successful attempts are returned. Files of other attempts do not belong to the table, and are swept later.
"""

import json
import uuid
from collections.abc import Iterator
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from hubsub.columns import COLUMNS
from hubsub.errors import OptionError
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import DataFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROWS_MAX = 131_072
BYTES_MAX = 64 << 20
"""A row group ends at this number of rows or bytes of memory: a task holds one for each day."""
DAYS_MAX = 8
"""Files that a task has open; records come in the order of time, so more days at once are rare."""
COMPACTED = -1
"""Replaces a batch's number: the file holds records of several."""

_SCHEMA = "path string, date string, rows bigint, bytes bigint, ranges string"


def write(frame: "DataFrame", store: Store, batch: int) -> tuple[list[DataFile], dict[int, tuple[int, int]]]:
    """Writes records to files that do not belong to the table yet.

    Args:
        frame: Records, with all columns; their order within a partition is preserved within a day.
        store: The table's root.
        batch: The batch's number, or `COMPACTED`; part of the names.

    Returns:
        The files, and hub to the first and last offset in them.

    Raises:
        OptionError: columns are missing.
    """
    gone = [name for name in COLUMNS if name not in frame.columns]
    if gone:
        raise OptionError(
            "the archive keeps all columns; some are missing", ", ".join(gone), "leave out `columns`"
        )

    def task(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        yield from _task(batches, store, batch)

    rows = frame.select(*COLUMNS).mapInArrow(task, _SCHEMA).collect()
    ranges: dict[int, tuple[int, int]] = {}
    for row in rows:
        _widen(ranges, {int(hub): tuple(span) for hub, span in json.loads(row.ranges).items()})
    return [DataFile(row.path, row.date, row.rows, row.bytes) for row in rows], ranges


def _task(batches: Iterator["pa.RecordBatch"], store: Store, batch: int) -> Iterator["pa.RecordBatch"]:
    """One attempt of one task: writes its records by day, one file per day."""
    import pyarrow as pa

    days: dict[int, _Day] = {}
    done: list[dict[str, Any]] = []
    try:
        for records in batches:
            table = pa.Table.from_batches([records])
            for number, part in _by_day(table):
                if number not in days:
                    if len(days) == DAYS_MAX:
                        done.append(days.pop(next(iter(days))).close())
                    days[number] = _Day(number, store, batch)
                days[number].add(part)
        done += [day.close() for day in days.values()]
        days.clear()
    finally:
        for day in days.values():
            day.abandon()
    schema = pa.schema(
        [("path", pa.string()), ("date", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
    )
    yield pa.RecordBatch.from_pylist(done, schema.append(pa.field("ranges", pa.string())))


class _Day:
    def __init__(self, number: int, store: Store, batch: int) -> None:
        self.date = str(date(1970, 1, 1) + timedelta(days=number))
        self.path = f"date={self.date}/batch_id={batch}/part-{uuid.uuid4().hex}.parquet"
        self.opened = store.writer(self.path)
        self.stream = self.opened.__enter__()
        self.writer: Any = None
        self.waiting: list[Any] = []
        self.waiting_rows = self.waiting_bytes = self.rows = 0
        self.ranges: dict[int, tuple[int, int]] = {}

    def add(self, part: "pa.Table") -> None:
        """Takes records; writes a row group if it is large enough."""
        self.waiting.append(part)
        self.waiting_rows += part.num_rows
        self.waiting_bytes += part.nbytes
        spans = part.group_by("hub").aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
        _widen(self.ranges, {row["hub"]: (row["offset_min"], row["offset_max"]) for row in spans})
        if self.waiting_rows >= ROWS_MAX or self.waiting_bytes >= BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting records as a row group."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.concat_tables(self.waiting)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.stream, table.schema, compression="zstd", compression_level=1)
        self.writer.write_table(table, row_group_size=ROWS_MAX)
        self.rows += table.num_rows
        self.waiting.clear()
        self.waiting_rows = self.waiting_bytes = 0

    def close(self) -> dict[str, Any]:
        """Ends the file; returns the row for the driver."""
        if self.waiting:
            self.flush()
        self.writer.close()
        size = self.stream.tell()
        self.opened.__exit__(None, None, None)
        ranges = json.dumps(self.ranges)
        return {"path": self.path, "date": self.date, "rows": self.rows, "bytes": size, "ranges": ranges}

    def abandon(self) -> None:
        """Removes the file after a failure of the task."""
        error = RuntimeError("the task failed")
        try:
            self.opened.__exit__(type(error), error, None)
        except RuntimeError:
            return


def _by_day(table: "pa.Table") -> Iterator[tuple[int, "pa.Table"]]:
    """Days since 1970 and the records of each, days in the order of their first records."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = table["timestamp"].cast(pa.timestamp("us")).cast(pa.date32()).cast(pa.int32())
    numbers = pc.unique(days).to_pylist()
    for number in numbers:
        yield number, table if len(numbers) == 1 else table.filter(pc.equal(days, number))


def _widen(ranges: dict[int, tuple[int, int]], more: dict[int, Any]) -> None:
    """Merges `more` into `ranges`."""
    for hub, (first, last) in more.items():
        known = ranges.get(hub, (first, last))
        ranges[hub] = min(known[0], first), max(known[1], last)
