"""Packs ranges of hubs' logs into input partitions. Pure.

A Spark task costs 35–50 ms whatever it does, so partitions are few: about one per core, balanced by bytes.
Many small hubs share one; a large hub is split by offsets. Each offset is in exactly one partition, and a
partition reads each hub in order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

CORES = "PYSPARK_HUBSUB_CORES"
"""Environment variable of the planning process: tasks that Spark runs at once, if that differs from its
machine's cores. `session.connect` sets it.
"""

BYTES_MIN = 8 << 20
"""A smaller partition costs more as a task than it saves: some 30 ms of reading."""

BYTES_MAX = 1 << 30
"""Approximate limit of what a failed task has to read again."""

SNAP = 0.02
"""A cut this close to a hub's edge, as a share of a partition, moves there: a request costs more than the imbalance."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Offsets of one hub's log."""

    hub: int
    first: int
    end: int
    """First offset after it; above `first`."""
    bytes: int
    """Bytes to read, as far as known."""
    servers: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def weight(self) -> float:
        return float(max(self.bytes, self.rows))


def pack(ranges: Iterable[Range], cores: int, min_partitions: int | None = None) -> list[tuple[Range, ...]]:
    """Packs ranges into partitions.

    Args:
        ranges: Not empty ones; those of one hub do not overlap.
        cores: Tasks that run at once.
        min_partitions: Minimum number of partitions, as far as there are rows; None: as few as make sense.

    Returns:
        Partitions, each of one range or more, none heavier than its share by more than 2 × `SNAP` of a share
        and one row.
    """
    todo = [r for r in ranges if r.rows > 0]
    total = sum(r.weight for r in todo)
    wanted = max(ceil(total / BYTES_MAX), min(cores, ceil(total / BYTES_MIN)), min_partitions or 1)
    count = max(1, min(wanted, sum(r.rows for r in todo)))
    parts: list[list[Range]] = [[] for _ in range(count)]
    share = total / count
    before = 0.0  # Weight of all ranges that are placed.
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
    """As much of the front as fits; None: nothing."""
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
