"""A program that streams a node's records into its rooms and into an archive, and is killed in the second
batch of both.

Arguments: whether SIGKILL ends driver and JVM `before` or `behind` (after) the commits, the node's HTTP
address, a directory for checkpoints and archive, the prefix of the rooms, Spark's settings as JSON. The
program runs `query` for both kinds, and the next driver continues the same queries.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from hubsub.pipeline.archive import Archive
from hubsub.pipeline.session import connect
from hubsub.pipeline.sink import HubSubStreamWriter
from hubsub.pipeline.source import HubSubSource

KINDS = ("sink", "archive")
POINTS = {"before": "written", "behind": "committed"}
"""The archive's names of these points."""


def query(
    spark: Any, kind: str, servers: str, directory: Path, prefix: str, sink: str, take: Archive | None
) -> Any:
    """Starts a query: shuffled rows to the named sink, or all records to an archive.

    Args:
        spark: The session.
        kind: `sink` or `archive`.
        servers: The node's HTTP address.
        directory: Contains the checkpoint, `{kind}-checkpoint`.
        prefix: Prefix of the rooms to write to (sink only).
        sink: Name of the Spark data source (sink only).
        take: The archive's batch function (archive only).

    Returns:
        The started query; it ends when it has read everything available.
    """
    options = {"servers": servers, "subscribePattern": "chat:*", "startingOffsets": "earliest"}
    records = spark.readStream.format("hubsub").options(**options, maxRowsPerBatch="500").load()
    if kind == "sink":
        rows = records.selectExpr(f"concat('{prefix}', seq % 3) as topic", "payload").repartition(3)
        writer = rows.writeStream.format(sink).option("servers", servers)
    else:
        writer = records.writeStream.foreachBatch(take)
    return (
        writer.option("checkpointLocation", str(directory / f"{kind}-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def archive(directory: Path) -> str:
    return str(directory / "archive")


def main(where: str, servers: str, directory: str, prefix: str, conf: str) -> None:
    spark = connect("local[2]", json.loads(conf))
    place = Path(directory)
    group = os.getpgid(0)  # The workers are in another group.

    def die(kind: str) -> None:
        """The last of both queries to arrive kills the process group."""
        (place / f"{kind}-came").touch()
        if all((place / f"{one}-came").exists() for one in KINDS):
            os.killpg(group, signal.SIGKILL)
        threading.Event().wait()

    class Dying(HubSubSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            class Writer(HubSubStreamWriter):
                def commit(self, messages: Any, batch: int) -> None:
                    if (batch, where) == (1, "before"):
                        die("sink")
                    super().commit(messages, batch)
                    if batch == 1:
                        die("sink")

            return Writer(self._sink_options(schema, overwrite))

    passed: list[str] = []

    def at(here: str) -> None:
        passed.append(here)
        if here == POINTS[where] and passed.count(here) == 2:
            die("archive")

    spark.dataSource.register(Dying)
    for kind in KINDS:
        query(spark, kind, servers, place, prefix, "dying", Archive(archive(place), at=at))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
