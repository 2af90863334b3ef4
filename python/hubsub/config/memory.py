"""The node's whole memory: one setting, of which each pool takes a share.

A pool is what a limit bounds. Where nobody set that limit, it is its share of `memory`, and never more than its own
default: a node of a large machine has the defaults, and one of a small container has less of all. The shares leave a
fifth for what has no such limit: the program itself, tables of connections, rooms and topics, and what the allocator
keeps for reuse.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from hubsub.config.kinds import Bad, parse_size
from hubsub.config.limits import LIMITS
from hubsub.config.model import Source

LEAST = 64 << 20
"""A node with less would have no place for its own program."""

DEFAULT = "50%"
"""The other half is for the kernel: buffers of sockets, and pages of the log's files."""

SHARES: Mapping[str, tuple[int, bool]] = {
    "history_shard_bytes_max": (19, True),
    "output_shard_bytes_max": (12, True),
    "reply_shard_bytes_max": (6, True),
    "input_shard_bytes_max": (8, True),
    "mqtt_large_bytes_max": (4, True),
    "subscription_bytes_shard_max": (5, True),
    "room_names_bytes_max": (4, False),
    "patterns_bytes_max": (2, True),
    "retained_bytes_max": (8, False),
    "http_bodies_bytes_max": (2, False),
    "mailbox_bytes_max": (2, True),
    "pool_bytes_max": (2, True),
    "log_pending_bytes_max": (3, False),
    "log_unwritten_bytes_max": (3, False),
}
"""By limit its pool's percentage of the memory, and whether the node's shards part it among them."""


def parse(raw: object) -> int:
    """Bytes, of a size or of a percentage of what this process may have.

    Raises:
        Bad: it is neither, or too little.
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
    """Gives each pool whose limit nobody set its share.

    Args:
        limits: All by name; those of pools are changed.
        sources: Who set each, by `limits.NAME`.
        memory: Bytes of the whole node.
        shards: How many part what is a shard's.
    """
    for limit in LIMITS:
        if limit.name in SHARES and sources[f"limits.{limit.name}"] == "default":
            percent, is_parted = SHARES[limit.name]
            of_pool = memory * percent // 100 // (shards if is_parted else 1)
            limits[limit.name] = max(limit.low, min(limit.default, of_pool))


def shown(limit: str) -> str:
    """A pool's share in words, such as `8% of memory, parted among the shards`."""
    percent, is_parted = SHARES[limit]
    return f"{percent}% of memory{', parted among the shards' if is_parted else ''}"


def available_bytes(system: Path = Path("/")) -> int:
    """Memory that this process may have: the machine's, or what its control group allows, if that is less.

    Args:
        system: Where /proc and /sys are.
    """
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _limits(system):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max": none.
            least = min(least, int(text))
    return least


def _limits(system: Path) -> list[Path]:
    """Where the control groups of this process have their limits, of it and of those around it."""
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
