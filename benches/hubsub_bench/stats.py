"""From single runs to figures: medians, ratios of paired runs, verdicts. Pure.

Runs come in pairs, one of HubSub and one of the peer next to each other in time, so a slow change of the
machine is in both. A ratio is taken within each pair; the median over the pairs is quoted, with the smallest
and largest next to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

EQUAL_WITHIN = 0.03
"""Ratios this close to a bound count as equal to it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Required (`floor`) and desired (`goal`) value of a figure.

    Args:
        floor: None if there is none.
        goal: None if there is none.
        of: `ratio`: times the peer's speed, larger is better; `value`: the figure itself, in its unit and
            direction.
    """

    floor: float | None = None
    goal: float | None = None
    of: str = "ratio"


class Verdict(StrEnum):
    """Result of comparing a figure with its bound."""

    GOAL = "goal"
    FLOOR = "floor"
    BELOW = "below"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure of one scenario over all pairs."""

    ours: float | None
    """Median of HubSub's runs."""
    peer: float | None
    """Median of the peer's runs."""
    ratio: float | None
    """Median of the pairs' ratios, as speed: above 1 HubSub is better."""
    ratio_min: float | None
    ratio_max: float | None
    verdict: Verdict


def speed_ratio(ours: float, peer: float, lower_is_better: bool) -> float | None:
    """How many times as good as the peer; None if a zero makes no ratio.

    Args:
        ours: HubSub's figure.
        peer: The peer's figure.
        lower_is_better: Direction of the figure.
    """
    above, below = (peer, ours) if lower_is_better else (ours, peer)
    return above / below if below > 0 else None


def verdict(bound: Bound, ours: float | None, ratio: float | None, lower_is_better: bool) -> Verdict:
    """Compares a figure with its bound; within 3 % counts as reached.

    Args:
        bound: The bound.
        ours: HubSub's figure; None: not measured.
        ratio: Ratio to the peer; None: not measured.
        lower_is_better: Direction of the figure.
    """
    reached = ratio if bound.of == "ratio" else ours
    if reached is None or (bound.floor is None and bound.goal is None):
        return Verdict.NONE
    smaller = bound.of == "value" and lower_is_better
    for limit, name in ((bound.goal, Verdict.GOAL), (bound.floor, Verdict.FLOOR)):
        if limit is None:
            continue
        if reached <= limit * (1 + EQUAL_WITHIN) if smaller else reached >= limit * (1 - EQUAL_WITHIN):
            return name
    return Verdict.BELOW


def summarize(
    ours: Sequence[float | None], peer: Sequence[float | None], bound: Bound, lower_is_better: bool
) -> Summary:
    """The figure of a scenario from the runs of both servers, in order of the pairs.

    Args:
        ours: HubSub's figure in each run; None if a run gave none.
        peer: The peer's, in the same order; empty without a peer.
        bound: The bound.
        lower_is_better: Direction of the figure.
    """
    pairs = [(a, b) for a, b in zip(ours, peer, strict=False) if a is not None and b is not None]
    ratios = [r for a, b in pairs if (r := speed_ratio(a, b, lower_is_better)) is not None]
    own = _median(ours)
    ratio = _median(ratios)
    return Summary(
        ours=own,
        peer=_median(peer),
        ratio=ratio,
        ratio_min=min(ratios, default=None),
        ratio_max=max(ratios, default=None),
        verdict=verdict(bound, own, ratio, lower_is_better),
    )


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
