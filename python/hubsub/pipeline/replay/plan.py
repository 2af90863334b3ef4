"""Plans a replay: which records of an archive are published together, and in which order. Without clock and I/O.

A replay goes through the archive in the order of time, in spans of it. A *window* is read and sorted
together; a *slice* of it is published together, as one batch of the sink.

Invariant: timestamps never fall within a hub (docs/protocol/records.md) and a span never splits records of
one microsecond; consecutive spans therefore preserve the order of every room.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = ("timestamp", "epoch", "seq")
"""The order of a room's records: its seqs, and its epochs by their times."""
POSITION, TIMESTAMP = "hubsub-position", "hubsub-timestamp-us"
"""Headers with the original position (`EPOCH-SEQ` of its room) and time of a replayed record."""
STEPS_US = (1_000_000, 1_000, 1)
"""Records are counted by seconds; by shorter steps if one has too many, or slices are shorter."""

_OWN = r"topic RLIKE r'^([$\x00]|[^{]*[{][$\x00][^}]*[}])'"
"""Internal topics, as `is_reserved` of hubsub-types defines them: clients may not publish there."""

Bucket = tuple[int, int, int]
"""Start of a time step (µs since 1970), its records and their bytes."""


@dataclass(frozen=True)
class Span:
    """A span of time that has records."""

    begin_us: int
    end_us: int
    """First microsecond after it."""
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of a span. A time step that alone exceeds them is a span by itself."""

    rows: int
    bytes: int
    grid: tuple[int, int] | None = None
    """Start and length of a grid, both in µs: no span crosses a multiple of the length after the start."""

    def are_passed(self, buckets: Iterable[Bucket]) -> bool:
        """Whether one step alone exceeds a span's limits."""
        return any(rows > self.rows or size > self.bytes for _, rows, size in buckets)


def spans(buckets: Iterable[Bucket], step_us: int, bounds: Bounds) -> list[Span]:
    """Combines time steps to spans within bounds, in the order of time.

    Args:
        buckets: Time steps with records.
        step_us: Length of a step in µs.
        bounds: Limits of a span.

    >>> spans([(0, 2, 20), (10, 2, 20), (30, 1, 10)], 10, Bounds(rows=4, bytes=100))
    [Span(begin_us=0, end_us=20, rows=4, bytes=40), Span(begin_us=30, end_us=40, rows=1, bytes=10)]
    """
    made: list[Span] = []
    for begin, rows, size in sorted(buckets):
        last = made[-1] if made else None
        if (
            last is not None
            and last.rows + rows <= bounds.rows
            and last.bytes + size <= bounds.bytes
            and _cell(last.begin_us, bounds) == _cell(begin, bounds)
        ):
            made[-1] = Span(last.begin_us, begin + step_us, last.rows + rows, last.bytes + size)
        else:
            made.append(Span(begin, begin + step_us, rows, size))
    return made


def _cell(at_us: int, bounds: Bounds) -> int:
    if bounds.grid is None:
        return 0
    moment, length = bounds.grid
    return (at_us - moment) // length


def replayable(rows: "DataFrame") -> "DataFrame":
    """Records that may be published again, without those of internal rooms.

    Input, output: records.
    Grain: one row for each record.
    Null: rows without a timestamp, room, topic or payload are left out.
    """
    there = " AND ".join(f"{name} IS NOT NULL" for name in ("timestamp", "room", "topic", "payload"))
    return rows.where(there).where(f"NOT ({_OWN})")


def between(rows: "DataFrame", begin_us: int, end_us: int | None = None) -> "DataFrame":
    """The rows of a span of time.

    Input: `timestamp`.
    Grain: one row for each.

    Args:
        rows: The input.
        begin_us: Start, µs since 1970.
        end_us: End, exclusive; None: no end.
    """
    rows = rows.where(f"timestamp >= timestamp_micros({begin_us})")
    return rows if end_us is None else rows.where(f"timestamp < timestamp_micros({end_us})")


def counts(rows: "DataFrame", step_us: int) -> "DataFrame":
    """Number and bytes of records in each time step.

    Input: `timestamp, topic, payload`.
    Output: `begin_us bigint, rows bigint, bytes bigint`.
    Grain: one row for each step that has records.
    Null: neither input nor output has nulls.

    Args:
        rows: Records.
        step_us: Microseconds of a step; steps are multiples of it since 1970.
    """
    from pyspark.sql import functions as sf

    begin = (sf.floor(sf.unix_micros("timestamp") / step_us) * step_us).cast("bigint")
    size = sf.octet_length("payload") + sf.octet_length("topic")
    grouped = rows.groupBy(begin.alias("begin_us"))
    return grouped.agg(sf.count("*").alias("rows"), sf.sum(size).cast("bigint").alias("bytes"))


def outgoing(rows: "DataFrame", prefix: str = "", origin: bool = True) -> "DataFrame":
    """Records as rows for the sink.

    Input: the columns of the archive, of `replayable` records.
    Output: `topic string, payload binary, publisher string, headers map<string,string>`, and `timestamp`, by
    which `between` takes slices of it; the sink does not take that.
    Grain: one row for each record; a room's rows are in one partition, in its order.
    Null: a record without a publisher has an empty one; nothing else is null.

    Args:
        rows: Records.
        prefix: Put before each topic; default empty.
        origin: Adds the headers `POSITION` and `TIMESTAMP`, except to records that were replayed before: they
            keep their first ones. Default true.
    """
    from pyspark.sql import functions as sf

    headers = sf.coalesce("headers", sf.expr("cast(map() as map<string,string>)"))
    if origin:
        added = sf.create_map(
            sf.lit(POSITION),
            sf.concat_ws("-", "epoch", "seq"),
            sf.lit(TIMESTAMP),
            sf.unix_micros("timestamp").cast("string"),
        )
        was = sf.map_contains_key(headers, POSITION) | sf.map_contains_key(headers, TIMESTAMP)
        headers = sf.when(was, headers).otherwise(sf.map_concat(headers, added))
    ordered = rows.repartition("room").sortWithinPartitions(*ORDER)
    return ordered.select(
        sf.concat(sf.lit(prefix), "topic").alias("topic"),
        "payload",
        sf.coalesce("publisher", sf.lit("")).alias("publisher"),
        headers.alias("headers"),
        "timestamp",
    )
