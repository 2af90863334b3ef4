"""Replay on a real node: archived records reach their rooms again, each once and in order, whatever is
killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from command_line import environment

from hubsub import BlockingClient
from hubsub.errors import OptionError
from hubsub.pipeline.archive import Archive
from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.run import archive_slices, replaying
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.replaying import Replay, replay
from hubsub.pipeline.run.runner import Ending
from hubsub.pipeline.run.settings import Settings
from hubsub.pipeline.run.slices import SliceLog
from hubsub.pipeline.sink import Sink
from hubsub.testing import Node
from pipeline.programs import JAVA

DURABLE = {"durability": "durable", "history": {"bytes": "1GiB"}}
CLASSES = [
    {"name": "chat", "match": ["chat:*"], **DURABLE},
    {"name": "again", "match": ["again/#"], **DURABLE},
    {"name": "memory", "match": ["memory/#"], "history": {"messages": 10_000}},
]
ROOMS = [f"chat:{n}" for n in range(7)] + ["chat:é", "chat:100%", "chat:%FF"]
COUNT = 1_500

Said = dict[str, list[tuple[bytes, str, dict[str, str]]]]
"""Payload, publisher and headers of the records, in order, by room."""


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with records in ten rooms. After each third one room is deleted; later records recreate it."""
    node = start(make_node, tmp_path)
    with BlockingClient(node.redis_url) as client:
        names = [room.replace("%FF", "\udcff").encode(errors="surrogateescape") for room in ROOMS]
        for first in range(0, COUNT, COUNT // 3):
            numbers = range(first, first + COUNT // 3)
            client.publish_many((names[n % 10], f"message {n}".encode()) for n in numbers)
            room = quote(names[first // (COUNT // 3)], safe="")
            urlopen(Request(f"{node.http_url}/v1/rooms/{room}", method="DELETE")).close()
    return node


def start(make_node: Callable[..., Node], tmp_path: Path, **config: Any) -> Node:
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data")} | config)


def records(spark: Any, node: Node, pattern: str) -> Any:
    reader = spark.read.format("hubsub").option("servers", node.http_url)
    return reader.option("subscribePattern", pattern).load()


def said(rows: Any, prefix: str = "") -> Said:
    """The records of rooms, by room name without the prefix."""
    found: Said = defaultdict(list)
    for row in sorted(rows.collect(), key=lambda row: (row.hub, row.offset)):
        assert row.topic == row.room and row.topic.startswith(prefix)
        found[row.topic.removeprefix(prefix)].append((bytes(row.payload), row.publisher, row.headers))
    return dict(found)


def with_origins(rows: Any) -> Said:
    """The records as a replay must publish them: with origin headers."""
    found = rows.collect()
    origins = {(r.hub, r.offset): (f"{r.epoch}-{r.seq}", r.timestamp) for r in found}
    expected: Said = defaultdict(list)
    for row in sorted(found, key=lambda row: (row.hub, row.offset)):
        position, moment = origins[row.hub, row.offset]
        us = round(moment.timestamp() * 1_000_000)
        headers = {"hubsub-position": position, "hubsub-timestamp-us": str(us)}
        expected[row.topic].append((bytes(row.payload), row.publisher, row.headers | headers))
    return dict(expected)


@pytest.fixture
def archive(spark: Any, node: Node, tmp_path: Path) -> str:
    """An archive of all records in the node's rooms."""
    where = str(tmp_path / "archive")
    Archive(where)(records(spark, node, "chat:*"), 0)
    return where


def settings(node: Node, tmp_path: Path, **options: str) -> Settings:
    return Settings(
        job="replay", servers=node.http_url, once=True, checkpoint=str(tmp_path / "c"), options=options
    )


def play(spark: Any, node: Node, tmp_path: Path, asked: Replay, ending: Ending | None = None) -> Any:
    with Progress(True) as progress:
        return replay(spark, settings(node, tmp_path), asked, ending or Ending(), progress)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes many small slices and windows."""
    monkeypatch.setattr(replaying, "SLICE_ROWS_MAX", 100)
    monkeypatch.setattr(archive_slices, "WINDOW_ROWS_MAX", 500)


@pytest.fixture
def parts(spark: Any) -> Iterator[None]:
    """Several tasks per job."""
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", "1")


# Reading the other format is tested by test_archive.py and test_history.py.
@pytest.mark.parametrize("table_format", ["parquet", pytest.param("delta", marks=pytest.mark.soak)])
@pytest.mark.usefixtures("small", "parts")
def test_records_come_again_once_each_room_in_its_order(
    spark: Any, node: Node, tmp_path: Path, table_format: str
) -> None:
    told = spark.sql("select 'chat:told' topic, 'x' payload, map('k', 'v') headers, 'p' publisher")
    told.write.format("hubsub").option("servers", node.http_url).mode("append").save()
    where = str(tmp_path / "archive")
    rows = records(spark, node, "chat:*")
    Archive(where, table_format)(rows, 0)
    with BlockingClient(node.redis_url) as client:
        client.publish("again/chat:3", "was here before")
    before = said(records(spark, node, "again/#"), "again/")["chat:3"]
    tally = play(
        spark, node, tmp_path, Replay(archive=where, table_format=table_format, rate=0, prefix="again/")
    )
    expected = with_origins(rows)
    assert (tally.records, tally.lag) == (sum(map(len, expected.values())), 0)
    assert tally.batches > 3, "many slices, some of which are one batch where the job was slow"
    expected["chat:3"] = before + expected["chat:3"]
    assert said(records(spark, node, "again/#"), "again/") == expected
    # The job publishes its progress, for the last time at its end.
    (last,) = records(spark, node, "$stats/job/replay").orderBy("seq").tail(1)
    (row,) = json.loads(last.payload)["rows"]
    assert row[:3] == ["again/…", tally.records, 0]


def test_without_a_prefix_records_come_behind_those_that_are_there(
    spark: Any, node: Node, tmp_path: Path, archive: str
) -> None:
    before = said(records(spark, node, "chat:*"))
    play(spark, node, tmp_path, Replay(archive=archive, rate=0, origin=False, where="room = 'chat:5'"))
    after = said(records(spark, node, "chat:*"))
    assert after == before | {"chat:5": before["chat:5"] * 2}


def test_a_replay_keeps_its_pace_and_its_rate(spark: Any, node: Node, tmp_path: Path) -> None:
    """100 records of ten seconds, first at four times their pace, then at 40 per second."""
    from pyspark.sql import functions as sf

    rows = records(spark, node, "chat:5").where("room = 'chat:5'").orderBy("seq").limit(100)
    spread = rows.withColumn(
        "timestamp", sf.timestamp_micros(sf.lit(1_772_323_200_000_000) + sf.col("seq") * 100_000)
    )
    Archive(str(tmp_path / "archive"))(spread, 0)
    asked = Replay(archive=str(tmp_path / "archive"), factor=4, prefix="again/")
    play(spark, node, tmp_path, asked)
    times = [row.timestamp.timestamp() for row in records(spark, node, "again/#").collect()]
    # Three slices of four seconds; the job publishes the first at once and the last two seconds later.
    assert len(times) == 100 and max(times) - min(times) > 1.5
    began = time.monotonic()
    fast = Settings(job="replay", servers=node.http_url, once=True, checkpoint=str(tmp_path / "fast"))
    with Progress(True) as progress:
        replay(spark, fast, Replay(archive=asked.archive, rate=40, prefix="again/r/"), Ending(), progress)
    assert len(said(records(spark, node, "again/r/#"))["again/r/chat:5"]) == 100
    # Slices of one second; the job publishes the first at once.
    assert time.monotonic() - began > 1.9


def test_a_class_without_a_log_takes_a_replay_too_with_a_warning(
    spark: Any, node: Node, tmp_path: Path, archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play(spark, node, tmp_path, Replay(archive=archive, rate=0, prefix="memory/"))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and warnings[0].endswith("memory")
    with BlockingClient(node.redis_url) as client:
        payloads = [record.payload for record in client.history("memory/chat:4", count=10_000).records]
    assert payloads == [f"message {n}".encode() for n in range(4, COUNT, 10)]


@pytest.mark.usefixtures("small")
def test_what_is_archived_while_a_replay_goes_on_is_none_of_it(
    spark: Any, node: Node, tmp_path: Path, archive: str
) -> None:
    shown: list[Any] = []

    class Stopped(Ending):
        """Stops after the first slices, however fast they are."""

        @property
        def signal(self) -> int | None:
            return signal.SIGTERM if shown else None

        @signal.setter
        def signal(self, number: int | None) -> None:
            pass

    class Noted(Progress):
        def show(self, *args: Any, **more: Any) -> None:
            shown.append(args)
            super().show(*args, **more)

    expected = with_origins(records(spark, node, "chat:*"))
    asked = Replay(archive=archive, rate=0, prefix="again/")
    with Noted(True) as progress:
        some = replay(spark, settings(node, tmp_path), asked, Stopped(), progress)
    assert 0 < some.records < some.total == sum(map(len, expected.values()))
    offsets = json.dumps({str(hub): offset for hub, offset in Archive(archive).offsets().items()})
    with BlockingClient(node.redis_url) as client:
        client.publish("chat:1", "later")
    later = spark.read.format("hubsub").option("servers", node.http_url).option("startingOffsets", offsets)
    Archive(archive)(later.option("subscribePattern", "chat:*").load(), 1)
    # A resumed replay may use another pace.
    whole = play(spark, node, tmp_path, Replay(archive=archive, factor=1e9, prefix="again/"))
    assert (whole.records, whole.lag) == (some.total, 0)
    assert said(records(spark, node, "again/#"), "again/") == expected


def test_what_cannot_be_replayed_is_told(spark: Any, node: Node, tmp_path: Path, archive: str) -> None:
    with pytest.raises(OptionError, match="no archive with records"):
        play(spark, node, tmp_path, Replay(archive=str(tmp_path / "none")))
    with pytest.raises(OptionError, match="no record of the archive is to be replayed: room = 'x'"):
        play(spark, node, tmp_path, Replay(archive=archive, where="room = 'x'"))
    with pytest.raises(OptionError, match="made with another --where"):
        play(spark, node, tmp_path, Replay(archive=archive))


# -- kills --


class Died(BaseException):
    """Simulates the driver's death: no cleanup runs."""


POINTS: dict[str, tuple[type, str, bool]] = {
    "staged": (SliceLog, "plan", True),
    "planned": (Sink, "commit", True),
    "published": (SliceLog, "finish", True),
    "done": (SliceLog, "finish", False),
}
"""Where a driver dies: method, and whether before (True) or after the call."""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "point",
    [
        *("staged", "published"),
        *(pytest.param(point, marks=pytest.mark.soak) for point in ("planned", "done")),
    ],
)
def test_a_driver_that_dies_at_any_point_goes_on_without_gap_or_double(
    spark: Any, node: Node, tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    owner, name, is_before = POINTS[point]
    was = getattr(owner, name)
    calls = []

    def dies(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 4 and is_before:
            raise Died
        was(*args)
        if len(calls) == 4:
            raise Died

    expected = with_origins(records(spark, node, "chat:*"))
    asked = Replay(archive=archive, rate=0, prefix="again/")
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(owner, name, dies)
        patch.setattr(Sink, "abort", lambda *_: None)
        play(spark, node, tmp_path, asked)
    log = SliceLog(Store(str(tmp_path / "c")))
    last = log.planned if point == "published" else log.done
    kept = sum(map(len, said(records(spark, node, "again/#")).values()))
    assert last is not None and kept == last.records > 0
    # Later slices may have another size.
    monkeypatch.setattr(replaying, "SLICE_ROWS_MAX", 300)
    play(spark, node, tmp_path, asked)
    assert said(records(spark, node, "again/#"), "again/") == expected


PROGRAM = """
import os, signal
from hubsub.pipeline.run import archive_slices, replaying, slices
replaying.SLICE_ROWS_MAX, archive_slices.WINDOW_ROWS_MAX = 200, 700
finish = slices.SliceLog.finish
def killed(log, piece):
    if os.path.exists(flag) and piece.number == 3:
        os.unlink(flag)
        os.kill(os.getpid(), signal.SIGKILL)
    finish(log, piece)
slices.SliceLog.finish = killed
from hubsub.pipeline.cli import main
main("replay")
"""
"""A replay with small slices that kills itself while finishing the fourth, if the flag file exists."""


@pytest.fixture
def driver(node: Node, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `hubsub pipeline replay` with small slices."""
    started: list[subprocess.Popen[str]] = []

    def run(*args: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", f"flag = {str(tmp_path / 'flag')!r}\n{PROGRAM}"]
        where = [
            "--from",
            str(tmp_path / "archive"),
            "--checkpoint",
            str(tmp_path / "c"),
            "--prefix",
            "again/",
        ]
        spark = ["--master", "local[2]", "--servers", node.http_url]
        for setting in ("spark.driver.memory=1g", f"spark.driver.defaultJavaOptions={JAVA}"):
            spark += ["--conf", setting]
        process = subprocess.Popen(
            [*program, *where, *spark, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_driver_that_is_killed_behind_a_commit_publishes_nothing_twice(
    spark: Any, node: Node, tmp_path: Path, archive: str, driver: Callable[..., subprocess.Popen[str]]
) -> None:
    expected = with_origins(records(spark, node, "chat:*"))
    (tmp_path / "flag").touch()
    first = driver("--rate", "0")
    first.communicate(timeout=120)
    assert first.returncode == -signal.SIGKILL
    play(spark, node, tmp_path, Replay(archive=archive, rate=0, prefix="again/"))
    assert said(records(spark, node, "again/#"), "again/") == expected


def test_a_node_that_is_killed_and_started_again_has_each_record_once(
    spark: Any,
    node: Node,
    tmp_path: Path,
    make_node: Callable[..., Node],
    archive: str,
    driver: Callable[..., subprocess.Popen[str]],
) -> None:
    expected = with_origins(records(spark, node, "chat:*"))
    job = driver("--rate", "300")
    wait(job, "records published")
    node.stop(signal.SIGKILL)
    again = start(make_node, tmp_path, http=node.ready["http"])
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0 and "Traceback" not in err, err
    assert said(records(spark, again, "again/#"), "again/") == expected


@pytest.mark.soak  # The test of what is archived meanwhile stops a replay, and test_runners.py sends signals.
def test_a_signal_ends_a_replay_and_the_next_run_goes_on(
    spark: Any,
    node: Node,
    tmp_path: Path,
    archive: str,
    driver: Callable[..., subprocess.Popen[str]],
    pipeline: Callable[..., Any],
) -> None:
    expected = with_origins(records(spark, node, "chat:*"))
    job = driver("--rate", "10")
    wait(job, "records published")
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=120)
    assert job.returncode == 143 and "stopped" in err and "Traceback" not in err, err
    kept = sum(map(len, said(records(spark, node, "again/#")).values()))
    assert 0 < kept < sum(map(len, expected.values()))
    asked = ["--from", archive, "--checkpoint", tmp_path / "c", "--prefix", "again/", "--rate", "0"]
    asked += ["--servers", node.http_url]
    assert "stopped" not in pipeline("replay", *asked).err
    assert said(records(spark, node, "again/#"), "again/") == expected
    assert "all of it is out; another --checkpoint" in pipeline("replay", *asked).err
    assert said(records(spark, node, "again/#"), "again/") == expected


def wait(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if word in line:
            return
    raise AssertionError(f"it ended without {word!r}: {''.join(seen)}")
