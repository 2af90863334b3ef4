"""The size of a micro-batch."""

from hypothesis import given
from hypothesis import strategies as st

from hubsub.pipeline.admission import admit

backlogs = st.dictionaries(st.integers(0, 50), st.integers(0, 10**9), max_size=20)


@given(backlogs, st.integers(1, 10**10))
def test_a_limit_of_rows_is_used_up_and_never_passed(backlog: dict[int, int], limit: int) -> None:
    taken = admit(backlog, max_rows=limit)
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    assert taken.keys() == backlog.keys() and all(0 <= taken[hub] <= backlog[hub] for hub in backlog)


@given(backlogs, st.integers(1, 10**10))
def test_rows_are_shared_in_proportion_and_nobody_goes_without(backlog: dict[int, int], limit: int) -> None:
    total = sum(backlog.values())
    taken = admit(backlog, max_rows=limit)
    if total <= limit:
        assert taken == backlog
        return
    waiting = [hub for hub, rows in backlog.items() if rows]
    for hub in waiting:
        fair = backlog[hub] * limit / total
        assert taken[hub] >= fair - 1 - len(waiting) and taken[hub] <= max(fair + 1, 1)
        if limit >= len(waiting):
            assert taken[hub] >= 1


@given(backlogs, st.integers(1, 10**12), st.dictionaries(st.integers(0, 50), st.floats(1.0, 1e5)))
def test_a_limit_of_bytes_is_not_passed_except_by_one_record(
    backlog: dict[int, int], limit: int, sizes: dict[int, float]
) -> None:
    taken = admit(backlog, max_bytes=limit, row_bytes=sizes)
    rows = sum(taken.values())
    size = sum(rows * sizes.get(hub, 1.0) for hub, rows in taken.items())
    assert size <= limit * (1 + 1e-9) or rows == 1
    assert rows or not sum(backlog.values()), "it would never go on"


@given(backlogs, st.integers(1, 10**6), st.integers(1, 10**6))
def test_both_limits_hold_together(backlog: dict[int, int], rows: int, size: int) -> None:
    taken = admit(backlog, max_rows=rows, max_bytes=size)
    assert sum(taken.values()) <= min(rows, size)


def test_without_a_limit_all_is_taken() -> None:
    assert admit({1: 5, 2: 0}) == {1: 5, 2: 0}
