"""Hubs of logged classes on one node. A hub is opened before the broker learns that this process leads it,
and closed after the broker learns that it does not.

A hub that is to be given up (`Route.gives_up`) is also closed: publishes to it wait from then on. If it has
no record it stays closed, *sealed*, until its record in the coordinator changes; otherwise this process
*keeps* it and continues to lead it.

Invariants: one operation per hub at a time. The broker gets all hubs at every change; a hub whose log is not
open here yet, or is closing, has no leader in them. A hub that cannot be opened is retried, `open_errors` shows
why, and other hubs do not wait for it. A hub that was reported as sealed for a revision of its record is not
led here while it has that revision.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from hubsub.control.cluster.view import Claims
from hubsub.coordination.tasks import end, wait_set
from hubsub.errors import HubSubError
from hubsub.node import Node, RouteRow

if TYPE_CHECKING:
    from hubsub.node.status import Hub

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
"""Delay before a failed open or close is retried, doubled each time up to `RETRY_S_MAX`."""

OPENING_MAX: Final = 32
"""Maximum number of hubs opened or closed at a time: as many as the log opens together."""

log = structlog.get_logger("hubsub.cluster")


class LoggedHubs:
    """Opens and closes the logged hubs of this process.

    Args:
        data: Data plane of the hubs.
        publish: Takes all rows; a row has a leader only if the broker may use it.
        me: This node's name.
        changed: Called when `claims` changed in a way that the controller waits for.
    """

    def __init__(
        self,
        data: Node,
        publish: Callable[[Sequence[RouteRow]], None],
        me: str,
        changed: Callable[[], None],
    ) -> None:
        self.open_errors: dict[int, str] = {}
        """Hubs of this process that could not be opened, with the error."""
        self._data = data
        self._publish = publish
        self._me = me
        self._changed = changed
        self._rows: Sequence[RouteRow] = ()
        self._led: Mapping[int, RouteRow] = {}
        """Hubs that this process leads, by their records."""
        self._resigning: Mapping[int, int] = {}
        """Hubs of `_led` that are to be given up, with the revisions of their records."""
        self._open: dict[int, RouteRow] = {}
        self._found: set[int] | None = None
        """Hubs open since the start and not in `_open`; None: not checked yet."""
        self._empty: set[int] = set()
        """Hubs that were closed without a record, and not opened since."""
        self._stuck_open: set[int] = set()
        """Hubs that are open because closing failed: not claimed as empty again."""
        self._retained: dict[int, int] = {}
        """Hubs that were to be given up but are kept, with the revision of the record that asked for it."""
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def set(
        self, rows: Sequence[RouteRow], led: Mapping[int, RouteRow], asked: Mapping[int, int] | None = None
    ) -> None:
        """Sets the wanted state.

        Args:
            rows: All hubs.
            led: Hubs that this process leads.
            asked: Hubs of `led` that are to be given up, with the revisions of their records; default: none.
        """
        if self._found is None:
            self._found = set(self._since_start())
        self._rows, self._led, self._resigning = rows, led, asked or {}
        self._retained = {hub: by for hub, by in self._retained.items() if self._resigning.get(hub) == by}
        self._publish_rows()
        if self._empty & self._resigning.keys():
            self._changed()
        if self._to_close() or self._to_open():
            self._news.set()
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())

    def claims(self) -> Claims:
        """Claims of this process about its hubs without a record."""
        if not self._open and not self._resigning:
            return Claims()
        blank = {row.id for row in self._hubs() if row.latest == 0}
        return Claims(
            empty=frozenset((blank & self._open.keys()) - self._resigning.keys() - self._stuck_open),
            sealed={hub: by for hub, by in self._resigning.items() if hub in self._empty},
            # A hub that cannot be opened may have records, so it is kept.
            retained=self._retained
            | {
                hub: by
                for hub, by in self._resigning.items()
                if hub in self.open_errors and hub not in self._empty
            },
        )

    def unmovable(self) -> frozenset[int]:
        """Hubs that no other node can lead when this process leaves: they have records here, or may have some."""
        recorded = {row.id for row in self._hubs() if row.latest > 0}
        return frozenset(recorded & self._open.keys() | self._stuck_open | self.open_errors.keys())

    async def close(self) -> None:
        """Stops; open hubs stay open until the node stops."""
        await end(self._worker)

    def _is_resigning(self, hub: int) -> bool:
        """Whether a hub of this process is to be given up, as far as is known."""
        return hub in self._resigning and hub not in self._retained

    def _to_open(self) -> list[RouteRow]:
        return [
            row for hub, row in self._led.items() if hub not in self._open and not self._is_resigning(hub)
        ]

    def _to_close(self) -> list[int]:
        other_owner = {row.hub for row in self._rows if row.leader is not None and row.leader[0] != self._me}
        gone = [hub for hub in self._open if hub not in self._led or self._is_resigning(hub)]
        return gone + sorted((self._found or set()) & other_owner)

    def _hubs(self) -> "Sequence[Hub]":
        log = self._data.log()
        return () if log is None else log.hubs

    def _since_start(self) -> frozenset[int]:
        """Hubs in the data directory at the start; one may be left over from a hub that was moved away."""
        return frozenset(row.id for row in self._hubs())

    def _publish_rows(self) -> None:
        self._publish(
            [
                replace(row, leader=None)
                if row.hub in self._led and (row.hub not in self._open or self._is_resigning(row.hub))
                else row
                for row in self._rows
            ]
        )

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        pause, again_s = RETRY_S, 0.0
        failed: set[int] = set()
        """Not retried before `again_s`, so that they delay no other hub."""
        while self._to_close() or self._to_open():
            self._news.clear()
            gone = [hub for hub in self._to_close() if hub not in failed][:OPENING_MAX]
            new = [row for row in self._to_open() if row.hub not in failed][:OPENING_MAX]
            if gone or new:
                done = await asyncio.gather(*map(self._close_one, gone), *map(self._open_one, new))
                if not failed:
                    again_s = loop.time() + pause
                hubs = [*gone, *(row.hub for row in new)]
                failed |= {hub for hub, is_done in zip(hubs, done, strict=True) if not is_done}
                self.open_errors = {hub: why for hub, why in self.open_errors.items() if hub in self._led}
                self._publish_rows()
                continue
            await wait_set(self._news, again_s - loop.time())
            if loop.time() >= again_s:
                failed.clear()
                pause = min(2 * pause, RETRY_S_MAX)

    async def _open_one(self, row: RouteRow) -> bool:
        was_blank = row.hub in self._empty
        self._empty.discard(row.hub)
        try:
            await self._data.open_hub(row.hub, row.room_class, row.index)
        except Exception as error:  # Any error concerns one hub only; the others continue.
            reason = _reason(error)
            if self.open_errors.get(row.hub) != reason:
                log.error(
                    "a hub cannot be opened",
                    hub=row.hub,
                    room_class=row.room_class,
                    reason=reason,
                    exc_info=not isinstance(error, HubSubError),
                )
            self.open_errors[row.hub] = reason
            if was_blank:
                self._empty.add(row.hub)
            return False
        self.open_errors.pop(row.hub, None)
        self._open[row.hub] = row
        if self._found is not None:
            self._found.discard(row.hub)
        return True

    async def _close_one(self, hub: int) -> bool:
        # From now on it is not reported as open, even if it is wanted again meanwhile.
        row = self._open.pop(hub, None)
        try:
            last = await self._data.close_hub(hub)
        except Exception as error:
            is_known = isinstance(error, HubSubError)
            log.error("a hub cannot be closed", hub=hub, reason=_reason(error), exc_info=not is_known)
            if row is not None:
                self._open[hub] = row
                self._stuck_open.add(hub)
            if hub not in self._resigning:
                return False
            self._keep(hub)
            return True
        self._stuck_open.discard(hub)
        if self._found is not None:
            self._found.discard(hub)
        if last == 0:
            self._empty.add(hub)
        if hub in self._resigning:
            if last == 0:
                self._changed()
            else:
                self._keep(hub)
        return True

    def _keep(self, hub: int) -> None:
        self._retained[hub] = self._resigning[hub]
        self._changed()


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, HubSubError) else f"{type(error).__name__}: {error}"
