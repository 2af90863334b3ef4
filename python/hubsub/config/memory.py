"""Divides the node's memory, which is one setting, among pools.

Each pool has a limit. Unless the limit is set, it is the pool's share of `memory`, at most the limit's
default: so a node on a large machine has the defaults, and one in a small container has less of everything.
The shares leave a fifth for memory without such a limit: the program itself, tables of connections, rooms and
topics, and memory that the allocator keeps for reuse.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from hubsub.config.kinds import Bad, parse_size
from hubsub.config.limits import LIMITS
from hubsub.config.model import Source

LEAST = 64 << 20
"""Minimum in bytes; less would not suffice for the program itself."""

SHARES: Mapping[str, tuple[int, bool]] = {
    limit.name: (limit.memory_percent, limit.is_parted) for limit in LIMITS if limit.memory_percent
}
"""Per limit: the pool's percentage of the memory, and whether it is divided among the node's shards."""


def parse(raw: object) -> int:
    """Parses a size, or a percentage of the memory available to this process, in bytes.

    A percentage gives at least `LEAST`.

    Raises:
        Bad: The value is neither, or a size out of range.
    """
    if isinstance(raw, str) and raw.endswith("%"):
        number = raw.removesuffix("%").strip()
        if not number.isdecimal() or not 1 <= int(number) <= 100:
            raise Bad("must be a percentage from 1 to 100, or a size", '"50%" or "4GiB"')
        return max(LEAST, available_bytes() * int(number) // 100)
    size = parse_size(raw)
    if not LEAST <= size <= 2**53:
        raise Bad(f"must be from {LEAST} bytes (64 MiB) on", '"50%" or "4GiB"')
    return size


def share(limits: dict[str, int], sources: Mapping[str, Source], memory: int, shards: int) -> None:
    """Sets each pool's limit that has its default to the pool's share.

    Args:
        limits: All limits by name; those of pools are changed.
        sources: Source of each limit, by `limits.NAME`.
        memory: Memory of the whole node, in bytes.
        shards: Number of shards among which pools are divided, from 1.
    """
    for limit in LIMITS:
        if limit.name in SHARES and sources[f"limits.{limit.name}"] == "default":
            percent, is_parted = SHARES[limit.name]
            of_pool = memory * percent // 100 // (shards if is_parted else 1)
            limits[limit.name] = max(limit.low, min(limit.default, of_pool))


def shown(limit: str) -> str:
    """A pool's share as text, such as `8% of memory, parted among the shards`."""
    percent, is_parted = SHARES[limit]
    return f"{percent}% of memory{', parted among the shards' if is_parted else ''}"


def available_bytes(system: Path = Path("/")) -> int:
    """Memory available to this process, in bytes: the machine's, or its control groups' limit if less.

    Args:
        system: Directory that contains /proc and /sys.
    """
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _limits(system):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max" means no limit.
            least = min(least, int(text))
    return least


def _limits(system: Path) -> list[Path]:
    """Files with the memory limits of this process's control groups and their parents."""
    try:
        groups = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        root, name = system / "sys/fs/cgroup", "memory.max"
        if controllers:
            if "memory" not in controllers.split(","):
                continue
            root, name = root / "memory", "memory.limit_in_bytes"
        group = root / path.lstrip("/")
        files += [at / name for at in (group, *group.parents) if at == root or root in at.parents]
    return files
