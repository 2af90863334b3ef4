"""Ranges of hubs' logs packed into input partitions. Pure.

A Spark task costs 35–50 ms whatever it does, so partitions are few: about one
a core, balanced by bytes. Many small hubs share one, a large hub is cut by
offsets. Each offset is in exactly one partition, and a partition reads each
hub in order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

CORES = "PYSPARK_HUBSUB_CORES"
"""Environment variable of the process that plans: tasks that Spark runs at once, where its machine's cores do not
tell. `session.connect` sets it."""

BYTES_MIN = 8 << 20
"""A partition smaller than this costs more as a task than it saves: some 30 ms of reading."""

BYTES_MAX = 1 << 30
"""What a failed task has to read again at most, about."""

SNAP = 0.02
"""A cut so close to a hub's edge, as a share of a partition, moves there: a request costs more than the balance."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Offsets of one hub's log."""

    hub: int
    first: int
    end: int
    """First offset that is not of it; above `first`."""
    bytes: int
    """What is there to be read, as far as known."""
    servers: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def weight(self) -> float:
        return float(max(self.bytes, self.rows))


def pack(ranges: Iterable[Range], cores: int, min_partitions: int | None = None) -> list[tuple[Range, ...]]:
    """Packs ranges.

    Args:
        ranges: Not empty ones; those of one hub do not overlap.
        cores: Tasks that run at once.
        min_partitions: As many or more, as far as there are rows; None: as few as make sense.

    Returns:
        Partitions, each of one range or more, none heavier than its share by more than 2 × `SNAP`
        of a share and one row.
    """
    todo = [r for r in ranges if r.rows > 0]
    total = sum(r.weight for r in todo)
    wanted = max(ceil(total / BYTES_MAX), min(cores, ceil(total / BYTES_MIN)), min_partitions or 1)
    count = max(1, min(wanted, sum(r.rows for r in todo)))
    parts: list[list[Range]] = [[] for _ in range(count)]
    share = total / count
    before = 0.0  # Weight of all that has its place.
    part = 0
    for rest in todo:
        while rest.rows > 0:
            room = share * (part + 1) - before
            taken = rest if part == count - 1 else _take(rest, room, share)
            if taken is None:
                part += 1
                continue
            parts[part].append(taken)
            before += taken.weight
            rest = _after(rest, taken)
    return [tuple(part) for part in parts if part]


def _take(range_: Range, room: float, share: float) -> Range | None:
    """As much from the front as there is room for; None: nothing."""
    slack = share * SNAP
    if room <= slack:
        return None
    if range_.weight <= room + slack:
        return range_
    rows = min(round(range_.rows * room / range_.weight), range_.rows)
    if rows == 0:
        return None
    end = range_.first + rows
    return replace(range_, end=end, bytes=range_.bytes * rows // range_.rows)


def _after(range_: Range, taken: Range) -> Range:
    return replace(range_, first=taken.end, bytes=range_.bytes - taken.bytes)
