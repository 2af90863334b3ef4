"""One call of `hubsub bench`: stores its rows and its table, and shows them on the terminal."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from hubsub_bench import BenchError, report
from hubsub_bench.machine import describe
from hubsub_bench.runner import Result, Row
from hubsub_bench.scenarios import BaseScenario

RESULTS = Path("benches/results")
"""Directory of results in a checkout."""


def names_of(text: str | None, known: Mapping[str, BaseScenario], default: Sequence[str]) -> Sequence[str]:
    """The scenarios named in a comma-separated text; `default` without one.

    Args:
        text: Names, separated by commas, or None.
        known: Scenarios by name.
        default: Names without a text.

    Raises:
        BenchError: a name is unknown.
    """
    names = default if text is None else text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise BenchError("there is no such scenario", ", ".join(unknown), f"one of {', '.join(known)}")
    return names


class Session:
    """A directory of results that grows with each run.

    Args:
        known: Scenarios by name.
        out: The directory; default: one named after the day and the commit, with `folder` below it.
        folder: Subdirectory of the default directory.
    """

    def __init__(self, known: Mapping[str, BaseScenario], out: Path | None, folder: str = "") -> None:
        machine = describe()
        self.path = out or report.directory(RESULTS, machine) / folder
        self.path.mkdir(parents=True, exist_ok=True)
        self._known = known
        self._rows = report.RowFile(self.path, machine)
        self._progress = Console(stderr=True)

    def on_row(self, row: Row) -> None:
        self._rows.add(row)
        units = {figure.name: figure.unit for figure in self._known[row.scenario].figures}
        said = ", ".join(
            f"{name} {report.number(value, units.get(name, ''))}" for name, value in row.figures.items()
        )
        complaints = "".join(f"; {text}" for text in row.complaints)
        line = f"{row.scenario} pair {row.pair + 1} {row.target}: {said or 'no figures'}{complaints}"
        self._progress.print(line, highlight=False, soft_wrap=True)

    def write(self, results: Sequence[Result]) -> None:
        (self.path / report.TABLE_FILE).write_text(report.markdown_table(results), encoding="utf-8")

    def end(self, results: Sequence[Result], also: Sequence[Path] = ()) -> None:
        """Writes the table, shows it, and prints the location of the files.

        Args:
            results: The results.
            also: Files that were written beside it.
        """
        self.write(results)
        Console(width=None if sys.stdout.isatty() else 120).print(report.terminal_table(results))
        files = [report.ROWS_FILE, report.TABLE_FILE, *(file.name for file in also)]
        self._progress.print(f"written to {self.path}: {', '.join(files)}")
