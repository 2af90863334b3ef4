"""Types of the client's results: positions, records, gaps."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from hubsub.errors import ClientError


class Position(NamedTuple):
    """Position of a record: epoch and seq of its room. Epochs compare for equality only."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Reads `EPOCH-SEQ`.

        >>> Position.parse("7-42")
        Position(epoch=7, seq=42)

        Raises:
            ClientError: the text has another form.
        """
        plain = text.decode("ascii", "replace") if isinstance(text, bytes) else text
        epoch, dash, seq = plain.partition("-")
        if not (dash and epoch.isascii() and seq.isascii() and epoch.isdigit() and seq.isdigit()):
            raise ClientError(
                "a position has the form EPOCH-SEQ", plain, "take it from a record or from history"
            )
        return cls(int(epoch), int(seq))


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that this subscription has missed, or may have."""

    topic: bytes
    """The topic, or the pattern, that it concerns."""
    first: Position | None
    """First missing record; None if unknown."""
    last: Position | None
    """Last missing record; None if unknown. With `first` alone, the gap ends before the next record."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was delivered, or read from history."""

    topic: bytes
    payload: bytes
    position: Position | None = None
    """None if the server gives none (plain Redis)."""
    pattern: bytes | None = None
    """The pattern that matched, if any."""
    timestamp_ms: int | None = None
    """Unix time; from history only."""
    publisher: str | None = None
    """Name of the publisher; from history only."""
    gap: Gap | None = None
    """Gap right before this record."""


@dataclass(frozen=True, slots=True)
class History:
    """A range of a room's history, oldest first."""

    records: tuple[Record, ...]
    recovered: bool
    """False: `after` belongs to another epoch of the room, and `records` is empty."""


class Member(NamedTuple):
    """A node that serves a room."""

    node: str
    address: str
