"""Measurements in Spark's process: each method is one measurement and returns plain JSON."""

import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubsub.columns import COLUMNS
from hubsub.pipeline.archive import open_table, read
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.jobs import archive_job
from hubsub.pipeline.run.runner import Ending, run
from hubsub.pipeline.run.settings import Settings
from hubsub.pipeline.schema import arrow_schema, spark_schema
from hubsub.pipeline.source import HubSubSource
from hubsub_bench.spark.sources import IpcSource, TupleSource
from hubsub_bench.spark.stream_delay import StreamDelay

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

QUERY_S = 900.0
"""Time limit of a query, in seconds."""
POLL_S = 0.02

Options = Mapping[str, str]


class Measurements:
    """The measurements of a session.

    Args:
        spark: The session; the formats of `sources` are registered in it.
        directory: For checkpoints and archives.
    """

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self._spark.dataSource.register(IpcSource)
        self._spark.dataSource.register(TupleSource)
        self._fresh: StreamDelay | None = None
        self._number = 0

    def versions(self) -> dict[str, str]:
        import pyarrow
        import pyspark

        return {
            "spark": pyspark.__version__,
            "pyarrow": pyarrow.__version__,
            "master": self._spark.sparkContext.master,
        }

    def batch(self, source: str, options: Options) -> dict[str, Any]:
        """Reads everything once and discards it."""
        group = self._group()
        started = time.monotonic()
        self._read(source, options).write.format("noop").mode("overwrite").save()
        return {"seconds": time.monotonic() - started, "tasks": self._tasks(group)}

    def check(self, source: str, options: Options) -> dict[str, Any]:
        """Counts rows and bytes of payloads, to verify that `batch` reads everything."""
        value = "value" if source == "kafka" else "payload"
        row = self._read(source, options).selectExpr("count(*)", f"sum(length({value}))").first()
        assert row is not None, "an aggregate has a row"
        return {"rows": row[0], "bytes": row[1] or 0}

    def copy(self, options: Options, path: str) -> dict[str, Any]:
        """Writes the rows of a batch into one Arrow IPC file, with unchanged record batches."""
        import pyarrow as pa

        rows = 0
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, arrow_schema(COLUMNS)) as writer:
            for batch in _batches(options):
                writer.write_batch(batch)
                rows += batch.num_rows
        return {"rows": rows}

    def produce(self, options: Options, kafka: Options) -> dict[str, Any]:
        """Writes the rows of a node into a topic of Kafka, room by key."""
        started = time.monotonic()
        rows = self._read("hubsub", options).selectExpr("room as key", "payload as value")
        rows.write.format("kafka").options(**kafka).save()
        return {"seconds": time.monotonic() - started}

    def stream(self, options: Options, rows: int, available_now: bool) -> dict[str, Any]:
        """Streams `rows` rows and discards them.

        Args:
            options: Options of the source.
            rows: Number of rows.
            available_now: Whether to use AvailableNow; else an endless trigger.

        Returns:
            Seconds, rows, batches and tasks.
        """
        place = self._place()
        frame = self._spark.readStream.format("hubsub").options(startingOffsets="earliest", **options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
        writer = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        )
        started = time.monotonic()
        query: Any = writer.start()
        try:
            until = started + QUERY_S
            while query.isActive and time.monotonic() < until and (available_now or _seen(query) < rows):
                query.awaitTermination(POLL_S)
            took = time.monotonic() - started
        finally:
            query.stop()
        if (failed := query.exception()) is not None:
            raise failed
        batches = [_batch(progress) for progress in query.recentProgress if progress["numInputRows"]]
        tasks = self._tasks(str(query.runId))
        return {"seconds": took, "rows": sum(b["rows"] for b in batches), "batches": batches, "tasks": tasks}

    def archive(self, options: Options, servers: str, table_format: str) -> dict[str, Any]:
        """Runs the job like `hubsub pipeline archive --once`, without the start of Spark.

        Args:
            options: Options of the source.
            servers: Addresses of the node.
            table_format: `parquet` or `delta`.

        Returns:
            Seconds, rows, files and bytes.
        """
        place = self._place()
        settings = Settings(
            job="archive",
            servers=servers,
            options=options,
            once=True,
            checkpoint=str(place / "checkpoint"),
            out=str(place / "out"),
        )
        started = time.monotonic()
        with Ending() as ending, Progress(True) as progress:
            outputs, _ = archive_job(self._spark, settings, table_format)
            run(settings, outputs, ending, progress)
        took = time.monotonic() - started
        files = list((place / "out").rglob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        rows = read(self._spark, open_table(settings.out, table_format)).count()
        shutil.rmtree(place)
        return {"seconds": took, "rows": rows, "files": len(files), "bytes": size}

    def fresh_start(self, options: Options) -> None:
        """Starts a stream that records when it sees each record."""
        self._fresh = StreamDelay(self._spark, options, self._place())

    def fresh_stop(self, since_us: int, until_us: int) -> dict[str, Any]:
        """Lateness of records with these timestamps; the stream ends."""
        assert self._fresh is not None, "fresh_start comes first"
        return self._fresh.stop(since_us, until_us)

    # -- helpers --

    def _read(self, source: str, options: Options) -> "DataFrame":
        return self._spark.read.format(source).options(**options).load()

    def _place(self) -> Path:
        self._number += 1
        return self._directory / f"query-{self._number}"

    def _group(self) -> str:
        self._number += 1
        group = f"bench-{self._number}"
        self._spark.sparkContext.setJobGroup(group, group)
        return group

    def _tasks(self, group: str) -> int:
        """Tasks of the jobs of a group: those that Spark planned."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        return sum(info.numTasks for stage in stages if (info := tracker.getStageInfo(stage)) is not None)


def _batches(options: Options) -> "Iterator[pa.RecordBatch]":
    """The source's record batches, without Spark."""
    reader = HubSubSource(dict(options)).reader(spark_schema())
    for part in reader.partitions():
        yield from reader.read(part)


def _seen(query: Any) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _batch(progress: Any) -> dict[str, Any]:
    """Rows of a batch, its start (seconds since 1970), and its duration by stage."""
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).astimezone(UTC).timestamp()
    spent = {name: int(ms) for name, ms in progress["durationMs"].items()}
    return {"rows": progress["numInputRows"], "at": began, "ms": spent}
