"""`hubsub pipeline NAME`, which `python -m hubsub.pipeline.NAME` is too.

Exit codes are those of the whole command line: 0 done, 1 failed, 2 used wrongly. A run without an end that is told to
stop ends with 0, as that is how it is done; one with `--once` ends with 130 or 143, as it has not read all.
"""

import sys
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hubsub.errors import ConfigError, HubSubError, OptionError
from hubsub.pipeline.options import SERVER_DEFAULT, SourceOptions
from hubsub.pipeline.run.display import Progress, print_table
from hubsub.pipeline.run.settings import BASE, Settings, beside, span
from hubsub.pipeline.session import check_pyspark, parse_conf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from hubsub.pipeline.run.runner import Ending, Output

app = typer.Typer(
    help="Jobs on Spark: rooms as tables. None needs an option; what they keep is below ./hubsub-pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ROWS = 15
"""Of a table on the terminal."""

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
    verbose: Verbose = False,
) -> None:
    """Writes all records to files, each once, with the offsets up to which they are there."""
    _check_format(table_format)
    with _run(_settings("archive", locals())) as run:
        from hubsub.pipeline.archive import open_table
        from hubsub.pipeline.run.jobs import archive_job

        outputs, target = archive_job(run.spark, run.settings, table_format)
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
        _more(run, len(rows), "days")
        offsets = ", ".join(f"hub {hub} to {at}" for hub, at in sorted(state.offsets.items()))
        run.progress.say(f"offsets: {offsets or 'none'}")


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
    """Messages, bytes, publishers and delays of each room and window; at its end the busiest rooms, and a plot."""
    with _run(_settings("activity", locals())) as run:
        from hubsub.pipeline.run.jobs import Timing, activity_job

        timing = Timing(event_time=event_time, window=span(window), watermark=span(watermark))
        outputs, table = activity_job(run.spark, run.settings, timing, publish)
        run.go(outputs)
        rows = table.read(run.spark)
        if rows is None:
            run.progress.say(
                "no window yet: nothing was read, or none is over (--once shows those that are not)"
            )
            return
        from hubsub.pipeline.run.reports import ROOM_COLUMNS, points, rooms

        found, count = rooms(rows, ROWS)
        print_table("Busiest rooms:", found, ROOM_COLUMNS)
        _more(run, count, "rooms")
        if any(row[ROOM_COLUMNS[-1]] is None for row in found):
            run.progress.say(NO_DELAY)
        run.progress.say(f"windows: {table.uri}")
        file = plot or beside(run.settings.out, "activity.png")
        try:
            from hubsub.pipeline.run.plot import draw

            draw(points(rows), timing.window, file)
            run.progress.say(f"plot: {file}")
        except ImportError:
            run.progress.say("no plot, as matplotlib is missing\nhint: pip install matplotlib")


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
    verbose: Verbose = False,
) -> None:
    """The latest value of each device and key, from JSON payloads; what cannot be read, with the reason."""
    with _run(_settings("devices", locals())) as run:
        from hubsub.pipeline.run.jobs import devices_job
        from hubsub.pipeline.run.reports import by_device

        outputs, state, dead = devices_job(run.spark, run.settings, device)
        run.go(outputs)
        rows = state.read(run.spark)
        found = None if rows is None else by_device(rows)
        _show(run, "Devices, the latest first:", found, "last", DEVICE_COLUMNS, "devices")
        if rows is not None:
            title = "Latest values, one for each device, topic and key:"
            _show(run, title, rows, "timestamp", VALUE_COLUMNS, "values")
            run.progress.say(f"values: {state.uri}")
        _dead(run, dead.read(run.spark), dead.uri)


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
    verbose: Verbose = False,
) -> None:
    """Sessions of users in rooms, from payloads with `kind`, `user`, `room` and `ts`; each when it is over."""
    with _run(_settings("sessions", locals())) as run:
        from hubsub.pipeline.run.jobs import Timing, sessions_job
        from hubsub.pipeline.sessions import concurrency

        timing = Timing(event_time=event_time, timeout=span(timeout), watermark=span(watermark))
        outputs, table, dead = sessions_job(run.spark, run.settings, timing)
        run.go(outputs)
        rows = table.read(run.spark)
        _show(run, "Sessions that are over, the latest first:", rows, "end", SESSION_COLUMNS, "sessions")
        if rows is not None:
            title = "Most users at once, by room and hour:"
            _show(run, title, concurrency(rows), "peak", PEAK_COLUMNS, "hours of rooms")
        _dead(run, dead.read(run.spark), dead.uri)


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
    verbose: Verbose = False,
) -> None:
    """Archived records back into rooms, each room in its order, at their own pace or at a rate."""
    given: dict[str, Any] = {
        "subscribe": None,
        "pattern": None,
        "once": True,
        "trigger": "1 second",
        "out": None,
    }
    settings = _settings("replay", locals() | given)
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
    with _run(settings) as run:
        play(run.spark, run.settings, asked, run.ending, run.progress)
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
    """Makes few large files of the many small ones that `archive` leaves; beside it, or when it has ended."""
    given = {"servers": SERVER_DEFAULT, "subscribe": None, "pattern": None, "option": None, "once": True}
    given |= {"trigger": "1 second", "checkpoint": None}
    _check_format(table_format)
    kept = span(grace)
    from hubsub.pipeline.archive import open_table

    table = open_table(out, table_format)
    if not table.contents()[1]:
        hint = "`hubsub pipeline archive` makes one"
        raise OptionError("there is no archive with records", table.uri, hint)
    with _run(_settings("compact", locals() | given)) as run:
        from hubsub.pipeline.run.compacting import run as compact_all
        from hubsub.pipeline.run.compacting import summary

        done = compact_all(run.spark, table, kept, run.ending, run.progress)
        run.stopped()
        assert done is not None, "no signal came"
        for line in summary(done, grace):
            run.progress.say(line)


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


# -- what the commands share --


@dataclass
class _Run:
    settings: Settings
    spark: "SparkSession"
    ending: "Ending"
    progress: Progress

    def go(self, outputs: "Iterable[Output]") -> None:
        from hubsub.pipeline.run.runner import run

        run(self.settings, list(outputs), self.ending, self.progress)
        self.stopped()

    def stopped(self) -> None:
        """Ends the progress; and the command, if a signal has ended a run that has not done what it was asked."""
        self.progress.close()
        if self.ending.signal is not None:
            self.progress.say("stopped; the next run goes on from here")
            if self.settings.once:
                raise typer.Exit(128 + self.ending.signal)


@contextmanager
def _run(settings: Settings) -> "Iterator[_Run]":
    """Spark for a run, and everything that ends with it."""
    check_pyspark()
    from hubsub.pipeline.run.failures import failure
    from hubsub.pipeline.run.runner import Ending, Stopped, session

    what = "published" if settings.job == "replay" else "scanned"
    with Progress(settings.once, what=what) as progress, Ending(progress.say) as ending:
        try:
            if settings.job != "compact":
                _ask(settings)
            progress.say("starting Spark")
            with session(settings, ending) as spark:
                yield _Run(settings, spark, ending, progress)
        except Stopped:
            progress.close()
            assert ending.signal is not None, "who raises it notes it"
            raise typer.Exit(128 + ending.signal) from None
        except (typer.Exit, HubSubError, KeyboardInterrupt):
            raise
        except Exception as error:
            # A signal to all processes of a run ends Spark, too: then what it came to stands in its table alone.
            if ending.signal is None or settings.once:
                raise failure(error) from (error if settings.verbose else None)
            progress.say("its results are not shown, Spark has ended")


def _ask(settings: Settings) -> None:
    """Finds out before Spark starts that nobody answers, or that nothing asked for has a log.

    Raises:
        HubSubError: what the run would end with.
    """
    if (settings.master or "").startswith("sc://"):
        return  # The server need not see what we see.
    from hubsub.pipeline.reading import check_logged
    from hubsub.pipeline.wire import Wire

    options = SourceOptions.parse(settings.source())
    with Wire(options.access) as wire:
        listing = wire.listing(options.subscribe, options.subscribe_pattern)
    if not listing.hubs and settings.job != "replay":
        check_logged(listing, options)


def _settings(job: str, given: dict[str, Any]) -> Settings:
    """The settings of a command's arguments."""
    return Settings(
        job=job,
        servers=given["servers"],
        subscribe=given["subscribe"],
        pattern=given["pattern"],
        options=_pairs(given["option"] or ()),
        master=given["master"],
        conf=parse_conf(given["conf"] or ()),
        once=given["once"],
        trigger=span(given["trigger"]),
        checkpoint=given["checkpoint"] or "",
        out=given["out"] or "",
        verbose=given["verbose"],
    )


def _check_format(table_format: str) -> None:
    from hubsub.pipeline.archive.formats import FORMATS

    if table_format not in FORMATS:
        raise OptionError("there is no such format", table_format, f"there are {', '.join(FORMATS)}")


def _pairs(pairs: "Iterable[str]") -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.strip() or not equals:
            raise OptionError(
                "an option has the form NAME=VALUE", pair.partition("=")[0], "maxRowsPerBatch=1000"
            )
        options[name.strip()] = value
    return options


def _show(
    run: _Run, title: str, rows: "DataFrame | None", order: str, columns: tuple[str, ...], what: str
) -> None:
    from hubsub.pipeline.run.reports import top

    if rows is None:
        run.progress.say(f"{title} none yet")
        return
    found, count = top(rows, order, columns, ROWS)
    print_table(title, found, columns)
    _more(run, count, what)


def _dead(run: _Run, rows: "DataFrame | None", uri: str) -> None:
    if rows is None:
        return
    from hubsub.pipeline.run.reports import reasons

    print_table("Records that could not be read:", reasons(rows), ("reason", "records"))
    run.progress.say(f"they are in {uri}")


def _more(run: _Run, count: int, what: str) -> None:
    if count > ROWS:
        run.progress.say(f"{count - ROWS:,} more {what}")


def main(job: str) -> NoReturn:
    """`python -m hubsub.pipeline.NAME`."""
    try:
        app(args=[job, *sys.argv[1:]], prog_name="hubsub pipeline")
    except (ConfigError, OptionError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except HubSubError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
