"""Publishes the latest rows of a job for viewers such as the console: a small table, after each batch.

A report is a record of `$stats/job/JOB`. It is for display only: the job's results are where it writes them,
and a table that no node accepts is not sent again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hubsub.errors import HubSubError
from hubsub.pipeline.archive import Archive
from hubsub.pipeline.options import Access
from hubsub.pipeline.run.results import Results
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG = logging.getLogger("hubsub.pipeline")

ROWS = 20
TEXT_CHARACTERS = 200
"""Longer texts are cut."""


@dataclass
class TablePublisher:
    """Publishes tables of one job to nodes. Plain values only, as it may go to Spark Connect's server.

    Args:
        access: Servers.
        job: `sessions`, `devices`, `archive` or `replay`.
        query: Displayed name of the job's query.
    """

    access: Access
    job: str
    query: str
    deaf: bool = False
    """Whether the last report failed; logged once."""

    def __call__(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], keys: int = 0, more: int = 0
    ) -> None:
        """Publishes the latest rows.

        Args:
            columns: Their names.
            rows: Values: text, numbers or None.
            keys: Number of leading columns that identify a row: a later one replaces it. 0: each row is
                separate.
            more: Number of further rows that are not included.
        """
        table = {
            "query": self.query,
            "columns": list(columns),
            "keys": keys,
            "rows": [[_shown(value) for value in row] for row in rows[:ROWS]],
            "more": more + max(len(rows) - ROWS, 0),
        }
        try:
            with Wire(self.access) as wire:
                wire.publish_table(self.job, table)
            self.deaf = False
        except HubSubError as error:
            if not self.deaf:
                LOG.warning("nodes could not be told the table of the job: %s", error.message)
            self.deaf = True


@dataclass
class PublishingResults:
    """Writes batches into a table, and publishes the latest rows of each.

    Args:
        results: The table.
        publish: Publishes them.
        columns: Columns to publish.
        order: A time column; the latest rows are those with the latest times.
        keys: As in `TablePublisher`.
    """

    results: Results
    publish: TablePublisher
    columns: tuple[str, ...]
    order: str
    keys: int = 0

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        rows.persist()
        try:
            if not rows.isEmpty():
                self.results.write(rows, batch)
                self.publish(self.columns, self._latest(rows), self.keys)
        finally:
            rows.unpersist()

    def _latest(self, rows: "DataFrame") -> list[list[Any]]:
        from pyspark.sql import functions as sf

        times = {name for name, kind in rows.dtypes if kind == "timestamp"}
        # As ISO 8601 in UTC, whatever zone Spark has.
        shown = [
            sf.concat(sf.date_format(sf.to_utc_timestamp(name, sf.current_timezone()), _TIME), sf.lit("Z"))
            if name in times
            else sf.col(name)
            for name in self.columns
        ]
        return [list(row) for row in rows.orderBy(sf.desc(self.order)).limit(ROWS).select(*shown).collect()]


@dataclass
class PublishingArchive:
    """Writes batches into an archive, and publishes the archived offset of each hub."""

    archive: Archive
    publish: TablePublisher
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of hubs, as known at the start."""

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        self.archive(rows, batch)
        offsets = sorted(self.archive.offsets().items())
        self.publish(
            ("hub", "archived up to"), [(self.names.get(hub, str(hub)), at) for hub, at in offsets], keys=1
        )


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 1]}…"


_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSS"
