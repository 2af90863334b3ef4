"""Offsets up to which each hub is archived, as archives report them; persisted in the data directory.

Retention waits for the archive if the class requires it (`history.archive_wait`). Of several archives the
furthest counts.

Invariants: an offset is passed to the data plane only if the archive has all records of the hub before it.
Retention waits if an offset is unknown, or cannot be read after a restart. Losing the table therefore costs
disk space, but no records.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from hubsub.config import RoomClass
from hubsub.config.matching import covers
from hubsub.errors import OtherLogError
from hubsub.node.status import Log

FILE = "archived.json"
"""In the data directory: `log`, its identity, and `offsets`, hub to the first offset that is not archived."""

log = structlog.get_logger()


class LogNode(Protocol):
    """The part of a node that is used here."""

    def log(self) -> Log | None:
        """State and hubs of the log."""

    def log_archived(self, offsets: Mapping[int, int]) -> None:
        """Passes offsets to the data plane."""

    def read_file(self, name: str) -> str | None:
        """Reads a file of the data directory."""

    async def write_file(self, name: str, text: str) -> None:
        """Replaces a file of the data directory atomically."""


class ArchiveOffsets:
    """The table of archived offsets.

    Args:
        node: The running node.
        classes: Returns its classes; called at each use.
        identity: Returns the identity of the archived log, the cluster's if there is one; called at each use.
    """

    def __init__(
        self,
        node: LogNode,
        classes: Callable[[], Sequence[RoomClass]],
        identity: Callable[[], str | None],
    ) -> None:
        self._node = node
        self._identity = identity
        self._classes = classes
        self._offsets: dict[int, int] = {}
        self._is_saved = True
        """Whether the file is up to date."""
        self._lock = asyncio.Lock()

    async def resume(self) -> None:
        """Restores the offsets from before the start, as far as the log still has them."""
        known = self._node.log()
        text = self._node.read_file(FILE)
        if known is None or text is None:
            return
        try:
            body = json.loads(text)
            is_ours = body["log"] == known.identity
            before = {int(hub): int(offset) for hub, offset in body["offsets"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("archived offsets cannot be read, retention waits for archives", reason=str(error))
            return
        # A log that lost its end assigns these offsets to other records, perhaps already.
        ends = {hub.id: hub.opened for hub in known.hubs}
        found = {hub: min(offset, ends[hub]) for hub, offset in before.items() if hub in ends and is_ours}
        async with self._lock:
            self._offsets = found
            self._node.log_archived(found)
            if found != before:
                await self._save(known)

    async def report(
        self, offsets: Mapping[int, int], pattern: str | None = None, identity: str | None = None
    ) -> None:
        """Takes an archive's report; returns after it is on disk, unless the disk refuses it.

        Args:
            offsets: Hub to the first offset that the archive does not have.
            pattern: The archive has only rooms that match it; hubs that may have others are left out.
            identity: Identity of the archived log.

        Raises:
            OtherLogError: it is another log.
        """
        known = self._node.log()
        if known is None:
            return
        there = self._identity()
        if identity is not None and identity.lower() != there:
            raise OtherLogError(value=there, hint=f"offsets of {identity} mean nothing here")
        whole = {cls.name for cls in self._classes() if pattern is None or covers(pattern, cls.match)}
        of_whole = {hub.id for hub in known.hubs if hub.room_class in whole}
        ends = {hub.id: hub.committed + 1 for hub in known.hubs}
        ahead = {hub: offset for hub, offset in offsets.items() if offset > ends.get(hub, offset)}
        if ahead:
            log.warning("an archive has more than the log, it is not waited for less", hubs=ahead)
        async with self._lock:
            more = {
                hub: offset
                for hub, offset in offsets.items()
                if hub in of_whole and hub not in ahead and offset > self._offsets.get(hub, 0)
            }
            self._offsets |= more
            self._node.log_archived(more)
            if more or not self._is_saved:
                await self._save(known)

    async def _save(self, known: Log) -> None:
        body = {"log": known.identity, "offsets": {str(hub): n for hub, n in self._offsets.items()}}
        try:
            await self._node.write_file(FILE, json.dumps(body) + "\n")
            self._is_saved = True
        except OSError as error:
            # Retention now frees space on a full disk; the next report tries again.
            self._is_saved = False
            log.warning("archived offsets could not be kept", reason=str(error))
