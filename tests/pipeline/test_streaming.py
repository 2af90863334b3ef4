"""Streams through Spark: limits, restarts, hubs that appear and disappear, progress."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from pipeline.fake_log import FakeLog

WAIT_S = 60


class Sink:
    """Collects the rows of each batch as `(hub, offset)`."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.progress: list[Any] = []
        """Spark's progress report per batch."""

    def __call__(self, frame: Any, _: int) -> None:
        self.batches.append(sorted((row.hub, row.offset) for row in frame.select("hub", "offset").collect()))

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [row for batch in self.batches for row in batch]


def run(frame: Any, checkpoint: Path, sink: Sink | None = None) -> Sink:
    """Reads everything available, in as many batches as needed."""
    sink = sink or Sink()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    sink.progress = [json.loads(p.json) for p in query.recentProgress]
    return sink


def whole(fake: FakeLog) -> list[tuple[int, int]]:
    return [(hub, n) for hub in sorted(fake.tables) for n in range(1, fake.end(hub))]


def test_available_now_reads_all_that_is_there_in_batches_of_the_limit(
    stream: Any, fake: FakeLog, tmp_path: Path
) -> None:
    sink = run(stream(startingOffsets="earliest", maxRowsPerBatch="3000"), tmp_path)
    assert sorted(sink.rows) == whole(fake)
    assert [len(batch) for batch in sink.batches] == [3_000, 3_000, 2_000]
    assert {hub for hub, _ in sink.batches[0]} == {1, 2}  # Both hubs advance together.


def test_a_restart_goes_on_behind_the_checkpoint(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    first = run(stream(startingOffsets="earliest"), tmp_path)
    fake.append(1, 100)
    fake.append(3, 50)  # A hub that appeared meanwhile.
    second = run(stream(startingOffsets="earliest", failOnDataLoss="true"), tmp_path)
    assert second.rows == [*((1, n) for n in range(5_001, 5_101)), *((3, n) for n in range(1, 51))]
    assert sorted(first.rows + second.rows) == whole(fake)


def test_a_batch_that_failed_is_read_again_the_same(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    """Also of a hub that appeared in the failed batch, and although more records followed."""
    run(stream(startingOffsets="earliest"), tmp_path)
    fake.append(3, 50)

    def fails(frame: Any, _: int) -> None:
        frame.count()
        raise ValueError("the sink is full")

    writer = stream().writeStream.foreachBatch(fails).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(WAIT_S)
    fake.append(3, 50)
    sink = run(stream(), tmp_path)
    assert sink.batches == [[(3, n) for n in range(1, 51)], [(3, n) for n in range(51, 101)]]


def test_a_stream_begins_with_what_comes_unless_told_otherwise(
    stream: Any, fake: FakeLog, tmp_path: Path
) -> None:
    assert run(stream(), tmp_path / "latest").rows == []
    fake.append(1, 10)
    assert run(stream(), tmp_path / "latest").rows == [(1, n) for n in range(5_001, 5_011)]
    since = run(stream(startingTimestamp="1700000004999"), tmp_path / "since")
    assert since.rows == [(1, n) for n in range(4_999, 5_011)]


def test_a_broken_connection_gives_exact_rows(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    fake.faults.break_after = [1, 0, 2, 0, 1]
    assert sorted(run(stream(startingOffsets="earliest"), tmp_path).rows) == whole(fake)


def test_options_select_rooms_and_columns(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    sink = run(stream(startingOffsets="earliest", subscribe="lobby", columns="offset,hub"), tmp_path)
    assert sink.rows == [(1, n) for n in range(2, 5_001, 2)]
    assert fake.streams()[0]["columns"] == ["hub,offset"]


def test_progress_is_reported_and_lag_shown(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    sink = run(stream(startingOffsets="earliest", maxRowsPerBatch="4000", queryName="copy"), tmp_path)
    assert {query for query, _ in fake.reports} == {"copy"}
    told = [sum(body["offsets"].values()) for _, body in fake.reports]
    assert told == [2, 4_002, 8_002], "where it begins, and each batch once it is done, the last one too"
    latest = sink.progress[0]["sources"][0]["latestOffset"]
    assert latest["hubs"] == {"1": 5_001, "2": 3_001}


def test_a_query_keeps_its_name_over_restarts(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    for _ in range(2):
        run(stream(startingOffsets="earliest", maxRowsPerBatch="4000"), tmp_path)
        fake.append(1, 10_000)
    assert len({query for query, _ in fake.reports}) == 1


def test_nobody_to_report_to_fails_no_query(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    fake.faults.deaf = True
    sink = run(stream(startingOffsets="earliest", maxRowsPerBatch="3000"), tmp_path)
    assert sorted(sink.rows) == whole(fake)


def test_a_deleted_rooms_hub_is_read_to_its_end(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    run(stream(startingOffsets="earliest", subscribe="lobby"), tmp_path)
    fake.append(1, 10, rooms=("lobby",))
    listing = fake.listing
    fake.listing = lambda params: listing({**params, "subscribe": ["nobody"]} if params else params)  # type: ignore[method-assign]
    sink = run(stream(subscribe="lobby"), tmp_path)
    assert sink.rows == [(1, n) for n in range(5_001, 5_011)]


def fails_with(frame: Any, checkpoint: Path) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        run(frame, checkpoint)
    return str(raised.value)


def test_what_retention_took_before_it_was_read_fails_the_query(
    stream: Any, fake: FakeLog, tmp_path: Path
) -> None:
    run(stream(startingOffsets="earliest"), tmp_path)
    fake.append(1, 500)
    fake.earliest[1] = 5_201
    fake.tables[1] = fake.tables[1].slice(5_200)
    said = fails_with(stream(), tmp_path)
    assert "OffsetsLostError: records of hub chat-1 are gone: offsets 5001 to 5200" in said
    sink = run(stream(failOnDataLoss="false"), tmp_path)
    assert sink.rows == [(1, n) for n in range(5_201, 5_501)]


def test_a_hub_that_lost_its_end_is_read_on_from_there_if_loss_is_no_failure(
    stream: Any, fake: FakeLog, tmp_path: Path
) -> None:
    """New records then reuse offsets that the query already read from lost records."""
    run(stream(startingOffsets="earliest"), tmp_path)
    fake.tables[1] = fake.tables[1].slice(0, 4_900)
    assert "OffsetUnknownError: hub chat-1 ends before the offset to read from" in fails_with(
        stream(), tmp_path
    )
    assert run(stream(failOnDataLoss="false"), tmp_path).rows == []
    fake.append(1, 50)
    assert run(stream(failOnDataLoss="false"), tmp_path).rows == [(1, n) for n in range(4_901, 4_951)]
    fake.append(1, 100)
    assert run(stream(), tmp_path).rows == [(1, n) for n in range(4_951, 5_051)]


def test_a_hub_that_is_gone_unread_fails_the_query(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    run(stream(startingOffsets="earliest"), tmp_path)
    del fake.tables[2]
    assert "OffsetsLostError: hub 2 is gone" in fails_with(stream(), tmp_path)
    fake.append(1, 10)
    assert len(run(stream(failOnDataLoss="false"), tmp_path).rows) == 10


def test_a_checkpoint_of_another_log_is_refused(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    run(stream(startingOffsets="earliest"), tmp_path)
    fake.log = "ffff"
    assert "OtherLogError: the query's checkpoint is of another log: 00c0ffee" in fails_with(
        stream(), tmp_path
    )


def test_a_stream_has_no_end(stream: Any, tmp_path: Path) -> None:
    assert "OptionError: a stream has no end: endingOffsets" in fails_with(
        stream(endingOffsets="latest"), tmp_path
    )
