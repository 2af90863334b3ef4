"""Shows results: a table for the terminal, one in Markdown, raw rows in a file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hubsub_bench.machine import Machine
from hubsub_bench.runner import Result, Row
from hubsub_bench.stats import Bound, Summary, Verdict

if TYPE_CHECKING:
    from rich.table import Table

ROWS_FILE = "rows.jsonl"
TABLE_FILE = "table.md"
COLORS = {Verdict.GOAL: "green", Verdict.FLOOR: "cyan", Verdict.BELOW: "red", Verdict.NONE: ""}


@dataclass(frozen=True, slots=True)
class Line:
    scenario: str
    title: str
    figure: str
    ours: str
    peer: str
    ratio: str
    bound: str
    verdict: Verdict
    complaints: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        return (self.scenario, self.figure, self.ours, self.peer, self.ratio, self.bound, str(self.verdict))


HEADINGS = ("scenario", "figure", "HubSub", "peer", "times as good", "floor / goal", "")


def lines(results: Sequence[Result]) -> Iterator[Line]:
    """The table's lines: one per figure."""
    for result in results:
        for i, figure in enumerate(result.scenario.figures):
            summary = result.summary(figure.name)
            yield Line(
                scenario=result.scenario.name,
                title=result.scenario.title,
                figure=figure.name,
                ours=number(summary.ours, figure.unit),
                peer=number(summary.peer, figure.unit),
                ratio=ratio_text(summary),
                bound=bound_text(figure.bound, figure.unit),
                verdict=summary.verdict,
                complaints=tuple(result.complaints()) if i == 0 else (),
            )


def terminal_table(results: Sequence[Result]) -> "Table":
    from rich.table import Table

    table = Table(*HEADINGS, title_justify="left")
    for line in lines(results):
        table.add_row(*line.cells(), style=COLORS[line.verdict])
        for complaint in line.complaints:
            table.add_row("", f"not to be trusted: {complaint}", style="yellow")
    return table


def markdown_table(results: Sequence[Result]) -> str:
    """The table in Markdown, followed by descriptions of the scenarios and reasons why figures are unreliable."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(line.cells() for line in lines(results))]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    legend: list[str] = []
    for result in results:
        legend.append(f"- `{result.scenario.name}`: {result.scenario.title}")
        legend += [f"  - not to be trusted: {complaint}" for complaint in result.complaints()]
    return f"{table}\n\n" + "\n".join(legend) + "\n"


def directory(root: Path, machine: Machine) -> Path:
    """Creates the directory of a new set of results: `<date>-<commit>`, numbered if it exists."""
    name = f"{machine.time[:10]}-{machine.commit}"
    taken = 1
    path = root / name
    while path.exists():
        taken += 1
        path = root / f"{name}-{taken}"
    path.mkdir(parents=True)
    return path


class RowFile:
    """`rows.jsonl`: the machine in the first line, then every run as it ends."""

    def __init__(self, path: Path, machine: Machine) -> None:
        self._path = path / ROWS_FILE
        self._append({"kind": "machine", **machine.as_dict()})

    def add(self, row: Row) -> None:
        self._append({"kind": "run", **asdict(row)})

    def _append(self, value: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


def number(value: float | None, unit: str) -> str:
    """A figure with three significant digits and its unit."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.3g}"
    return f"{text}{unit}" if unit in ("/s", "×") else f"{text} {unit}".rstrip()


def ratio_text(summary: Summary) -> str:
    """The ratio with its range over the pairs."""
    if summary.ratio is None or summary.ratio_min is None or summary.ratio_max is None:
        return "–"
    return f"{summary.ratio:.2f} ({summary.ratio_min:.2f}–{summary.ratio_max:.2f})"


def bound_text(bound: Bound, unit: str) -> str:
    limits = [limit for limit in (bound.floor, bound.goal) if limit is not None]
    if not limits:
        return ""
    text = " / ".join(f"{limit:g}" for limit in limits)
    return text if bound.of == "ratio" else f"{text} {unit}"
