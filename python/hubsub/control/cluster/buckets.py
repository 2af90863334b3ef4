"""Room records: many per key, in buckets by the hash of the room's name.
The protocol is in docs/protocol/control-plane.md.

A bucket is `rooms/CLASS/START`. START is the first hash of the bucket, 8 hex digits; its value states how
many bits of the hash its rooms share (`depth`), hence where it ends. When a bucket outgrows `SPLIT_BYTES`,
its upper half becomes a separate bucket in the same commit. A reader whose watch has delivered only one of
the two sees a bucket that ends before the room's hash, and knows that it cannot answer: no room is ever
reported as absent because of a split. Buckets are not merged again: a class that had many rooms will have
them again.

Invariants: the buckets of a class cover all hashes without overlap, once one exists and the watch has
delivered all. A room is only in the bucket of its hash. A value is never longer than `VALUE_BYTES_MAX`. A
response of the controller counts exactly while the known revision of the room's bucket is lower than that of
the response: revisions grow across all keys of a store. At most `ANSWERS_MAX` responses with names of
`ANSWERS_BYTES_MAX` are held.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from hubsub.control.cluster.bucket_values import (
    HASH_BITS,
    PIECES_MAX,
    Room,
    Rooms,
    end_of,
    hash_of,
    hub_in,
    parse_value,
    place_in,
    split,
    summary_of,
)
from hubsub.control.cluster.commits import Change, Commit, Put, packed
from hubsub.control.cluster.records import ROOMS
from hubsub.errors import RecordDamagedError, TopicLengthError

VALUE_BYTES_MAX = 64 << 10
"""Maximum size of a value in the coordinator."""

NAME_BYTES_MAX = 4_096
"""Maximum name of a room with a record: a bucket must hold several. Rooms of ring classes need no record."""

ADDED_BYTES_MAX = 32 << 10
"""Maximum bytes added to one bucket in one commit; the rest waits for the next."""

NOTHING: Final[Mapping[str, int]] = {}

ANSWERS_MAX = 50_000
ANSWERS_BYTES_MAX = 8 << 20
"""Maximum number of responses of the controller that the watch has not reached, and of the bytes of their
rooms' names; the latest are retained."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Commits that write room records."""

    commits: tuple[Commit, ...]
    left: Mapping[bytes, Room | None]
    """Changes to make after these commits, once the watch has delivered them."""


class NotKnown(Exception):
    """The watch has not delivered all buckets of a split yet; retry after its next change."""


class _Bucket(NamedTuple):
    """A bucket in memory: its value as read, and its frequently used fields."""

    value: bytes
    revision: int
    depth: int
    rooms: int


class Buckets:
    """The room records of one class, as the watch delivered them."""

    def __init__(self, room_class: str) -> None:
        self._class = room_class
        self._buckets: dict[int, _Bucket] = {}
        self._starts: list[int] = []
        """Starts of the buckets, sorted."""
        self.count = 0
        """Number of rooms; while half of a split is missing, its rooms briefly count twice."""
        self.bytes = 0
        """Bytes of keys and values, with the same exception."""
        self._split: Rooms = {}
        """Rooms that a bucket had before its split, while the new bucket for their hash is missing."""
        self._answers: dict[bytes, tuple[int, int]] = {}
        """Hub of a room and revision of its bucket, from the controller's responses, oldest first. The watch
        has not delivered this revision yet."""
        self._answer_hashes: list[tuple[int, bytes]] = []
        """Hash and name of the rooms in `_answers`, sorted."""
        self._answer_bytes = 0
        """Bytes of the names in `_answers`."""

    def apply(self, key: str, value: bytes | None, revision: int) -> Mapping[bytes, int | None]:
        """Adds a value from the watch or from a commit; ignores one that is older than the known value.

        Args:
            key: Key of the bucket.
            value: Its value; None: it was removed.
            revision: Revision of the value.

        Returns:
            Rooms whose hub or pin changed, whose record was removed, or that are new with a pin; with the
            previous hub of each (None: it had no record).

        Raises:
            RecordFormatError: a newer version wrote it.
            RecordDamagedError: it is no bucket.
        """
        start = self._start(key)
        old = self._buckets.get(start)
        if value is None:
            if old is None:
                return {}
            had = self._had(start)
            del self._buckets[start]
            self._starts.remove(start)
            self.count -= old.rooms
            self.bytes -= len(key) + len(old.value)
            gone: dict[bytes, int | None] = {name: hub_in(room) for name, room in had.items()}
            return gone | {
                name: self._dropped(name) for name in self._answered(start, end_of(start, old.depth))
            }
        if old is not None and revision <= old.revision:
            return {}
        depth, rooms, pins = summary_of(key, value)
        had = self._had(start) | self._split
        if old is None:
            insort(self._starts, start)
        self._buckets[start] = _Bucket(value, revision, depth, rooms)
        self.count += rooms - (0 if old is None else old.rooms)
        self.bytes += len(value) - (-len(key) if old is None else len(old.value))
        changed: dict[bytes, int | None] = {name: None for name in pins if name not in had}
        end = end_of(start, depth)
        before_next = min(end, self._next_start(bisect_left(self._starts, start)))
        reached = [name for name in self._answered(start, before_next) if self._answers[name][1] <= revision]
        there = parse_value(key, value).rooms if had or reached else {}
        self._split = {}
        for name, room in had.items():
            if name not in there and not start <= hash_of(name) < end:
                self._split[name] = room
            elif name not in there or place_in(there[name]) != place_in(room):
                changed[name] = hub_in(room)
        for name in reached:
            answer = self._dropped(name)
            if name not in there or answer != hub_in(there[name]):
                changed[name] = answer
        return changed

    def add_answer(self, name: bytes, hub: int, revision: int) -> None:
        """Stores the controller's response for a room, until the watch delivers the same revision or a later
        one. Ignores a response that the watch has reached.

        Args:
            name: The room.
            hub: Its hub.
            revision: Revision of the bucket that has its record, as the controller knew it.
        """
        self.drop_answer(name)
        if revision <= self.revision_of(name):
            return
        while self._answers and (
            len(self._answers) >= ANSWERS_MAX or self._answer_bytes + len(name) > ANSWERS_BYTES_MAX
        ):
            self._dropped(next(iter(self._answers)))
        self._answers[name] = hub, revision
        insort(self._answer_hashes, (hash_of(name), name))
        self._answer_bytes += len(name)

    def drop_answer(self, name: bytes) -> None:
        if name in self._answers:
            self._dropped(name)

    def hub_of(self, name: bytes) -> int | None:
        """Returns the hub of a room, from the controller's response or the room's record; None: it has no record.

        Raises:
            NotKnown: part of a split is missing.
        """
        answer = self._answers.get(name)
        if answer is not None:
            return answer[0]
        found = self.find(name)
        return None if found is None else found.hub

    def keys(self) -> frozenset[str]:
        return frozenset(self._key(start) for start in self._starts)

    def revision(self, key: str) -> int:
        """Known revision of a bucket; 0: the bucket is not known."""
        bucket = self._buckets.get(self._start(key))
        return 0 if bucket is None else bucket.revision

    def revision_of(self, name: bytes) -> int:
        """Known revision of the bucket for a room's record; 0: the bucket is not known."""
        try:
            return self._bucket(hash_of(name))[1].revision
        except NotKnown:
            return 0

    def key_of(self, name: bytes) -> str:
        """Returns the key of the bucket for a room's record.

        Raises:
            NotKnown: part of a split is missing.
        """
        return self._key(self._bucket(hash_of(name))[0] if self._starts else 0)

    def find(self, name: bytes) -> Room | None:
        """Returns a room's record; None: it has none.

        Raises:
            NotKnown: part of a split is missing.
        """
        if not self._starts:
            return None
        start, bucket = self._bucket(hash_of(name))
        if name not in bucket.value:
            return None  # Most look-ups are for new rooms: avoid unpacking for them.
        room = parse_value(self._key(start), bucket.value).rooms.get(name)
        return Room(room) if isinstance(room, int) else room

    def commits(
        self,
        changes: Mapping[bytes, Room | None],
        controller_revision: int,
        expect: Mapping[str, int] = NOTHING,
    ) -> Batch:
        """Builds commits that write or remove room records; each room's change is in one of them.

        They are based on what the watch delivered: if another write came first, the coordinator refuses them,
        and the caller builds them again. Changes without effect are left out.

        Args:
            changes: New record by room; None: its record is removed.
            controller_revision: Revision of `controller` from the writer's own election.
            expect: Other keys, with the revisions that each commit expects of them; default: none.

        Returns:
            The commits, and the changes that have to wait for them.

        Raises:
            NotKnown: part of a split is missing.
            TopicLengthError: a room's name is too long for a record.
        """
        by_start: dict[int, dict[bytes, Room | None]] = {}
        added: dict[int, int] = {}
        left: dict[bytes, Room | None] = {}
        for name, room in changes.items():
            if len(name) > NAME_BYTES_MAX:
                raise TopicLengthError(
                    "the name of the room is too long for a record",
                    f"{len(name)} bytes, at most {NAME_BYTES_MAX}",
                    'give its class `placement = "ring"`, which needs no record',
                )
            start = self._bucket(hash_of(name))[0] if self._starts else 0
            size = len(msgspec.msgpack.encode((name, room)))
            if start in added and added[start] + size > ADDED_BYTES_MAX:
                left[name] = room
            else:
                added[start] = added.get(start, 0) + size
                by_start.setdefault(start, {})[name] = room
        made = (self._change(start, by_start[start], expect) for start in sorted(by_start))
        return Batch(tuple(packed((c for c in made if c is not None), controller_revision)), left)

    def __len__(self) -> int:
        """Number of rooms with a record; unpacks all buckets."""
        return sum(len(self._rows(at)) for at in range(len(self._starts)))

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, Room]]:
        """Returns a page of rooms, ordered by hash, then name.

        Args:
            after: The last room of the previous page; None: the first page.
            limit: Size of the page.

        Returns:
            Names and records of the rooms; fewer than `limit` on the last page.
        """
        begin = (-1, b"") if after is None else (hash_of(after), after)
        found: list[tuple[bytes, Room]] = []
        at = max(0, bisect_right(self._starts, begin[0]) - 1)
        while at < len(self._starts) and len(found) < limit:
            rows = (row for row in self._rows(at) if row[:2] > begin)
            found += ((name, Room(room) if isinstance(room, int) else room) for _, name, room in rows)
            at += 1
        return found[:limit]

    def _answered(self, start: int, end: int) -> list[bytes]:
        """Rooms with a stored response whose hash is in a range."""
        begin = bisect_left(self._answer_hashes, (start, b""))
        return [name for _, name in self._answer_hashes[begin : bisect_left(self._answer_hashes, (end, b""))]]

    def _dropped(self, name: bytes) -> int:
        """Drops a stored response; returns its hub."""
        hub, _ = self._answers.pop(name)
        del self._answer_hashes[bisect_left(self._answer_hashes, (hash_of(name), name))]
        self._answer_bytes -= len(name)
        return hub

    def _had(self, start: int) -> Rooms:
        """Rooms of this bucket; before its first value, the rooms of its range in the bucket that was split."""
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return {}
        begin = self._starts[at]
        bucket = self._buckets[begin]
        end, next_start = end_of(begin, bucket.depth), self._next_start(at)
        if end <= start:
            return {}
        rooms = parse_value(self._key(begin), bucket.value).rooms
        if begin == start and end <= next_start:
            return rooms
        return {name: room for name, room in rooms.items() if start <= hash_of(name) < next_start}

    def _next_start(self, at: int) -> int:
        return self._starts[at + 1] if at + 1 < len(self._starts) else 1 << HASH_BITS

    def _rows(self, at: int) -> list[tuple[int, bytes, int | Room]]:
        """Hash, name and room of one bucket, sorted; without rooms of the range of the next bucket, also when
        half of a split is missing."""
        start = self._starts[at]
        end = self._next_start(at)
        rooms = parse_value(self._key(start), self._buckets[start].value).rooms
        rows = ((hash_of(name), name, room) for name, room in rooms.items())
        return sorted((row for row in rows if row[0] < end), key=lambda row: row[:2])

    def _bucket(self, hashed: int) -> tuple[int, _Bucket]:
        at = bisect_right(self._starts, hashed) - 1
        if at < 0:
            raise NotKnown
        start = self._starts[at]
        bucket = self._buckets[start]
        if hashed >= end_of(start, bucket.depth):
            raise NotKnown
        return start, bucket

    def _change(
        self, start: int, changes: Mapping[bytes, Room | None], expect: Mapping[str, int]
    ) -> Change | None:
        """Builds the change of one bucket, including the buckets that it is split into; None: nothing changes."""
        bucket = self._buckets.get(start)
        old, revision = (b"", 0) if bucket is None else (bucket.value, bucket.revision)
        depth, rooms = 0, Rooms()
        if old:
            value = parse_value(self._key(start), old)
            depth, rooms = value.depth, dict(value.rooms)
        for name, room in changes.items():
            if room is None:
                rooms.pop(name, None)
            else:
                assert len(room.pieces) <= PIECES_MAX, f"{name!r} has {len(room.pieces)} pieces"
                rooms[name] = room.hub if room == Room(room.hub) else room
        values = split(start, depth, rooms)
        if values == {start: old}:
            return None
        keys = {s: self._key(s) for s in values}
        return Change(
            {**{key: revision if s == start else 0 for s, key in keys.items()}, **expect},
            tuple(Put(keys[s], value) for s, value in values.items()),
        )

    def _key(self, start: int) -> str:
        return f"{ROOMS}/{self._class}/{start:08x}"

    def _start(self, key: str) -> int:
        try:
            return int(key.removeprefix(f"{ROOMS}/{self._class}/"), 16)
        except ValueError as error:
            raise RecordDamagedError("a key of room records cannot be read", key) from error
