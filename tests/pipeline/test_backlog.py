"""A job produces the same result of a backlog in any number of batches: its watermark waits until the query
has caught up."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hubsub import BlockingClient
from hubsub.testing import Node
from pipeline.fake_log import FakeLog
from pipeline.test_runners import command
from pipeline.test_streaming import run

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLASSES = [{"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}}]


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})


def publish(node: Node, minutes: list[int]) -> None:
    """For each of the minutes, a user joins a room of their own and sends a message two minutes later."""
    events = [
        (
            f"chat:{n}",
            {"user": f"u{n}", "kind": kind, "ts": (NOON + timedelta(minutes=at + late)).isoformat()},
        )
        for n, at in enumerate(minutes)
        for late, kind in ((0, "join"), (2, "message"))
    ]
    with BlockingClient(node.redis_url) as client:
        client.publish_many((room.encode(), json.dumps(event).encode()) for room, event in events)


def rows(directory: Path, keys: list[str]) -> list[tuple[Any, ...]]:
    """The latest version of each row in a job's table."""
    table = pd.read_parquet(directory).sort_values("batch_id").drop_duplicates(keys, keep="last")
    return sorted(table[keys].itertuples(index=False, name=None))


JOBS = {
    "activity": ("activity/out", ["room", "window_start", "messages", "first_seq", "last_seq"]),
    "sessions": ("sessions/out/sessions", ["room", "user", "start", "end", "messages", "closed_by"]),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_backlog_gives_the_same_in_one_batch_and_in_many(
    node: Node, tmp_path: Path, pipeline: Callable[..., Any], job: str
) -> None:
    publish(node, [600, 0, 1_200, 300, 900, 1_300])  # Out of order: hours before and hours after each other.
    path, keys = JOBS[job]
    found = {}
    for limit in (1_000, 3):
        directory = tmp_path / str(limit)
        told = pipeline(
            *command(node, directory, job, "--once", "--event-time", "$.ts", "--watermark", "1 minute"),
            *("--option", f"maxRowsPerBatch={limit}"),
        )
        assert "12 records" in told.err and "too late" not in told.err
        found[limit] = rows(directory / path, keys)
    assert found[3] == found[1_000]
    assert len(found[3]) == (12 if job == "activity" else 5), "the latest session is not over"


def test_what_comes_after_the_backlog_is_late_by_the_watermark(
    node: Node, tmp_path: Path, pipeline: Callable[..., Any]
) -> None:
    job = command(node, tmp_path, "activity", "--once", "--event-time", "$.ts", "--watermark", "1 minute")
    publish(node, [600, 0])
    assert "too late" not in pipeline(*job).err
    publish(node, [700, 0])
    assert "2 dropped as too late" in pipeline(*job).err


def test_records_say_whether_their_batch_has_caught_up_with_the_log_as_it_was(
    stream: Any, fake: FakeLog, tmp_path: Path
) -> None:
    seen: list[tuple[int, set[bool]]] = []

    def take(frame: Any, _: int) -> None:
        flags = [row.caught_up for row in frame.collect()]
        seen.append((len(flags), set(flags)))
        if len(seen) == 1:
            fake.append(1, 3_000)  # The query does not wait for later records.

    options = {"startingOffsets": "earliest", "maxRowsPerBatch": "3000", "columns": "offset,caught_up"}
    query = stream(**options).writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    started = query.trigger(processingTime="0 seconds").start()
    try:
        while sum(count for count, _ in seen) < 11_000:
            assert started.isActive, started.exception()
            started.awaitTermination(0.05)
    finally:
        started.stop()
    assert sum(count for count, _ in seen) == 11_000
    assert [flags for _, flags in seen[:2]] == [{False}, {False}] and seen[-1][1] == {True}
    order = [flags == {True} for _, flags in seen]
    assert order == sorted(order), "once caught up, it stays so"


def test_a_batch_read_has_always_caught_up(read: Any) -> None:
    rows = read(columns="hub,caught_up").select("hub", "caught_up").distinct().collect()
    assert sorted((row.hub, row.caught_up) for row in rows) == [(1, True), (2, True)]


def test_a_query_that_starts_again_has_a_backlog_again(stream: Any, fake: FakeLog, tmp_path: Path) -> None:
    options = {"startingOffsets": "earliest", "maxRowsPerBatch": "4000", "columns": "hub,offset,caught_up"}
    run(stream(**options), tmp_path)
    fake.append(1, 5_000)
    flags: list[bool] = []
    writer = stream(**options).writeStream.option("checkpointLocation", str(tmp_path))
    take = lambda frame, _: flags.append(frame.first().caught_up)  # noqa: E731
    query = writer.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert flags == [False, True]
