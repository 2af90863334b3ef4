"""The parts of a job's run outside Spark: settings, tallies, errors, lineage, pictures."""

from __future__ import annotations

import contextlib
import io
import re
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from hubsub.errors import ArchiveMismatchError, OffsetsLostError, OptionError, PipelineError
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.reference import page
from hubsub.pipeline.run.display import Progress, _fitting
from hubsub.pipeline.run.failures import failure
from hubsub.pipeline.run.lineage import IN_CHECKPOINT, IN_RESULTS, join
from hubsub.pipeline.run.pace import Pace
from hubsub.pipeline.run.plot import COLUMNS_MAX, OTHERS, ROOMS, _name, columns, draw, series
from hubsub.pipeline.run.publishing import Publishing
from hubsub.pipeline.run.replaying import Replay
from hubsub.pipeline.run.runner import PARTITIONS, STARTS_MAX, Ending, Output, Stopped, _conf, _start
from hubsub.pipeline.run.settings import Settings, interval, span
from hubsub.pipeline.run.slices import Slice, SliceLog
from hubsub.pipeline.run.tally import Tally

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


# -- settings --


def test_a_run_needs_no_option() -> None:
    settings = Settings(job="activity")
    assert settings.source() == {"servers": "127.0.0.1:3220", "startingOffsets": "earliest"}
    assert (settings.checkpoint, settings.out) == (
        "hubsub-pipeline/activity/checkpoint",
        "hubsub-pipeline/activity/out",
    )


def test_what_is_given_to_the_source_wins() -> None:
    settings = Settings(job="archive", pattern="chat:*", options={"STARTINGOFFSETS": "latest", "token": "t"})
    expected = {"servers": "127.0.0.1:3220", "subscribePattern": "chat:*", "STARTINGOFFSETS": "latest"}
    assert settings.source() == expected | {"token": "t"}


def test_wrong_options_are_told_before_spark_starts() -> None:
    with pytest.raises(OptionError, match="unknown option: maxRows"):
        Settings(job="activity", options={"maxRows": "1"})


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10 seconds", 10_000),
        ("1 second", 1_000),
        ("500ms", 500),
        ("1.5s", 1_500),
        ("2m", 120_000),
        ("1 minute", 60_000),
        ("3 hours", 10_800_000),
        ("1d", 86_400_000),
        ("5 secs", 5_000),
    ],
)
def test_lengths_of_time_are_read(text: str, ms: int) -> None:
    assert interval(span(text)) == f"{ms} milliseconds"


@pytest.mark.parametrize("text", ["", "10", "0s", "-1s", "1 fortnight", "1m' OR '1", "s"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="no length of time"):
        span(text)


# -- progress --


def report(batch: int, start: Any, end: Any, latest: Any = None, late: int = 0) -> dict[str, Any]:
    def offset(hubs: Any) -> Any:
        return None if hubs is None else {"log": "l", "query": "q", "hubs": hubs}

    source = {"startOffset": offset(start), "endOffset": offset(end), "latestOffset": offset(latest or end)}
    return {
        "batchId": batch,
        "durationMs": {"triggerExecution": 2_000},
        "sources": [source],
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
    }


def test_records_are_counted_by_offsets_from_where_the_run_began() -> None:
    tally = Tally().plus(report(7, {"1": 101, "2": 1}, {"1": 201, "2": 1}, {"1": 301, "2": 11}))
    assert (tally.records, tally.lag, tally.total, tally.rate) == (100, 110, 210, 50.0)
    tally = tally.plus(report(8, {"1": 201, "2": 1}, {"1": 301, "2": 11, "3": 6}, late=3))
    assert (tally.batches, tally.records, tally.lag, tally.late) == (2, 215, 0, 3), "hub 3 was born"


def test_a_report_that_comes_again_changes_nothing() -> None:
    once = Tally().plus(report(0, None, {"1": 11}))
    assert once.records == 10 and once.plus(report(0, None, {"1": 11})) == once


def test_a_batch_that_reads_nothing_is_not_counted() -> None:
    tally = Tally().plus(report(0, None, {"1": 11})).plus(report(1, {"1": 11}, {"1": 11}, late=2))
    assert (tally.batches, tally.records, tally.late) == (1, 10, 2)


def test_a_pipe_gets_a_line_for_each_step_and_the_last_one() -> None:
    now, out = [0.0], io.StringIO()
    with Progress(True, out, lambda: now[0]) as progress:
        progress.show("activity", Tally())
        progress.show("activity", Tally(batches=1, records=10))
        progress.show("activity", Tally(batches=2, records=20))
        now[0] = 5.0
        progress.show("activity", Tally(batches=3, records=30, lag=5))
        progress.show("activity", Tally(batches=4, records=35), last=True)
        progress.show("activity", Tally(batches=4, records=35, last_batch=9), last=True)
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "activity: 10 records scanned in 1 batch",
        "activity: 30 records scanned in 3 batches",
        "activity: 35 records scanned in 4 batches",
    ]
    assert "5 behind" in lines[1]


# -- stops --


def test_a_signal_is_told_at_once_and_ends_what_need_not_end_with_care() -> None:
    progress_text: list[str] = []
    with Ending(progress_text.append) as ending:
        with ending.gently():
            signal.raise_signal(signal.SIGTERM)
            assert (ending.signal, progress_text) == (signal.SIGTERM, ["stopping"])
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)
    assert (ending.signal, progress_text) == (signal.SIGTERM, ["stopping"])


# -- errors --

TRACE = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted SQLSTATE: XXKST
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 3, in read
{OffsetsLostError.__module__}.OffsetsLostError: records of hub chat-0 are gone: offsets 5 to 9
hint: failOnDataLoss=false goes on with what is there

\tat org.apache.spark.api.python.BasePythonRunner"""


def test_an_error_of_ours_inside_sparks_is_itself_again() -> None:
    error = failure(RuntimeError(TRACE))
    assert isinstance(error, OffsetsLostError)
    assert str(error) == (
        "records of hub chat-0 are gone: offsets 5 to 9\nhint: failOnDataLoss=false goes on with what is there"
    )


def test_an_error_of_sparks_is_one_sentence() -> None:
    text = (
        "An error occurred while calling o1.x.\n: java.io.IOException: No space left on device\n\tat java.X"
    )
    error = failure(RuntimeError(text))
    assert type(error) is PipelineError
    assert str(error) == "Spark failed: No space left on device\nhint: --verbose shows all it says"


def test_an_error_of_a_worker_is_what_it_has_raised() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] ended: in foreachBatch: Traceback (most recent call last):\n"
        '  File "a.py", line 8, in take\n    frame.collect()\n'
        "pyspark.errors.PythonException: An exception was thrown from the Python worker:\n"
        'Traceback (most recent call last):\n  File "b.py", line 6, in write\n'
        "OSError: [Errno 28] No space left on device\n SQLSTATE: 39000\n=== Streaming Query ===\nIdentifier: 1"
    )
    assert failure(RuntimeError(text)).message == "Spark failed: [Errno 28] No space left on device"


# -- lineage --


def joined(path: Path, job: str = "activity", **options: str) -> Any:
    return join(job, str(path / "checkpoint"), str(path / "out"), options)


def result(path: Path) -> None:
    (path / "out" / "batch_id=0").mkdir(parents=True)
    (path / "out" / "batch_id=0" / "part.parquet").write_bytes(b"")


def test_a_later_run_is_the_same_query(tmp_path: Path) -> None:
    first = joined(tmp_path, window="1 m")
    result(tmp_path)
    assert joined(tmp_path, window="1 m") == first and first.query == f"activity-{first.id}"


def test_other_options_or_another_job_would_mix_two_tables(tmp_path: Path) -> None:
    joined(tmp_path, window="1 m")
    with pytest.raises(OptionError, match="another --window: 1 m, now 2 m"):
        joined(tmp_path, window="2 m")
    with pytest.raises(OptionError, match="another job: activity"):
        joined(tmp_path, "devices", window="1 m")


def test_results_of_another_checkpoint_are_not_written_over(tmp_path: Path) -> None:
    joined(tmp_path)
    result(tmp_path)
    (tmp_path / "checkpoint" / IN_CHECKPOINT).unlink()
    with pytest.raises(ArchiveMismatchError, match="of another checkpoint"):
        joined(tmp_path)


def test_a_checkpoint_without_its_results_is_refused(tmp_path: Path) -> None:
    joined(tmp_path)
    (tmp_path / "out" / IN_RESULTS).unlink()
    with pytest.raises(ArchiveMismatchError, match="results are not here"):
        joined(tmp_path)


def test_a_first_run_that_was_killed_between_the_two_goes_on(tmp_path: Path) -> None:
    first = joined(tmp_path)
    (tmp_path / "checkpoint" / IN_CHECKPOINT).unlink()
    assert joined(tmp_path).id == first.id


# -- replay --


def test_slices_go_out_when_their_time_has_come_the_first_and_late_ones_at_once() -> None:
    pace = Pace()
    assert pace.wait_s(50.0, 100.0) == 0
    assert pace.wait_s(52.0, 100.5) == 1.5
    assert pace.wait_s(53.0, 109.0) == 0


def piece(number: int) -> Slice:
    return Slice(number=number, begin_us=number * 10, end_us=number * 10 + 10, rows=5, before=number * 5)


def test_a_checkpoint_knows_what_is_out_and_what_may_be(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log = SliceLog(store)
    assert (log.done, log.planned) == (None, None)
    log.plan(piece(0))
    assert (SliceLog(store).done, SliceLog(store).planned) == (None, piece(0))
    for number in range(12):
        if number:
            log.plan(piece(number))
        log.finish(piece(number))
        assert (SliceLog(store).done, SliceLog(store).planned) == (piece(number), None)
    log.plan(piece(12))
    assert (SliceLog(store).done, SliceLog(store).planned) == (piece(11), piece(12))
    assert len([*store.list(recursive=True)]) == 2


def test_a_slice_that_is_out_is_not_planned_again_though_its_plan_is_still_there(tmp_path: Path) -> None:
    log = SliceLog(Store(str(tmp_path)))
    log.plan(piece(0))
    Store(str(tmp_path)).create("done/0", (tmp_path / "slices" / "0").read_bytes())
    assert (SliceLog(Store(str(tmp_path))).done, SliceLog(Store(str(tmp_path))).planned) == (piece(0), None)


def test_two_replays_with_one_checkpoint_are_refused(tmp_path: Path) -> None:
    one, other = SliceLog(Store(str(tmp_path))), SliceLog(Store(str(tmp_path)))
    one.plan(piece(0))
    with pytest.raises(ArchiveMismatchError, match="another replay uses this checkpoint"):
        other.plan(piece(0))


def test_a_replay_is_of_the_archive_as_it_was_at_its_begin(tmp_path: Path) -> None:
    assert SliceLog(Store(str(tmp_path))).archived({1: 10}) == {1: 10}
    assert SliceLog(Store(str(tmp_path))).archived({1: 20, 2: 5}) == {1: 10}


REPLAY = Replay(archive="a")


def test_slices_are_due_by_their_times_or_by_what_was_before() -> None:
    late = Slice(number=3, begin_us=30_000_000, end_us=31_000_000, rows=10, before=600)
    assert replace(REPLAY, factor=10).due_s(late, 10_000_000) == 2
    assert replace(REPLAY, rate=200).due_s(late, 10_000_000) == 3
    assert replace(REPLAY, rate=0).due_s(late, 10_000_000) == 0
    assert replace(REPLAY, rate=200).bounds(0).rows == 200
    assert replace(REPLAY, rate=0.1).bounds(0).rows == 1
    assert replace(REPLAY, factor=0.5).bounds(7).grid == (7, 500_000)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"factor": 0}, "--factor must be above 0: 0"),
        ({"factor": float("nan")}, "--factor must be above 0: nan"),
        ({"rate": -1}, "--rate must be 0 or more: -1"),
        ({"prefix": "$x"}, "are the node's own"),
    ],
)
def test_a_replay_that_cannot_be_is_told_at_once(change: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=re.escape(text)):
        replace(REPLAY, **change)


# -- pictures --


def test_a_window_without_messages_is_drawn_as_none() -> None:
    starts, lines = series([("a", NOON, 2), ("a", NOON + 3 * MINUTE, 1)], MINUTE)
    assert starts == [NOON + n * MINUTE for n in range(4)] and lines == {"a": [2, 0, 0, 1]}


def test_the_busiest_rooms_have_names_and_the_rest_is_one() -> None:
    points = [(f"room-{n}", NOON, n) for n in range(1, ROOMS + 4)]
    _, lines = series(points, MINUTE)
    assert list(lines) == [f"room-{n}" for n in range(ROOMS + 3, 3, -1)] + [OTHERS]
    assert lines[OTHERS] == [1 + 2 + 3] and sum(map(sum, lines.values())) == sum(n for _, _, n in points)


@pytest.mark.parametrize(("windows", "each"), [(3, 1), (COLUMNS_MAX, 1), (COLUMNS_MAX + 1, 2), (1_000, 20)])
def test_where_there_are_many_windows_a_column_is_the_mean_of_several(windows: int, each: int) -> None:
    starts, lines = series([("a", NOON + n * MINUTE, n % each) for n in range(windows)], MINUTE)
    begins, means, merged = columns(starts, lines)
    assert merged == each and begins == starts[::each] and len(begins) <= COLUMNS_MAX
    assert means["a"][0] == sum(range(each)) / each


def test_names_are_shown_as_they_are_and_no_longer_than_there_is_room() -> None:
    assert [_name(room) for room in ("chat:a", "$stats/load", "_x")] == ["chat:a", r"\$stats/load", " _x"]
    assert len(_name("x" * 100)) < 30 and _name("a" * 50 + "b" * 50).endswith("bbb")


@pytest.mark.parametrize("windows", [0, 1, 30, 500])
def test_a_picture_is_a_png_however_much_there_is(windows: int, tmp_path: Path) -> None:
    points = [(f"room-{n % 12}", NOON + n * MINUTE, n + 1) for n in range(windows)]
    draw(points, MINUTE, tmp_path / "a" / "plot.png")
    assert (tmp_path / "a" / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_reference_page_of_the_source_is_current(repository: Path) -> None:
    assert (repository / "docs" / "reference" / "spark.md").read_text() == page(), "make fix writes it"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (
            "hubsub.errors.stages.BatchGivenUpError: the batch was given up: activity, batch 0\nhint: x\n",
            True,
        ),
        ("hubsub.errors.stages.StagesFullError: stages are full\nhint: x\n", False),
    ],
)
def test_windows_of_a_batch_that_was_given_up_are_passed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: str, passes: bool
) -> None:
    frame = MagicMock()
    frame.write.format().options().mode().save.side_effect = RuntimeError(f"[X] it failed: {error} at java")
    monkeypatch.setattr("hubsub.pipeline.run.publishing.messages", lambda *_, **__: frame)
    publishing = Publishing(MagicMock(), "activity", "activity", {}, final=True)
    with contextlib.nullcontext() if passes else pytest.raises(RuntimeError):
        publishing.publish(MagicMock(), 0)
    assert ("the job goes on: the batch was given up" in caplog.text) == passes


def test_a_signal_is_noted_though_nobody_takes_what_is_said() -> None:
    def say(_: str) -> None:
        raise BrokenPipeError

    with Ending(say) as ending, ending.gently():
        signal.raise_signal(signal.SIGTERM)
    assert ending.signal == signal.SIGTERM


def test_a_table_shows_the_columns_that_a_terminal_has_room_for() -> None:
    widths = [30, 8, 8, 19]
    assert [_fitting(widths, width) for width in (200, 71, 70, 50, 20, 0)] == [4, 4, 3, 3, 2, 1]


@pytest.mark.parametrize(
    ("master", "conf", "partitions"),
    [
        ("spark://host:7077", {}, "16"),
        ("spark://host:7077", {"spark.cores.max": "6"}, "6"),
        ("yarn", {"spark.executor.instances": "3", "spark.executor.cores": "4"}, "12"),
        ("sc://host", {}, "16"),
        ("spark://host:7077", {PARTITIONS: "200"}, "200"),
        ("local[3]", {}, None),  # `session.connect` knows the cores of this machine.
    ],
)
def test_a_job_shuffles_into_as_many_parts_as_tasks_run_at_once(
    tmp_path: Path, master: str, conf: dict[str, str], partitions: str | None
) -> None:
    settings = Settings(job="sessions", master=master, conf=conf)
    assert _conf(settings, tmp_path).get(PARTITIONS) == partitions


LATE = RuntimeError(
    "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"
)


def starting(*outcomes: object) -> Any:
    """A frame whose query starts with these outcomes, and the mock of `start`."""
    frame = MagicMock()
    writer = frame.writeStream.queryName.return_value.foreachBatch.return_value.outputMode.return_value
    start = writer.option.return_value.trigger.return_value.start
    start.side_effect = outcomes
    return frame, start


@pytest.mark.parametrize("late", [0, 1, STARTS_MAX - 1])
def test_a_query_whose_python_process_is_late_is_started_again(late: int) -> None:
    frame, start = starting(*[LATE] * late, "query")
    assert _start(Settings(job="devices"), Output("state", frame, MagicMock()), Ending()) == "query"
    assert start.call_count == late + 1


def test_a_python_process_that_is_late_each_time_is_reported() -> None:
    frame, start = starting(*[LATE] * STARTS_MAX)
    with pytest.raises(RuntimeError) as raised:
        _start(Settings(job="devices"), Output("state", frame, MagicMock()), Ending())
    assert failure(raised.value).message == "Spark's Python worker does not answer"
    assert start.call_count == STARTS_MAX


def test_a_query_that_cannot_start_for_another_reason_is_started_once() -> None:
    frame, start = starting(RuntimeError("no such table"), "query")
    with pytest.raises(RuntimeError, match="no such table"):
        _start(Settings(job="devices"), Output("state", frame, MagicMock()), Ending())
    assert start.call_count == 1


def test_a_query_is_not_started_again_after_a_signal() -> None:
    frame, start = starting(LATE, "query")
    ending = Ending()
    ending.signal = signal.SIGTERM
    with pytest.raises(RuntimeError, match="Timed out"):
        _start(Settings(job="devices"), Output("state", frame, MagicMock()), ending)
    assert start.call_count == 1
