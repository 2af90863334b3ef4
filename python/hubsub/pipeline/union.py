"""The union read: the archive natively, up to exactly its offsets, and the live log after them."""

import json
from typing import TYPE_CHECKING

from hubsub.columns import COLUMNS
from hubsub.errors import OptionError
from hubsub.pipeline.archive.formats import open_table
from hubsub.pipeline.archive.reading import read
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def history(
    spark: "SparkSession",
    archive: str,
    servers: str,
    table_format: str = "parquet",
    **options: str,
) -> "DataFrame":
    """All existing records of the archive's rooms: the archived ones and the later ones.

    Output: the columns of the source.
    Grain: one row for each record, none twice and none left out.
    Null: as the source.

    A hub that the archive does not have is read from its earliest offset; one that is gone from the servers
    is in the archive alone. Records that are in neither the log nor the archive are an error
    (`OffsetsLostError`), unless `failOnDataLoss` is `false`.

    Args:
        spark: The session.
        archive: URI of the archive.
        servers: Addresses of the source's servers.
        table_format: The archive's format, default `parquet`.
        options: More options of the source, such as `token` or `compression`, for the live part. Options that
            select records are not allowed, as the archive would ignore them: filter the result.

    Raises:
        OtherLogError: the archive is of another log than the servers'.
        OptionError: an option is unknown, or selects records.
    """
    chosen = SourceOptions.parse({"servers": servers, **options})
    for field in _CHOOSING:
        if getattr(chosen, field) != getattr(SourceOptions(), field):
            what = "history takes no option that chooses records"
            raise OptionError(what, field, "the archive would not heed it; filter the frame that you get")
    table = open_table(archive, table_format)
    state, files = table.contents()
    rooms = dict(state.selection or {})  # Offsets of an archive of some rooms do not apply to others.
    asked = SourceOptions.parse({"servers": servers, **options, **rooms})
    with Wire(chosen.access) as wire:
        listing = wire.listing(asked.subscribe, asked.subscribe_pattern)
    state.check_log(listing.log)
    live = spark.read.format("hubsub").options(servers=servers, **options, **rooms)
    starts = {str(hub): offset for hub, offset in sorted(state.offsets.items()) if hub in listing.hubs}
    if starts:
        live = live.option("startingOffsets", json.dumps(starts))
    return read(spark, table, files).select(*COLUMNS).unionByName(live.load())


_CHOOSING = (
    "subscribe",
    "subscribe_pattern",
    "topic_filter",
    "starting_offsets",
    "ending_offsets",
    "starting_timestamp_us",
    "ending_timestamp_us",
    "columns",
)
"""Fields of the source's options that leave records or columns out."""
