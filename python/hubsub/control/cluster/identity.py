"""Cluster identity in a node's data directory: the cluster's id, and the node's latest incarnation.

A lock on the directory proves that no other process on this machine uses it. So a process that is registered
with the stored incarnation is this process's predecessor, and has ended.

Invariants: an incarnation is written and synced before it is used. The lock is held until `close()` or the
end of the process.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from hubsub.errors import DataDirectoryError
from hubsub.node.setup import write_synced

NAME = "cluster.json"
LOCK = "cluster.lock"


class StoredIdentity(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    node: str
    incarnation: int
    founded: bool = False
    """Whether this node founded the cluster."""


class Identity:
    """Reads, writes and locks the file of one data directory. Without a directory nothing is stored.

    Raises:
        DataDirectoryError: it cannot be read or created, or another process has it.
    """

    def __init__(self, data: str | None) -> None:
        self.stored: StoredIdentity | None = None
        self._path = None if data is None else Path(data) / NAME
        self._lock: int | None = None
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._path.parent / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.exists():
                self.stored = msgspec.json.decode(self._path.read_bytes(), type=StoredIdentity)
        except BlockingIOError:
            self.close()
            raise DataDirectoryError("another process has the data directory", data) from None
        except (OSError, msgspec.MsgspecError) as error:
            self.close()
            raise DataDirectoryError(value=f"{self._path}: {error}") from error

    def keep(self, stored: StoredIdentity) -> None:
        """Writes the file durably: it survives a crash.

        Raises:
            DataDirectoryError: it cannot be written.
        """
        self.stored = stored
        if self._path is None:
            return
        try:
            write_synced(self._path, msgspec.json.encode(stored).decode() + "\n")
        except OSError as error:
            raise DataDirectoryError(value=f"{self._path}: {error}") from error

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
