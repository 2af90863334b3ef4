"""Hubs of logged classes on one node: opened before the broker is told that this process leads them, closed after it
was told that it does not.

Invariants: one thing is done with a hub at a time. What the broker is told is all hubs, at every change; a hub whose
log is not open here yet, or closes, is told without a leader. A hub that cannot be opened is tried again, `troubles`
says why, and others do not wait for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from hubsub.control.cluster.dataplane import Hubs, RouteRow
from hubsub.errors import HubSubError

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
"""Before a hub that could not be opened or closed is tried again; doubled each time."""

OPENING_MAX: Final = 32
"""Hubs that are asked for at a time: what the log opens together."""

log = structlog.get_logger("hubsub.cluster")


class LoggedHubs:
    """Opens and closes.

    Args:
        data: Whose hubs.
        tell: Takes all rows, with leaders as they may be told.
    """

    def __init__(self, data: Hubs, tell: Callable[[Sequence[RouteRow]], None]) -> None:
        self.troubles: dict[int, str] = {}
        """Hubs that are this process's and could not be opened, and why."""
        self._data = data
        self._tell = tell
        self._rows: Sequence[RouteRow] = ()
        self._wanted: Mapping[int, RouteRow] = {}
        self._open: dict[int, RouteRow] = {}
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def set(self, rows: Sequence[RouteRow], wanted: Mapping[int, RouteRow]) -> None:
        """All hubs as they are to be, and those of them whose logs are to be open here."""
        self._rows, self._wanted = rows, wanted
        self._tell_now()
        if self._wanted.keys() != self._open.keys():
            self._news.set()
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Does no more; hubs that are open stay so until the node stops."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _tell_now(self) -> None:
        self._tell(
            [
                replace(row, leader=None) if row.hub in self._wanted and row.hub not in self._open else row
                for row in self._rows
            ]
        )

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        pause, again_s = RETRY_S, 0.0
        failed: set[int] = set()
        """Not tried again before `again_s`, so that they hold up no other."""
        while self._wanted.keys() != self._open.keys():
            self._news.clear()
            gone = [hub for hub in self._open if hub not in self._wanted.keys() | failed][:OPENING_MAX]
            new = [row for hub, row in self._wanted.items() if hub not in self._open.keys() | failed]
            new = new[:OPENING_MAX]
            if gone or new:
                done = await asyncio.gather(*map(self._close_one, gone), *map(self._open_one, new))
                if not failed:
                    again_s = loop.time() + pause
                hubs = [*gone, *(row.hub for row in new)]
                failed |= {hub for hub, is_done in zip(hubs, done, strict=True) if not is_done}
                self.troubles = {hub: why for hub, why in self.troubles.items() if hub in self._wanted}
                self._tell_now()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again_s):
                    await self._news.wait()
            if loop.time() >= again_s:
                failed.clear()
                pause = min(2 * pause, RETRY_S_MAX)

    async def _open_one(self, row: RouteRow) -> bool:
        try:
            await self._data.open_hub(row.hub, row.room_class, row.index)
        except HubSubError as error:
            if self.troubles.get(row.hub) != error.message:
                log.error(
                    "a hub cannot be opened", hub=row.hub, room_class=row.room_class, reason=error.message
                )
            self.troubles[row.hub] = error.message
            return False
        self.troubles.pop(row.hub, None)
        self._open[row.hub] = row
        return True

    async def _close_one(self, hub: int) -> bool:
        # Nobody is told that it is open from now on, also if it is wanted again meanwhile.
        row = self._open.pop(hub)
        try:
            await self._data.close_hub(hub)
        except HubSubError as error:
            log.error("a hub cannot be closed", hub=hub, reason=error.message)
            self._open[hub] = row
            return False
        return True
