"""A job's result: a table of Parquet files, with a directory per batch; of each row the latest version counts.

It is written from `foreachBatch`, also in a process of Spark Connect's server, so it holds plain values only.
A repeated batch overwrites its earlier files: with the same rows the table is the same.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hubsub.pipeline.archive.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = "batch_id"


@dataclass(frozen=True)
class Results:
    """A table of results.

    Args:
        uri: Its root, in Spark's form.
        keys: Columns that identify a row: a later batch has a later version of it. Without any, rows are only
            added.
    """

    uri: str
    keys: tuple[str, ...] = ()

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        """Writes a batch; one without rows leaves nothing."""
        rows.persist()
        try:
            if not rows.isEmpty():
                self.write(rows, batch)
        finally:
            rows.unpersist()

    def write(self, rows: "DataFrame", batch: int) -> None:
        rows.coalesce(1).write.mode("overwrite").parquet(f"{self.uri}/{BATCH}={batch}")

    def read(self, spark: "SparkSession") -> "DataFrame | None":
        """Its rows, each in its latest version; None before the first."""
        from pyspark.sql import functions as sf

        if not any(path.endswith(".parquet") for path, _, _ in Store(self.uri).list(recursive=True)):
            return None
        rows = spark.read.parquet(self.uri)
        if not self.keys:
            return rows.drop(BATCH)
        columns = [name for name in rows.columns if name not in (*self.keys, BATCH)]
        latest = rows.groupBy(*self.keys).agg(sf.max_by(sf.struct(*columns), BATCH).alias("_row"))
        order = [name for name in rows.columns if name != BATCH]
        return latest.select(*self.keys, "_row.*").select(*order)
