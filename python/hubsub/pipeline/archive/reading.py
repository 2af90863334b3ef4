"""The archive as a frame, with committed files only."""

from typing import TYPE_CHECKING

from hubsub.columns import COLUMNS
from hubsub.pipeline.archive.table import DataFile, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: "SparkSession", table: Table, files: list[DataFile] | None = None) -> "DataFrame":
    """Archived records, read by Spark itself.

    Output: the columns of the source and `date date` (of the timestamp, in UTC), which Spark uses to skip
    files.
    Grain: one row for each record.
    Null: as in the source.

    Args:
        spark: The session.
        table: As returned by `open_table`.
        files: Only these of its files; None takes all current ones. Later commits do not change the frame.
    """
    from pyspark.sql.types import DateType, StructField, StructType

    from hubsub.pipeline.schema import spark_schema

    schema = StructType([*spark_schema().fields, StructField("date", DateType())])
    paths = [f"{table.uri}/{file.path}" for file in (table.contents()[1] if files is None else files)]
    if not paths:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).option("basePath", table.uri).parquet(*paths)
    return frame.select(*COLUMNS, "date")
