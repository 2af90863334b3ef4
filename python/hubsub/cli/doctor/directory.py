"""The data directory: whether it is writable, whether its disk has room for the log, and how fast the disk syncs."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hubsub.cli.doctor.finding import Finding
from hubsub.config import Config

START_BYTES = 1 << 20
"""Space that a log uses besides its reserve, to start on a full disk."""

SYNCS = 16
SYNC_BYTES = 4_096
SYNC_MS_MAX = 20.0
"""A disk that takes longer for a small write noticeably delays every publish of a durable class."""

FORGETFUL = {"tmpfs", "ramfs"}
DISTANT = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
"""File systems whose disk is another machine's."""

Sync = Callable[[int], None]

SYNC: Sync = getattr(os, "fdatasync", os.fsync)
"""As the log's journal does."""


def data(config: Config, directory: Path) -> Iterator[Finding]:
    space = room(config, directory)
    yield space
    there = _there(directory)
    if space.hint and "cannot be" in space.found:
        return  # The other checks would fail, too.
    yield from _kind(there, Path("/proc/self/mountinfo"))
    yield sync_time(there)


def room(config: Config, directory: Path) -> Finding:
    """Checks that it is writable, and that its disk has the space that the log allocates at once."""
    hint = "another --data, or its permissions"
    try:
        there = _there(directory)
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            return Finding("data", "bad", f"{there} cannot be written", hint)
        disk = os.statvfs(there)
        missing = _missing(directory / "log", config.limits)
    except OSError as error:
        return Finding("data", "bad", f"{error.filename} cannot be read ({error.strerror})", hint)
    free = disk.f_bavail * disk.f_frsize
    found = f"{directory}, {free >> 20:,} MiB free"
    if any(cls.is_logged for cls in config.classes) and free < sum(missing.values()):
        parts = " and ".join(f"{size >> 20:,} MiB for {what}" for what, size in missing.items() if size)
        return Finding("data", "bad", found, f"its log still needs {parts}; without, it refuses records")
    if disk.f_files and not disk.f_favail:
        return Finding(
            "data",
            "bad",
            f"{found}, and no file can be made",
            "its file system is out of inodes: remove files",
        )
    return Finding("data", "ok", found)


def sync_time(directory: Path, sync: Sync = SYNC, now: Callable[[], float] = time.perf_counter) -> Finding:
    """Time until a small write is on disk: the minimum latency of a publish in a durable class.

    Args:
        directory: Where an unnamed temporary file is written; it is removed afterwards.
        sync: Syncs a file descriptor.
        now: Returns seconds.
    """
    took: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(SYNCS):
                os.write(file.fileno(), bytes(SYNC_BYTES))
                begun = now()
                sync(file.fileno())
                took.append((now() - begun) * 1_000)
    except OSError as error:
        return Finding(
            "disk sync", "bad", f"{directory}: {error.strerror}", "records cannot be made safe on this disk"
        )
    median, worst = statistics.median(took), max(took)
    found = f"median {median:.2f} ms, worst of {SYNCS} {worst:.2f} ms"
    if median > SYNC_MS_MAX:
        hint = 'each durable publish waits for one: a faster disk, or durability = "replicated"'
        return Finding("disk sync", "note", found, hint)
    return Finding("disk sync", "ok", found)


def _kind(directory: Path, mounts: Path) -> Iterator[Finding]:
    """A finding about the type of the file system."""
    kind = filesystem(directory, mounts)
    if kind in FORGETFUL:
        yield Finding(
            "file system", "note", kind, "its files are in memory and gone with the machine: another --data"
        )
    elif kind in DISTANT:
        hint = "another machine's disk: its locks and syncs may not hold what they promise; a local disk for --data"
        yield Finding("file system", "note", kind, hint)
    elif kind is not None:
        yield Finding("file system", "ok", kind)


def filesystem(directory: Path, mounts: Path) -> str | None:
    """Type of the file system of a directory (proc_pid_mountinfo(5)); None if unknown."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    whole = directory.resolve()
    best, kind = -1, None
    for line in lines:
        fields, _, source = line.partition(" - ")
        point = Path(fields.split()[4].encode().decode("unicode_escape"))
        if (whole == point or point in whole.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), source.split()[0]
    return kind


def _there(directory: Path) -> Path:
    """The directory, or its nearest existing parent."""
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def _missing(log: Path, limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes that a log allocates besides its records and does not have yet, by purpose."""
    reserve, journals = log / "reserve", log / "journal"
    has = reserve.stat().st_size if reserve.exists() else 0
    written = sum(file.stat().st_size for file in journals.iterdir()) if journals.exists() else 0
    kept = limits["log_reserve_bytes"]
    # Three journals: the current one, the next, and the one after that. Later ones reuse their files.
    return {
        "its reserve (log_reserve_bytes and 1 MiB)": max(0, kept + START_BYTES - has) if kept else 0,
        "its journals (3 × log_journal_bytes)": max(0, 3 * limits["log_journal_bytes"] - written),
    }
