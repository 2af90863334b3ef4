"""JSON payloads as typed columns, and the handling of invalid payloads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hubsub.errors import ConfigError
from hubsub.pipeline import events
from hubsub.pipeline.events import Field
from pipeline.frames import START, frame, records, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reasons(spark: SparkSession, payloads: list[Any], **fields: Field) -> list[str | None]:
    out = table(events.parsed(frame(spark, records(payloads)), fields)).sort_values("seq")
    return [None if reason is None else str(reason) for reason in out["reason"]]


def test_each_bad_payload_has_its_reason(spark: SparkSession) -> None:
    cases: dict[str, tuple[bytes | None, str | None]] = {
        "good": (b'{"user": "ann"}', None),
        "good with spaces around": (b' \n{"user": "ann"}\n', None),
        "null": (None, "no_payload"),
        "empty": (b"", "not_json"),
        "broken UTF-8": (b'{"user": "\xff"}', "not_utf8"),
        "no JSON": (b"hello", "not_json"),
        "cut short": (b'{"user": "an', "not_json"),
        "two values": (b'{"user": "ann"} {"user": "bob"}', "not_json"),
        "two values with a comma": (b'{"user": "ann"}, {"user": "bob"}', "not_json"),
        "a name twice": (b'{"user": "ann", "user": "bob"}', "not_json"),
        "an array": (b'["ann"]', "missing:user"),
        "a number": (b"5", "missing:user"),
        "the value null": (b"null", "missing:user"),
        "field missing": (b"{}", "missing:user"),
        "field null": (b'{"user": null}', "missing:user"),
        "field of another type": (b'{"user": {"name": "ann"}}', "wrong_type:user"),
    }
    got = reasons(spark, [payload for payload, _ in cases.values()], user=Field("$.user"))
    assert dict(zip(cases, got, strict=True)) == {name: reason for name, (_, reason) in cases.items()}


def test_no_row_is_dropped_and_good_and_bad_are_all(spark: SparkSession) -> None:
    payloads = [{"user": "ann"}, b"hello", None, {"user": "bob"}, {}]
    rows = events.parsed(frame(spark, records(payloads)), {"user": Field("$.user")})
    assert [row.event.user for row in events.good(rows).orderBy("offset").collect()] == ["ann", "bob"]
    assert events.bad(rows).count() == 3
    assert events.bad(rows).columns == [*frame(spark, records(payloads)).columns, "reason"]


def test_a_field_that_is_not_required_is_null_where_it_is_missing_but_not_of_another_type(
    spark: SparkSession,
) -> None:
    payloads = [{}, {"n": None}, {"n": 3}, {"n": "three"}]
    field = Field("$.n", "bigint", required=False)
    assert reasons(spark, payloads, n=field) == [None, None, None, "wrong_type:n"]


def test_values_are_taken_by_their_paths_as_their_types(spark: SparkSession) -> None:
    payload = {"a": {"b c": [1, "two"]}, "x": 1.5, "y": True, "big": 2**62, "n": 7}
    fields = {
        "first": Field("$.a['b c'][0]", "bigint"),
        "second": Field("$.a['b c'][1]"),
        "x": Field("$.x", "double"),
        "y": Field("$.y", "boolean"),
        "big": Field("$.big", "bigint"),
        "n": Field("$.n"),
    }
    (row,) = events.parsed(frame(spark, records([payload])), fields).collect()
    assert row.reason is None
    assert row.event.asDict() == {"first": 1, "second": "two", "x": 1.5, "y": True, "big": 2**62, "n": "7"}


@pytest.mark.parametrize("path", ["ts", "$ts", "$.", "$.a b", "$[x]", "$.a['", ""])
def test_what_is_no_path_is_an_error_that_names_it(path: str) -> None:
    with pytest.raises(ConfigError, match="no JSON path"):
        Field(path)


def test_times_are_read_in_utc_whatever_zone_spark_has(spark: SparkSession) -> None:
    noon = datetime(2026, 3, 1, 11, 30, tzinfo=UTC)
    cases: dict[Any, datetime | str] = {
        "2026-03-01T11:30:00Z": noon,
        "2026-03-01T11:30:00": noon,
        "2026-03-01 11:30": noon,
        "2026-03-01T12:30:00+01:00": noon,
        "2026-03-01T12:30:00.000001+01:00": noon + timedelta(microseconds=1),
        "2026-03-01": noon.replace(hour=0, minute=0),
        int(noon.timestamp()): noon,
        noon.timestamp() + 0.25: noon + timedelta(milliseconds=250),
        int(noon.timestamp() * 1e3) + 1: noon + timedelta(milliseconds=1),
        int(noon.timestamp() * 1e6) + 1: noon + timedelta(microseconds=1),
        int(noon.timestamp() * 1e9) + 1_000: noon + timedelta(microseconds=1),
        0: datetime(1970, 1, 1, tzinfo=UTC),
        "yesterday": "wrong_type:event_time",
        "now": "wrong_type:event_time",
        "T11:30": "wrong_type:event_time",
        "2026-02-30T00:00:00Z": "wrong_type:event_time",
        "": "wrong_type:event_time",
        10**25: "wrong_type:event_time",
        (1,): "wrong_type:event_time",
        None: "missing:event_time",
    }
    rows = frame(spark, records([{"ts": value} for value in cases]))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        out = table(events.parsed(rows, {}, event_time="$.ts")).sort_values("seq")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    got = {
        case: time if reason is None else reason
        for case, time, reason in zip(cases, out["event_time"], out["reason"], strict=True)
    }
    assert got == cases


def test_without_a_path_the_events_time_is_the_records(spark: SparkSession) -> None:
    (row,) = table(events.parsed(frame(spark, records([b"\xff"])), {})).to_dict("records")
    assert row["event_time"] == START
    assert row["reason"] is None


def test_a_clock_that_is_ahead_is_bad_and_one_that_is_behind_is_not(spark: SparkSession) -> None:
    hour = timedelta(hours=1)
    times = [START - 1000 * hour, START + hour, START + hour + timedelta(seconds=1)]
    payloads = [{"ts": time.isoformat()} for time in times]
    rows = records(payloads, times=lambda n: START)
    out = table(events.parsed(frame(spark, rows), {}, "$.ts")).sort_values("seq")
    assert list(out["reason"]) == [None, None, "event_time_ahead"]
