"""Adds a batch of a stream to the archive, exactly once.

1. Executors write the batch to files that no reader sees.
2. One commit adds them to the table, together with the batch's number and its offsets.

If killed before 2, nothing was added, and Spark runs the batch again. If killed after 2 and before Spark's
own checkpoint, Spark also runs it again: the table knows its number, and after a check that its records are
the same nothing is written. The check detects a lost or wrong checkpoint, which would silently leave records
out.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hubsub.errors import ArchiveMismatchError
from hubsub.pipeline.archive import files
from hubsub.pipeline.archive.formats import open_table
from hubsub.pipeline.archive.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _pass(point: str) -> None:
    """Default for `at`, where tests inject failures."""


class Archive:
    """Callable for `foreachBatch`; also usable without a stream, with batches numbered by the caller.

    Args:
        target: URI of the table.
        table_format: `parquet` or `delta`.
        application: Name of the checkpoint that numbers the batches; an archive may have several, one after
            another.
        log: Identity of the log that is read, so that no other log gets into the archive.
        at: Called at `written` (files exist, not committed) and `committed`, for tests that inject failures.
        selection: Options of the source that select rooms, so that no others get into the archive; empty:
            all.
        report: Called with offsets before which Spark reads nothing again; retention waits for them. A batch
            that is committed here may run once more, so its offsets are reported with the next batch, or by
            `finished`.
    """

    def __init__(
        self,
        target: str,
        table_format: str = "parquet",
        application: str = "archive",
        log: str | None = None,
        at: Callable[[str], None] = _pass,
        selection: Mapping[str, str] | None = None,
        report: Callable[[Mapping[int, int]], None] | None = None,
    ) -> None:
        self.target = Store(target).uri
        self.table_format = table_format
        self.application = application
        self.log = log
        self.at = at
        self.selection = selection
        self.report = report
        open_table(self.target, table_format)

    def offsets(self) -> dict[int, int]:
        """Hub to its first offset that is not archived: where a new checkpoint begins."""
        return dict(open_table(self.target, self.table_format).state().offsets)

    def __call__(self, batch_rows: "DataFrame", batch: int) -> None:
        """Writes a batch, or verifies that it is already archived.

        Input: records with all columns of the source.

        Raises:
            OtherLogError: the archive is of another log.
            ArchiveMismatchError: the archive has other records under this number, or these under another.
        """
        table = open_table(self.target, self.table_format)
        state = table.state()
        state.check_log(self.log)
        state.check_selection(self.selection)
        last = state.batches.get(self.application)
        if last is not None and batch == last.number:
            found = _ranges(batch_rows)
            if found != dict(last.ranges):
                raise ArchiveMismatchError(
                    "the archive has other records under this batch's number",
                    f"{self.application}: batch {batch} has {found}, the archive {dict(last.ranges)}",
                    "give the checkpoint that the archive was written with, or another application",
                )
            return
        if last is not None:  # Spark has committed it, as it has gone on to the next.
            self._reported(state.offsets)
        written, ranges = files.write(batch_rows, Store(self.target), batch)
        self.at("written")
        if written:
            table.append(self.application, batch, written, ranges, self.log, self.selection)
        self.at("committed")

    def begun(self) -> None:
        """Reports the archived offsets at the start of a run, without the last batch, which Spark may run again."""
        state = open_table(self.target, self.table_format).state()
        last = state.batches.get(self.application)
        again = {} if last is None else {hub: first for hub, (first, _) in last.ranges.items()}
        self._reported({**state.offsets, **again})

    def finished(self) -> None:
        """Reports all archived offsets: Spark has ended with everything committed."""
        self._reported(self.offsets())

    def _reported(self, offsets: Mapping[int, int]) -> None:
        if self.report is not None:
            self.report(offsets)


def _ranges(rows: "DataFrame") -> dict[int, tuple[int, int]]:
    """Hub to the first and last offset in the frame; one row per hub reaches the driver."""
    from pyspark.sql import functions as sf

    spans = rows.groupBy("hub").agg(sf.min("offset").alias("first"), sf.max("offset").alias("last")).collect()
    return {row["hub"]: (row["first"], row["last"]) for row in spans}
