"""Rooms whose record was recently removed or changed, as seen by the watches of one node.

Nodes learn of a removal at different times. While some may not know of it, a room that is used again stays in
its previous hub: so nodes with the old record are still right, and no two hubs have one room. A newly elected
controller also knows these rooms, if it followed the records when they were removed.

Invariant: an entry older than `LINGER_S` is ignored, and is dropped when the next record is removed or
changed.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

LINGER_S: Final = 60.0
"""How long a node's watches may lag."""


class Forgotten:
    """Hubs that rooms had before their record was removed or changed.

    Args:
        clock: Monotonic, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rooms: dict[tuple[str, bytes], tuple[int, float]] = {}
        """The hub that a room had, and when its record was seen to be removed or changed."""
        self._order: deque[tuple[float, tuple[str, bytes]]] = deque()

    def __len__(self) -> int:
        return len(self._rooms)

    def add(self, room_class: str, had: Mapping[bytes, int]) -> None:
        """Notes removed or changed records.

        Args:
            room_class: Class of the rooms.
            had: The hub that each room had.
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
        """Returns the hub that a room without a record had, if its record was removed less than `LINGER_S` ago."""
        hub, at_s = self._rooms.get((room_class, room), (None, 0.0))
        return hub if hub is not None and self._clock() < at_s + LINGER_S else None

    def is_since(self, room_class: str, room: bytes, since_s: float) -> bool:
        """Whether a room's record was seen to be removed or changed at a time or later.

        Args:
            room_class: Class of the room.
            room: Its name.
            since_s: The time, seconds, of the monotonic clock.
        """
        entry = self._rooms.get((room_class, room))
        return entry is not None and entry[1] >= since_s
