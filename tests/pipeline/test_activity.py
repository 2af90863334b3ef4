"""Activity of rooms and missing records, in batch and streaming, compared with pandas."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from hubsub.pipeline import events
from hubsub.pipeline.activity import activity, holes, messages, missing
from pipeline.frames import (
    START,
    Row,
    chat,
    drained,
    frame,
    pieces,
    recorded,
    records,
    same,
    stream,
    table,
    utc,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = ["room", "epoch", "window_start"]
DAY_MS = 86_400_000
DELAYS = ["delay_ms_p50", "delay_ms_p95", "delay_ms_p99"]


def read(rows: DataFrame, event_time: str | None = None) -> DataFrame:
    return events.good(events.parsed(rows, {}, event_time))


def reborn(room: str, n: int) -> int:
    """The epoch of a room at record `n`; some rooms get a new epoch in the middle."""
    return 7 if n < 250 or hash_of(room) % 3 else 8


def hash_of(room: str) -> int:
    return sum(room.encode())


def directly(
    rows: list[Row], window: str, times: str = "timestamp", late_ms: float | None = None
) -> pd.DataFrame:
    """Computes activity with pandas."""
    data = pd.DataFrame(rows)
    data["event_time"] = data["timestamp"]
    if times != "timestamp":
        data["event_time"] = [datetime.fromisoformat(json.loads(p)[times]) for p in data["payload"]]
    data["window_start"] = pd.to_datetime(data["event_time"]).dt.floor(window)
    data["delay"] = (data["timestamp"] - data["event_time"]) / timedelta(milliseconds=1)
    out = []
    for (room, epoch, start), group in data.groupby(["room", "epoch", "window_start"]):
        first, last = int(group["seq"].min()), int(group["seq"].max())
        is_told = (times != "timestamp") & (group["delay"] <= DAY_MS)
        ranks = np.sort(group["delay"][is_told].to_numpy(dtype=float))
        out.append(
            {
                "room": room,
                "epoch": epoch,
                "window_start": start.to_pydatetime(),
                "window_end": (start + pd.Timedelta(window)).to_pydatetime(),
                "messages": len(group),
                "bytes": int(group["payload"].map(len).sum()),
                "publishers": group["publisher"].nunique(),
                "first_seq": first,
                "last_seq": last,
                "missing": last - first + 1 - len(group) if times == "timestamp" else None,
            }
            | {
                name: ranks[max(0, int(np.ceil(share * len(ranks))) - 1)] if len(ranks) else None
                for name, share in zip(DELAYS, (0.5, 0.95, 0.99), strict=True)
            }
            | {"late": 0 if late_ms is None else int((group["delay"] > late_ms).sum())}
        )
    return pd.DataFrame(out, dtype=object)


def told(log: list[Row], dice_ms: int = 0) -> list[Row]:
    """The log as records whose sender times precede their timestamps by up to `dice_ms`."""
    dice = np.random.default_rng(1)
    rows = []
    for row in records(log, epochs=reborn):
        sent = row["timestamp"] - timedelta(milliseconds=int(dice.integers(dice_ms + 1)))
        rows.append(row | {"payload": json.dumps({"ts": sent.isoformat()}).encode()})
    return rows


@pytest.mark.parametrize("source", ["seeded", "recorded"])
def test_batch_equals_pandas(spark: SparkSession, repository: Path, source: str) -> None:
    log = chat(1_500) if source == "seeded" else recorded(repository, 3_000)
    rows = records(log, epochs=reborn)
    got = table(activity(read(frame(spark, rows)), "20 seconds"))
    same(got, directly(rows, "20s"), KEYS)
    assert set(got["missing"]) == {0}


def test_windows_by_the_senders_times_have_delays_and_late_ones(spark: SparkSession) -> None:
    rows = told(chat(800, rooms=4), dice_ms=5_000)
    got = table(activity(read(frame(spark, rows), "$.ts"), "20 seconds", watermark="4 seconds"))
    same(got, directly(rows, "20s", "ts", late_ms=4_000), KEYS)
    assert got["late"].sum() > 0


def test_what_is_published_long_after_has_no_delay_and_hides_none(spark: SparkSession) -> None:
    # Two of three ages exceed a day; the second room has only such records.
    ages = [timedelta(seconds=2), timedelta(days=1, microseconds=1), timedelta(days=900)]
    log = [{"room": room} for room in ("mixed", "old")]
    rows = []
    for age in ages:
        for row in records(log, times=lambda n: START + timedelta(hours=1)):
            if row["room"] == "mixed" or age > timedelta(days=1):
                sent = row["timestamp"] - age
                rows.append(row | {"payload": json.dumps({"ts": sent.isoformat()}).encode()})
    # One window for all records, so that ages mix in it.
    windows = activity(read(frame(spark, rows), "$.ts"), "36500 days", watermark="1 hour")
    found = {
        row.room: (row.delay_ms_p50, row.delay_ms_p99, row.messages, row.late) for row in windows.collect()
    }
    assert found == {"mixed": (2_000, 2_000, 3, 2), "old": (None, None, 2, 2)}


def test_streaming_equals_batch_wherever_the_batches_end(spark: SparkSession, tmp_path: Path) -> None:
    rows = records(chat(500, rooms=5), epochs=reborn)
    last = records([{"room": "elsewhere"}], times=lambda n: START + timedelta(days=1))
    source = stream(spark, [*pieces(rows, 4), last], tmp_path / "in")
    # The pieces are consecutive in time and do not overlap, so no record is late.
    got = drained(activity(read(source), "20 seconds", watermark="10 seconds"), tmp_path / "checkpoint")
    expected = directly(rows, "20s")
    same(utc(pd.DataFrame(got, columns=expected.columns, dtype=object)), expected, KEYS)


def test_a_distinct_count_of_many_is_near(spark: SparkSession) -> None:
    rows = records([{"room": "a", "user": f"user-{n}"} for n in range(5_000)], times=lambda n: START)
    (row,) = activity(read(frame(spark, rows))).collect()
    assert row.publishers == pytest.approx(5_000, rel=0.05)


def test_nulls_count_as_nothing(spark: SparkSession) -> None:
    rows = [row | {"publisher": None, "payload": None} for row in records([{"room": "a"}] * 2)]
    good = frame(spark, rows).selectExpr("*", "timestamp AS event_time")
    (row,) = activity(good).collect()
    assert (row.messages, row.bytes, row.publishers) == (2, 0, 0)
    assert activity(good.selectExpr("* EXCEPT (room)", "nullif(room, room) AS room")).count() == 0


# -- missing records --


def without(rows: list[Row], *gone: int) -> list[Row]:
    return [row for row in rows if row["seq"] not in gone]


@pytest.mark.parametrize("event_time", [None, "$.ts"])
def test_a_gap_shows_inside_a_window_and_between_windows(spark: SparkSession, event_time: str | None) -> None:
    # Five records per window: 3 is inside the first, 5 and 6 are on either side of the border, 1 and 20 are
    # at the ends.
    rows = records(
        [{"room": "a", "ts": (START + timedelta(seconds=4 * n)).isoformat()} for n in range(20)],
        times=lambda n: START + timedelta(seconds=4 * n),
    )
    windows = activity(read(frame(spark, without(rows, 3, 5, 6)), event_time), "20 seconds")
    (row,) = missing(windows).collect()
    assert (row.first_seq, row.last_seq, row.messages, row.missing) == (1, 20, 17, 3)
    got = holes(frame(spark, without(rows, 1, 3, 5, 6, 20))).orderBy("first_missing").collect()
    assert [(r.first_missing, r.last_missing) for r in got] == [(3, 3), (5, 6)]


def test_times_out_of_order_are_no_gap_and_a_new_epoch_is_none(spark: SparkSession) -> None:
    # 1 and 3 are in the first window, 2 and 4 in the second.
    sent = [0, 30, 1, 31]
    log = [{"room": "a", "ts": (START + timedelta(seconds=s)).isoformat()} for s in sent]
    rows = records(log, times=lambda n: START + timedelta(seconds=60))
    windows = activity(read(frame(spark, rows), "$.ts"), "30 seconds")
    assert {row.missing for row in windows.collect()} == {None}
    assert [row.missing for row in missing(windows).collect()] == [0]
    reborn_rows = records(log, epochs=lambda room, n: 7 + n // 2)
    assert [row.missing for row in missing(activity(read(frame(spark, reborn_rows)))).collect()] == [0, 0]
    assert holes(frame(spark, reborn_rows)).count() == 0


def test_each_row_becomes_a_message_of_its_rooms_statistics(spark: SparkSession) -> None:
    rows = records([{"room": "chat:ä", "user": "ann"}])
    windows = activity(read(frame(spark, rows)), "1 hour")
    (message,) = messages(windows).collect()
    fields: dict[str, Any] = json.loads(message.payload)
    assert message.topic == "$stats/room/chat:ä"
    assert fields["messages"] == 1
    assert datetime.fromisoformat(fields["window_start"]) == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert fields["window_start"].endswith("Z")
    assert "query" not in fields and message.headers == {}
    (named,) = messages(windows, query="by-hour").collect()
    assert json.loads(named.payload) == fields | {"query": "by-hour"}
    assert named.headers == {"hubsub-query": "by-hour"}
