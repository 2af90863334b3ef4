"""The plot of a job's result: messages of each window, by room.

The plot is readable: few enough columns for the width, names that fit, colours that colour-blind people can
distinguish (those of Okabe and Ito).
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any

ROOMS = 7
"""Rooms with a colour of their own; the rest shares one."""
OTHERS = "all others"
BARS = 15
"""Rooms shown if there is only one window."""
COLUMNS_MAX = 60
"""With more windows, a column is the mean of several: single ones are too thin to be seen."""
NAME_MAX = 28
"""Letters of a room's name."""

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_GREY = "#D9D9D9"
_NICE = (1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1_440)
"""Possible numbers of windows per column, in the steps of a clock."""

Point = tuple[str, datetime, int]
"""Room, start of its window, messages."""


def series(points: Iterable[Point], window: timedelta) -> tuple[list[datetime], dict[str, list[int]]]:
    """All windows from the first to the last, and the messages of each of the busiest rooms.

    Returns:
        Starts of the windows, and room to a number for each; the busiest first, `OTHERS` last.
    """
    by_room = _by_room(points)
    if not by_room:
        return [], {}
    starts = sorted({start for counts in by_room.values() for start in counts})
    if (starts[-1] - starts[0]) // window < WINDOWS_MAX:
        steps = (starts[-1] - starts[0]) // window
        starts = [starts[0] + window * n for n in range(steps + 1)]
    rooms = list(by_room)
    lines = {room: [by_room[room].get(start, 0) for start in starts] for room in rooms[:ROOMS]}
    rest = rooms[ROOMS:]
    if rest:
        lines[OTHERS] = [sum(by_room[room].get(start, 0) for room in rest) for start in starts]
    return starts, lines


WINDOWS_MAX = 10_000
"""With more windows between the first and the last, only those that have messages are drawn."""


def columns(
    starts: list[datetime], lines: dict[str, list[int]]
) -> tuple[list[datetime], dict[str, list[float]], int]:
    """Few enough columns to be seen: combines windows to their mean if there are too many.

    Returns:
        Starts of the columns, room to a number for each, and the number of windows in a column.
    """
    least = ceil(len(starts) / COLUMNS_MAX)
    each = next((nice for nice in _NICE if nice >= least), least)
    places = range(0, len(starts), each)
    means = {
        room: [sum(counts[at : at + each]) / len(counts[at : at + each]) for at in places]
        for room, counts in lines.items()
    }
    return [starts[at] for at in places], means, each


def draw(points: Iterable[Point], window: timedelta, file: Path) -> None:
    """Writes the plot as PNG: areas over time, or bars of rooms if there is only one window.

    Args:
        points: Messages by room and window.
        window: Length of a window.
        file: Path of the PNG.

    Raises:
        ImportError: matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    points = list(points)
    starts, lines = series(points, window)
    figure, found = plt.subplots(figsize=(11, 5.5), layout="constrained")
    axes: Any = found
    if len(starts) > 1:
        _areas(axes, starts, lines, window)
    else:
        _bars(axes, points)
    total, rooms = sum(count for _, _, count in points), len({room for room, _, _ in points})
    what = f"{total:,} messages in {rooms:,} {'room' if rooms == 1 else 'rooms'}"
    if starts:
        what += f", {_span(starts[0], starts[-1] + window)} UTC"
    axes.set_title(what, loc="left", fontsize=10, color="#555555")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # Names may hold any letter.
        figure.savefig(file, dpi=120)
    plt.close(figure)


def _areas(axes: Any, starts: list[datetime], lines: dict[str, list[int]], window: timedelta) -> None:
    import matplotlib.dates

    dates: Any = matplotlib.dates
    totals = {room: sum(counts) for room, counts in lines.items()}
    begins, means, each = columns(starts, lines)
    # A step holds until the next point: the last column needs one for its end.
    edges = [*begins, starts[-1] + window]
    palette = iter(_COLOURS)
    colours = [_GREY if room == OTHERS else next(palette) for room in means]
    areas = axes.stackplot(
        edges, *([*mean, mean[-1]] for mean in means.values()), colors=colours, step="post", linewidth=0
    )
    locator = dates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#EEEEEE")
    axes.set_xlabel("time (UTC)")
    a_window = _words(window)
    mean_of = _words(window * each).removeprefix("in ")
    axes.set_ylabel(f"messages {a_window}" + (f", mean of {mean_of}" if each > 1 else ""))
    axes.figure.suptitle(f"Messages {a_window}, by room", x=0.01, ha="left", fontsize=14)
    # In the order of the areas: the busiest at the bottom.
    labels = [f"{_name(room)}   {totals[room]:,}" for room in means]
    axes.legend(
        areas[::-1],
        labels[::-1],
        title="room, messages",
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
        alignment="left",
    )


def _bars(axes: Any, points: list[Point]) -> None:
    """The busiest rooms; the others are summarized as text, as one bar for them would dwarf the rest."""
    totals = {room: sum(counts.values()) for room, counts in _by_room(points).items()}
    rooms = list(totals)[:BARS]
    bars = axes.barh(range(len(rooms)), [totals[room] for room in rooms], color=_COLOURS[0])
    axes.bar_label(bars, labels=[f"{totals[room]:,}" for room in rooms], padding=4)
    axes.set_yticks(range(len(rooms)), [_name(room) for room in rooms])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)
    axes.grid(axis="x", color="#EEEEEE")
    rest = len(totals) - len(rooms)
    more = sum(totals.values()) - sum(totals[room] for room in rooms)
    axes.set_xlabel("messages" + (f"   ({rest:,} more rooms have {more:,} together)" if rest else ""))
    axes.figure.suptitle("The busiest rooms" if totals else "No messages", x=0.01, ha="left", fontsize=14)


def _by_room(points: Iterable[Point]) -> dict[str, dict[datetime, int]]:
    """Room to start of window to messages; the busiest room first."""
    by_room: dict[str, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    for room, start, messages in points:
        by_room[room][start] += messages
    return dict(sorted(by_room.items(), key=lambda item: (-sum(item[1].values()), item[0])))


def _name(room: str) -> str:
    """A room's name for matplotlib: shortened, `$` escaped, without a leading `_`, which would hide a label."""
    short = room if len(room) <= NAME_MAX else f"{room[: NAME_MAX // 2]}…{room[-NAME_MAX // 2 + 1 :]}"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def _span(begin: datetime, end: datetime) -> str:
    """A time span as text, with the date only once if it is the same."""
    last = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    return f"{begin:%Y-%m-%d %H:%M:%S} to {last}"


def _words(window: timedelta) -> str:
    """`a minute`, `in 5 minutes`."""
    seconds = window.total_seconds()
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"a {unit}".replace("a hour", "an hour") if count == 1 else f"in {count} {unit}s"
    return f"in {seconds:g} s"
