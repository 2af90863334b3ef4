"""One result per Idempotency-Key, within a bounded window.

A key identifies running or finished work within its scope: method, path and topics. A later request with the
same key waits for the same work and gets the same result. Bounds: number of keys, bytes of results, age; the
oldest finished entries are evicted first. Failed work is removed, so that it can be tried again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hubsub.errors import IdempotencyMismatchError, TooBusyError


@dataclass
class _Entry:
    request: bytes
    """Digest of the first request."""
    work: asyncio.Task[bytes]
    made_at: float = 0.0
    size: int = field(default=0)
    """Bytes of the key and of its finished result."""


class Window:
    """The keys of a node.

    Args:
        limits: Returns `idempotency_keys_max`, `idempotency_bytes_max`, `idempotency_ms`; called at each use.
        clock: Returns monotonic seconds.
    """

    def __init__(self, limits: Callable[[], Mapping[str, int]], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._entries: OrderedDict[tuple[bytes, str], _Entry] = OrderedDict()
        self.bytes = 0
        self.repeated = 0
        """Requests answered from the window."""
        self.refused = 0
        """Requests refused because the work of every key in the window was still running."""

    def __len__(self) -> int:
        return len(self._entries)

    async def once(
        self, scope: bytes, key: str, request: bytes, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """The result for a key: of `work`, or of the earlier work with the same key.

        If a caller gives up, the work continues for the next one.

        Args:
            scope: Equal keys in different scopes are independent.
            key: As the client sent it.
            request: Digest of the request.
            work: Produces the result.

        Raises:
            IdempotencyMismatchError: the key was used with another request before.
            TooBusyError: no key can be evicted to make room.
        """
        self._forget()
        place = scope, key
        entry = self._entries.get(place)
        if entry is None:
            if len(self._entries) >= self._limits()["idempotency_keys_max"]:
                self.refused += 1
                raise TooBusyError(hint="limits.idempotency_keys_max requests are at work")
            entry = _Entry(request, asyncio.ensure_future(_run(work)), self._clock(), len(scope) + len(key))
            self._entries[place] = entry
            self.bytes += entry.size
            entry.work.add_done_callback(lambda task: self._done(place, task))
        elif entry.request != request:
            raise IdempotencyMismatchError(value=key)
        else:
            self.repeated += 1
        return await asyncio.shield(entry.work)

    def _done(self, place: tuple[bytes, str], task: asyncio.Task[bytes]) -> None:
        entry = self._entries.get(place)
        if entry is None or entry.work is not task:
            return
        if task.cancelled() or task.exception() is not None:
            self._remove(place)
        else:
            entry.size += len(task.result())
            self.bytes += len(task.result())

    def _forget(self) -> None:
        limits, now = self._limits(), self._clock()
        for place, entry in list(self._oldest_done()):
            old = (now - entry.made_at) * 1_000 >= limits["idempotency_ms"]
            full = (
                len(self._entries) >= limits["idempotency_keys_max"]
                or self.bytes > limits["idempotency_bytes_max"]
            )
            if not old and not full:
                return
            self._remove(place)

    def _oldest_done(self) -> list[tuple[tuple[bytes, str], _Entry]]:
        """Finished ones among the oldest entries; a bounded look suffices, as each call adds one entry."""
        head = [item for item, _ in zip(self._entries.items(), range(FORGET_MAX), strict=False)]
        return [(place, entry) for place, entry in head if entry.work.done()]

    def _remove(self, place: tuple[bytes, str]) -> None:
        self.bytes -= self._entries.pop(place).size


FORGET_MAX = 64
"""Entries that one request checks for eviction."""


async def _run(work: Callable[[], Awaitable[bytes]]) -> bytes:
    return await work()
