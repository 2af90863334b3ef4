"""Plans a stream: in one process that lives as long as the query, beside the tasks that read.

Only the offset that Spark stores survives a restart; the state of this object only saves requests. New hubs
are read from their first offset on, removed hubs are read to their end.
"""

import secrets
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from hubsub.errors import HubSubError, OffsetsLostError, OptionError
from hubsub.pipeline.admission import admit
from hubsub.pipeline.listing import Hub, Listing
from hubsub.pipeline.offsets import GO_ON, StreamOffset, checked, lost, offset_of, resolve
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.packing import Range, pack
from hubsub.pipeline.reading import LOG, Part, Reading, check_logged, cores
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

POLL_S = 0.05
"""Wait between two requests if the last brought nothing new: Spark polls every 10 ms, and the node has other work."""


RENEW_S = 60.0
"""An idle query repeats its report after this time, in seconds: a node drops queries that do not report."""


class HubSubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; also reads them, as a pickled copy that has never planned."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        for name, value in (
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_timestamp_us),
        ):
            if value is not None:
                raise OptionError("a stream has no end", name, "leave it out, or use spark.read")
        self._options = options
        self._reading = Reading(options, columns, Selection.of(options))
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    @property
    def _plan(self) -> "_Planner":
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        return self._plan.begin().encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark's limits cannot be combined: the limit of bytes is added when the one of rows comes back."""
        if self._options.max_rows_per_batch is not None:
            return ReadMaxRows(self._options.max_rows_per_batch)
        if self._options.max_bytes_per_batch is not None:
            return ReadMaxBytes(self._options.max_bytes_per_batch)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows is not None:
            size = self._options.max_bytes_per_batch
        return self._plan.advance(StreamOffset.decode(start), rows, size).encode()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.stop_here()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._plan.latest()
        return None if latest is None else latest.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = StreamOffset.decode(start), StreamOffset.decode(end)
        parts = pack(self._plan.ranges(begin, until), cores(), self._options.min_partitions)
        caught_up = self._plan.has_caught_up(until)
        return [Part(until.log, part, caught_up) for part in parts]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        assert isinstance(partition, Part), "partitions() makes no others"
        return self._reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._plan.report(StreamOffset.decode(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


class _Planner:
    """Asks the servers, and decides the size of each batch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wire = Wire(options.access)
        self._query = options.query_name
        self._listing: Listing | None = None
        """The servers' last response."""
        self._ends: dict[int, int] = {}
        """The last known end of each hub, also of removed ones."""
        self._ended: set[int] = set()
        """Removed hubs that have been logged."""
        self._target: dict[int, int] | None = None
        """End offsets of AvailableNow."""
        self._goal: dict[int, int] | None = None
        """The end of each hub when this process first planned; empty once all are reached."""
        self._polled = 0.0
        self._quiet = False
        """The last request brought nothing new."""
        self._reported: tuple[float, StreamOffset] | None = None
        self._deaf = False
        """The last report failed; logged once."""

    def close(self) -> None:
        self._wire.close()

    def begin(self) -> StreamOffset:
        """Start offsets of a new query."""
        options, listing = self._options, self._ask()
        if options.starting_timestamp_us is None:
            fail = options.fail_on_data_loss
            hubs = resolve(listing, options.starting_offsets, "latest", fail_on_data_loss=fail)
        else:
            moment = options.starting_timestamp_us
            hubs = {hub.id: offset_of(hub, moment, self._wire.offset_at) for hub in listing.hubs.values()}
        query = self._query or f"spark-{secrets.token_hex(4)}"
        return StreamOffset(log=listing.log, query=query, hubs=hubs)

    def stop_here(self) -> None:
        """Fixes the end offsets for AvailableNow. Includes hubs that are no longer requested: see `_ask`.

        The node's internal hubs are listed only if their rooms are requested.
        """
        asked = self._ask()
        self._target = {
            hub.id: hub.end for hub in (*self._wire.listing().hubs.values(), *asked.hubs.values())
        }

    def advance(self, start: StreamOffset, max_rows: int | None, max_bytes: int | None) -> StreamOffset:
        """The end of the batch that begins at `start`; `start` itself if there is nothing new.

        Args:
            start: Start of the batch.
            max_rows: Most records; None: no limit.
            max_bytes: Most bytes; None: no limit.
        """
        if self._quiet and (early := self._polled + POLL_S - time.monotonic()) > 0:
            time.sleep(early)
        self._polled = time.monotonic()
        # Spark has processed everything before `start`, but commits it only with the next batch, which may be
        # hours from now.
        self.report(start)
        listing = self._ask(start.hubs)
        start.check_log(listing.log)
        begins = {hub: self._kept(listing, hub, offset) for hub, offset in start.hubs.items()}
        hubs = {hub: offset for hub, offset in begins.items() if offset is not None}
        born = {}
        for hub in listing.hubs.values():
            if hub.id not in hubs and (self._target is None or hub.id in self._target):
                hubs[hub.id] = born[hub.id] = self._first(hub)
        backlog = {hub: max(self._end(listing, hub) - offset, 0) for hub, offset in hubs.items()}
        taken = admit(
            backlog,
            max_rows=max_rows,
            max_bytes=max_bytes,
            row_bytes={hub.id: hub.row_bytes for hub in listing.hubs.values()},
        )
        # A hub that lost its end is read from there on, as new records get the lost offsets.
        back = {hub: first for hub, first in hubs.items() if first < start.hubs.get(hub, first)}
        self._quiet = not any(taken.values()) and not back
        if self._quiet:
            return start
        born = {hub: first for hub, first in born.items() if taken[hub]} | back
        for number, first in back.items():
            LOG.warning(
                "hub %d ends at %d, before what was read; the query goes on from there", number, first
            )
        ends = {hub: first + taken[hub] for hub, first in hubs.items() if taken[hub] or hub in start.hubs}
        return StreamOffset(log=start.log, query=self._query or start.query, hubs=ends, born=born)

    def latest(self) -> StreamOffset | None:
        """The latest possible offset; from the last response, because Spark asks after each batch."""
        if self._listing is None:
            return None
        ends = {hub.id: hub.end for hub in self._listing.hubs.values()}
        return StreamOffset(log=self._listing.log, query=self._query or "", hubs=ends)

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        """The ranges between two offsets. Also for a batch that was planned before a restart."""
        listing = self._listing
        if listing is None or not end.hubs.keys() <= listing.hubs.keys():
            listing = self._ask(end.hubs)
        end.check_log(listing.log)
        ranges = []
        for hub, until in end.hubs.items():
            first = end.born.get(hub, start.hubs.get(hub, until))
            if first >= until:
                continue
            known = listing.hubs.get(hub)
            if known is not None:
                first = checked(known, first, self._options.fail_on_data_loss)
            elif self._options.fail_on_data_loss:
                raise _gone(hub, first)
            if known is not None and not self._options.fail_on_data_loss:
                until = min(until, known.end)  # The log may have lost planned records.
            if known is not None and first < until:
                size = int(known.row_bytes * (until - first))
                ranges.append(Range(hub=hub, first=first, end=until, bytes=size, servers=known.servers))
        return ranges

    def has_caught_up(self, end: StreamOffset) -> bool:
        """Whether a batch that ends there, or one before it, reaches the ends that hubs had at the first planning."""
        listing = self._listing if self._listing is not None else self._ask(end.hubs)
        if self._goal is None:
            self._goal = {hub: self._end(listing, hub) for hub in listing.hubs}
        # Do not wait for hubs that are gone, or for a lost end of a hub.
        ahead = {
            hub: goal
            for hub, goal in self._goal.items()
            if hub in listing.hubs
            and end.hubs.get(hub, listing.hubs[hub].earliest) < min(goal, listing.hubs[hub].end)
        }
        self._goal = ahead
        return not ahead

    def report(self, end: StreamOffset) -> None:
        """Reports the query's progress to the node, if it has changed or the last report is old.

        A failed report does not fail the query.
        """
        now = time.monotonic()
        rate = None
        if self._reported is not None:
            since, before = self._reported
            if before.hubs == end.hubs and now - since < RENEW_S:
                return
            rows = sum(max(offset - before.hubs.get(hub, offset), 0) for hub, offset in end.hubs.items())
            rate = rows / max(now - since, 1e-3)
        self._reported = (now, end)
        try:
            self._wire.report(self._query or end.query, end.hubs, rate)
            self._deaf = False
        except HubSubError as error:
            if not self._deaf:
                LOG.warning("the query's progress could not be reported: %s", error.message)
            self._deaf = True

    # -- new and removed hubs --

    def _ask(self, wanted: Iterable[int] = ()) -> Listing:
        """The requested hubs, and those of `wanted` that still exist.

        A room that was deleted, or has moved, no longer names its old hub, whose last records still have to
        be read.
        """
        listing = self._wire.listing(self._options.subscribe, self._options.subscribe_pattern)
        missing = set(wanted) - listing.hubs.keys()
        if missing and (self._options.subscribe or self._options.subscribe_pattern):
            every = self._wire.listing()
            known = {hub: every.hubs[hub] for hub in missing & every.hubs.keys()}
            listing = Listing.join([listing, Listing(log=listing.log, hubs=known)])
        if not listing.hubs:
            check_logged(listing, self._options)
        self._listing = listing
        self._ends |= {hub.id: hub.end for hub in listing.hubs.values()}
        return listing

    def _kept(self, listing: Listing, hub: int, offset: int) -> int | None:
        """Where to continue reading a hub; None: it is removed and was read to its end."""
        known = listing.hubs.get(hub)
        if known is not None:
            return checked(known, offset, self._options.fail_on_data_loss)
        if self._options.fail_on_data_loss and self._ends.get(hub) != offset:
            raise _gone(hub, offset)
        if hub not in self._ended:
            self._ended.add(hub)
            LOG.warning("hub %d has ended, the query goes on without it", hub)
        return None

    def _first(self, hub: Hub) -> int:
        """Where a new hub is read from.

        If single rooms are requested, the hub may be old, and the room new in it. Otherwise the hub is new,
        and is read completely.
        """
        if hub.earliest > 1 and not self._options.subscribe and self._options.fail_on_data_loss:
            raise lost(hub.name, 1, hub.earliest)
        return hub.earliest

    def _end(self, listing: Listing, hub: int) -> int:
        end = listing.hubs[hub].end
        return end if self._target is None else min(end, self._target.get(hub, 0))


def _gone(hub: int, first: int) -> OffsetsLostError:
    return OffsetsLostError(
        f"hub {hub} is gone, and was not read to its end",
        f"offsets from {first} on",
        GO_ON,
        hub=hub,
        first=first,
    )
