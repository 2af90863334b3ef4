"""Shared by batches and streams: the input of a task, and how it is read.

These are plain values that go to executors; connections are opened where they are used.
"""

import logging
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from hubsub.errors import NoLogError
from hubsub.pipeline.listing import Listing
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.packing import CORES, Range
from hubsub.pipeline.prefetch import prefetched
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("hubsub.pipeline")


@dataclass(frozen=True)
class Part(InputPartition):
    """The input of one task."""

    log: str
    ranges: tuple[Range, ...]
    caught_up: bool = True
    """For a stream: the batch reaches the end that the log had when the query started."""


@dataclass(frozen=True)
class Reading:
    """Settings of the tasks that read."""

    options: SourceOptions
    columns: tuple[str, ...]
    """Columns in the order that Spark requires."""
    selection: Selection

    def read(self, part: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The batches of a part; see `Records.read` for its errors.

        They are prefetched: otherwise node and Spark wait for each other in turn, a quarter of the time.
        """
        return prefetched(self._batches(part))

    def _batches(self, part: InputPartition) -> Generator["pa.RecordBatch", None, None]:
        from hubsub.pipeline.records import Records  # Imported where Arrow is needed, and no sooner.

        assert isinstance(part, Part), "readers of this package make no others"
        with Wire(self.options.access) as wire:
            records = Records(
                wire,
                log=part.log,
                selection=self.selection,
                columns=self.columns,
                compression=self.options.compression,
                retry_s=self.options.access.retry_s,
                fail_on_data_loss=self.options.fail_on_data_loss,
                caught_up=part.caught_up,
            )
            for range_ in part.ranges:
                yield from records.read(range_)


def check_logged(listing: Listing, options: SourceOptions) -> None:
    """Raises NoLogError if all requested rooms are in memory only; logs a warning if some are."""
    if not listing.ephemeral:
        return
    names = ", ".join(listing.ephemeral)
    hint = 'set durability = "durable" (or "replicated") for them, with a history'
    if not listing.hubs:
        raise NoLogError("the rooms' classes keep no log, so Spark cannot see them", names, hint)
    if options.subscribe:  # A pattern matches such a class nearly always: the default one has all names.
        LOG.warning("rooms of classes that keep no log are left out of the read: %s; %s", names, hint)


def cores() -> int:
    """Tasks that run at once, as far as known here."""
    cores = os.environ.get(CORES, "")
    if cores.isdigit() and int(cores) > 0:
        return int(cores)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
