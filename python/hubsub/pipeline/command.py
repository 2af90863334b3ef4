"""Runs a job for its command: settings from arguments, Spark's start and end, tables on the terminal."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from hubsub.errors import HubSubError, OptionError
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.run.display import Progress, print_table
from hubsub.pipeline.run.settings import Settings, span
from hubsub.pipeline.session import check_pyspark, parse_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hubsub.pipeline.run.runner import Ending, Output

ROWS = 15
"""Most rows of a table on the terminal."""


@dataclass
class Run:
    """A job that runs until a signal or its end."""

    settings: Settings
    spark: "SparkSession"
    ending: "Ending"
    progress: Progress

    def go(self, outputs: "Iterable[Output]") -> None:
        from hubsub.pipeline.run.runner import run

        run(self.settings, list(outputs), self.ending, self.progress)
        self.stopped()

    def stopped(self) -> None:
        """Ends the progress display; also the command, if a signal has interrupted a `--once` run."""
        self.progress.close()
        if self.ending.signal is not None:
            self.progress.write("stopped; the next run goes on from here")
            if self.settings.once:
                raise typer.Exit(128 + self.ending.signal)


@contextmanager
def running(settings: Settings) -> Iterator[Run]:
    """Starts Spark for a run, and ends everything afterwards."""
    check_pyspark()
    from hubsub.pipeline.run.failures import failure
    from hubsub.pipeline.run.runner import Ending, Stopped, session

    what = "published" if settings.job == "replay" else "scanned"
    with (
        Progress(settings.once, what=what) as progress,
        Ending(progress.write, quiet=not settings.verbose) as ending,
    ):
        try:
            if settings.job != "compact":
                _ask(settings)
            progress.write("starting Spark")
            with session(settings, ending) as spark:
                yield Run(settings, spark, ending, progress)
        except Stopped:
            progress.close()
            assert ending.signal is not None, "who raises it notes it"
            raise typer.Exit(128 + ending.signal) from None
        except (typer.Exit, HubSubError, KeyboardInterrupt):
            raise
        except Exception as error:
            # A signal to all processes of a run ends Spark, too; the results are then only in its table.
            if ending.signal is None or settings.once:
                raise failure(error) from (error if settings.verbose else None)
            progress.write("its results are not shown, Spark has ended")


def _ask(settings: Settings) -> None:
    """Checks before Spark starts that a server answers, and that the requested rooms have a log.

    Raises:
        HubSubError: the error that the run would end with.
    """
    if (settings.master or "").startswith("sc://"):
        return  # The server may have another view of the network.
    from hubsub.pipeline.reading import check_logged
    from hubsub.pipeline.wire import Wire

    options = SourceOptions.parse(settings.source())
    with Wire(options.access) as wire:
        listing = wire.listing(options.subscribe, options.subscribe_pattern)
    if not listing.hubs and settings.job != "replay":
        check_logged(listing, options)


def settings_of(job: str, given: dict[str, Any]) -> Settings:
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


def check_format(table_format: str) -> None:
    """Raises OptionError if there is no such table format."""
    from hubsub.pipeline.archive.formats import FORMATS

    if table_format not in FORMATS:
        raise OptionError("there is no such format", table_format, f"there are {', '.join(FORMATS)}")


def _pairs(pairs: Iterable[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.strip() or not equals:
            raise OptionError(
                "an option has the form NAME=VALUE", pair.partition("=")[0], "maxRowsPerBatch=1000"
            )
        options[name.strip()] = value
    return options


def show(
    run: Run, title: str, rows: "DataFrame | None", order: str, columns: tuple[str, ...], what: str
) -> None:
    """Prints the first `ROWS` of a table.

    Args:
        run: The run.
        title: Heading.
        rows: The table; None: there is none yet.
        order: Column to sort by, the greatest value first.
        columns: Columns to print.
        what: Name of the rows that are not shown.
    """
    from hubsub.pipeline.run.reports import top

    if rows is None:
        run.progress.write(f"{title} none yet")
        return
    found, count = top(rows, order, columns, ROWS)
    print_table(title, found, columns)
    show_more(run, count, what)


def show_dead(run: Run, rows: "DataFrame | None", uri: str) -> None:
    """Prints why records could not be read, and where they are.

    Args:
        run: The run.
        rows: Table of unreadable records; None: there are none.
        uri: URI of the table.
    """
    if rows is None:
        return
    from hubsub.pipeline.run.reports import reasons

    print_table("Records that could not be read:", reasons(rows), ("reason", "records"))
    run.progress.write(f"they are in {uri}")


def show_more(run: Run, count: int, what: str) -> None:
    """Prints the number of rows that are not shown.

    Args:
        run: The run.
        count: Number of all rows.
        what: Name of the rows.
    """
    if count > ROWS:
        run.progress.write(f"{count - ROWS:,} more {what}")
