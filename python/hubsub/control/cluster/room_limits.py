"""Limits of room records: their number per class, and the bytes of all of them.

The coordinator's store is bounded, and holds what keeps a cluster alive, too: leaders of hubs, the voters,
the controller. So room records, which clients cause, take at most `RECORDS_SHARE` of it; the rest is
reserved. Only the controller writes room records and it knows all of them, so it counts them here, with any
coordinator. etcd and ZooKeeper do not report their capacity, so only the setting limits the records there.

Invariant: room records have at most `bytes_max` bytes, plus what splitting their buckets adds in one batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hubsub.control.cluster.watch_cache import WatchCache

RECORDS_SHARE: Final = 0.9
"""Share of the coordinator's store for room records, if the coordinator reports its capacity."""

ROOM_BYTES: Final = 16
"""Maximum bytes of a room's record besides its name: lengths, and the number of its hub."""

CLASS_LIMIT: Final = "placed_rooms_class_max"
BYTES_LIMIT: Final = "room_records_bytes_max"


@dataclass(frozen=True, slots=True)
class RecordLimits:
    class_rooms_max: int
    bytes_max: int

    def fitting(self, names: Sequence[bytes], of_class: int, bytes_used: int) -> tuple[int, str | None]:
        """How many new rooms of a class may have a record.

        Args:
            names: Names of the new rooms.
            of_class: Rooms of their class that have a record.
            bytes_used: Bytes of the records of all classes.

        Returns:
            How many of `names`, from the first one, and the limit that refuses the others (None if all fit).
        """
        given = min(len(names), max(0, self.class_rooms_max - of_class))
        left = self.bytes_max - bytes_used
        for at, name in enumerate(names[:given]):
            left -= len(name) + ROOM_BYTES
            if left < 0:
                return at, BYTES_LIMIT
        return given, CLASS_LIMIT if given < len(names) else None


def record_limits(limits: Mapping[str, int], store_bytes_max: int | None) -> RecordLimits:
    """Computes the limits from the settings and the coordinator.

    Args:
        limits: Of the node.
        store_bytes_max: Capacity of the coordinator's store; None: not reported.
    """
    bytes_max = limits[BYTES_LIMIT]
    share = bytes_max if store_bytes_max is None else int(RECORDS_SHARE * store_bytes_max)
    return RecordLimits(limits[CLASS_LIMIT], min(bytes_max, share))


class RoomRecords:
    """Counters of room records on one node, and of what it refused as the controller.

    Args:
        cache: Watch cache of the cluster.
        space: Limits of the records.
    """

    def __init__(self, cache: WatchCache, space: RecordLimits) -> None:
        self.limits = space
        self.refused: Counter[str] = Counter()
        """New rooms that were refused a record, by limit."""
        self.forgotten = 0
        """Records of unused rooms that this node removed."""
        self._cache = cache

    @property
    def counts(self) -> Mapping[str, int]:
        return {name: buckets.count for name, buckets in self._cache.rooms.items()}

    @property
    def size(self) -> int:
        return sum(buckets.bytes for buckets in self._cache.rooms.values())

    def fitting(self, room_class: str, names: Sequence[bytes]) -> tuple[int, str | None]:
        """`RecordLimits.fitting` with the current records."""
        return self.limits.fitting(names, self._cache.rooms[room_class].count, self.size)
