"""Where named rooms are: many records to a key, in buckets by the hash of the room's name.

A bucket is `rooms/CLASS/START`, where START is the first hash that it holds, 8 hex digits, and its value says how many
bits of the hash its rooms have in common (`depth`), so how far it goes. When it outgrows `SPLIT_BYTES` its upper half
becomes a bucket of its own, in the same commit. So a reader whose watch gave one of the two before the other
sees a bucket that ends before the room's hash, and knows that it does not know: no room is ever taken for one that is
not there. Buckets are not joined again: rooms come back where rooms were.

Value, MessagePack: `[format, depth, {name: room}]`, names as bytes. A room is the number of its hub, or
`[hub, is_pinned, [[hub, first seq, last seq], …]]` where there is more to say: pieces of its history that stay where
they were written. In memory a bucket is the value as it was read, and one is unpacked for a look-up (5 µs): a
million rooms with names of 18 bytes are 24 MB, in 16,384 buckets. That MessagePack takes bytes as keys and quotes
nothing decides for it.

A small bucket is cheap to write and a large one cheap to list: with 2 KiB a single new room writes 1.5 KiB on the
average, and one of a batch of a thousand not much less, since they are spread. With 8 KiB stores had twice the files
and memory of 120,000 rooms, and a million rooms are 17 pages to list instead of 5.

A watch gives the latest value of each key, so a reader may miss values between: a room whose record was removed and
made again with another hub changes its hub at once, and a split may come with it, its buckets in any order.
`Buckets.give` compares each value with what was known of the rooms in its range, whichever bucket had them.

Invariants: the buckets of a class cover all hashes without overlap, once there are any and the watch has given all.
A room stands in the bucket of its hash alone. A value is never longer than `VALUE_BYTES_MAX`. At most `ANSWERS_MAX`
answers of the controller wait for their records.
"""

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from hubsub.control.cluster.commits import Change, Commit, Put, packed
from hubsub.control.cluster.records import ROOMS
from hubsub.errors import RecordDamagedError, RecordFormatError, TopicLengthError

FORMAT: Final = 1
"""Of a bucket's value."""

VALUE_BYTES_MAX = 64 << 10
"""What the coordinator takes."""

SPLIT_BYTES = 2 << 10
"""A bucket that is longer is split when it is written."""

NAME_BYTES_MAX = 4_096
"""Of a room with a record: some of them must fit into a bucket. Rooms of ring classes need none."""

PIECES_MAX = 512
"""Of one room's history."""

ADDED_BYTES_MAX = 32 << 10
"""Of one bucket in one commit; what is more waits for the next."""

LEAVES_MAX = 32
"""What one bucket becomes in one commit: key and expectation of each fit into it."""

HASH_BITS = 32

NOTHING: Final[Mapping[str, int]] = {}

ANSWERS_MAX = 50_000
"""Answers of the controller whose records the watch has not given; the latest."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a room's history, in the hub that it was written in."""

    hub: int
    first: int
    last: int


class Room(msgspec.Struct, frozen=True, array_like=True):
    """Where a room is."""

    hub: int
    is_pinned: bool = False
    """An operator put it there: nothing moves it but an operator."""
    pieces: tuple[Piece, ...] = ()
    """What of its history is elsewhere, the oldest first."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Commits of room records."""

    commits: tuple[Commit, ...]
    left: Mapping[bytes, Room | None]
    """What waits until these are made and the watch has given them."""


class NotKnown(Exception):
    """The watch has not given all of a split yet: the answer comes with its next change."""


Rooms = dict[bytes, int | Room]


class _Value(msgspec.Struct, frozen=True, array_like=True):
    format: int
    depth: int
    rooms: Rooms


class _Plain(msgspec.Struct, frozen=True, array_like=True):
    """A bucket of rooms that are a number each, as most are."""

    format: int
    depth: int
    rooms: dict[bytes, int]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What can be read of any format."""

    format: int


class _Bucket(NamedTuple):
    """A bucket as it is kept: as it was read, and what is asked for often."""

    value: bytes
    revision: int
    depth: int
    rooms: int
    """How many."""


class Buckets:
    """The room records of one class, as the watch gave them."""

    def __init__(self, room_class: str) -> None:
        self._class = room_class
        self._buckets: dict[int, _Bucket] = {}
        """By start."""
        self._starts: list[int] = []
        """In order."""
        self.count = 0
        """Of rooms; those of half a split count twice for a moment."""
        self.bytes = 0
        """Of keys and values, likewise."""
        self._split: Rooms = {}
        """Rooms that a bucket had before its split, while the new bucket of their hash is missing."""
        self._answers: dict[bytes, int] = {}
        """Hubs of rooms as the controller answered; the watch has yet to give their records."""

    def give(self, key: str, value: bytes | None, revision: int) -> Mapping[bytes, int | None]:
        """Takes what the watch gave, or what a commit has written; what is older than what is known changes nothing.

        Returns:
            Rooms that have another hub or pin than was known, no record any more, or a pin from the beginning; and the
            hub that each had; None: it had no record.

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
            return {name: _hub(room) for name, room in had.items()}
        if old is not None and revision <= old.revision:
            return {}
        depth, rooms, pins = _looked_at(key, value)
        had = self._had(start) | self._split
        if old is None:
            insort(self._starts, start)
        self._buckets[start] = _Bucket(value, revision, depth, rooms)
        self.count += rooms - (0 if old is None else old.rooms)
        self.bytes += len(value) - (-len(key) if old is None else len(old.value))
        changed: dict[bytes, int | None] = {name: None for name in pins if name not in had}
        there = _parse(key, value).rooms if had or self._answers else {}
        end = _end(start, depth)
        self._split = {}
        for name, room in had.items():
            if name not in there and not start <= hash_of(name) < end:
                self._split[name] = room
            elif name not in there or _place(there[name]) != _place(room):
                changed[name] = _hub(room)
        for name in self._answers.keys() & there.keys():
            answer = self._answers.pop(name)
            if answer != _hub(there[name]):
                changed[name] = answer
        return changed

    def answered(self, name: bytes, hub: int) -> None:
        """The controller said where a room is: that holds until the watch gives the room's record."""
        self._answers.pop(name, None)
        if len(self._answers) >= ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[name] = hub

    def drop_answer(self, name: bytes) -> None:
        """What the controller said of a room holds no more."""
        self._answers.pop(name, None)

    def hub_of(self, name: bytes) -> int | None:
        """The hub of a room, as the controller said, or by its record; none: it has no record.

        Raises:
            NotKnown: part of a split is missing.
        """
        answer = self._answers.get(name)
        if answer is not None:
            return answer
        found = self.find(name)
        return None if found is None else found.hub

    def keys(self) -> frozenset[str]:
        """Of all buckets that are known."""
        return frozenset(self._key(start) for start in self._starts)

    def revision(self, key: str) -> int:
        """Of a bucket as it is known; 0: it is not."""
        bucket = self._buckets.get(self._start(key))
        return 0 if bucket is None else bucket.revision

    def key_of(self, name: bytes) -> str:
        """The key that a room's record is in, or would be.

        Raises:
            NotKnown: part of a split is missing.
        """
        return self._key(self._bucket(hash_of(name))[0] if self._starts else 0)

    def find(self, name: bytes) -> Room | None:
        """Where a room is; none: it has no record.

        Raises:
            NotKnown: part of a split is missing.
        """
        if not self._starts:
            return None
        start, bucket = self._bucket(hash_of(name))
        if name not in bucket.value:
            return None  # Most that are asked for are new: nothing is unpacked for them.
        room = _parse(self._key(start), bucket.value).rooms.get(name)
        return Room(room) if isinstance(room, int) else room

    def commits(
        self,
        changes: Mapping[bytes, Room | None],
        controller_revision: int,
        expect: Mapping[str, int] = NOTHING,
    ) -> Batch:
        """Commits that put rooms where they are to be, or forget them; each room's change is in one of them.

        They are made from what the watch gave: where another write was first the coordinator refuses, and they
        are made anew. Rooms whose change changes nothing are in none.

        Args:
            changes: By room; None: its record is removed.
            controller_revision: Of `controller`, when its holder became it.
            expect: Other keys to the revisions that each commit expects of them.

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
        """How many rooms have a record; unpacks all."""
        return sum(len(self._rows(at)) for at in range(len(self._starts)))

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, Room]]:
        """Rooms in the order of their hashes, then names, behind one of them; fewer than asked for at the end."""
        begin = (-1, b"") if after is None else (hash_of(after), after)
        found: list[tuple[bytes, Room]] = []
        at = max(0, bisect_right(self._starts, begin[0]) - 1)
        while at < len(self._starts) and len(found) < limit:
            rows = (row for row in self._rows(at) if row[:2] > begin)
            found += ((name, Room(room) if isinstance(room, int) else room) for _, name, room in rows)
            at += 1
        return found[:limit]

    def _had(self, start: int) -> Rooms:
        """Rooms that this bucket has; before its first value, those that the bucket had which was split."""
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return {}
        begin = self._starts[at]
        bucket = self._buckets[begin]
        end, next_start = _end(begin, bucket.depth), self._next_start(at)
        if end <= start:
            return {}
        rooms = _parse(self._key(begin), bucket.value).rooms
        if begin == start and end <= next_start:
            return rooms
        return {name: room for name, room in rooms.items() if start <= hash_of(name) < next_start}

    def _next_start(self, at: int) -> int:
        return self._starts[at + 1] if at + 1 < len(self._starts) else 1 << HASH_BITS

    def _rows(self, at: int) -> list[tuple[int, bytes, int | Room]]:
        """Hash, name and room of one bucket, in order; without what a bucket behind it holds, also of half a split."""
        start = self._starts[at]
        end = self._next_start(at)
        rooms = _parse(self._key(start), self._buckets[start].value).rooms
        rows = ((hash_of(name), name, room) for name, room in rooms.items())
        return sorted((row for row in rows if row[0] < end), key=lambda row: row[:2])

    def _bucket(self, hashed: int) -> tuple[int, _Bucket]:
        at = bisect_right(self._starts, hashed) - 1
        if at < 0:
            raise NotKnown
        start = self._starts[at]
        bucket = self._buckets[start]
        if hashed >= _end(start, bucket.depth):
            raise NotKnown
        return start, bucket

    def _change(
        self, start: int, changes: Mapping[bytes, Room | None], expect: Mapping[str, int]
    ) -> Change | None:
        """What is written of one bucket: itself, and what it is split into."""
        kept = self._buckets.get(start)
        old, revision = (b"", 0) if kept is None else (kept.value, kept.revision)
        depth, rooms = 0, Rooms()
        if old:
            value = _parse(self._key(start), old)
            depth, rooms = value.depth, dict(value.rooms)
        for name, room in changes.items():
            if room is None:
                rooms.pop(name, None)
            else:
                assert len(room.pieces) <= PIECES_MAX, f"{name!r} has {len(room.pieces)} pieces"
                rooms[name] = room.hub if room == Room(room.hub) else room
        values = _split(start, depth, rooms)
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


def hash_of(name: bytes) -> int:
    """Which bucket a room is in."""
    return int.from_bytes(blake2b(name, digest_size=HASH_BITS // 8, person=b"hubsub-room").digest())


def _split(start: int, depth: int, rooms: Rooms) -> Mapping[int, bytes]:
    """The buckets that the rooms of one need, the largest split first."""
    leaves = {start: (depth, rooms)}
    values = {start: _encoder.encode(_Value(FORMAT, depth, rooms))}
    while len(leaves) < LEAVES_MAX:
        start = max(values, key=lambda s: len(values[s]))
        depth, rooms = leaves[start]
        if len(values[start]) <= SPLIT_BYTES or depth == HASH_BITS:
            break
        depth += 1
        middle = start + (1 << (HASH_BITS - depth))
        upper = {name: room for name, room in rooms.items() if hash_of(name) >= middle}
        lower = {name: room for name, room in rooms.items() if name not in upper}
        for leaf, held in ((start, lower), (middle, upper)):
            leaves[leaf] = (depth, held)
            values[leaf] = _encoder.encode(_Value(FORMAT, depth, held))
    return values


def _looked_at(key: str, value: bytes) -> tuple[int, int, Collection[bytes]]:
    """Depth of a bucket, how many rooms it has, and those that are pinned; where there are none they cost nothing."""
    try:
        plain = _plain_decoder.decode(value)
    except msgspec.MsgspecError:
        pass
    else:
        if plain.format <= FORMAT:
            return plain.depth, len(plain.rooms), ()
    read = _parse(key, value)
    pins = [name for name, room in read.rooms.items() if isinstance(room, Room) and room.is_pinned]
    return read.depth, len(read.rooms), pins


def _end(start: int, depth: int) -> int:
    """The first hash behind a bucket."""
    return start + (1 << (HASH_BITS - depth))


def _hub(room: int | Room) -> int:
    return room.hub if isinstance(room, Room) else room


def _place(room: int | Room) -> tuple[int, bool]:
    return _hub(room), isinstance(room, Room) and room.is_pinned


def _parse(key: str, value: bytes) -> _Value:
    try:
        head = _head_decoder.decode(value)
        if head.format > FORMAT:
            raise RecordFormatError(value=f"{key} has format {head.format}, this version reads {FORMAT}")
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise RecordDamagedError(value=f"{key}: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Value)
_plain_decoder = msgspec.msgpack.Decoder(_Plain)
_head_decoder = msgspec.msgpack.Decoder(_Head)
