"""The picture of a job's result: messages of each window, by room."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

ROOMS = 8
"""That have a colour of their own; the rest is one."""
OTHERS = "all others"

Point = tuple[str, datetime, int]
"""Room, when its window begins, messages."""


def series(points: Iterable[Point], window: timedelta) -> tuple[list[datetime], dict[str, list[int]]]:
    """The windows from the first to the last, none left out, and the messages of each of the busiest rooms.

    Returns:
        When windows begin, and room to a number for each; the busiest first, `OTHERS` last.
    """
    by_room: dict[str, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    for room, start, messages in points:
        by_room[room][start] += messages
    if not by_room:
        return [], {}
    busiest = sorted(by_room, key=lambda room: (-sum(by_room[room].values()), room))
    starts = sorted({start for counts in by_room.values() for start in counts})
    if (starts[-1] - starts[0]) // window < WINDOWS_MAX:
        steps = (starts[-1] - starts[0]) // window
        starts = [starts[0] + window * n for n in range(steps + 1)]
    lines = {room: [by_room[room].get(start, 0) for start in starts] for room in busiest[:ROOMS]}
    rest = busiest[ROOMS:]
    if rest:
        lines[OTHERS] = [sum(by_room[room].get(start, 0) for room in rest) for start in starts]
    return starts, lines


WINDOWS_MAX = 10_000
"""Where more lie between the first and the last, only those that have messages are drawn."""


def draw(points: Iterable[Point], window: timedelta, file: Path) -> None:
    """Writes the picture as PNG: areas over time, or bars of rooms where there is one window alone.

    Raises:
        ImportError: matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.dates
    import matplotlib.pyplot as plt

    dates: Any = matplotlib.dates
    starts, lines = series(points, window)
    figure, found = plt.subplots(figsize=(11, 5.5), layout="constrained")
    axes: Any = found
    palette = iter(plt.get_cmap("tab10")(range(ROOMS)))
    colours = ["lightgrey" if room == OTHERS else next(palette) for room in lines]
    each = _words(window)
    if len(starts) > 1:
        axes.stackplot(starts, *lines.values(), labels=lines.keys(), colors=colours, step="post")
        locator = dates.AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
        axes.set_xlim(starts[0], starts[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"messages {each}")
        axes.set_xlabel("UTC")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        axes.set_title(f"Messages {each}, by room")
    else:
        names = list(lines)[::-1]
        axes.barh(names, [sum(lines[name]) for name in names], color=colours[::-1])
        axes.set_xlabel("messages")
        when = f"{starts[0]:%Y-%m-%d %H:%M:%S} UTC" if starts else "no window"
        axes.set_title(f"Messages by room, in the one window that has any: {when}")
    axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _words(window: timedelta) -> str:
    seconds = window.total_seconds()
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"a {unit}".replace("a hour", "an hour") if count == 1 else f"in {count} {unit}s"
    return f"in {seconds:g} s"
