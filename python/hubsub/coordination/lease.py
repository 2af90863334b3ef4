"""A lease: keys bound to it are deleted when its holder disappears.

The holder relies only on the *deadline*: the time before the last renewal was requested, plus the time to
live. The store ends the lease some time after the deadline, never before. A passed deadline is not yet a
loss: a store that was unavailable continues its leases when it is back, and the deadline moves on. The lease
is lost when the store reports it.
"""

import asyncio
import time
from abc import ABC, abstractmethod

from hubsub.errors import CoordinatorError

RENEWALS = 3
"""Renewals in one time to live: two may fail before the deadline passes."""
RETRY_S = 0.25
"""Wait between a failed renewal and the next one."""


class Lease(ABC):
    """Held and renewed until `release()` or until it is lost.

    Args:
        ttl_s: Time to live, as the store granted it.
        requested_s: `time.monotonic()` before it was requested.
    """

    def __init__(self, ttl_s: float, requested_s: float) -> None:
        self.ttl_s = ttl_s
        self.lost = asyncio.Event()
        """Set when the store ended it on its own; its keys are or will be deleted."""
        self._deadline = requested_s + ttl_s
        self._released = False
        self._keeper = asyncio.create_task(self._keep())

    @property
    def deadline(self) -> float:
        """On `time.monotonic()`: its keys exist at least until then."""
        return self._deadline

    @property
    def held(self) -> bool:
        """Neither given back nor known to be lost; its deadline may have passed."""
        return not self._released and not self.lost.is_set()

    async def release(self) -> None:
        """Ends it and deletes its keys, at once if the store can be reached, else when it expires."""
        if self._released:
            return
        held, self._released = self.held, True
        self._keeper.cancel()
        if held:
            await self._end()

    def _lose(self) -> None:
        """Called after the store has reported the loss."""
        if self.held:
            self.lost.set()
            self._keeper.cancel()

    @abstractmethod
    async def _renew(self) -> bool:
        """Asks the store; False if it has no such lease any more."""

    @abstractmethod
    async def _end(self) -> None:
        """Ends the lease at the store, if it can be reached."""

    async def _keep(self) -> None:
        """Renews every `ttl_s / RENEWALS`, however long the replies take; sooner after an error."""
        every_s = self.ttl_s / RENEWALS
        due = time.monotonic() + every_s
        asking: set[asyncio.Task[bool]] = set()
        try:
            while self.held:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due = time.monotonic() + every_s
                # Each waits for at most `ttl_s`, so there are no more than `RENEWALS` of them.
                one = asyncio.create_task(self._renew_once())
                asking.add(one)
                one.add_done_callback(asking.discard)
                done, _ = await asyncio.wait({one}, timeout=every_s)
                if done and not one.result():
                    due = min(due, time.monotonic() + RETRY_S)
        finally:
            for one in asking:
                one.cancel()

    async def _renew_once(self) -> bool:
        """Returns whether the store answered."""
        requested_s = time.monotonic()
        try:
            # A later reply would move the deadline by less than waiting costs.
            async with asyncio.timeout(self.ttl_s):
                alive = await self._renew()
        except (CoordinatorError, TimeoutError):
            return False
        if alive:
            self._deadline = max(self._deadline, requested_s + self.ttl_s)
        else:
            self._lose()
        return True
