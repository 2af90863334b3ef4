"""Rooms whose record was removed or changed a while ago, as one node's watches gave it.

Nodes hear of that at different times. As long as one may not have heard, a room that is used again goes on in the hub
that it had: so who has not heard is right, and no two hubs have one room. A controller that was just elected knows
these rooms too, if it followed the records when they went.

Invariant: what is older than `LINGER_S` counts no more, and is dropped when the next record goes.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

LINGER_S: Final = 60.0
"""How long a node may be behind with its watches."""


class Forgotten:
    """See the module.

    Args:
        clock: Monotonic, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rooms: dict[tuple[str, bytes], tuple[int, float]] = {}
        """The hub that a room had, and when its record was seen to go or change."""
        self._order: deque[tuple[float, tuple[str, bytes]]] = deque()

    def __len__(self) -> int:
        return len(self._rooms)

    def add(self, room_class: str, had: Mapping[bytes, int]) -> None:
        """Records went or changed.

        Args:
            room_class: Of the rooms.
            had: The hub that each had.
        """
        now = self._clock()
        for room, hub in had.items():
            key = room_class, room
            self._rooms[key] = hub, now
            self._order.append((now, key))
        while self._order and self._order[0][0] + LINGER_S <= now:
            at_s, key = self._order.popleft()
            if key in self._rooms and self._rooms[key][1] == at_s:
                del self._rooms[key]

    def hub_of(self, room_class: str, room: bytes) -> int | None:
        """The hub that a room had whose record went less than `LINGER_S` ago; for rooms without a record."""
        hub, at_s = self._rooms.get((room_class, room), (None, 0.0))
        return hub if hub is not None and self._clock() < at_s + LINGER_S else None

    def is_since(self, room_class: str, room: bytes, since_s: float) -> bool:
        """Whether a room's record was seen to go or change at that time or later."""
        kept = self._rooms.get((room_class, room))
        return kept is not None and kept[1] >= since_s
