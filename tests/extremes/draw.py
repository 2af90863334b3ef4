"""What a sequence is drawn from: lengths at and around the limits, names that meet again, numbers at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

NAME_BYTES_MAX = 65_535

LENGTHS = sorted(
    {
        length
        for edge in (1, 64, 128, 256, 1_024, 4_096, 16_384, 32_768)
        for length in (edge - 1, edge, edge + 1)
    }
    | {2, 23, 36}
    # A row of the node's own has a name of these and of a prefix of some bytes.
    | set(range(NAME_BYTES_MAX - 40, NAME_BYTES_MAX + 2))
)
"""In bytes. Whoever draws one says up to which limit; one above it is drawn, too."""

NUMBERS = sorted(
    {
        sign * (1 << bits) + by
        for bits in (0, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64)
        for by in (-1, 0, 1)
        for sign in (1, -1)
    }
)

BEGINS = (
    "chat:",
    "log:",
    "busy:",
    "log:a/",
    "a/",
    "",
    "{tag}",
    "chat:{x",
    "log:\x7f",
    "irc:é",
    "$share",
    "%2F",
)
"""Of names: one of each class, of a topic of MQTT, of a hash tag, and odd ones."""


class Draw:
    """Draws of one sequence.

    Args:
        seed: The same draws follow from the same one.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._names: list[str] = []

    def chance(self, part: float) -> bool:
        """True so often, of 1."""
        return self.random.random() < part

    def one(self, of: Sequence[T]) -> T:
        """One of these."""
        return self.random.choice(of)

    def length(self, most: int) -> int:
        """Bytes, often at an end; in one of eight draws above the limit."""
        if self.chance(0.12):
            return most + 1
        if self.chance(0.3):
            return most - self.random.randrange(min(most, 3) + 1)
        return self.one([length for length in LENGTHS if length <= most])

    def text(self, most: int, letter: str = "x") -> str:
        """One letter, repeated: often a few times, or up to a limit of so many bytes."""
        size = self.random.randrange(min(most, 40) + 1) if self.chance(0.5) else self.length(most)
        return letter * (size // len(letter.encode()))

    def name(self) -> str:
        """A topic, a room or a client id: often one that was drawn before, often a short one."""
        if self._names and self.chance(0.7):
            return self.one(self._names)
        begin = self.one(BEGINS)
        size = self.random.randrange(1, 12) if self.chance(0.4) else self.length(NAME_BYTES_MAX)
        name = begin + self.one("abcd").ljust(max(size - len(begin.encode()), 1), self.one("xyz"))
        name = name.encode()[:size].decode(errors="ignore") if size else ""
        self._names = [*self._names, name][-40:]
        return name

    def number(self) -> int:
        """Of 65 bits with its sign, at the ends of what numbers are kept in; or a small one."""
        return self.random.randrange(100) if self.chance(0.4) else self.one(NUMBERS)

    def payload(self, most: int = 1 << 16) -> bytes:
        """Of one byte, repeated."""
        size = self.random.randrange(100) if self.chance(0.5) else self.length(most)
        return bytes([self.random.randrange(256)]) * size
