"""Ranges of logs in partitions: each offset once, balanced, few."""

from hypothesis import given
from hypothesis import strategies as st

from hubsub.pipeline.packing import BYTES_MAX, BYTES_MIN, SNAP, Range, pack


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    found = []
    for hub in range(draw(st.integers(0, 40))):
        first, rows = draw(st.integers(1, 10**9)), draw(st.integers(0, 10**6))
        size = rows * draw(st.integers(0, 10_000))
        found.append(Range(hub=hub, first=first, end=first + rows, bytes=size))
    return found


@given(ranges(), st.integers(1, 64), st.none() | st.integers(1, 200))
def test_each_offset_is_in_exactly_one_partition(
    found: list[Range], cores: int, min_partitions: int | None
) -> None:
    pieces: dict[int, list[Range]] = {}
    for part in pack(found, cores, min_partitions):
        assert part, "a partition without work"
        for piece in part:
            assert piece.first < piece.end
            pieces.setdefault(piece.hub, []).append(piece)
    for range_ in found:
        mine = pieces.pop(range_.hub, [])
        edges = [range_.first, *(piece.end for piece in mine)] if range_.rows else []
        assert [piece.first for piece in mine] == edges[:-1]  # In order and without a gap.
        assert not mine or mine[-1].end == range_.end
        assert sum(piece.bytes for piece in mine) == (range_.bytes if range_.rows else 0)
    assert not pieces


@given(ranges(), st.integers(1, 64), st.none() | st.integers(1, 200))
def test_no_partition_is_much_heavier_than_its_share(
    found: list[Range], cores: int, min_partitions: int | None
) -> None:
    total = sum(r.weight for r in found)
    rows = sum(r.rows for r in found)
    wanted = max(-(-total // BYTES_MAX), min(cores, -(-total // BYTES_MIN)), min_partitions or 1)
    parts = pack(found, cores, min_partitions)
    if not parts:
        return
    share = total / max(1, min(wanted, rows))
    row = max(r.weight / r.rows for r in found if r.rows)
    heaviest = max(sum(piece.weight for piece in part) for part in parts)
    # Bytes of a piece are rounded down, and a piece weighs at least as much as its rows.
    assert heaviest <= share * (1 + 2 * SNAP) + 2 * row + len(found)


def test_little_is_one_partition_whatever_the_cores() -> None:
    small = [Range(hub=n, first=1, end=1_001, bytes=100_000) for n in range(64)]
    assert len(pack(small, cores=16)) == 1


def test_many_hubs_cost_no_more_partitions_than_cores() -> None:
    hubs = [Range(hub=n, first=1, end=100_001, bytes=16 << 20) for n in range(64)]
    parts = pack(hubs, cores=2)
    assert len(parts) == 2 and sorted(len(part) for part in parts) == [32, 32]


def test_one_large_hub_is_cut_by_offsets() -> None:
    parts = pack([Range(hub=1, first=1, end=4_000_001, bytes=800 << 20)], cores=4)
    assert [(part[0].first, part[0].end) for part in parts] == [
        (1, 1_000_001),
        (1_000_001, 2_000_001),
        (2_000_001, 3_000_001),
        (3_000_001, 4_000_001),
    ]


def test_what_a_task_reads_again_is_bounded() -> None:
    assert len(pack([Range(hub=1, first=1, end=10**8, bytes=10 << 30)], cores=2)) == 10


def test_more_partitions_can_be_asked_for_than_make_sense_but_not_than_there_are_rows() -> None:
    tiny = [Range(hub=1, first=1, end=6, bytes=50)]
    assert len(pack(tiny, cores=4, min_partitions=3)) == 3
    assert len(pack(tiny, cores=4, min_partitions=100)) == 5


def test_nothing_is_no_partition() -> None:
    assert pack([], 4) == [] and pack([Range(hub=1, first=5, end=5, bytes=0)], 4, 7) == []
