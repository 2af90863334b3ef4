"""Pending events for one listener: the latest of each part, so that a slow listener costs at most one per part."""

import asyncio


class Board:
    """Pending parts by name. A newer version of a part replaces one that was not taken yet."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}
        self._stirred = asyncio.Event()
        self._is_closed = False

    def put(self, part: str, body: bytes) -> None:
        """Stores a part, one line of JSON, for the listener."""
        self._parts[part] = body
        self._stirred.set()

    def close(self) -> None:
        """Makes `take` return nothing once the pending parts are taken."""
        self._is_closed = True
        self._stirred.set()

    def has(self, part: str) -> bool:
        return part in self._parts

    async def take(self) -> dict[str, bytes]:
        """Waits for pending parts and returns them all; returns nothing after `close`."""
        if not self._parts and not self._is_closed:
            await self._stirred.wait()
        self._stirred.clear()
        parts, self._parts = self._parts, {}
        return parts
