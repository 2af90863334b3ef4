"""What waits for one listener: the latest of each part, so that a slow one costs no more than one of each."""

import asyncio


class Board:
    """Parts by name, of which a later one takes the place of an earlier one that was not taken."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}
        self._stirred = asyncio.Event()
        self._is_closed = False

    def put(self, part: str, body: bytes) -> None:
        """Leaves a part, one line of JSON, for the listener."""
        self._parts[part] = body
        self._stirred.set()

    def close(self) -> None:
        """Lets `take` end, behind what is there."""
        self._is_closed = True
        self._stirred.set()

    def has(self, part: str) -> bool:
        """Whether a part waits."""
        return part in self._parts

    async def take(self) -> dict[str, bytes]:
        """All that waits, once there is something; nothing at the end."""
        if not self._parts and not self._is_closed:
            await self._stirred.wait()
        self._stirred.clear()
        parts, self._parts = self._parts, {}
        return parts
