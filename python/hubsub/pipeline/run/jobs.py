"""The jobs as queries: source, transform, and consumer of the batches."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hubsub.columns import COLUMNS
from hubsub.errors import HubSubError, OptionError
from hubsub.pipeline import events
from hubsub.pipeline.activity import activity
from hubsub.pipeline.archive import Archive, open_table
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.devices import dead_letters, named, readings
from hubsub.pipeline.devices import streamed as changes
from hubsub.pipeline.options import CAUGHT_UP, Access, SourceOptions
from hubsub.pipeline.reading import LOG
from hubsub.pipeline.run.backlog import patient
from hubsub.pipeline.run.job_tables import PublishingArchive, PublishingResults, TablePublisher
from hubsub.pipeline.run.lineage import Lineage, join
from hubsub.pipeline.run.publishing import Publishing
from hubsub.pipeline.run.results import Results
from hubsub.pipeline.run.runner import Output
from hubsub.pipeline.run.settings import Settings, interval
from hubsub.pipeline.sessions import FIELDS, moves, unknown_events
from hubsub.pipeline.sessions import streamed as closed
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW_KEYS = ("room", "epoch", "window_start")
DEVICE_KEYS = ("device", "topic", "key")
DEVICE_TABLE = (*DEVICE_KEYS, "value", "timestamp")
SESSION_TABLE = ("room", "user", "start", "end", "duration_s", "messages", "closed_by")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Settings of the jobs that depend on time."""

    event_time: str | None = None
    """Path in the payload; None: the record's timestamp."""
    window: timedelta = timedelta(minutes=1)
    watermark: timedelta = timedelta(minutes=10)
    timeout: timedelta = timedelta(minutes=30)

    def options(self, *names: str) -> dict[str, str]:
        values = {
            "event-time": self.event_time or "",
            "window": interval(self.window),
            "watermark": interval(self.watermark),
            "timeout": interval(self.timeout),
        }
        return {name: values[name] for name in names}


def lineage(settings: Settings, table: str, **options: str) -> Lineage:
    """The run's identity; `table` is the directory of its results."""
    chosen = {"subscribe": settings.subscribe or "", "pattern": settings.pattern or ""}
    return join(settings.job, settings.checkpoint, table, chosen | options)


def records(spark: "SparkSession", settings: Settings, query: str, **options: str) -> "DataFrame":
    """The stream of records.

    Args:
        spark: The session.
        settings: Settings of the run.
        query: Name under which nodes show the query.
        options: More options of the source.
    """
    chosen = {"queryName": query_name(settings, query)} | settings.source() | options
    return spark.readStream.format("hubsub").options(**chosen).load()


def records_by_time(spark: "SparkSession", settings: Settings, query: str) -> "DataFrame":
    """As `records`, for a job that has a watermark.

    Args:
        spark: The session.
        settings: Settings of the run.
        query: Name under which nodes show the query.
    """
    given = [value for name, value in settings.options.items() if name.lower() == "columns"]
    columns = given[-1] if given else ",".join(COLUMNS)
    return patient(records(spark, settings, query, columns=f"{columns},{CAUGHT_UP}"))


def query_name(settings: Settings, query: str) -> str:
    """Displayed name of a query: the option `queryName`, else the name of its lineage."""
    given = [value for name, value in settings.options.items() if name.lower() == "queryname"]
    return given[-1] if given else query


def activity_job(
    spark: "SparkSession", settings: Settings, timing: Timing, publish: bool = True
) -> tuple[Sequence[Output], Results]:
    """Activity of rooms by window, as a table and, with `publish`, as messages to `$stats/room/ROOM`, one per row.

    A bounded run outputs windows as they are (update mode): a later run has later versions of those that
    continue. An endless run outputs each window once, when nothing more can come into it.

    Args:
        spark: The session.
        settings: Settings of the run.
        timing: Window, watermark and event time.
        publish: Whether to publish the windows.

    Returns:
        The queries, and the table.
    """
    table = Results(Store(settings.out).uri, WINDOW_KEYS)
    line = lineage(settings, settings.out, **timing.options("event-time", "window", "watermark"))
    parsed = events.parsed(records_by_time(spark, settings, line.query), {}, timing.event_time)
    rows = activity(events.good(parsed), interval(timing.window), interval(timing.watermark))
    take: Results | Publishing = table
    if publish:
        name = query_name(settings, line.query)
        take = Publishing(table, line.query, name, settings.access(), final=not settings.once)
    return [Output("activity", rows, take, "update" if settings.once else "append")], table


def devices_job(
    spark: "SparkSession", settings: Settings, template: str, publish: bool = True
) -> tuple[Sequence[Output], Results, Results]:
    """The latest value of each device and key, and the unreadable records.

    Args:
        spark: The session.
        settings: Settings of the run.
        template: Marks the device in a topic, if its class does not.
        publish: Whether to report the latest rows to nodes.

    Returns:
        The queries, the table of values, and the table of unreadable records.
    """
    state = Results(f"{Store(settings.out).uri}/state", DEVICE_KEYS)
    dead = Results(f"{Store(settings.out).uri}/dead-letters")
    line = lineage(settings, settings.out, device=template)
    latest = changes(readings(named(records(spark, settings, line.query), template)))
    letters = dead_letters(named(records(spark, settings, f"{line.query}-dead"), template))
    take: Results | PublishingResults = state
    if publish:
        take = PublishingResults(
            state, _table_publisher(settings, line), DEVICE_TABLE, "timestamp", len(DEVICE_KEYS)
        )
    return [Output("devices", latest, take, "update"), Output("dead-letters", letters, dead)], state, dead


def sessions_job(
    spark: "SparkSession", settings: Settings, timing: Timing, publish: bool = True
) -> tuple[Sequence[Output], Results, Results]:
    """Ended sessions, and the unreadable records.

    Args:
        spark: The session.
        settings: Settings of the run.
        timing: Time-out, watermark and event time.
        publish: Whether to report the latest rows to nodes.

    Returns:
        The queries, the table of sessions, and the table of unreadable records.
    """
    table = Results(f"{Store(settings.out).uri}/sessions")
    dead = Results(f"{Store(settings.out).uri}/dead-letters")
    line = lineage(settings, settings.out, **timing.options("event-time", "timeout", "watermark"))
    parsed = events.parsed(records_by_time(spark, settings, line.query), FIELDS, timing.event_time)
    over = closed(moves(events.good(parsed)), timing.timeout, interval(timing.watermark))
    again = events.parsed(records(spark, settings, f"{line.query}-dead"), FIELDS, timing.event_time)
    letters = events.bad(again).unionByName(unknown_events(events.good(again)))
    take: Results | PublishingResults = table
    if publish:
        take = PublishingResults(table, _table_publisher(settings, line), SESSION_TABLE, "end")
    return [Output("sessions", over, take), Output("dead-letters", letters, dead)], table, dead


@dataclass
class ArchiveReporter:
    """Reports to nodes what the archive has committed, as retention may wait for it. Failures do not stop the job."""

    access: Access
    query: str
    log: str | None
    pattern: str | None
    deaf: bool = False
    """Whether the last report failed; logged once."""

    def __call__(self, offsets: Mapping[int, int]) -> None:
        if not offsets:
            return
        try:
            with Wire(self.access) as wire:
                wire.archived(self.query, offsets, self.log, self.pattern)
            self.deaf = False
        except HubSubError as error:
            if not self.deaf:
                LOG.warning("nodes could not be told what is archived: %s", error.message)
            self.deaf = True


def archive_job(
    spark: "SparkSession", settings: Settings, table_format: str, publish: bool = True
) -> tuple[Sequence[Output], Archive]:
    """Writes all records into files, each once. A new checkpoint continues where the archive ends.

    Args:
        spark: The session.
        settings: Settings of the run.
        table_format: `parquet` or `delta`.
        publish: Whether to report the archived offsets to nodes for display.

    Returns:
        The query, and the archive.

    Raises:
        OptionError: an option selects records or columns.
    """
    for name in settings.options:
        if name.lower() in ("topicfilter", "columns", "startingoffsets", "startingtimestamp"):
            raise OptionError("the archive keeps all records of its rooms, whole", name, "leave it out")
    options = SourceOptions.parse(settings.source())
    with Wire(options.access) as wire:
        listing = wire.listing(options.subscribe, options.subscribe_pattern)
    log = listing.log or None
    # Each checkpoint numbers its own batches; the archive identifies it by its lineage.
    line = join(
        settings.job, settings.checkpoint, None, {"format": table_format, "out": Store(settings.out).uri}
    )
    state = open_table(settings.out, table_format).state()
    state.check_log(log)
    given = {name.lower(): value for name, value in settings.source().items()}
    selection = {name: given[name] for name in ("subscribe", "subscribepattern") if given.get(name)}
    state.check_selection(selection)
    # Retention cannot wait for an archive that has only some rooms of a hub.
    report = (
        None
        if options.subscribe
        else ArchiveReporter(options.access, line.query, log, options.subscribe_pattern)
    )
    archive = Archive(settings.out, table_format, line.query, log, selection=selection, report=report)
    archive.begun()
    more = {}
    if state.offsets:
        more["startingOffsets"] = json.dumps({str(hub): state.offsets.get(hub, -2) for hub in listing.hubs})
    take: Archive | PublishingArchive = archive
    if publish:
        names = {hub: known.name for hub, known in listing.hubs.items()}
        take = PublishingArchive(archive, _table_publisher(settings, line), names)
    return [Output("archive", records(spark, settings, line.query, **more), take)], archive


def _table_publisher(settings: Settings, line: Lineage) -> TablePublisher:
    access = SourceOptions.parse(settings.source()).access
    return TablePublisher(access, settings.job, query_name(settings, line.query))
