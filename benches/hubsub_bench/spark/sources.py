"""Peers: the same rows from an Arrow IPC file, and each as a tuple. Both are as lean as a Python source can be."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hubsub.pipeline.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

IPC, TUPLES = "bench_ipc", "bench_tuples"
"""Names of the formats. Options: `path` of the file, `parts`; for tuples also `rows`, the number of rows to read."""


class IpcSource(DataSource):
    """The batches of an Arrow IPC file, mapped into memory: no socket, no copy, no server."""

    @classmethod
    def name(cls) -> str:
        return IPC

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _IpcReader(self.options["path"], int(self.options["parts"]))


class TupleSource(DataSource):
    """One tuple per row, as most Python sources yield them."""

    @classmethod
    def name(cls) -> str:
        return TUPLES

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TupleReader(self.options["path"], int(self.options["parts"]), int(self.options["rows"]))


class _Parts(DataSourceReader):
    def __init__(self, path: str, parts: int) -> None:
        self._path, self._parts = path, parts

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]


class _IpcReader(_Parts):
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        with pa.memory_map(self._path) as file:
            reader = pa.ipc.open_file(file)
            for number in share(reader.num_record_batches, self._parts, partition.value):
                yield reader.get_batch(number)


class _TupleReader(_Parts):
    def __init__(self, path: str, parts: int, rows: int) -> None:
        super().__init__(path, parts)
        self._rows = rows

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        import pyarrow as pa

        with pa.memory_map(self._path) as file:
            reader = pa.ipc.open_file(file)
            left = len(share(self._rows, self._parts, partition.value))
            for number in share(reader.num_record_batches, self._parts, partition.value):
                columns = reader.get_batch(number).columns
                made = zip(*(column.to_pylist(maps_as_pydicts="strict") for column in columns), strict=True)
                for row in islice(made, left):
                    yield row
                    left -= 1
                if not left:
                    return


def share(count: int, parts: int, part: int) -> range:
    """The numbers below `count` that belong to this part: equal, consecutive shares.

    Args:
        count: Number of items.
        parts: Number of parts.
        part: Index of this part, from 0.
    """
    return range(count * part // parts, count * (part + 1) // parts)
