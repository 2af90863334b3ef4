"""Medians, paired ratios and verdicts of the benchmark."""

import pytest

from hubsub_bench.stats import Bound, Verdict, speed_ratio, summarize, verdict


def test_ratio_is_above_one_when_ours_is_better_in_either_direction() -> None:
    assert speed_ratio(5.0, 10.0, lower_is_better=True) == 2.0
    assert speed_ratio(200.0, 100.0, lower_is_better=False) == 2.0


def test_a_zero_makes_no_ratio() -> None:
    assert speed_ratio(0.0, 1.0, lower_is_better=True) is None
    assert speed_ratio(1.0, 0.0, lower_is_better=False) is None


def test_ratio_is_taken_within_pairs_so_that_drift_cancels() -> None:
    # Both get slower from pair to pair; ours is twice as fast in each.
    summary = summarize([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], Bound(1.5, 2.5), lower_is_better=True)
    assert (summary.ours, summary.peer) == (2.0, 4.0)
    assert (summary.ratio, summary.ratio_min, summary.ratio_max) == (2.0, 2.0, 2.0)
    assert summary.verdict is Verdict.FLOOR


def test_an_odd_pair_does_not_move_the_median() -> None:
    summary = summarize([1.0, 1.0, 9.0], [2.0, 2.0, 2.0], Bound(), lower_is_better=True)
    assert summary.ratio == 2.0
    assert summary.ratio_min == pytest.approx(2 / 9)


def test_a_run_without_a_figure_is_left_out() -> None:
    summary = summarize([None, 1.0], [2.0, 3.0], Bound(), lower_is_better=True)
    assert (summary.ours, summary.ratio) == (1.0, 3.0)


def test_without_a_peer_there_is_no_ratio() -> None:
    summary = summarize([3.0, 1.0], [], Bound(1.0), lower_is_better=True)
    assert (summary.ours, summary.peer, summary.ratio, summary.verdict) == (2.0, None, None, Verdict.NONE)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.3, Verdict.GOAL),
        (1.25 * 0.97, Verdict.GOAL),
        (1.2, Verdict.FLOOR),
        (1.15 * 0.97, Verdict.FLOOR),
        (1.1, Verdict.BELOW),
    ],
)
def test_a_ratio_within_three_percent_counts_as_reached(ratio: float, expected: Verdict) -> None:
    assert verdict(Bound(1.15, 1.25), 1.0, ratio, lower_is_better=True) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [(450, "goal"), (463, "goal"), (600, "floor"), (900, "below")]
)
def test_a_bound_on_the_value_is_met_from_below(value: float, expected: str) -> None:
    assert verdict(Bound(700, 450, of="value"), value, None, lower_is_better=True) == expected
