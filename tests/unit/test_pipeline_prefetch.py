"""Prefetched values are the same as without prefetching."""

import threading
from collections.abc import Generator

import pytest

from hubsub.pipeline.prefetch import prefetched


def test_values_come_in_order_and_what_fails_behind_them() -> None:
    def source() -> Generator[int, None, None]:
        yield from range(100)
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        for value in prefetched(source()):
            found.append(value)
    assert found == list(range(100))
    assert list(prefetched(value for value in range(3))) == [0, 1, 2]


def test_a_bounded_number_is_made_before_it_is_wanted() -> None:
    made, three = [], threading.Event()

    def source() -> Generator[int, None, None]:
        for value in range(100):
            made.append(value)
            if value == 3:
                three.set()
            yield value

    values = prefetched(source(), count=2)
    assert next(values) == 0
    assert three.wait(10)  # Two values wait, and one is being made.
    assert next(values) == 1 and len(made) <= 5


def test_a_source_that_is_not_wanted_any_more_is_closed() -> None:
    closed = threading.Event()

    def source() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    values = prefetched(source(), count=1)
    assert next(values) == 1
    values.close()  # type: ignore[attr-defined]
    assert closed.wait(10)
