"""The benchmark's Spark reads on a small log: every reader yields the same, complete rows."""

from pathlib import Path
from typing import Any

import pytest

from hubsub_bench.spark.measurements import Measurements
from pipeline.fake_log import FakeLog

ROWS = 8_000


@pytest.fixture
def measurements(spark: Any, tmp_path: Path) -> Measurements:
    return Measurements(spark, tmp_path)


def test_a_file_and_tuples_give_the_rows_of_the_log(
    measurements: Measurements, fake: FakeLog, tmp_path: Path
) -> None:
    log, path = {"servers": fake.address}, str(tmp_path / "rows.arrow")
    assert measurements.copy(log, path) == {"rows": ROWS}
    expected = measurements.check("hubsub", log)
    assert expected["rows"] == ROWS and expected["bytes"] > 0
    assert measurements.check("bench_ipc", {"path": path, "parts": "2"}) == expected
    assert measurements.check("bench_tuples", {"path": path, "parts": "2", "rows": "501"})["rows"] == 501


def test_a_batch_is_timed_and_its_tasks_are_counted(measurements: Measurements, fake: FakeLog) -> None:
    assert measurements.batch("hubsub", {"servers": fake.address})["tasks"] == 1
    answer = measurements.batch("hubsub", {"servers": fake.address, "minPartitions": "3"})
    assert answer["tasks"] == 3 and answer["seconds"] > 0


@pytest.mark.parametrize("available_now", [True, False])
def test_a_stream_ends_when_all_rows_are_through(
    measurements: Measurements, fake: FakeLog, available_now: bool
) -> None:
    options = {"servers": fake.address, "maxRowsPerBatch": "4000"}
    answer = measurements.stream(options, ROWS, available_now)
    assert answer["rows"] == ROWS and [batch["rows"] for batch in answer["batches"]] == [4_000, 4_000]
    assert answer["tasks"] == 2


def test_the_archive_has_each_row_once(measurements: Measurements, fake: FakeLog) -> None:
    assert measurements.archive({}, fake.address, "parquet")["rows"] == ROWS


def test_a_stream_notes_when_it_saw_the_records_of_a_window(
    measurements: Measurements, fake: FakeLog
) -> None:
    measurements.fresh_start({"servers": fake.address, "startingOffsets": "earliest"})
    assert measurements._fresh is not None
    measurements._fresh._query.processAllAvailable()
    answer = measurements.fresh_stop(0, 2**62)
    assert answer["rows"] == ROWS and answer["batches"] == 1 and answer["p50"] <= answer["max"]
