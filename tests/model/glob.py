"""Redis's glob over bytes, written as plainly as possible; the oracle of every faster implementation.

`*` any bytes, `?` one byte, `[ab]`, `[a-c]`, `[^ab]` one byte of a class, `\\x` the byte x. Redis's oddities:
a class or escape may lack its end, `[c-a]` means `[a-c]`, `[a-]…` is a range up to `]`, and an empty name
matches only the empty pattern, not even `*`.
"""

from __future__ import annotations

from collections.abc import Callable

Test = Callable[[int], bool]
STAR: Test | None = None


def matches(pattern: bytes, name: bytes) -> bool:
    """Whether all of `name` matches all of `pattern`."""
    if not name:
        return not pattern
    tests = _parse(pattern)
    # Indexes in `tests` that the bytes read so far can lead to.
    places = _behind_stars(tests, {0})
    for byte in name:
        step = set()
        for place in places:
            if place == len(tests):
                continue
            test = tests[place]
            if test is None:
                step.add(place)
            elif test(byte):
                step.add(place + 1)
        places = _behind_stars(tests, step)
    return len(tests) in places


def _behind_stars(tests: list[Test | None], places: set[int]) -> set[int]:
    reached = set(places)
    for place in sorted(places):
        while place < len(tests) and tests[place] is None:
            place += 1
            reached.add(place)
    return reached


def _parse(pattern: bytes) -> list[Test | None]:
    tests: list[Test | None] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            tests.append(STAR)
        elif byte == b"?":
            tests.append(lambda _: True)
        elif byte == b"[":
            test, at = _class(pattern, at + 1)
            tests.append(test)
            continue
        else:
            if byte == b"\\" and at + 1 < len(pattern):
                at += 1
            tests.append(lambda b, wanted=pattern[at]: b == wanted)  # type: ignore[misc]
        at += 1
    return tests


def _class(pattern: bytes, at: int) -> tuple[Test, int]:
    """The class whose bracket is just before `at`, and the index after it."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        left = len(pattern) - at
        if pattern[at : at + 1] == b"\\" and left >= 2:
            members.add(pattern[at + 1])
            at += 2
        elif left >= 3 and pattern[at + 1 : at + 2] == b"-":
            low, high = sorted((pattern[at], pattern[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    return (lambda byte: (byte in members) != negated), at + 1
