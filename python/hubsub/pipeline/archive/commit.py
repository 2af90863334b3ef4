"""A batch of a stream into the archive, exactly once.

1. Executors write the batch to files that nobody reads.
2. One commit makes them part of the table, together with the batch's number and its offsets.

Killed before 2, nothing was added, and Spark runs the batch again. Killed after 2 and before Spark's own
checkpoint, Spark runs it again too: the table knows its number, and after a look that its records are the same
ones nothing is written. The look is what finds a checkpoint that was lost or mistaken, which would leave records
out in silence.
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
    """Where a test would fail."""


class Archive:
    """What `foreachBatch` calls; also without a stream, with batches numbered by the caller.

    Args:
        target: URI of the table.
        table_format: `parquet` or `delta`.
        application: Name of the checkpoint that numbers the batches; one archive may have several after another.
        log: Identity of the log that is read, so that no other one gets into the archive.
        at: Called at `written` (files are there, not committed) and `committed`, for tests to end it there.
        selection: Options of the source that say which rooms, so that no others get into the archive; empty: all.
        tell: Called with offsets of which Spark reads nothing again: what retention waits for. A batch that is
            committed here may be run once more, so it is told when the next one comes, or by `finished`.
    """

    def __init__(
        self,
        target: str,
        table_format: str = "parquet",
        application: str = "archive",
        log: str | None = None,
        at: Callable[[str], None] = _pass,
        selection: Mapping[str, str] | None = None,
        tell: Callable[[Mapping[int, int]], None] | None = None,
    ) -> None:
        self.target = Store(target).uri
        self.table_format = table_format
        self.application = application
        self.log = log
        self.at = at
        self.selection = selection
        self.tell = tell
        open_table(self.target, table_format)

    def offsets(self) -> dict[int, int]:
        """Hub to its first offset that is not archived: where a new checkpoint begins."""
        return dict(open_table(self.target, self.table_format).state().offsets)

    def __call__(self, batch_rows: "DataFrame", batch: int) -> None:
        """Writes a batch, or finds that it is there.

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
        if last is not None:  # Spark has committed it, or it would not have gone on.
            self._told(state.offsets)
        written, ranges = files.write(batch_rows, Store(self.target), batch)
        self.at("written")
        if written:
            table.append(self.application, batch, written, ranges, self.log, self.selection)
        self.at("committed")

    def begun(self) -> None:
        """Tells what is archived at the start of a run, but for the last batch, which Spark may run again."""
        state = open_table(self.target, self.table_format).state()
        last = state.batches.get(self.application)
        again = {} if last is None else {hub: first for hub, (first, _) in last.ranges.items()}
        self._told({**state.offsets, **again})

    def finished(self) -> None:
        """Tells all that is archived: Spark has ended with all of it committed."""
        self._told(self.offsets())

    def _told(self, offsets: Mapping[int, int]) -> None:
        if self.tell is not None:
            self.tell(offsets)


def _ranges(rows: "DataFrame") -> dict[int, tuple[int, int]]:
    """Hub to the first and last offset in the frame; one row a hub comes to the driver."""
    from pyspark.sql import functions as sf

    spans = rows.groupBy("hub").agg(sf.min("offset").alias("first"), sf.max("offset").alias("last")).collect()
    return {row["hub"]: (row["first"], row["last"]) for row in spans}
