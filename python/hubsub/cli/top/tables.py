"""Tables of `hubsub top` as lines of text, so that their size is known before they are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hubsub.cli.common import fitting, shown

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Rows:
    """A table.

    Args:
        title: Shown above the table; empty: none.
        heads: Names of its columns, the most useful first.
        lines: Cells as text; control characters are escaped when drawn.
        texts: Number of leading columns that are text; the others are numbers.
        last: Whether the last column is text, too, and is cut if there is no room.
        stays: Whether it is drawn even without rows.
    """

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    texts: int = 1
    last: bool = False
    stays: bool = False

    @property
    def height(self) -> int:
        """Lines that it takes, including an empty one above; 0: it is not drawn."""
        return len(self.lines) + 2 + bool(self.title) if self.lines or self.stays else 0

    def drawn(self, width: int) -> list["RenderableType"]:
        """The table, with the columns that fit into the width."""
        from rich.table import Table
        from rich.text import Text

        if not self.height:
            return []
        cells = [[shown(cell) for cell in line] for line in self.lines]
        widths = [max(len(line[i]) for line in (self.heads, *cells)) for i in range(len(self.heads))]
        if self.last:
            widths[-1] = len(self.heads[-1])
        columns = fitting(widths, width)
        table = Table(
            title=Text(self.title) if self.title else None, box=None, pad_edge=False, title_justify="left"
        )
        for i in columns:
            is_text = i < self.texts or (self.last and i == len(self.heads) - 1)
            table.add_column(self.heads[i], justify="left" if is_text else "right", no_wrap=True)
        for line in cells:
            table.add_row(*(Text(line[i]) for i in columns))
        return ["", table]


def number(value: float | None) -> str:
    """A whole number, with separators; a dash for None."""
    return "-" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate per second; below ten with one decimal."""
    return number(value) if value is None or value >= 10 else f"{value:.1f}"


def seconds(value: float) -> str:
    """A duration in s, min or h."""
    return (
        f"{value:.0f} s"
        if value < 60
        else f"{value // 60:.0f} min"
        if value < 3_600
        else f"{value / 3_600:.1f} h"
    )
