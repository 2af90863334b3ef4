"""Values of buckets of room records, and their sizes.

Value, MessagePack: `[format, depth, {name: room}]`, names as bytes. A room is the number of its hub, or
`[hub, is_pinned, [[hub, first seq, last seq], …]]` if it has more state: pieces of its history that stay
where they were written. In memory a bucket is the value as it was read, and a look-up unpacks one (5 µs): a
million rooms with names of 18 bytes take 24 MB, in 16,384 buckets. MessagePack was chosen because it takes
bytes as keys and escapes nothing.

A small bucket is cheap to write and a large one cheap to list: with 2 KiB a single new room writes 1.5 KiB on
average, and each room of a batch of a thousand not much less, because they are spread. With 8 KiB, stores had
twice the files and memory for 120,000 rooms, and a million rooms are 17 pages to list instead of 5.
"""

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from hubsub.errors import RecordDamagedError, RecordFormatError

FORMAT: Final = 1
"""Format of a bucket's value."""

SPLIT_BYTES = 2 << 10
"""A bucket that is longer is split when it is written."""

PIECES_MAX = 512
"""Maximum number of pieces of one room's history."""

LEAVES_MAX = 32
"""Maximum number of buckets that one becomes in one commit: key and expectation of each must fit into it."""

HASH_BITS = 32


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a room's history, in the hub where it was written; `first` and `last` are seqs, inclusive."""

    hub: int
    first: int
    last: int


class Room(msgspec.Struct, frozen=True, array_like=True):
    hub: int
    is_pinned: bool = False
    """An operator placed it there: only an operator moves it."""
    pieces: tuple[Piece, ...] = ()
    """Parts of its history in other hubs, oldest first."""


Rooms = dict[bytes, int | Room]


class Value(msgspec.Struct, frozen=True, array_like=True):
    format: int
    depth: int
    rooms: Rooms


class _Plain(msgspec.Struct, frozen=True, array_like=True):
    """A bucket whose rooms are all a hub number, as most are."""

    format: int
    depth: int
    rooms: dict[bytes, int]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The part of a value that is readable in any format."""

    format: int


def hash_of(name: bytes) -> int:
    """32-bit hash of a room's name, which selects its bucket."""
    return int.from_bytes(blake2b(name, digest_size=HASH_BITS // 8, person=b"hubsub-room").digest())


def encode_value(depth: int, rooms: Rooms) -> bytes:
    return _encoder.encode(Value(FORMAT, depth, rooms))


def split(start: int, depth: int, rooms: Rooms) -> Mapping[int, bytes]:
    """Splits a bucket until its parts are small enough, the largest part first.

    Args:
        start: First hash of the bucket, 0 to 2^32 - 1.
        depth: Bits of the hash that its rooms share, 0 to `HASH_BITS`.
        rooms: Its rooms by name.

    Returns:
        The encoded value of each part, by its start; a single one if it is small enough.
    """
    leaves = {start: (depth, rooms)}
    values = {start: encode_value(depth, rooms)}
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
            values[leaf] = encode_value(depth, held)
    return values


def summary_of(key: str, value: bytes) -> tuple[int, int, Collection[bytes]]:
    """Returns a bucket's depth, number of rooms, and pinned rooms; the fast path is for buckets without pins."""
    try:
        plain = _plain_decoder.decode(value)
    except msgspec.MsgspecError:
        pass
    else:
        if plain.format <= FORMAT:
            return plain.depth, len(plain.rooms), ()
    read = parse_value(key, value)
    pins = [name for name, room in read.rooms.items() if isinstance(room, Room) and room.is_pinned]
    return read.depth, len(read.rooms), pins


def end_of(start: int, depth: int) -> int:
    """The first hash after a bucket."""
    return start + (1 << (HASH_BITS - depth))


def hub_in(room: int | Room) -> int:
    return room.hub if isinstance(room, Room) else room


def place_in(room: int | Room) -> tuple[int, bool]:
    return hub_in(room), isinstance(room, Room) and room.is_pinned


def parse_value(key: str, value: bytes) -> Value:
    try:
        head = _head_decoder.decode(value)
        if head.format > FORMAT:
            raise RecordFormatError(value=f"{key} has format {head.format}, this version reads {FORMAT}")
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise RecordDamagedError(value=f"{key}: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Value)
_plain_decoder = msgspec.msgpack.Decoder(_Plain)
_head_decoder = msgspec.msgpack.Decoder(_Head)
