"""What the client hands out: positions, records, gaps."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from hubsub.errors import ClientError


class Position(NamedTuple):
    """Place of a record: epoch and seq of its room. Epochs compare for equality only."""

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
    """First missing record; None where the server cannot tell."""
    last: Position | None
    """Last missing record; None where the server cannot tell. With `first` alone, the next record ends it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was delivered, or read from history."""

    topic: bytes
    payload: bytes
    position: Position | None = None
    """None where the server gives none (plain Redis)."""
    pattern: bytes | None = None
    """The pattern that it came by, if by one."""
    timestamp_ms: int | None = None
    """Unix time; from history only."""
    publisher: str | None = None
    """Who published it; from history only."""
    gap: Gap | None = None
    """What was missed right before this record."""


@dataclass(frozen=True, slots=True)
class History:
    """A stretch of a room's history, oldest first."""

    records: tuple[Record, ...]
    recovered: bool
    """False: `after` is a position of another life of the room, and `records` is empty."""


class Member(NamedTuple):
    """A node that holds a room."""

    node: str
    address: str
