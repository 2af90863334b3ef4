"""The file `incarnation` of a data directory: number of the node's latest start, half of each room epoch."""

import fcntl
import os
import time
from pathlib import Path

from hubsub.errors import DataDirectoryError
from hubsub.node.setup import write_synced

INCARNATION_MAX = 2**32 - 1


def stored_incarnation(directory: Path) -> int:
    """The number in the file; 0 if there is no file.

    Raises:
        ValueError: the file is damaged: no later start could have a higher number that fits.
    """
    file = directory / "incarnation"
    stored = int(file.read_text()) if file.exists() else 0
    if not 0 <= stored < INCARNATION_MAX:
        raise ValueError(f"no start has the number {stored}")
    return stored


def set_damaged_aside(directory: Path, accepts: bool) -> Path | None:
    """Renames a damaged file and writes the current time in its place.

    Args:
        directory: A data directory that no node uses.
        accepts: Whether to do it; else only the new name is returned.

    Returns:
        The new name of the damaged file; None if it is not damaged.

    Raises:
        DataDirectoryError: a node uses the directory.
    """
    file = directory / "incarnation"
    try:
        stored_incarnation(directory)
    except ValueError:
        pass
    else:
        return None
    names = (file.with_name(f"incarnation{n}.damaged") for n in ("", *(f".{n}" for n in range(2, 1_000))))
    aside = next(name for name in names if not name.exists())
    if accepts:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.rename(aside)
            # The next start gets a higher number, even within this second.
            write_synced(file, f"{int(time.time())}\n")
        except BlockingIOError:
            raise DataDirectoryError("a node uses it", directory, "stop the node first") from None
        finally:
            os.close(lock)
    return aside
