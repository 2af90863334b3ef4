"""The limit on rooms with a record."""

import pytest

from hubsub.control.cluster.room_limits import (
    BYTES_LIMIT,
    CLASS_LIMIT,
    ROOM_BYTES,
    RecordLimits,
    record_limits,
)

NAMES = [b"room-%d" % n for n in range(10)]
EACH = len(NAMES[0]) + ROOM_BYTES


@pytest.mark.parametrize(
    ("there", "given"), [(0, 10), (89, 10), (90, 10), (91, 9), (99, 1), (100, 0), (120, 0)]
)
def test_a_class_has_no_more_rooms_than_its_limit(there: int, given: int) -> None:
    space = RecordLimits(class_rooms_max=100, bytes_max=1 << 20)
    assert space.fitting(NAMES, there, 0) == (given, CLASS_LIMIT if given < 10 else None)


@pytest.mark.parametrize(
    ("left", "given"), [(10 * EACH, 10), (10 * EACH - 1, 9), (EACH, 1), (EACH - 1, 0), (-1, 0)]
)
def test_records_have_no_more_bytes_than_their_limit(left: int, given: int) -> None:
    space = RecordLimits(class_rooms_max=100, bytes_max=1 << 20)
    assert space.fitting(NAMES, 0, (1 << 20) - left) == (given, BYTES_LIMIT if given < 10 else None)


def test_the_limit_that_is_reached_first_is_named() -> None:
    assert RecordLimits(3, 5 * EACH).fitting(NAMES, 0, 0) == (3, CLASS_LIMIT)
    assert RecordLimits(5, 3 * EACH).fitting(NAMES, 0, 0) == (3, BYTES_LIMIT)
    assert RecordLimits(3, 3 * EACH).fitting(NAMES[:3], 0, 0) == (3, None)
    assert RecordLimits(0, 0).fitting([], 9, 9) == (0, None)


@pytest.mark.parametrize(
    ("setting", "store", "bytes_max"),
    [(1_000, None, 1_000), (1_000, 10_000, 1_000), (9_000, 10_000, 9_000), (9_001, 10_000, 9_000)],
)
def test_a_tenth_of_a_store_that_says_what_it_takes_is_not_for_rooms(
    setting: int, store: int | None, bytes_max: int
) -> None:
    assert record_limits({CLASS_LIMIT: 7, BYTES_LIMIT: setting}, store) == RecordLimits(7, bytes_max)
