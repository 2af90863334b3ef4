"""Publishes windows of `activity` as messages, each version of each once: a second output of a job's batches.

Each batch is one batch of the sink, under the job's own query and Spark's number. If Spark repeats a batch
because its end was not recorded, the node knows the number, and drops the rows. The table is written first,
so that a subscriber of a window finds it there.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hubsub.errors import BatchGivenUpError
from hubsub.pipeline.activity import messages
from hubsub.pipeline.run.failures import failure
from hubsub.pipeline.run.results import Results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LOG = logging.getLogger("hubsub.pipeline")


@dataclass(frozen=True)
class Publishing:
    """Writes batches of windows into a table, then publishes them to `$stats/room/ROOM`. Plain values only,
    as `Results`.

    Args:
        results: The table.
        query: Name under which nodes number the batches.
        name: Name of the query in the messages, which distinguishes several queries of one room.
        access: Options of the sink.
        final: Whether each window comes once, when it is over; else a later batch may have a later version.
    """

    results: Results
    query: str
    name: str
    access: Mapping[str, str]
    final: bool

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        rows.persist()
        try:
            if not rows.isEmpty():
                self.results.write(rows, batch)
                self.publish(rows, batch)
        finally:
            rows.unpersist()

    def publish(self, rows: "DataFrame", batch: int) -> None:
        """Publishes a batch in the order of its windows. Batches published or given up before are skipped."""
        ordered = rows.coalesce(1).sortWithinPartitions("window_start", "room", "epoch")
        options = {**self.access, "query": self.query, "batch": str(batch)}
        rows = messages(ordered, self.final, query=self.name)
        try:
            rows.write.format("hubsub").options(**options).mode("append").save()
        except Exception as error:
            if not isinstance(given_up := failure(error), BatchGivenUpError):
                raise
            LOG.warning("windows are not all published, the job goes on: %s", given_up.message)
