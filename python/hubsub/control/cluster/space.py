"""How many rooms may have a record: of one class, and by the bytes of all records together.

The coordinator's store is bounded, and what keeps a cluster alive is written into the same one: who leads which hub,
whose majority counts, who is the controller. So records of rooms, which clients cause, take at most `RECORDS_SHARE` of
it, and what is left is for the others. The controller alone writes records of rooms and knows all of them, so it
counts them here, whichever coordinator there is; etcd and ZooKeeper do not say how much they take, so there the setting
alone holds.

Invariant: records of rooms have at most `bytes_max` bytes, but for what splitting their buckets adds to one batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hubsub.control.cluster.follow import Follow

RECORDS_SHARE: Final = 0.9
"""Of the coordinator's store, where it says how much that takes."""

ROOM_BYTES: Final = 16
"""Of a room's record beside its name, at most: lengths, and the number of its hub."""

CLASS_LIMIT: Final = "placed_rooms_class_max"
BYTES_LIMIT: Final = "room_records_bytes_max"


@dataclass(frozen=True, slots=True)
class Space:
    """How much records of rooms may take."""

    class_rooms_max: int
    bytes_max: int

    def fitting(self, names: Sequence[bytes], of_class: int, bytes_used: int) -> tuple[int, str | None]:
        """How many new rooms of a class may have a record, the first ones first, and the limit that refuses the others.

        Args:
            names: Of new rooms.
            of_class: Rooms of their class that have a record.
            bytes_used: Of the records of all classes.
        """
        given = min(len(names), max(0, self.class_rooms_max - of_class))
        left = self.bytes_max - bytes_used
        for at, name in enumerate(names[:given]):
            left -= len(name) + ROOM_BYTES
            if left < 0:
                return at, BYTES_LIMIT
        return given, CLASS_LIMIT if given < len(names) else None


def space_of(limits: Mapping[str, int], store_bytes_max: int | None) -> Space:
    """As the settings and the coordinator have it.

    Args:
        limits: Of the node.
        store_bytes_max: What the coordinator's store takes; None: it does not say.
    """
    bytes_max = limits[BYTES_LIMIT]
    share = bytes_max if store_bytes_max is None else int(RECORDS_SHARE * store_bytes_max)
    return Space(limits[CLASS_LIMIT], min(bytes_max, share))


class RoomRecords:
    """What is known of the records of rooms on one node, and what it refused as the controller.

    Args:
        follow: What is known of the cluster.
        space: How many there may be.
    """

    def __init__(self, follow: Follow, space: Space) -> None:
        self.space = space
        self.refused: Counter[str] = Counter()
        """New rooms that got none, by the limit that refused them."""
        self.forgotten = 0
        """Records of rooms that nobody used, which it removed."""
        self._follow = follow

    @property
    def counts(self) -> Mapping[str, int]:
        """Rooms that have one, by class."""
        return {name: buckets.count for name, buckets in self._follow.rooms.items()}

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(buckets.bytes for buckets in self._follow.rooms.values())

    def fitting(self, room_class: str, names: Sequence[bytes]) -> tuple[int, str | None]:
        """As `Space.fitting`, as it is now."""
        return self.space.fitting(names, self._follow.rooms[room_class].count, self.size)
