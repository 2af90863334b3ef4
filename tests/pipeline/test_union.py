"""The union read: the archive and later live records, each record once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hubsub.errors import OptionError, OtherLogError
from hubsub.pipeline.archive import Archive
from hubsub.pipeline.union import history
from pipeline.fake_log import IDENTITY, FakeLog, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def positions(frame: DataFrame) -> Counter[tuple[int, int]]:
    return Counter((row.hub, row.offset) for row in frame.select("hub", "offset").collect())


def expected(*ends: int) -> Counter[tuple[int, int]]:
    return Counter((hub, offset) for hub, end in enumerate(ends, 1) for offset in range(1, end))


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_the_archive_and_the_live_log_are_all_records_once(
    spark: SparkSession, read: Any, fake: FakeLog, tmp_path: Path, table_format: str
) -> None:
    archive = Archive(str(tmp_path / "a"), table_format, log=IDENTITY)
    archive(read(endingOffsets='{"1": 2000, "2": 1}'), 0)
    assert archive.offsets() == {1: 2000}
    both = history(spark, str(tmp_path / "a"), fake.address, table_format)
    assert both.columns == read().columns
    assert positions(both) == expected(5_001, 3_001)


def test_without_an_archive_it_is_the_live_log(spark: SparkSession, fake: FakeLog, tmp_path: Path) -> None:
    assert positions(history(spark, str(tmp_path / "none"), fake.address)) == expected(5_001, 3_001)


def test_a_commit_after_the_frame_was_made_doubles_nothing(
    spark: SparkSession, read: Any, fake: FakeLog, tmp_path: Path
) -> None:
    archive = Archive(str(tmp_path / "a"), log=IDENTITY)
    archive(read(endingOffsets='{"1": 2000, "2": 1000}'), 0)
    both = history(spark, str(tmp_path / "a"), fake.address)
    archive(read(startingOffsets='{"1": 2000, "2": 1000}'), 1)
    assert positions(both) == expected(5_001, 3_001)


def test_a_hub_that_is_gone_from_the_servers_is_read_from_the_archive(
    spark: SparkSession, read: Any, tmp_path: Path
) -> None:
    archive = Archive(str(tmp_path / "a"), log=IDENTITY)
    archive(read(), 0)
    with FakeLog({1: rows(1, 1, 6_001, ("lobby", "chat:a"))}) as later:
        assert positions(history(spark, str(tmp_path / "a"), later.address)) == expected(6_001, 3_001)


def test_an_archive_of_another_log_is_refused(
    spark: SparkSession, read: Any, fake: FakeLog, tmp_path: Path
) -> None:
    Archive(str(tmp_path / "a"), log="another")(read(), 0)
    with pytest.raises(OtherLogError, match=f"another, the servers have {IDENTITY}"):
        history(spark, str(tmp_path / "a"), fake.address)
    with pytest.raises(OtherLogError):
        Archive(str(tmp_path / "a"), log=IDENTITY)(read(), 1)


def test_options_that_choose_records_are_refused(spark: SparkSession, fake: FakeLog, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="chooses records: subscribe"):
        history(spark, str(tmp_path / "a"), fake.address, subscribe="lobby")
