"""A program: a stream of a node's records into its rooms or into an archive, that is killed in its second batch.

Arguments: `sink` or `archive`, the point at which SIGKILL ends driver and JVM, the node's HTTP address, a directory for
checkpoint and archive, the prefix of the rooms, Spark's settings as JSON. `query` is what it runs and what the next
driver goes on with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hubsub.pipeline.archive import Archive
from hubsub.pipeline.session import connect
from hubsub.pipeline.sink import HubSubStreamWriter
from hubsub.pipeline.source import HubSubSource

POINTS = [("sink", "staged"), ("sink", "committed"), ("archive", "written"), ("archive", "committed")]


def query(
    spark: Any, kind: str, servers: str, directory: Path, prefix: str, sink: str, take: Archive | None
) -> Any:
    """The query: rows behind a shuffle to the sink of this name, or all records to an archive."""
    options = {"servers": servers, "subscribePattern": "chat:*", "startingOffsets": "earliest"}
    records = spark.readStream.format("hubsub").options(**options, maxRowsPerBatch="500").load()
    if kind == "sink":
        rows = records.selectExpr(f"concat('{prefix}', seq % 3) as topic", "payload").repartition(3)
        writer = rows.writeStream.format(sink).option("servers", servers)
    else:
        writer = records.writeStream.foreachBatch(take)
    return (
        writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    )


def archive(directory: Path) -> str:
    return str(directory / "archive")


def main(kind: str, point: str, servers: str, directory: str, prefix: str, conf: str) -> None:
    spark = connect("local[2]", json.loads(conf))
    group = os.getpgid(0)  # Workers have another one.

    def die() -> None:
        os.killpg(group, signal.SIGKILL)
        os._exit(1)

    class Dying(HubSubSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            class Writer(HubSubStreamWriter):
                def commit(self, messages: Any, batch: int) -> None:
                    if (batch, point) == (1, "staged"):
                        die()
                    super().commit(messages, batch)
                    if batch == 1:
                        die()

            return Writer(self._sink_options(schema, overwrite))

    passed: list[str] = []

    def at(here: str) -> None:
        passed.append(here)
        if here == point and passed.count(point) == 2:
            die()

    spark.dataSource.register(Dying)
    place = Path(directory)
    take = Archive(archive(place), at=at) if kind == "archive" else None
    query(spark, kind, servers, place, prefix, "dying", take).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
