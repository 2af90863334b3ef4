"""The archive: each record once, whenever it is killed. One suite covers all formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hubsub.errors import ArchiveDamagedError, ArchiveMismatchError, OptionError
from hubsub.pipeline.archive import Archive, compact, open_table, read, sweep
from hubsub.pipeline.archive.manifest import WHOLE_EVERY
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.archive.table import DataFile
from pipeline.frames import START, Row, chat, frame, pieces, records, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ["parquet", "delta"]


class Killed(Exception):
    """Simulates the driver's end."""


def log(count: int = 240) -> list[Row]:
    """Records over two days."""
    rows = records(chat(count), times=lambda n: START + timedelta(minutes=5 * n))
    rows[0] |= {"headers": {"a": "b", "c": "ü"}, "device": "d1", "publisher": None, "payload": b"\x00\xff"}
    return rows


def key(row: Any) -> tuple[int, int]:
    return row["hub"], row["offset"]


def archived(spark: SparkSession, target: Path, table_format: str) -> list[Any]:
    return sorted(read(spark, open_table(str(target), table_format)).collect(), key=key)


def offsets_of(rows: list[Row]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for row in rows:
        ends[row["hub"]] = max(ends.get(row["hub"], 0), row["offset"] + 1)
    return ends


def run(source: DataFrame, archive: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Runs the stream until it has read everything available; raises the error that ended it."""
    query = (
        source.writeStream.foreachBatch(archive)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "an archive"


def test_a_stream_is_archived_whole_with_its_offsets(
    spark: SparkSession, tmp_path: Path, target: Path, table_format: str
) -> None:
    rows = log()
    archive = Archive(str(target), table_format)
    assert archive.offsets() == {}
    run(stream(spark, pieces(rows, 3), tmp_path / "in"), archive, tmp_path / "checkpoint")
    got = archived(spark, target, table_format)
    expected = sorted(frame(spark, rows).collect(), key=key)
    assert [row[:-1] for row in got] == [tuple(row) for row in expected]
    assert {str(row["date"]) for row in got} == {"2026-03-01", "2026-03-02"}
    assert archive.offsets() == offsets_of(rows)
    assert sum(file.rows for file in open_table(str(target), table_format).contents()[1]) == len(rows)


@pytest.mark.parametrize(("point", "batch"), [("written", 0), ("committed", 1)])
def test_killed_around_the_commit_each_record_is_there_once(
    spark: SparkSession, tmp_path: Path, target: Path, table_format: str, point: str, batch: int
) -> None:
    rows = log(120)
    passed: list[str] = []

    def at(here: str) -> None:
        passed.append(here)
        if passed.count(point) == batch + 1 and here == point:
            raise Killed(here)

    source = stream(spark, pieces(rows, 3), tmp_path / "in")
    with pytest.raises(Exception, match="Killed"):
        run(source, Archive(str(target), table_format, at=at), tmp_path / "checkpoint")
    # A reader between the two runs also sees complete batches only.
    done = batch + (point == "committed")
    assert len(open_table(str(target), table_format).state().batches) == min(done, 1)
    run(source, Archive(str(target), table_format), tmp_path / "checkpoint")
    assert [key(row) for row in archived(spark, target, table_format)] == sorted(map(key, rows))
    assert Archive(str(target), table_format).offsets() == offsets_of(rows)


def test_killed_half_way_through_its_tasks_each_record_is_there_once(
    spark: SparkSession, tmp_path: Path, target: Path, table_format: str
) -> None:
    rows = log(120)
    mended = tmp_path / "mended"  # Until this file exists, each attempt fails.
    last = key(max(rows, key=key))

    def fails_late(batches: Any) -> Any:
        for batch in batches:
            found = last in zip(*(batch.column(name).to_pylist() for name in ("hub", "offset")), strict=True)
            # By then the other task has written its files, and this one all but its last records.
            yield batch.slice(0, batch.num_rows // 2)
            if found and not mended.exists():
                raise RuntimeError("killed half-way")
            yield batch.slice(batch.num_rows // 2)

    source = stream(spark, pieces(rows, 2), tmp_path / "in")

    def broken(batch: DataFrame, number: int) -> None:
        halves = batch.repartitionByRange(2, "hub", "offset")
        Archive(str(target), table_format)(halves.mapInArrow(fails_late, batch.schema), number)

    with pytest.raises(Exception, match="killed half-way"):
        run(source, broken, tmp_path / "checkpoint")
    mended.touch()
    run(source, broken, tmp_path / "checkpoint")
    assert [key(row) for row in archived(spark, target, table_format)] == sorted(map(key, rows))


def test_files_of_a_killed_batch_are_not_read_and_are_swept(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    rows = log(60)

    def die(point: str) -> None:
        raise Killed(point)

    with pytest.raises(Killed):
        Archive(str(target), table_format, at=die)(frame(spark, rows), 0)
    left = len(list(target.rglob("part-*.parquet")))
    assert left > 0
    assert archived(spark, target, table_format) == []
    Archive(str(target), table_format)(frame(spark, rows), 0)
    table = open_table(str(target), table_format)
    assert sweep(table) == 0, "what is young may be a batch that is being written"
    assert sweep(table, older_than_s=0) == left
    assert [key(row) for row in archived(spark, target, table_format)] == sorted(map(key, rows))


def test_a_checkpoint_that_is_not_the_archives_is_refused_and_nothing_is_written(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    rows = log(90)
    archive = Archive(str(target), table_format)
    archive(frame(spark, rows[:30]), 0)
    archive(frame(spark, rows[30:60]), 1)
    with pytest.raises(ArchiveMismatchError, match="other records under this batch's number"):
        archive(frame(spark, rows[30:61]), 1)
    with pytest.raises(ArchiveMismatchError, match="later batch"):
        archive(frame(spark, rows[:30]), 0)
    with pytest.raises(ArchiveMismatchError, match="archived already"):
        Archive(str(target), table_format, application="another")(frame(spark, rows[:30]), 0)
    Archive(str(target), table_format, application="another")(frame(spark, rows[60:]), 0)
    assert [key(row) for row in archived(spark, target, table_format)] == sorted(map(key, rows))
    assert archive.offsets() == offsets_of(rows)


def test_an_empty_batch_changes_nothing(spark: SparkSession, target: Path, table_format: str) -> None:
    archive = Archive(str(target), table_format)
    archive(frame(spark, []), 0)
    assert archive.offsets() == {}
    assert archived(spark, target, table_format) == []


def test_compaction_keeps_records_offsets_and_the_numbers_of_batches(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    rows = log(200)
    archive = Archive(str(target), table_format)
    batches = list(pieces(rows, 6))
    for number, batch in enumerate(batches):
        archive(frame(spark, batch), number)
    before = archived(spark, target, table_format)
    table = open_table(str(target), table_format)
    state = table.state()
    done = compact(spark, table, files_min=2)
    assert [(date, new) for date, _, new in done] == [("2026-03-01", 1), ("2026-03-02", 1)]
    assert len(table.contents()[1]) == 2
    assert archived(spark, target, table_format) == before
    assert table.state() == state
    sweep(table, older_than_s=0)
    assert len(list(target.rglob("part-*.parquet"))) == 2
    assert archived(spark, target, table_format) == before
    archive(frame(spark, batches[-1]), 5)  # Spark runs the batch again: it is already there.
    assert archived(spark, target, table_format) == before
    assert compact(spark, table, files_min=2) == []


@pytest.mark.parametrize(
    ("table_format", "point"),
    [(name, point) for name in FORMATS for point in ("begun", "written", "committed", "sweeping")]
    + [("parquet", "half")],  # A Delta commit is one file; no step follows it.
    indirect=["table_format"],
)
def test_a_compaction_that_is_killed_leaves_the_table_of_before_or_after(
    spark: SparkSession, target: Path, table_format: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """half: between the commit and its follow-up step. sweeping: some of the old files are deleted, others
    not."""
    rows = log(120)
    for number, batch in enumerate(pieces(rows, 4)):
        Archive(str(target), table_format)(frame(spark, batch), number)
    table = open_table(str(target), table_format)
    state, before = table.state(), archived(spark, target, table_format)

    def die(here: str) -> None:
        if here == point:
            raise Killed

    with monkeypatch.context() as patch:
        create, delete = Store.create, Store.delete

        def create_some(store: Store, path: str, data: bytes) -> bool:
            if point == "half" and path.endswith(".whole.json"):
                raise Killed
            return create(store, path, data)

        def delete_some(store: Store, paths: Any) -> int:
            delete(store, list(paths)[:3])
            raise Killed

        patch.setattr(Store, "create", create_some)
        patch.setattr(Store, "delete", delete_some)
        with pytest.raises(Killed):
            compact(spark, table, files_min=2, at=die)
            sweep(table, older_than_s=0)
    assert (table.state(), archived(spark, target, table_format)) == (state, before)
    compact(spark, table, files_min=2)
    sweep(table, older_than_s=0)
    assert (table.state(), archived(spark, target, table_format)) == (state, before)
    assert len(list(target.rglob("part-*.parquet"))) == len(table.contents()[1]) <= 2
    Archive(str(target), table_format)(frame(spark, batch), 3)  # A rerun by Spark: the batch is there.
    assert archived(spark, target, table_format) == before


def test_a_job_may_archive_while_its_files_are_compacted(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    rows = log(120)
    batches = list(pieces(rows, 6))
    archive = Archive(str(target), table_format)
    for number in range(4):
        archive(frame(spark, batches[number]), number)
    table = open_table(str(target), table_format)
    compacted: list[int] = []

    def meanwhile(point: str) -> None:
        if point == "written" and not compacted:
            compacted.append(1)
            archive(frame(spark, batches[4]), 4)

    def compacts(point: str) -> None:
        if point == "written":
            compact(spark, table, files_min=2, at=meanwhile)

    Archive(str(target), table_format, at=compacts)(frame(spark, batches[5]), 5)
    assert [key(row) for row in archived(spark, target, table_format)] == sorted(map(key, rows))
    assert archive.offsets() == offsets_of(rows)
    assert len(table.contents()[1]) < 6


def test_a_frame_read_before_a_compaction_stays_good_until_the_grace_is_over(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    """The grace period counts from a file's replacement, whatever the file's age."""
    rows = log(60)
    for number, batch in enumerate(pieces(rows, 4)):
        Archive(str(target), table_format)(frame(spark, batch), number)
    table = open_table(str(target), table_format)
    for file in target.rglob("*.parquet"):
        os.utime(file, (0, 0))
    before = read(spark, table)
    compact(spark, table, files_min=2)
    assert sweep(table) == 0
    assert before.count() == 60
    old = len(list(target.rglob("part-*.parquet"))) - len(table.contents()[1])
    assert sweep(table, older_than_s=0) >= old > 0
    assert [key(row) for row in archived(spark, target, table_format)] == sorted(map(key, rows))


def test_a_compaction_that_lost_its_files_to_another_commits_nothing(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    rows = log(60)
    archive = Archive(str(target), table_format)
    archive(frame(spark, rows[:30]), 0)
    archive(frame(spark, rows[30:]), 1)
    table = open_table(str(target), table_format)
    old = table.contents()[1]
    compact(spark, table, files_min=2)
    with pytest.raises(ArchiveMismatchError, match="no part of the archive"):
        table.replace(old, [])
    assert len(archived(spark, target, table_format)) == 60


def test_a_frame_read_before_a_commit_stays_as_it_was(
    spark: SparkSession, target: Path, table_format: str
) -> None:
    rows = log(60)
    archive = Archive(str(target), table_format)
    archive(frame(spark, rows[:30]), 0)
    before = read(spark, open_table(str(target), table_format))
    archive(frame(spark, rows[30:]), 1)
    assert before.count() == 30


def test_a_frame_without_all_columns_is_refused(spark: SparkSession, target: Path) -> None:
    with pytest.raises(OptionError, match=r"some are missing: term, payload"):
        Archive(str(target))(frame(spark, log(3)).drop("term", "payload"), 0)


@pytest.mark.parametrize(
    ("target", "table_format", "says"),
    [
        ("ftp://host/x", "parquet", "scheme that is not supported"),
        ("x", "iceberg", "no such format: iceberg"),
    ],
)
def test_a_target_that_is_not_supported_is_an_error_that_says_what_is(
    target: str, table_format: str, says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        Archive(target, table_format)


# -- the manifest log --


def filled(target: Path, commits: int) -> Any:
    table = open_table(str(target))
    for n in range(commits):
        file = DataFile(f"date=2026-03-01/batch_id={n}/part-{n}.parquet", "2026-03-01", 1, 10)
        table.append("a", n, [file], {1: (n, n)})
    return table


def test_many_commits_are_read_from_the_last_whole_one_on(target: Path) -> None:
    table = filled(target, WHOLE_EVERY + 5)
    assert len(table.contents()[1]) == WHOLE_EVERY + 5
    table.sweep(older_than_s=0)
    assert len(list((target / "_manifests").iterdir())) == 7, "commits 64 to 69, and the whole of 64"
    assert len(table.contents()[1]) == WHOLE_EVERY + 5
    assert table.state().offsets == {1: WHOLE_EVERY + 5}
    table.append("a", WHOLE_EVERY + 5, [], {1: (WHOLE_EVERY + 5, WHOLE_EVERY + 5)})
    assert table.state().offsets == {1: WHOLE_EVERY + 6}


def test_the_second_of_two_commits_at_once_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(target, 2)
    late = open_table(str(target))
    known = late._last()
    table.append("a", 2, [], {1: (2, 2)})
    monkeypatch.setattr(late, "_last", lambda: known)
    with pytest.raises(ArchiveMismatchError, match="somebody else writes"):
        late.append("a", 2, [], {1: (2, 2)})
    assert not list(target.rglob("*.part"))


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"{", "cannot be read"), (b"[]", "cannot be read"), (b'{"version": 9}', "another version")],
)
def test_a_manifest_that_cannot_be_read_is_an_error_that_names_it(
    target: Path, body: bytes, says: str
) -> None:
    table = filled(target, 2)
    name = f"{2:020d}.json"
    (target / "_manifests" / name).write_bytes(body)
    for read_it in (table.contents, table.state):
        with pytest.raises(ArchiveDamagedError, match=says) as error:
            read_it()
        assert name in str(error.value)


def test_what_else_lies_in_the_directory_is_passed_over(target: Path) -> None:
    table = filled(target, 2)
    (target / "_manifests" / f"{9:020d}.json.abc.part").write_bytes(b"{")
    (target / "_manifests" / "notes.txt").write_text("hello")
    assert len(table.contents()[1]) == 2


# -- storage locations --


def test_a_place_is_named_as_spark_and_as_arrow_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store("a b%20").uri == f"file:{tmp_path}/a b%20"
    assert {Store(f"file:{start}/data/x/").uri for start in ("", "//", "//localhost")} == {"file:/data/x"}
    assert (Store("s3://b/x").uri, Store("s3a://b/x").object_uri) == ("s3a://b/x", "s3://b/x")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.create("d/one", b"1")
    assert not store.create("d/one", b"2")
    assert store.read("d/one") == b"1"
    assert store.read("d/two") is None
    with pytest.raises(Killed), store.writer("d/three") as file:
        file.write(b"3")
        raise Killed
    assert [path for path, _, _ in store.list("d")] == ["d/one"]
    assert list(store.list("nowhere")) == []
    assert store.delete(["d/one", "d/gone"]) == 2
