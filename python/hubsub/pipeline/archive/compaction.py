"""Few files of many: a stream leaves a file for each task of each batch."""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from hubsub.errors import ArchiveDamagedError
from hubsub.pipeline.archive import files
from hubsub.pipeline.archive.reading import read
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import DataFile, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 << 20
"""Size that files are made to have; those of half of it and more stay as they are."""
FILES_MIN = 4
"""A day with fewer small files stays as it is."""
GRACE_S = 24 * 3600.0
"""How long files that are no part of the table any more are kept for those who still read them."""


def _pass(point: str) -> None:
    """Where a test would fail."""


def compact(
    spark: "SparkSession",
    table: Table,
    file_bytes: int = FILE_BYTES,
    files_min: int = FILES_MIN,
    at: Callable[[str], None] = _pass,
) -> list[tuple[str, int, int]]:
    """Puts large files in place of the small ones of each day, sorted by hub and offset.

    Only committed files are touched, and what a batch's number stands for stays in the table's state; so a batch
    that Spark runs again finds itself all the same. Killed at any moment the table is the one before or after.
    Old files stay until `sweep`. A job may archive meanwhile (`manifest` says where that is so).

    Args:
        spark: The session.
        table: What `open_table` gives.
        file_bytes: Size that files are made to have.
        files_min: A day with fewer small files stays as it is.
        at: Called at `begun`, `written` (files are there, not committed) and `committed` of each day, to end it there.

    Returns:
        Of each day that was compacted: the date, and the number of its files before and after.
    """
    days: dict[str, list[DataFile]] = defaultdict(list)
    for file in table.contents()[1]:
        if file.bytes < file_bytes // 2:
            days[file.date].append(file)
    done = []
    for date, old in sorted(days.items()):
        if len(old) < files_min:
            continue
        at("begun")
        parts = max(1, round(sum(file.bytes for file in old) / file_bytes))
        frame = read(spark, table, old)
        frame = frame.coalesce(1) if parts == 1 else frame.repartitionByRange(parts, "hub", "offset")
        new, _ = files.write(frame.sortWithinPartitions("hub", "offset"), Store(table.uri), files.COMPACTED)
        before, after = sum(file.rows for file in old), sum(file.rows for file in new)
        if before != after:
            what = "a day has another number of records than its files should have"
            raise ArchiveDamagedError(what, f"{date}: {after}, not {before}")
        at("written")
        table.replace(old, new)
        at("committed")
        done.append((date, len(old), len(new)))
    return done


def sweep(table: Table, older_than_s: float = GRACE_S) -> int:
    """Removes files that are no part of the table: of killed tasks, and those that were compacted.

    Args:
        table: What `open_table` gives.
        older_than_s: Seconds after which a file is removed: since it was written, or since it was taken out of the
            table. It must be longer than a batch takes, and than anybody reads.

    Returns:
        How many were removed.
    """
    return table.sweep(older_than_s)
