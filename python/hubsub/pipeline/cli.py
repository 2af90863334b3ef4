"""`hubsub pipeline NAME`, also available as `python -m hubsub.pipeline.NAME`.

Exit codes are those of the whole command line: 0 done, 1 failed, 2 used wrongly. An endless run that is
stopped by a signal ends with 0, as that is its normal end; one with `--once` ends with 130 or 143, as it has
not read everything.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hubsub.errors import ConfigError, HubSubError, OptionError
from hubsub.pipeline.command import ROWS, check_format, running, settings_of, show, show_dead, show_more
from hubsub.pipeline.options import SERVER_DEFAULT
from hubsub.pipeline.run.display import print_table
from hubsub.pipeline.run.settings import BASE, beside, span
from hubsub.pipeline.session import check_pyspark

app = typer.Typer(
    help="Jobs on Spark: rooms as tables. None needs an option; what they keep is below ./hubsub-pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Servers = Annotated[str, typer.Option(help="HTTP listeners of nodes: HOST:PORT, with commas between.")]
Subscribe = Annotated[
    str | None,
    typer.Option(help="These rooms only, with commas between.", show_default="all rooms with a log"),
]
Pattern = Annotated[str | None, typer.Option(help="Rooms that match: a glob, or an MQTT filter.")]
Option = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the source, such as token=…; may be repeated."),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Where Spark runs: local[N], spark://HOST:PORT, sc://HOST:PORT, …", show_default="all cores here"
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark's; may be repeated.")
]
Once = Annotated[
    bool, typer.Option("--once", help="Reads what is there now, then ends. The next run goes on behind it.")
]
Trigger = Annotated[str, typer.Option(help="Time between two batches, without --once.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="Where Spark keeps how far it is.", show_default=f"./{BASE}/NAME/checkpoint"
    ),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="URI", help="Where results go: a path, s3a://…", show_default=f"./{BASE}/NAME/out"),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Shows Spark's own log and traces.")]
EventTime = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Where an event's time is in its JSON payload, such as $.ts.",
        show_default="the record's timestamp",
    ),
]
Publish = Annotated[
    bool, typer.Option("--publish/--no-publish", help="Also tells its latest rows to $stats/job/NAME.")
]
Watermark = Annotated[str, typer.Option(help="How late an event may come and still count.")]


@app.command("archive")
def archive(
    servers: Servers = SERVER_DEFAULT,
    subscribe: Subscribe = None,
    pattern: Pattern = None,
    option: Option = None,
    master: Master = None,
    conf: Conf = None,
    once: Once = False,
    trigger: Trigger = "10 seconds",
    checkpoint: Checkpoint = None,
    out: Out = None,
    table_format: Annotated[
        str, typer.Option("--format", help="Of the table: parquet or delta.")
    ] = "parquet",
    publish: Publish = True,
    verbose: Verbose = False,
) -> None:
    """Writes all records to files, each once, with the offsets up to which they are archived."""
    check_format(table_format)
    with running(settings_of("archive", locals())) as run:
        from hubsub.pipeline.archive import open_table
        from hubsub.pipeline.run.jobs import archive_job

        outputs, target = archive_job(run.spark, run.settings, table_format, publish)
        run.go(outputs)
        if once:
            target.finished()
        state, files = open_table(target.target, table_format).contents()
        days: dict[str, list[Any]] = {}
        for file in files:
            days.setdefault(file.date, []).append(file)
        rows = [
            {
                "date": date,
                "records": sum(file.rows for file in some),
                "files": len(some),
                "bytes": sum(file.bytes for file in some),
            }
            for date, some in sorted(days.items())
        ]
        print_table(f"Archived in {target.target}:", rows[-ROWS:], ("date", "records", "files", "bytes"))
        show_more(run, len(rows), "days")
        offsets = ", ".join(f"hub {hub} to {at}" for hub, at in sorted(state.offsets.items()))
        run.progress.write(f"offsets: {offsets or 'none'}")


@app.command("activity")
def activity(
    servers: Servers = SERVER_DEFAULT,
    subscribe: Subscribe = None,
    pattern: Pattern = None,
    option: Option = None,
    event_time: EventTime = None,
    window: Annotated[str, typer.Option(help="Length of the windows.")] = "1 minute",
    watermark: Watermark = "10 minutes",
    master: Master = None,
    conf: Conf = None,
    once: Once = False,
    trigger: Trigger = "10 seconds",
    checkpoint: Checkpoint = None,
    out: Out = None,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Also tells each window to $stats/room/ROOM.")
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(help="Where the picture goes.", show_default="activity.png beside --out"),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Computes messages, bytes, publishers and delays of each room and window; shows the busiest rooms, and a plot."""
    with running(settings_of("activity", locals())) as run:
        from hubsub.pipeline.run.jobs import Timing, activity_job

        timing = Timing(event_time=event_time, window=span(window), watermark=span(watermark))
        outputs, table = activity_job(run.spark, run.settings, timing, publish)
        run.go(outputs)
        rows = table.read(run.spark)
        if rows is None:
            run.progress.write(
                "no window yet: nothing was read, or none is over (--once shows those that are not)"
            )
            return
        from hubsub.pipeline.run.reports import ROOM_COLUMNS, points, rooms

        found, count = rooms(rows, ROWS)
        print_table("Busiest rooms:", found, ROOM_COLUMNS)
        show_more(run, count, "rooms")
        if any(row[ROOM_COLUMNS[-1]] is None for row in found):
            run.progress.write(NO_DELAY)
        run.progress.write(f"windows: {table.uri}")
        file = plot or beside(run.settings.out, "activity.png")
        try:
            from hubsub.pipeline.run.plot import draw

            draw(points(rows), timing.window, file)
            run.progress.write(f"plot: {file}")
        except ImportError:
            run.progress.write("no plot, as matplotlib is missing\nhint: pip install matplotlib")


@app.command("devices")
def devices(
    servers: Servers = SERVER_DEFAULT,
    subscribe: Subscribe = None,
    pattern: Pattern = None,
    option: Option = None,
    device: Annotated[
        str,
        typer.Option(metavar="TEMPLATE", help="Where a topic names its device, if its class does not say."),
    ] = "devices/{device}/#",
    master: Master = None,
    conf: Conf = None,
    once: Once = False,
    trigger: Trigger = "10 seconds",
    checkpoint: Checkpoint = None,
    out: Out = None,
    publish: Publish = True,
    verbose: Verbose = False,
) -> None:
    """Computes the latest value of each device and key from JSON payloads; lists unreadable ones with the reason."""
    with running(settings_of("devices", locals())) as run:
        from hubsub.pipeline.run.jobs import devices_job
        from hubsub.pipeline.run.reports import by_device

        outputs, state, dead = devices_job(run.spark, run.settings, device, publish)
        run.go(outputs)
        rows = state.read(run.spark)
        found = None if rows is None else by_device(rows)
        show(run, "Devices, the latest first:", found, "last", DEVICE_COLUMNS, "devices")
        if rows is not None:
            title = "Latest values, one for each device, topic and key:"
            show(run, title, rows, "timestamp", VALUE_COLUMNS, "values")
            run.progress.write(f"values: {state.uri}")
        show_dead(run, dead.read(run.spark), dead.uri)


@app.command("sessions")
def sessions(
    servers: Servers = SERVER_DEFAULT,
    subscribe: Subscribe = None,
    pattern: Pattern = None,
    option: Option = None,
    event_time: Annotated[
        str, typer.Option(metavar="PATH", help="Where an event's time is in its JSON payload.")
    ] = "$.ts",
    timeout: Annotated[
        str, typer.Option(help="Silence after which a user is taken to have gone.")
    ] = "30 minutes",
    watermark: Watermark = "10 minutes",
    master: Master = None,
    conf: Conf = None,
    once: Once = False,
    trigger: Trigger = "10 seconds",
    checkpoint: Checkpoint = None,
    out: Out = None,
    publish: Publish = True,
    verbose: Verbose = False,
) -> None:
    """Computes sessions of users in rooms from payloads with `kind`, `user`, `room` and `ts`, when each has ended."""
    with running(settings_of("sessions", locals())) as run:
        from hubsub.pipeline.run.jobs import Timing, sessions_job
        from hubsub.pipeline.sessions import concurrency

        timing = Timing(event_time=event_time, timeout=span(timeout), watermark=span(watermark))
        outputs, table, dead = sessions_job(run.spark, run.settings, timing, publish)
        run.go(outputs)
        rows = table.read(run.spark)
        show(run, "Sessions that are over, the latest first:", rows, "end", SESSION_COLUMNS, "sessions")
        if rows is not None:
            title = "Most users at once, by room and hour:"
            show(run, title, concurrency(rows), "peak", PEAK_COLUMNS, "hours of rooms")
        show_dead(run, dead.read(run.spark), dead.uri)


@app.command("replay")
def replay(
    source: Annotated[
        str, typer.Option("--from", metavar="URI", help="The archive.")
    ] = f"{BASE}/archive/out",
    table_format: Annotated[
        str, typer.Option("--format", help="The archive's: parquet or delta.")
    ] = "parquet",
    factor: Annotated[float, typer.Option(help="Times as fast as the records came.")] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Records a second, instead of --factor; 0 is as fast as it goes.", show_default=False
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Put before each topic.")] = "",
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Of records that meet this, such as \"room = 'chat:a'\"."),
    ] = None,
    origin: Annotated[
        bool, typer.Option(help="Adds headers that say where and when a record was first.")
    ] = True,
    servers: Servers = SERVER_DEFAULT,
    option: Option = None,
    master: Master = None,
    conf: Conf = None,
    checkpoint: Checkpoint = None,
    publish: Publish = True,
    verbose: Verbose = False,
) -> None:
    """Publishes archived records to rooms again, each room in its order, at their own pace or at a rate."""
    given: dict[str, Any] = {
        "subscribe": None,
        "pattern": None,
        "once": True,
        "trigger": "1 second",
        "out": None,
    }
    settings = settings_of("replay", locals() | given)
    check_pyspark()
    from hubsub.pipeline.run.replaying import Replay
    from hubsub.pipeline.run.replaying import replay as play

    asked = Replay(
        archive=source,
        table_format=table_format,
        factor=factor,
        rate=rate,
        prefix=prefix,
        where=where,
        origin=origin,
    )
    with running(settings) as run:
        play(run.spark, run.settings, asked, run.ending, run.progress, publish)
        run.stopped()


@app.command("compact")
def compact(
    out: Annotated[
        str, typer.Option(metavar="URI", help="The archive: the --out of `archive`.")
    ] = f"{BASE}/archive/out",
    table_format: Annotated[
        str, typer.Option("--format", help="The archive's: parquet or delta.")
    ] = "parquet",
    grace: Annotated[
        str,
        typer.Option(
            help="Files that were replaced are removed after this time: longer than anybody reads them, and than a "
            "batch of the archive takes."
        ),
    ] = "24 hours",
    master: Master = None,
    conf: Conf = None,
    verbose: Verbose = False,
) -> None:
    """Merges the many small files that `archive` leaves into few large ones; may run at the same time."""
    given = {"servers": SERVER_DEFAULT, "subscribe": None, "pattern": None, "option": None, "once": True}
    given |= {"trigger": "1 second", "checkpoint": None}
    check_format(table_format)
    kept = span(grace)
    from hubsub.pipeline.archive import open_table

    table = open_table(out, table_format)
    if not table.contents()[1]:
        hint = "`hubsub pipeline archive` makes one"
        raise OptionError("there is no archive with records", table.uri, hint)
    with running(settings_of("compact", locals() | given)) as run:
        from hubsub.pipeline.run.compacting import run as compact_all
        from hubsub.pipeline.run.compacting import summary

        done = compact_all(run.spark, table, kept, run.ending, run.progress)
        run.stopped()
        assert done is not None, "no signal came"
        for line in summary(done, grace):
            run.progress.write(line)


@app.command("options")
def options() -> None:
    """Prints the reference page of the options and columns of source and sink, as Markdown."""
    from hubsub.pipeline.reference import page

    print(page(), end="")


NO_DELAY = (
    "delay: from an event's time to its record's; none without --event-time, or of events over a day old"
)
DEVICE_COLUMNS = ("device", "topics", "keys", "last")
VALUE_COLUMNS = ("device", "topic", "key", "value", "timestamp")
SESSION_COLUMNS = ("room", "user", "start", "end", "duration_s", "messages", "opened_by", "closed_by")
PEAK_COLUMNS = ("room", "hour", "sessions", "peak")


def main(job: str) -> NoReturn:
    """Entry point of `python -m hubsub.pipeline.NAME`."""
    try:
        app(args=[job, *sys.argv[1:]], prog_name="hubsub pipeline")
    except (ConfigError, OptionError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except HubSubError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
