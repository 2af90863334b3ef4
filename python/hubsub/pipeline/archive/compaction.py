"""Merges small files: a stream leaves a file for each task of each batch."""

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
"""Target size of files; files of at least half of it are not changed."""
FILES_MIN = 4
"""A day with fewer small files is not changed."""
GRACE_S = 24 * 3600.0
"""How long replaced files are retained for current readers."""


def _pass(point: str) -> None:
    """Default for `at`, where tests inject failures."""


def compact(
    spark: "SparkSession",
    table: Table,
    file_bytes: int = FILE_BYTES,
    files_min: int = FILES_MIN,
    at: Callable[[str], None] = _pass,
) -> list[tuple[str, int, int]]:
    """Replaces the small files of each day by large ones, sorted by hub and offset.

    Only committed files are changed, and the table's state keeps the batch numbers, so that Spark can still
    repeat a batch. If killed at any moment, the table has either its old or its new version. Old files remain
    until `sweep`. A job may archive at the same time (`manifest` states the limits).

    Args:
        spark: The session.
        table: As returned by `open_table`.
        file_bytes: Target size of files, default 128 MiB.
        files_min: A day with fewer small files is not changed; default 4.
        at: Called at `begun`, `written` (files exist, not committed) and `committed` of each day, for tests
            that inject failures.

    Returns:
        For each compacted day: the date, and the number of its files before and after.

    Raises:
        ArchiveDamagedError: the files have another number of records than recorded.
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
    """Removes files that do not belong to the table: those of killed tasks, and replaced ones.

    Args:
        table: As returned by `open_table`.
        older_than_s: Age in seconds from which a file is removed, counted from its writing or from its
            removal from the table; default 24 h. It must be longer than a batch takes, and longer than any
            reader.

    Returns:
        Number of removed files.
    """
    return table.sweep(older_than_s)
