"""Runs a replay: publishes slices of an archive into rooms through the sink, each once, at their times.

A slice is a batch of the sink under the replay's own query, whose number the node knows.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from hubsub.errors import OptionError
from hubsub.pipeline.archive import open_table
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.options import Access, SinkOptions
from hubsub.pipeline.replay import Bounds, outgoing
from hubsub.pipeline.run.archive_slices import Archived
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.job_tables import TablePublisher
from hubsub.pipeline.run.lineage import join
from hubsub.pipeline.run.pace import Pace
from hubsub.pipeline.run.runner import POLL_S, Ending
from hubsub.pipeline.run.settings import Settings
from hubsub.pipeline.run.slices import Slice, SliceLog
from hubsub.pipeline.run.tally import Tally
from hubsub.pipeline.sink import Sink, Staged
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_S = 1.0
"""Length of a slice in the replay's time, and so how early a record may come."""
SLICE_ROWS_MAX = 250_000
SLICE_BYTES_MAX = 128 << 20
"""Bytes of topics and payloads, so that a node has space for the stages of several replays (`stage_bytes_max`)."""
AHEAD = 2
"""Slices that are staged, or being staged, while one is moved."""
PUBLISH_S = 2.0
"""Seconds between two progress reports to nodes."""
TABLE_COLUMNS = ("rooms", "records out", "left", "records/s")
AHEAD_S = 5.0
"""A slice is staged at most this long before its time."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Arguments of a replay.

    Args:
        archive: URI of the archive.
        table_format: The archive's format, default `parquet`.
        factor: Speed relative to the original, default 1.
        rate: Records a second, instead of the factor; 0 is as fast as possible.
        prefix: Put before each topic.
        where: SQL condition on archived records, or None.
        origin: Adds headers with the original position and time of a record.
    """

    archive: str
    table_format: str = "parquet"
    factor: float = 1.0
    rate: float | None = None
    prefix: str = ""
    where: str | None = None
    origin: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.factor < float("inf"):
            raise OptionError("--factor must be above 0", f"{self.factor:g}", "2 is twice as fast as it was")
        if self.rate is not None and not 0 <= self.rate < float("inf"):
            raise OptionError("--rate must be 0 or more", f"{self.rate:g}", "0 is as fast as it goes")
        if self.prefix.startswith("$"):
            raise OptionError(
                "names that begin with $ are the node's own", self.prefix, "take another --prefix"
            )

    def options(self) -> Mapping[str, str]:
        """The arguments that change its meaning, for a lineage; the pace may change from run to run."""
        where = self.where or ""
        origin = "yes" if self.origin else "no"
        return {"from": Store(self.archive).uri, "prefix": self.prefix, "where": where, "origin": origin}

    def due_s(self, piece: Slice, origin_us: int) -> float:
        """Seconds of the replay at which a slice is sent."""
        if self.rate is None:
            return max(piece.begin_us - origin_us, 0) / 1e6 / self.factor
        return piece.before / self.rate if self.rate else 0.0

    def bounds(self, origin_us: int) -> Bounds:
        if self.rate is None:
            grid = (origin_us, max(1, round(SLICE_S * 1e6 * self.factor)))
            return Bounds(rows=SLICE_ROWS_MAX, bytes=SLICE_BYTES_MAX, grid=grid)
        rows = max(1, round(min(self.rate * SLICE_S, SLICE_ROWS_MAX))) if self.rate else SLICE_ROWS_MAX
        return Bounds(rows=rows, bytes=SLICE_BYTES_MAX)


def replay(
    spark: "SparkSession",
    settings: Settings,
    asked: Replay,
    ending: Ending,
    progress: Progress,
    publish: bool = True,
) -> Tally:
    """Replays until everything is sent or a signal comes.

    Args:
        spark: The session.
        settings: Settings of the run.
        asked: Arguments of the replay.
        ending: Detects signals.
        progress: Shows progress.
        publish: Whether to report the progress to nodes from time to time.

    Returns:
        Progress of the replay: batches and records of all its runs.

    Raises:
        OptionError: there is nothing to replay.
    """
    table = open_table(asked.archive, asked.table_format)
    state, files = table.contents()
    if not files:
        hint = "`hubsub pipeline archive` makes one; --from says where it is"
        raise OptionError("there is no archive with records", table.uri, hint)
    line = join("replay", settings.checkpoint, None, {**asked.options(), "log": state.log or ""})
    log = SliceLog(Store(settings.checkpoint))
    source = Archived(spark, table, files, log.archived(state.offsets), state.offsets, asked.where)
    if not source.rows:
        raise OptionError("no record of the archive is to be replayed", asked.where or table.uri)
    tally = _tally(log.done, source.rows, 0.0)
    if not tally.lag and log.planned is None:
        progress.write("all of it is out; another --checkpoint replays it once more")
    options = SinkOptions.parse({"servers": settings.servers, **settings.options})
    _warn_of_the_unkept(source, asked.prefix, options.access, progress)
    sink = Sink(options, line.query)
    publisher = TablePublisher(options.access, "replay", line.query) if publish else None
    began, first = time.monotonic(), tally.records
    published_at = began - PUBLISH_S
    with ending.gently(), _Ahead(source, log, asked, sink) as ahead:
        while (ready := ahead.take(ending)) is not None:
            piece, staged = ready
            if log.planned != piece:
                log.plan(piece)
            sink.commit_in_turn(staged, piece.number)
            log.finish(piece)
            seconds = max(time.monotonic() - began, 1e-3)
            tally = _tally(piece, source.rows, (piece.records - first) / seconds)
            progress.show("replay", tally)
            if publisher is not None and time.monotonic() - published_at >= PUBLISH_S:
                publisher(TABLE_COLUMNS, [_table_row(asked, tally)], keys=1)
                published_at = time.monotonic()
    progress.show("replay", tally, last=True)
    if publisher is not None:
        publisher(TABLE_COLUMNS, [_table_row(asked, tally)], keys=1)
    return tally


def _warn_of_the_unkept(source: Archived, prefix: str, access: Access, progress: Progress) -> None:
    """Warns if replayed records go to rooms without a log. The first and last topic of each hub represent its class."""
    with Wire(access) as wire:
        classes = wire.listing((prefix + topic).replace(",", "%2C") for topic in source.topics).ephemeral
    if classes:
        what = "rooms of these classes keep no log, so what is replayed into them is in memory at most"
        progress.write(f"warning: {what}: {', '.join(classes)}")


def _table_row(asked: Replay, tally: Tally) -> tuple[str, int, int, float]:
    # The archive's location may be confidential.
    return f"{asked.prefix}…", tally.records, tally.lag, round(tally.rate, 1)


def _tally(last: Slice | None, total: int, rate: float) -> Tally:
    if last is None:
        return Tally(lag=total)
    records = last.records
    return Tally(batches=last.number + 1, records=records, lag=max(total - records, 0), rate=rate)


class _Ahead:
    """Prefetch of slices: stages them while earlier ones wait for their time or are moved.

    One thread plans and stages, in the order of slices; the caller commits.
    """

    def __init__(self, source: Archived, log: SliceLog, asked: Replay, sink: Sink) -> None:
        self._source, self._log, self._asked, self._sink = source, log, asked, sink
        self._origin_us = source.origin_us
        self._pace = Pace()
        self._slices = self._left(log.planned, log.done)
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "replay")
        self._ready: deque[Future[tuple[Slice, list[Staged]] | None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Drops staged slices that will not be committed."""
        self._stop.set()
        self._thread.shutdown()
        for future in self._ready:
            with contextlib.suppress(Exception):
                if (ready := future.result()) is not None:
                    self._sink.abort(ready[1])
        self._slices.close()

    def take(self, ending: Ending) -> tuple[Slice, list[Staged]] | None:
        """The next slice when its time has come; None at the end, or after a signal."""
        while len(self._ready) < AHEAD:
            self._ready.append(self._thread.submit(self._stage))
        while ending.signal is None:
            try:
                ready = self._ready[0].result(POLL_S)
            except TimeoutError:
                if self._ready[0].done():
                    raise
                continue
            if ready is not None and (wait := self._wait_s(ready[0])) > 0:
                time.sleep(min(wait, POLL_S))
                continue
            self._ready.popleft()
            return ready
        return None

    def _stage(self) -> tuple[Slice, list[Staged]] | None:
        """Stages one more slice, not long before its time: stages expire."""
        found = next(self._slices, None)
        if found is None:
            return None
        piece, rows = found
        if self._stop.wait(max(self._wait_s(piece) - AHEAD_S, 0)):
            return None
        return piece, self._sink.stage_frame(rows.drop("timestamp"))

    def _wait_s(self, piece: Slice) -> float:
        return self._pace.wait_s(self._asked.due_s(piece, self._origin_us), time.monotonic())

    def _left(self, planned: Slice | None, done: Slice | None) -> "Generator[tuple[Slice, DataFrame]]":
        """The remaining slices in the order of time, each with its rows; planned lazily."""
        source, last = self._source, done
        made = partial(outgoing, prefix=self._asked.prefix, origin=self._asked.origin)
        if planned is not None:
            last = planned
            yield last, made(source.between(last.begin_us, last.end_us))
        begin_us = 0 if last is None else last.end_us
        for span, rows in source.slices(begin_us, self._asked.bounds(source.origin_us), made):
            number, before = (0, 0) if last is None else (last.number + 1, last.records)
            last = Slice(
                number=number, begin_us=span.begin_us, end_us=span.end_us, rows=span.rows, before=before
            )
            yield last, rows
