"""The records of an archive that a replay publishes together, and their order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.pipeline.replay import Bounds, between, counts, outgoing, replayable, spans
from hubsub.pipeline.replay.plan import Bucket
from pipeline.frames import START, Row, chat, frame, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US = int(START.timestamp() * 1_000_000)


def log() -> list[Row]:
    """Records in bursts; rooms get a smaller epoch after the first 100 records."""
    dice = random.Random(1)
    times = [START]
    for _ in range(299):
        times.append(times[-1] + timedelta(seconds=dice.choice([0, 0.01, 3])))
    return records(chat(300), times=lambda n: times[n], epochs=lambda room, n: 9 if n < 100 else 4)


def at_us(row: Row) -> int:
    since: timedelta = row["timestamp"] - START
    return since // timedelta(microseconds=1) + START_US


BUCKETS = st.dictionaries(st.integers(0, 50), st.integers(1, 9)).map(
    lambda found: [(at * 10, rows, rows * 7) for at, rows in found.items()]
)
BOUNDS = st.builds(
    Bounds,
    rows=st.integers(1, 20),
    bytes=st.integers(1, 100),
    grid=st.none() | st.tuples(st.integers(0, 30), st.integers(10, 100)),
)


@given(BUCKETS, BOUNDS)
def test_spans_are_the_whole_in_order_within_bounds(buckets: list[Bucket], bounds: Bounds) -> None:
    found = spans(buckets, 10, bounds)
    assert [span.begin_us for span in found] == sorted(span.begin_us for span in found)
    held = [[b for b in buckets if span.begin_us <= b[0] < span.end_us] for span in found]
    assert sorted(bucket for some in held for bucket in some) == sorted(buckets)
    for span, some in zip(found, held, strict=True):
        assert (span.rows, span.bytes) == (sum(b[1] for b in some), sum(b[2] for b in some))
        assert len(some) == 1 or (span.rows <= bounds.rows and span.bytes <= bounds.bytes)
        if bounds.grid is not None:
            moment, length = bounds.grid
            assert len({(b[0] - moment) // length for b in some}) == 1


@pytest.mark.parametrize("step_us", [1_000_000, 1_000, 1])
def test_counts_are_those_of_each_step(spark: SparkSession, step_us: int) -> None:
    rows = log()
    expected: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        begin = at_us(row) // step_us * step_us
        count, size = expected[begin]
        expected[begin] = count + 1, size + len(row["payload"]) + len(row["topic"].encode())
    got = counts(frame(spark, rows), step_us).collect()
    assert {row.begin_us: (row.rows, row.bytes) for row in got} == expected and len(got) == len(expected)


def test_slices_are_the_whole_and_keep_each_room_in_its_order(spark: SparkSession) -> None:
    rows = log()
    shuffled = frame(spark, random.Random(1).sample(rows, len(rows))).repartition(5)
    made = outgoing(shuffled, "again/").cache()
    steps = [(row.begin_us, row.rows, row.bytes) for row in counts(made, 1_000).collect()]
    found = spans(steps, 1_000, Bounds(rows=40, bytes=1 << 30))
    assert len(found) > 5
    got: dict[str, list[bytes]] = defaultdict(list)
    for span in found:
        piece = between(made, span.begin_us, span.end_us).collect()
        assert len(piece) == span.rows
        for row in piece:
            got[row.topic].append(bytes(row.payload))
    expected: dict[str, list[bytes]] = defaultdict(list)
    for row in rows:
        expected[f"again/{row['topic']}"].append(row["payload"])
    assert got == expected


def test_a_room_is_in_one_partition_in_its_order(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    rows = log()
    setting = "spark.sql.shuffle.partitions"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "4")
    try:
        made = outgoing(frame(spark, rows).repartition(3)).cache()
        found = made.select(sf.spark_partition_id().alias("part"), "topic", "timestamp").collect()
    finally:
        spark.conf.set(setting, before or "1")
    parts = defaultdict(set)
    for row in found:
        parts[row.topic].add(row.part)
    assert all(len(some) == 1 for some in parts.values())
    assert len(set.union(*parts.values())) > 1


def test_a_record_goes_out_as_it_was_with_its_first_place_in_headers(spark: SparkSession) -> None:
    (row,) = records([b"x"], epochs=lambda room, n: 7, topic="a/b", publisher="p", headers={"k": "v"})
    (out,) = outgoing(frame(spark, [row])).drop("timestamp").collect()
    origin = {"hubsub-position": "7-1", "hubsub-timestamp-us": str(START_US)}
    assert out.asDict() == {
        "topic": "a/b",
        "payload": bytearray(b"x"),
        "publisher": "p",
        "headers": {"k": "v"} | origin,
    }
    (plain,) = outgoing(frame(spark, [row]), origin=False).collect()
    assert plain.headers == {"k": "v"}
    (again,) = outgoing(frame(spark, [row | {"headers": out.headers, "seq": 99}])).collect()
    assert again.headers == out.headers
    (bare,) = outgoing(frame(spark, [row | {"headers": None, "publisher": None}])).collect()
    assert (bare.publisher, bare.headers) == ("", origin)


OWN = ["$stats/load", "$", "{$x}:a", "a{$x}"]
OTHERS = ["a$", "a/$b", "{a}:$", "{}$x}", "{$x", "a{b}{$x}", "ü"]


def test_records_of_the_nodes_own_rooms_and_without_a_place_in_time_are_left_out(spark: SparkSession) -> None:
    (row,) = records([b"x"])
    rows = [row | {"topic": topic} for topic in OWN + OTHERS]
    rows += [row | {name: None} for name in ("timestamp", "room", "topic", "payload")]
    found = Counter(row.topic for row in replayable(frame(spark, rows)).collect())
    assert found == Counter(OTHERS)
