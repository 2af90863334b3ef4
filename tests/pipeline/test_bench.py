"""The benchmark's Spark reads on a small log: every reader yields the same, complete rows."""

from pathlib import Path
from typing import Any

import pytest

from hubsub_bench.spark.asks import Asks
from pipeline.fake_log import FakeLog

ROWS = 8_000


@pytest.fixture
def asks(spark: Any, tmp_path: Path) -> Asks:
    return Asks(spark, tmp_path)


def test_a_file_and_tuples_give_the_rows_of_the_log(asks: Asks, fake: FakeLog, tmp_path: Path) -> None:
    log, path = {"servers": fake.address}, str(tmp_path / "rows.arrow")
    assert asks.copy(log, path) == {"rows": ROWS}
    expected = asks.check("hubsub", log)
    assert expected["rows"] == ROWS and expected["bytes"] > 0
    assert asks.check("bench_ipc", {"path": path, "parts": "2"}) == expected
    assert asks.check("bench_tuples", {"path": path, "parts": "2", "rows": "501"})["rows"] == 501


def test_a_batch_is_timed_and_its_tasks_are_counted(asks: Asks, fake: FakeLog) -> None:
    assert asks.batch("hubsub", {"servers": fake.address})["tasks"] == 1
    answer = asks.batch("hubsub", {"servers": fake.address, "minPartitions": "3"})
    assert answer["tasks"] == 3 and answer["seconds"] > 0


@pytest.mark.parametrize("available_now", [True, False])
def test_a_stream_ends_when_all_rows_are_through(asks: Asks, fake: FakeLog, available_now: bool) -> None:
    options = {"servers": fake.address, "maxRowsPerBatch": "4000"}
    answer = asks.stream(options, ROWS, available_now)
    assert answer["rows"] == ROWS and [batch["rows"] for batch in answer["batches"]] == [4_000, 4_000]
    assert answer["tasks"] == 2


def test_the_archive_has_each_row_once(asks: Asks, fake: FakeLog) -> None:
    assert asks.archive({}, fake.address, "parquet")["rows"] == ROWS


def test_a_stream_notes_when_it_saw_the_records_of_a_window(asks: Asks, fake: FakeLog) -> None:
    asks.fresh_start({"servers": fake.address, "startingOffsets": "earliest"})
    assert asks._fresh is not None
    asks._fresh._query.processAllAvailable()
    answer = asks.fresh_stop(0, 2**62)
    assert answer["rows"] == ROWS and answer["batches"] == 1 and answer["p50"] <= answer["max"]
