"""When archived records are due, and in which order they go out."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hubsub.errors import OptionError
from hubsub.pipeline.replay import paced, part, steady
from pipeline.frames import START, Row, chat, frame, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def log() -> list[Row]:
    """Rooms whose records came in bursts, one of them made anew."""
    dice = random.Random(1)
    times = [START]
    for _ in range(299):
        times.append(times[-1] + timedelta(seconds=dice.choice([0, 0.01, 3])))
    return records(chat(300), times=lambda n: times[n], epochs=lambda room, n: 9 if n < 100 else 4)


def due(plan: DataFrame) -> dict[tuple[str, int, int], float]:
    return {(row.room, row.epoch, row.seq): row.due_s for row in plan.collect()}


def assert_rooms_in_order(rows: list[Row], times: dict[tuple[str, int, int], float]) -> None:
    last: dict[str, float] = defaultdict(float)
    for row in rows:
        at = times[row["room"], row["epoch"], row["seq"]]
        assert at >= last[row["room"]]
        last[row["room"]] = at


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_the_pace_is_the_one_of_then_times_the_factor(spark: SparkSession, factor: float) -> None:
    rows = log()
    times = due(paced(frame(spark, random.Random(1).sample(rows, len(rows))), factor))
    for row in rows:
        expected = (row["timestamp"] - START).total_seconds() / factor
        assert times[row["room"], row["epoch"], row["seq"]] == pytest.approx(expected)
    assert_rooms_in_order(rows, times)


def test_a_steady_rate_takes_no_notice_of_pauses(spark: SparkSession) -> None:
    rows = log()
    times = due(steady(frame(spark, random.Random(1).sample(rows, len(rows))), rate=50))
    assert sorted(times.values()) == pytest.approx([n / 50 for n in range(len(rows))])
    assert_rooms_in_order(rows, times)


@pytest.mark.parametrize("plan", [paced, lambda rows: steady(rows, 10)])
def test_a_clock_that_jumped_back_does_not_swap_records(spark: SparkSession, plan: Any) -> None:
    rows = records([{"room": "a"}] * 4, times=lambda n: START + timedelta(seconds=[0, 10, 10, 20][n]))
    times = due(plan(frame(spark, rows)))
    assert_rooms_in_order(rows, times)
    assert len(times) == 4


def test_slices_are_the_whole_and_keep_each_room_in_its_order(spark: SparkSession) -> None:
    rows = log()
    plan = paced(frame(spark, rows), 4.0, slice=timedelta(seconds=20)).cache()
    last = max(row.slice for row in plan.select("slice").collect())
    got: dict[str, list[bytes]] = defaultdict(list)
    for first in range(0, last + 1, 3):
        for row in part(plan, first, first + 2).collect():
            got[row.topic].append(bytes(row.payload))
    expected: dict[str, list[bytes]] = defaultdict(list)
    for row in rows:
        expected[row["topic"]].append(row["payload"])
    assert last > 2
    assert got == expected


def test_values_that_make_no_plan_are_errors(spark: SparkSession) -> None:
    rows = frame(spark, log()[:3])
    for plan in (
        lambda: paced(rows, 0),
        lambda: paced(rows, float("nan")),
        lambda: steady(rows, -1),
        lambda: paced(rows, slice=timedelta(0)),
    ):
        with pytest.raises(OptionError):
            plan()
