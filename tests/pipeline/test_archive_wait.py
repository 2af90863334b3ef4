"""Retention and the archive job on a real node: what is retained, what is removed, and what a reader sees."""

from __future__ import annotations

import io
import json
import re
import select
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hubsub import BlockingClient
from hubsub.errors import ArchiveMismatchError
from hubsub.pipeline.archive import Archive
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.jobs import archive_job
from hubsub.pipeline.run.runner import Ending, run
from hubsub.pipeline.run.settings import Settings
from hubsub.pipeline.union import history
from hubsub.testing import Node
from pipeline.frames import chat, frame, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIB = 1 << 10
CLASS = {
    "name": "chat",
    "match": ["chat:*"],
    "durability": "durable",
    "history": {"bytes": 64 * KIB, "archive_wait": 512 * KIB},
}
LIMITS = dict.fromkeys(("log_segment_bytes", "log_journal_bytes", "log_checkpoint_bytes"), 64 * KIB)
WAIT_S = 30.0


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    config = {"data": str(tmp_path / "data"), "shards": 1}
    return make_node(classes=[CLASS], config=config, limits=LIMITS | {"log_checkpoint_ms": 50})


def publish(node: Node, count: int) -> None:
    """Publishes `count` records of 1 KB."""
    with BlockingClient(node.redis_url) as client:
        client.publish_many((b"chat:a", b"." * 1_000) for _ in range(count))


def hub(node: Node, until: Callable[[dict[str, Any]], bool] = lambda row: True) -> dict[str, Any]:
    """The node's entry of its hub, once it fulfils the condition."""
    end = time.monotonic() + WAIT_S
    while True:
        with urllib.request.urlopen(f"{node.http_url}/v1/hubs/chat-0", timeout=WAIT_S) as answer:
            row: dict[str, Any] = json.loads(answer.read())
        if until(row):
            return row
        assert time.monotonic() < end, row
        select.select([], [], [], 0.01)


def archive(spark: SparkSession, node: Node, place: Path, **options: Any) -> None:
    """Runs `hubsub pipeline archive --once`."""
    settings = Settings(
        job="archive",
        servers=node.http_url,
        once=True,
        checkpoint=str(place / "checkpoint"),
        out=str(place / "out"),
        **options,
    )
    outputs, taken = archive_job(spark, settings, "parquet")
    run(settings, outputs, Ending(), Progress(True, io.StringIO()))
    taken.finished()


def test_records_are_kept_until_they_are_archived_and_lost_beyond_the_limit(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    publish(node, 300)
    kept = hub(node, lambda row: row["archive_waiting_bytes"] > 150 * KIB)
    assert (kept["earliest"], kept["archived"]) == (1, None)
    # Retention does not wait for an archive of selected rooms.
    archive(spark, node, tmp_path / "some", subscribe="chat:a")
    assert hub(node)["archived"] is None
    archive(spark, node, tmp_path / "all", pattern="chat:*")
    kept = hub(node, lambda row: row["archive_waiting_bytes"] == 0)
    assert kept["archived"] == 301 and kept["earliest"] > 150
    publish(node, 400)
    assert hub(node, lambda row: row["archive_waiting_bytes"] > 150 * KIB)["archive_lost"] == 0
    archive(spark, node, tmp_path / "all", pattern="chat:*")
    hub(node, lambda row: row["archive_waiting_bytes"] == 0)
    with urllib.request.urlopen(f"{node.http_url}/v1/queries", timeout=WAIT_S) as answer:
        assert [query["ended"] for query in json.load(answer)["queries"]] == [True, True]
    out = str(tmp_path / "all" / "out")
    assert history(spark, out, node.http_url).count() == 700
    # The archive lags too far.
    publish(node, 1_200)
    lost = hub(
        node, lambda row: row["bytes"] <= 512 * KIB and 0 < row["archive_lost"] == row["earliest"] - 701
    )
    with pytest.raises(Exception, match="records of hub chat-0 are gone") as raised:
        archive(spark, node, tmp_path / "all", pattern="chat:*")
    said = re.search(r"offsets 701 to (\d+)", str(raised.value))
    # Records in the journal move to segments meanwhile, so retention removes more.
    assert said and lost["earliest"] <= int(said[1]) + 1 <= hub(node)["earliest"]


def test_what_is_told_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    """An offset is reported once the archive and Spark have both committed it. Spark may rerun the last
    batch, so the next batch reports it, or the end of the run."""
    rows, told = records(chat(20), hubs=1), []
    events: list[str] = []

    def report(offsets: Any) -> None:
        events.append("told")
        told.append(dict(offsets))

    taken = Archive(str(tmp_path / "out"), at=events.append, report=report)
    taken(frame(spark, rows[:10]), 0)
    assert events == ["written", "committed"]
    taken(frame(spark, rows[10:]), 1)
    assert told == [{0: 10}]
    taken.begun()
    taken(frame(spark, rows[10:]), 1)
    assert told == [{0: 10}, {0: 10}], "Spark runs it again after a kill, and must find its records"
    taken.finished()
    assert told[-1] == {0: 20}


def test_an_archive_of_some_rooms_takes_no_others(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    """Its offsets would skip the other rooms' records."""
    publish(node, 20)
    archive(spark, node, tmp_path, subscribe="chat:a")
    with BlockingClient(node.redis_url) as client:
        client.publish_many((b"chat:b", b".") for _ in range(5))
    with pytest.raises(
        ArchiveMismatchError, match="the archive is of other rooms: subscribe chat:a; asked for: all"
    ):
        archive(spark, node, tmp_path)
    fresh = Settings(
        job="archive", servers=node.http_url, checkpoint=str(tmp_path / "new"), out=str(tmp_path / "out")
    )
    with pytest.raises(ArchiveMismatchError, match="of other rooms"):
        archive_job(spark, fresh, "parquet")
    publish(node, 5)
    assert history(spark, str(tmp_path / "out"), node.http_url).groupBy("room").count().collect() == [
        ("chat:a", 25)
    ]
