"""The disk of a directory: its type, its flush count, and its space for a log."""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from hubsub_bench import BenchError

IN_MEMORY = ("tmpfs", "ramfs")
SPARE_BYTES = 2 << 30
"""Space for journals and indexes, beside a log."""


@dataclass(frozen=True, slots=True)
class Disk:
    file_system: str
    """`ext4`, …; empty if unknown."""
    device: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def find(directory: Path) -> Disk:
    best = ("", "", "")
    for fields in _fields("/proc/mounts"):
        device, mount, kind = fields[:3]
        inside = directory.resolve().is_relative_to(mount)
        if inside and len(mount) >= len(best[1]):
            best = (device, mount, kind)
    return Disk(file_system=best[2], device=best[0])


def flushes(directory: Path) -> int | None:
    """Flushes of the directory's device since the system started; None if unknown.

    Each sync of a file causes one, whichever process requests it: on a quiet machine they are the server's.
    """
    device = directory.stat().st_dev
    for fields in _fields("/proc/diskstats"):
        if fields[:2] == [str(os.major(device)), str(os.minor(device))] and len(fields) > 18:
            return int(fields[18])
    return None


def need_space(directory: Path, size: int) -> None:
    """Refuses a directory whose disk cannot hold a log of this size.

    Raises:
        BenchError: it is too small, or in memory.
    """
    kind = find(directory).file_system
    if kind in IN_MEMORY:
        raise BenchError("the directory is in memory, not on a disk", f"{directory} ({kind})", "--data DIR")
    free, needed = shutil.disk_usage(directory).free, size + size // 4 + SPARE_BYTES
    if free < needed:
        raise BenchError(
            "the disk has too little room", f"{free:,} of {needed:,} bytes", "--data DIR, or --size"
        )


def _fields(path: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return []
