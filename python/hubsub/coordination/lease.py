"""A lease: keys that are bound to it go when its holder does.

The holder counts on the *deadline* alone: the time, taken before the last renewal was asked for,
plus the time to live. The store lets the lease go some time after the deadline, never before. A
deadline that has passed is not yet a loss: a store that was away itself goes on with its leases
when it is back, and the deadline moves on. The lease is lost when the store says so.
"""

import asyncio
import time
from abc import ABC, abstractmethod

from hubsub.errors import CoordinatorError

RENEWALS = 3
"""Renewals in one time to live: two may fail before the deadline passes."""
RETRY_S = 0.25
"""Between a renewal that failed and the next one."""


class Lease(ABC):
    """Held and renewed until `give_back()` or until it is lost.

    Args:
        ttl_s: Time to live, as the store granted it.
        asked: `time.monotonic()` before it was asked for.
    """

    def __init__(self, ttl_s: float, asked: float) -> None:
        self.ttl_s = ttl_s
        self.lost = asyncio.Event()
        """Set when the store let it go on its own; its keys are gone, or go now."""
        self._deadline = asked + ttl_s
        self._given_back = False
        self._keeper = asyncio.create_task(self._keep())

    @property
    def deadline(self) -> float:
        """On `time.monotonic()`: until then its keys are there, whatever happens."""
        return self._deadline

    @property
    def held(self) -> bool:
        """Neither given back nor known to be lost; its deadline may have passed."""
        return not self._given_back and not self.lost.is_set()

    async def give_back(self) -> None:
        """Ends it and its keys at once if the store can be reached, else by its time."""
        if self._given_back:
            return
        held, self._given_back = self.held, True
        self._keeper.cancel()
        if held:
            await self._end()

    def _lose(self) -> None:
        """Called once the store has said so."""
        if self.held:
            self.lost.set()
            self._keeper.cancel()

    @abstractmethod
    async def _renew(self) -> bool:
        """Asks the store; False if it has no such lease any more."""

    @abstractmethod
    async def _end(self) -> None:
        """Tells the store, whether it hears it or not."""

    async def _keep(self) -> None:
        """Asks once every `ttl_s / RENEWALS`, however long the answers take; after an error sooner."""
        every_s = self.ttl_s / RENEWALS
        due = time.monotonic() + every_s
        asking: set[asyncio.Task[bool]] = set()
        try:
            while self.held:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                due = time.monotonic() + every_s
                # Each waits for `ttl_s` at most, so there are no more than `RENEWALS` of them.
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
        """Whether the store answered."""
        asked = time.monotonic()
        try:
            # An answer that comes later would move the deadline by less than waiting costs.
            async with asyncio.timeout(self.ttl_s):
                alive = await self._renew()
        except (CoordinatorError, TimeoutError):
            return False
        if alive:
            self._deadline = max(self._deadline, asked + self.ttl_s)
        else:
            self._lose()
        return True
