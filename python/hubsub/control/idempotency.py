"""One outcome for one Idempotency-Key, within a bounded window.

A key stands for a running or finished piece of work within its scope: what was asked, and of which rooms. Whoever
comes with it again waits for the same work and gets the same answer. Bounds: number of keys, bytes of answers, age; the
oldest finished entries go first. A failed piece of work is forgotten, so that it may be tried again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hubsub.errors import IdempotencyMismatchError, TooBusyError


@dataclass
class _Entry:
    request: bytes
    """Digest of the request that came first."""
    work: asyncio.Task[bytes]
    made_at: float = 0.0
    size: int = field(default=0)
    """Bytes of the key and of its finished answer."""


class Window:
    """The remembered keys of a node.

    Args:
        limits: `idempotency_keys_max`, `idempotency_bytes_max`, `idempotency_ms`; read at each use.
        clock: Monotonic seconds.
    """

    def __init__(self, limits: Callable[[], Mapping[str, int]], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._entries: OrderedDict[tuple[bytes, str], _Entry] = OrderedDict()
        self.bytes = 0
        self.repeated = 0
        """Requests that were answered from the window."""
        self.refused = 0
        """Requests refused because every key in the window was still at work."""

    def __len__(self) -> int:
        return len(self._entries)

    async def once(
        self, scope: bytes, key: str, request: bytes, work: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """The answer for this key: of `work`, or of the work that came with it before.

        A caller that gives up leaves the work running for the next one.

        Args:
            scope: Keys of two scopes have nothing to do with each other.
            key: As the client said it.
            request: Digest of what was asked.
            work: Makes the answer.

        Raises:
            IdempotencyMismatchError: the key came with another request before.
            TooBusyError: no key can be forgotten to make room.
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
        """Some of the oldest entries whose work is done; a bounded look, as each call makes one entry."""
        head = [item for item, _ in zip(self._entries.items(), range(FORGET_MAX), strict=False)]
        return [(place, entry) for place, entry in head if entry.work.done()]

    def _remove(self, place: tuple[bytes, str]) -> None:
        self.bytes -= self._entries.pop(place).size


FORGET_MAX = 64
"""Entries that one request looks at to forget."""


async def _run(work: Callable[[], Awaitable[bytes]]) -> bytes:
    return await work()
