"""The Spark source and sink `hubsub`, used by `format("hubsub")` and SQL's `USING hubsub`.

Spark creates these objects in one process, plans with them in another and reads with pickled copies in a
third, so they hold plain values only.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from hubsub.errors import OptionError
from hubsub.pipeline.listing import Listing
from hubsub.pipeline.offsets import offset_of, resolve
from hubsub.pipeline.options import SinkOptions, SourceOptions
from hubsub.pipeline.packing import Range, pack
from hubsub.pipeline.pushdown import push
from hubsub.pipeline.reading import Part, Reading, check_logged, cores
from hubsub.pipeline.schema import columns_of, spark_schema
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.sink import HubSubStreamWriter, HubSubWriter, check_columns
from hubsub.pipeline.stream import HubSubStreamReader
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa


class HubSubSource(DataSource):
    """Records of hubs as rows, and rows as records of rooms."""

    @classmethod
    def name(cls) -> str:
        return "hubsub"

    def schema(self) -> StructType:
        return spark_schema(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> "HubSubReader":
        return HubSubReader(SourceOptions.parse(self.options), columns_of(schema))

    def streamReader(self, schema: StructType) -> HubSubStreamReader:
        return HubSubStreamReader(SourceOptions.parse(self.options), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> HubSubWriter:
        return HubSubWriter(self._sink_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> HubSubStreamWriter:
        return HubSubStreamWriter(self._sink_options(schema, overwrite))

    def _sink_options(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise OptionError("what is published cannot be overwritten", hint='mode("append")')
        options = SinkOptions.parse(self.options)
        check_columns(schema, options)
        return options


class _Pushing:
    """`HubSubReader.pushFilters`, which works whether Spark's configuration has pushdown on or off.

    Spark refuses a reader with this method while spark.sql.python.filterPushdown.enabled is off, so that no
    reader relies on filters that are never passed. Ours saves work and changes no result. Spark checks
    `__func__`, which here is the base class's; if the configuration is on, it calls the method anyway.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "HubSubReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


class HubSubReader(DataSourceReader):
    """A batch: the records between two offsets of each hub at the time of planning."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._reading = Reading(options, columns, Selection.of(options))

    @property
    def pushFilters(self) -> _Pushing:
        return _Pushing(self)

    def push(self, filters: list[Filter]) -> list[Filter]:
        """Pushes filters down; returns those that Spark must still check."""
        selection, rest = push(self._reading.selection, filters)
        self._reading = replace(self._reading, selection=selection)
        return rest

    def partitions(self) -> list[InputPartition]:
        """Asks the servers for the hubs, and divides the ranges."""
        options = self._reading.options
        with Wire(options.access) as wire:
            listing = wire.listing(options.subscribe, options.subscribe_pattern)
            check_logged(listing, options)
            parts = pack(_ranges(wire, listing, self._reading), cores(), options.min_partitions)
        return [Part(listing.log, part) for part in parts or [()]]  # Spark takes no empty list.

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return self._reading.read(partition)


def _ranges(wire: Wire, listing: Listing, reading: Reading) -> list[Range]:
    """The range to read of each hub: as small as options and filters allow."""
    options, selection = reading.options, reading.selection
    if selection.nothing:
        return []
    fail, at = options.fail_on_data_loss, wire.offset_at
    starts = resolve(listing, options.starting_offsets, "earliest", fail_on_data_loss=fail)
    ends = resolve(listing, options.ending_offsets, "latest", fail_on_data_loss=fail)
    ranges = []
    for hub in listing.hubs.values():
        if not selection.has_hub(hub.id):
            continue
        first, end = max(starts[hub.id], selection.first), min(ends[hub.id], selection.end)
        if selection.since_us is not None:
            first = max(first, offset_of(hub, selection.since_us, at))
        if selection.until_us is not None:
            end = min(end, offset_of(hub, selection.until_us, at))
        if first < end:
            size = int(hub.row_bytes * (end - first))
            ranges.append(Range(hub=hub.id, first=first, end=end, bytes=size, servers=hub.servers))
    return ranges
