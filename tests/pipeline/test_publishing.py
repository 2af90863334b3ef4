"""Activity published to rooms: each version of each window once, whatever fails between table, message and
checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from clients.raw import Connection
from command_line import HUBSUB, environment
from pyspark.errors import StreamingQueryException

from hubsub import BlockingClient
from hubsub.errors import HubSubError
from hubsub.names import text_of
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.jobs import Timing, activity_job
from hubsub.pipeline.run.runner import Ending, Output, run
from hubsub.pipeline.run.settings import Settings
from hubsub.testing import Node
from pipeline.programs import JAVA

CLASSES = [{"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}}]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMING = Timing(event_time="$.ts", window=timedelta(minutes=1), watermark=timedelta(minutes=1))
SPARK_S = 120.0
"""Time limit in seconds for the first output of a newly started job on a busy machine."""
ROOMS = (b"chat:a", b"chat:\xff", b"chat:100%", "chat:é {x}".encode(), b"chat:" + b"l" * 2_000)


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data"), "hash_tags": False})


def say(node: Node, minutes: Sequence[int], rooms: Sequence[bytes] = ROOMS[:1]) -> None:
    """Publishes an event per room and minute."""
    events = [(room, {"ts": (NOON + timedelta(minutes=n)).isoformat()}) for n in minutes for room in rooms]
    with BlockingClient(node.redis_url) as client:
        client.publish_many((room, json.dumps(event).encode()) for room, event in events)


def told(node: Node, room: bytes = ROOMS[0]) -> list[dict[str, Any]]:
    """The activity published about a room."""
    with BlockingClient(node.redis_url) as client:
        records = client.history(b"$stats/room/" + room, count=10_000).records
        return [json.loads(record.payload) for record in records]


def windows(rows: Sequence[dict[str, Any]]) -> list[tuple[int, int, bool]]:
    """(minute, messages, whether final) of each row, in order."""
    starts = [datetime.fromisoformat(row["window_start"]) for row in rows]
    minutes = [(start - NOON) // timedelta(minutes=1) for start in starts]
    return [(m, row["messages"], row["final"]) for m, row in zip(minutes, rows, strict=True)]


def activity(
    spark: Any, node: Node, directory: Path, *, change: Callable[[Output], Output] = lambda o: o, **more: Any
) -> None:
    """Runs the job in this process until it has read everything available."""
    places = {"checkpoint": str(directory / "checkpoint"), "out": str(directory / "out")}
    publish = more.pop("publish", True)
    settings = Settings(job="activity", servers=node.http_url, once=True, **places, **more)
    outputs, _ = activity_job(spark, settings, TIMING, publish)
    run(settings, [change(output) for output in outputs], Ending(), Progress(True))


def appending(output: Output) -> Output:
    """The output mode without `--once`, but with a final run."""
    return replace(output, mode="append", take=replace(output.take, final=True))  # type: ignore[type-var]


def test_each_window_that_is_over_is_told_once_in_order(spark: Any, node: Node, tmp_path: Path) -> None:
    say(node, [0, 0, 1, 2, 5], ROOMS)
    activity(spark, node, tmp_path, change=appending)
    for room in ROOMS[:4]:
        assert windows(told(node, room)) == [(0, 2, True), (1, 1, True), (2, 1, True)]
        assert {row["room"] for row in told(node, room)} == {text_of(room)}
    (long, *_) = told(node, hashlib.sha256(ROOMS[4]).hexdigest().encode())
    assert long["room"] == text_of(ROOMS[4])
    activity(spark, node, tmp_path, change=appending)
    say(node, [9])
    activity(spark, node, tmp_path, change=appending)
    assert windows(told(node)) == [(0, 2, True), (1, 1, True), (2, 1, True), (5, 1, True)]


def test_with_once_each_version_of_a_window_is_told_once(spark: Any, node: Node, tmp_path: Path) -> None:
    say(node, [0, 0, 1])
    activity(spark, node, tmp_path)
    assert windows(told(node)) == [(0, 2, False), (1, 1, False)]
    activity(spark, node, tmp_path)
    assert len(told(node)) == 2, "nothing is new"
    say(node, [1])
    activity(spark, node, tmp_path)
    assert windows(told(node)) == [(0, 2, False), (1, 1, False), (1, 2, False)]
    say(node, [2])
    activity(spark, node, tmp_path, publish=False)
    assert len(told(node)) == 3
    say(node, [9])
    activity(spark, node, tmp_path, change=appending)
    # The earlier run, which had an end, closed the first window, so it got no second version.
    assert windows(told(node))[3:] == [(1, 2, True), (2, 1, True)]


def test_windows_of_two_jobs_in_a_room_are_told_apart_by_their_query(
    spark: Any, node: Node, tmp_path: Path
) -> None:
    say(node, [0, 1])
    activity(spark, node, tmp_path / "lineage")
    activity(spark, node, tmp_path / "named", options={"queryName": "by-minute"})
    (mine,) = {row["query"] for row in told(node)} - {"by-minute"}
    assert mine.startswith("activity-")
    for query in (mine, "by-minute"):
        of_query = [row for row in told(node) if row["query"] == query]
        assert windows(of_query) == [(0, 1, False), (1, 1, False)]
    with urlopen(f"{node.http_url}/v1/rooms/{quote('$stats/room/chat:a', safe='')}/history") as answer:
        records = json.load(answer)["records"]
    assert [r["headers"] for r in records] == [{"hubsub-query": row["query"]} for row in told(node)]


@pytest.mark.parametrize(("mode", "where"), [("append", "before"), ("update", "behind")])
def test_a_driver_that_dies_beside_its_publishing_tells_each_version_once(
    spark: Any, node: Node, tmp_path: Path, mode: str, where: str
) -> None:
    say(node, [0, 1, 2, 5])

    def faulty(output: Output) -> Output:
        output = appending(output) if mode == "append" else output

        def take(rows: Any, batch: int) -> None:
            if where == "behind":
                output.take(rows, batch)
            else:
                output.take.results(rows, batch)  # type: ignore[attr-defined]
            if not rows.isEmpty():
                raise RuntimeError("the driver died")

        return replace(output, take=take)

    with pytest.raises((HubSubError, StreamingQueryException)):
        activity(spark, node, tmp_path, change=faulty)
    is_final = mode == "append"
    expected = [(0, 1, is_final), (1, 1, is_final), (2, 1, is_final), (5, 1, is_final)][
        : 3 if is_final else 4
    ]
    assert windows(told(node)) == (expected if where == "behind" else [])
    activity(spark, node, tmp_path, change=appending if is_final else lambda o: o)
    assert windows(told(node)) == expected


def test_subscribers_hear_each_window_once_through_a_kill_of_the_driver(
    node: Node, tmp_path: Path, needs: Callable[..., None]
) -> None:
    command = [*HUBSUB, "pipeline", "activity", "--servers", node.http_url, "--master", "local[2]"]
    command += ["--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.driver.memory=1g"]
    command += ["--conf", f"spark.driver.defaultJavaOptions={JAVA}"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "out")]
    command += ["--event-time", "$.ts", "--watermark", "1 minute", "--trigger", "100ms"]
    command += ["--plot", str(tmp_path / "plot.png"), "--option", "maxRowsPerBatch=4"]

    def start() -> subprocess.Popen[bytes]:
        with open(tmp_path / "log", "ab") as log:
            out = subprocess.DEVNULL
            return subprocess.Popen(
                command, stdout=out, stderr=log, env=environment(), start_new_session=True
            )

    say(node, range(12))
    with Connection(*node.redis) as subscriber:
        subscriber.ask("PSUBSCRIBE", "$stats/room/*")
        subscriber.socket.settimeout(SPARK_S)
        heard: list[dict[str, Any]] = []

        def hear(count: int) -> None:
            while len(heard) < count:
                _, _, topic, payload = subscriber.read().plain()  # type: ignore[misc]
                assert topic == b"$stats/room/chat:a"
                heard.append(json.loads(payload))

        first = start()
        try:
            hear(1)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        second = start()
        try:
            hear(10)
            say(node, [30])
            hear(12)
        finally:
            os.killpg(second.pid, signal.SIGTERM)
            assert second.wait(60) == 0, (tmp_path / "log").read_text()[-3_000:]
        assert windows(heard) == [(n, 1, True) for n in range(12)]
    assert windows(told(node)) == windows(heard)
    assert Counter(row["room"] for row in told(node)) == {"chat:a": 12}
