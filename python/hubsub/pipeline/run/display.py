"""Output of a run for people: progress on stderr, tables on stdout.

On a terminal progress is one line that changes, with a bar if the end is known; into a pipe it is a line for
each step. A table is printed in full into a pipe.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TextIO

from hubsub.pipeline.run.tally import Tally

LINE_S = 1.0
"""Minimum seconds between two lines of one query into a pipe; the last one is always printed."""


class Progress:
    """Shows the tallies of queries.

    Args:
        bounded: Whether the run has an end, so that a bar makes sense.
        out: Default: stderr.
        clock: Returns monotonic seconds.
        what: Verb for the counted records, default `scanned`.
    """

    def __init__(
        self,
        bounded: bool,
        out: TextIO | None = None,
        clock: Any = time.monotonic,
        what: str = "scanned",
    ) -> None:
        self._bounded = bounded
        self._what = what
        self._out = out or sys.stderr
        self._clock = clock
        self._shown: dict[str, tuple[float, str]] = {}
        self._tasks: dict[str, Any] = {}
        self._rich: Any = None

    def __enter__(self) -> Self:
        if self._out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Bars

            text = TextColumn("{task.description}  {task.fields[text]}")
            columns = [BarColumn(), text] if self._bounded else [SpinnerColumn(), text]
            self._rich = Bars(*columns, console=Console(file=self._out), transient=False)
            self._rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the last state on the screen; later lines come below it."""
        if self._rich is not None:
            self._rich.stop()
            self._rich = None

    def write(self, text: str) -> None:
        if self._rich is not None:
            self._rich.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._out, flush=True)

    def show(self, name: str, tally: Tally, last: bool = False) -> None:
        """Shows the current tally of a query.

        Args:
            name: The query's name.
            tally: Its tally.
            last: Whether it is the final one.
        """
        now, text = self._clock(), progress_text(tally, self._what)
        if self._rich is not None:
            total = max(tally.total, 1) if self._bounded else None
            done = tally.records if tally.total or not last else 1
            if name not in self._tasks:
                self._tasks[name] = self._rich.add_task(name, total=total, text="")
            self._rich.update(self._tasks[name], total=total, completed=done, text=text)
            return
        before = self._shown.get(name)
        if before is not None and (before[1] == text or (not last and now - before[0] < LINE_S)):
            return
        if before is None and tally.batches == 0 and not last:
            return
        self._shown[name] = now, text
        self.write(f"{name}: {text}")


def progress_text(tally: Tally, what: str = "scanned") -> str:
    """A tally as text.

    >>> progress_text(Tally(batches=2, records=5_000, lag=3, rate=1_234.5))
    '5,000 records scanned in 2 batches, 1,234 a second, 3 behind'
    """
    batches = f"{tally.batches:,} batch{'' if tally.batches == 1 else 'es'}"
    text = (
        f"{tally.records:,} records {what} in {batches}, {int(tally.rate):,} a second, {tally.lag:,} behind"
    )
    return text + (f", {tally.late:,} dropped as too late" if tally.late else "")


def print_table(title: str, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Prints rows as a table; control characters in cells are escaped.

    Args:
        title: Heading.
        rows: The rows.
        columns: Columns to print, in order.
    """
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    numeric = [bool(cells) and all(_is_number(line[i]) for line in cells) for i in range(len(columns))]
    if not sys.stdout.isatty():
        widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
        print(title)
        for line in [list(columns), *cells]:
            padded = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True))
            print("  ".join(padded).rstrip())
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = _fitting(
        [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))], console.width
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i in range(shown):
        table.add_column(
            columns[i], justify="right" if numeric[i] else "left", no_wrap=i > 0, overflow="fold"
        )
    for line in cells:
        table.add_row(*(Text(cell) for cell in line[:shown]))
    console.print(table)
    if shown < len(columns):
        console.print(
            f"too narrow for {', '.join(columns[shown:])}; into a pipe or file all of it goes", style="dim"
        )


def _fitting(widths: Sequence[int], width: int, between: int = 2) -> int:
    """How many of the columns fit into a terminal; the first may be folded to half of it."""
    free = width - min(widths[0], max(width // 2, 1))
    for count, needed in enumerate(widths[1:], 1):
        free -= needed + between
        if free < 0:
            return count
    return len(widths)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(value))


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").lstrip("-").isdigit()
