"""Values for generated sequences: lengths at and around the limits, reused names, boundary numbers."""

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
    # The node's internal entries are named by a prefix of a few bytes and one of these names.
    | set(range(NAME_BYTES_MAX - 40, NAME_BYTES_MAX + 2))
)
"""Lengths in bytes. Each use has its own upper limit and also draws one length above it."""

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
"""Prefixes of names: one for each class, for MQTT topics, for hash tags, and unusual ones."""


class Draw:
    """Random values for one sequence.

    Args:
        seed: The same seed yields the same values.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._names: list[str] = []

    def chance(self, part: float) -> bool:
        """True with the probability `part`, 0 to 1."""
        return self.random.random() < part

    def one(self, of: Sequence[T]) -> T:
        """A uniformly chosen item of `of`."""
        return self.random.choice(of)

    def length(self, most: int) -> int:
        """A length in bytes of at most `most`, often at a limit; 12% of all draws are `most + 1`."""
        if self.chance(0.12):
            return most + 1
        if self.chance(0.3):
            return most - self.random.randrange(min(most, 3) + 1)
        return self.one([length for length in LENGTHS if length <= most])

    def text(self, most: int, letter: str = "x") -> str:
        """One repeated letter: half of the texts have at most 40 bytes, the others a drawn `length` of at
        most `most`."""
        size = self.random.randrange(min(most, 40) + 1) if self.chance(0.5) else self.length(most)
        return letter * (size // len(letter.encode()))

    def name(self) -> str:
        """A topic, room or client id: often a name drawn before, often a short one."""
        if self._names and self.chance(0.7):
            return self.one(self._names)
        begin = self.one(BEGINS)
        size = self.random.randrange(1, 12) if self.chance(0.4) else self.length(NAME_BYTES_MAX)
        name = begin + self.one("abcd").ljust(max(size - len(begin.encode()), 1), self.one("xyz"))
        name = name.encode()[:size].decode(errors="ignore") if size else ""
        self._names = [*self._names, name][-40:]
        return name

    def number(self) -> int:
        """A signed integer of up to 65 bits: at the bounds of the integer types, or below 100."""
        return self.random.randrange(100) if self.chance(0.4) else self.one(NUMBERS)

    def payload(self, most: int = 1 << 16) -> bytes:
        """One repeated byte: half of the payloads have less than 100 bytes, the others a drawn `length`."""
        size = self.random.randrange(100) if self.chance(0.5) else self.length(most)
        return bytes([self.random.randrange(256)]) * size
