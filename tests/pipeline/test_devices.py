"""The latest state of devices and the way back, compared with plain Python."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from hubsub.errors import ConfigError
from hubsub.pipeline.devices import (
    actions,
    dead_letters,
    latest,
    merged,
    named,
    readings,
    streamed,
    unaddressed,
)
from pipeline.frames import START, Row, drained, frame, pieces, records, same, stream, table, utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["device", "topic", "key", "value", "epoch", "seq", "timestamp"]
KEYS = ["device", "topic", "key"]


def said(*payloads: Any, device: str | None = "d1", topic: str = "devices/d1/state") -> list[Row]:
    """Records of one device: bytes unchanged, everything else as JSON."""
    encoded = [p if isinstance(p, bytes | None) else json.dumps(p).encode() for p in payloads]
    return records(encoded, room="devices/d1", device=device, topic=topic)


def log(count: int = 400, seed: int = 1) -> list[Row]:
    """Records of several devices, one room each; some rooms get a new, smaller epoch in the middle."""
    dice = random.Random(seed)
    events = []
    for _ in range(count):
        names = dice.sample(["temperature", "humidity", "door", "battery"], dice.randint(1, 3))
        events.append(
            {"room": f"devices/d{dice.randrange(6)}"}
            | {n: dice.choice([1, 2.5, None, "on", [1]]) for n in names}
        )
    rows = records(events, epochs=lambda room, n: 3 if n > count // 2 and room < "devices/d3" else 9)
    for row in rows:
        payload = json.loads(row["payload"])
        room = payload.pop("room")
        row["device"], row["topic"] = room.split("/")[1], f"{room}/{dice.choice(['state', 'more'])}"
        row["payload"] = json.dumps(payload).encode()
    return rows


def directly(rows: list[Row]) -> pd.DataFrame:
    """The last value of each key, in the order of the rows."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        for key, value in json.loads(row["payload"]).items():
            text = None if value is None else json.dumps(value)
            found[row["device"], row["topic"], key] = row | {"key": key, "value": text}
    return pd.DataFrame([{name: row[name] for name in COLUMNS} for row in found.values()], dtype=object)


def values(spark: SparkSession, rows: list[Row]) -> dict[str, str | None]:
    return {row.key: row.value for row in latest(readings(frame(spark, rows))).collect()}


def test_the_latest_of_each_key_stays(spark: SparkSession) -> None:
    rows = said({"a": 1, "b": "x"}, {"a": 2, "c": {"d": [1, None]}}, {"b": None}, {}, 21.5)
    assert values(spark, rows) == {"a": "2", "b": None, "c": '{"d":[1,null]}', "$": "21.5"}


def test_topics_of_one_device_do_not_overwrite_each_other(spark: SparkSession) -> None:
    rows = said({"level": 1}, topic="devices/d1/tank") + said({"level": 2}, topic="devices/d1/battery")
    out = latest(readings(frame(spark, rows))).collect()
    assert {(row.topic, row.value) for row in out} == {("devices/d1/tank", "1"), ("devices/d1/battery", "2")}


def test_batch_equals_a_direct_computation_in_any_order_and_twice(spark: SparkSession) -> None:
    rows = log()
    twice = rows + rows
    random.Random(1).shuffle(twice)
    same(table(latest(readings(frame(spark, twice)))), directly(rows), KEYS)


def test_streaming_equals_batch_and_a_replay_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = log(200)
    source = stream(spark, pieces(rows, 3), tmp_path / "in")
    got = drained(streamed(readings(source)), tmp_path / "checkpoint", "update")
    found: dict[tuple[str, ...], Row] = {}
    for row in got:
        found[tuple(row[name] for name in KEYS)] = row
    same(utc(pd.DataFrame(list(found.values()), columns=COLUMNS, dtype=object)), directly(rows), KEYS)
    again = stream(spark, [rows], tmp_path / "in")
    assert drained(streamed(readings(again)), tmp_path / "checkpoint", "update") == []


def test_merging_changes_again_or_late_gives_the_same_table(spark: SparkSession) -> None:
    rows = log()
    early, late = (latest(readings(frame(spark, part))) for part in (rows[:150], rows[150:]))
    same(table(merged(merged(late, early), late)), directly(rows), KEYS)


def test_a_room_made_anew_goes_on_though_its_epoch_is_smaller_and_its_seqs_begin_again(
    spark: SparkSession,
) -> None:
    old = [row | {"epoch": 9, "seq": row["seq"] + 100} for row in said({"a": 1})]
    new = [row | {"epoch": 3, "timestamp": START + timedelta(seconds=1)} for row in said({"a": 2})]
    assert values(spark, new + old) == {"a": "2"}


def test_within_an_epoch_the_seq_decides_though_a_clock_jumped_back(spark: SparkSession) -> None:
    rows = said({"a": 1}, {"a": 2})
    rows[1]["timestamp"] = START - timedelta(days=1)
    assert values(spark, rows) == {"a": "2"}


def test_what_cannot_be_read_is_a_dead_letter_with_its_reason(spark: SparkSession) -> None:
    rows = said(b"\xff", b"on", b"", None, {"a": 1}, {}) + said({"a": 1}, device=None) + said({}, device="")
    letters = dead_letters(frame(spark, rows))
    assert letters.columns == [*frame(spark, rows).columns, "reason"]
    reasons = ["no_device", "no_device", "no_payload", "not_json", "not_json", "not_utf8"]
    assert sorted(row.reason for row in letters.collect()) == reasons
    assert values(spark, rows) == {"a": "1"}


def test_values_keep_what_json_says_of_them(spark: SparkSession) -> None:
    payload = b'{"int": 12345678901234567, "real": 0.1, "text": "\xc3\xa9\\n", "yes": true, "deep": {"b": 1, "a": 2}}'
    got = values(spark, said(payload))
    assert {key: json.loads(value or "null") for key, value in got.items()} == json.loads(payload)


# -- actions --


def test_actions_go_to_the_topics_of_their_devices(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [("d1", "open", 3), ("d2", "shut", None)], "device string, action string, n int"
    )
    out = {row.topic: json.loads(row.payload) for row in actions(rows).collect()}
    assert out == {"devices/d1/actions": {"action": "open", "n": 3}, "devices/d2/actions": {"action": "shut"}}
    rows = spark.createDataFrame([("d1", b"\xff"), ("d2", None)], "device string, payload binary")
    got = [(row.topic, bytes(row.payload)) for row in actions(rows, "home/{device}/do").collect()]
    assert sorted(got) == [("home/d1/do", b"\xff"), ("home/d2/do", b"")]


def test_an_action_whose_device_would_be_another_topic_goes_nowhere(spark: SparkSession) -> None:
    names = ["d1", "d1/actions/x", "+", "#", "", None, "a\x00b", "ü"]
    rows = spark.createDataFrame([(name, "open") for name in names], "device string, action string")
    assert [row.topic for row in actions(rows).collect()] == ["devices/d1/actions", "devices/ü/actions"]
    assert unaddressed(rows).count() == 6
    assert {row.reason for row in unaddressed(rows).collect()} == {"no_device"}


def test_an_action_is_in_its_topic_where_that_says_so(spark: SparkSession) -> None:
    topic = "devices/{device}/actions/{action}"
    names = [("d1", "heat"), ("d1", "a/b"), ("d1", None), ("d1", "heat\n"), ("d1", ""), ("+", "heat")]
    rows = spark.createDataFrame([(*name, 21) for name in names], "device string, action string, to int")
    got = [(row.topic, json.loads(row.payload)) for row in actions(rows, topic).collect()]
    assert got == [("devices/d1/actions/heat", {"to": 21})]
    reasons = [row.reason for row in unaddressed(rows, topic).collect()]
    assert reasons == ["no_action"] * 4 + ["no_device"]
    with pytest.raises(ConfigError, match="no column `action`"):
        actions(rows.drop("action"), topic)


def test_a_topic_names_its_device_where_the_class_has_named_none(spark: SparkSession) -> None:
    topics = ["devices/a/state", "device:b:state", "device:c\n:", "devices/d/e/f", "devices//state", "$x/g"]
    rows = [row for topic in topics for row in said(1, device=None, topic=topic)]
    rows += said(1, device="known", topic="devices/a/state")

    def found(template: str) -> list[str | None]:
        return [row.device for row in named(frame(spark, rows), template).collect()]

    assert found("devices/{device}/#") == ["a", None, None, "d", None, None, "known"]
    assert found("device:{device}:*") == [None, "b", "c\n", None, None, None, "known"]
    assert found("+/{device}") == [None] * 6 + ["known"]
    with pytest.raises(ConfigError, match=r"has no \{device\}"):
        found("devices/+/#")


@pytest.mark.parametrize("topic", ["devices/actions", "devices/+/{device}", ""])
def test_an_action_topic_without_a_device_is_an_error(spark: SparkSession, topic: str) -> None:
    with pytest.raises(ConfigError, match="names no device's topic"):
        actions(spark.createDataFrame([("d1", "open")], "device string, action string"), topic)
