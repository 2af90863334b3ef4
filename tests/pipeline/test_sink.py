"""The sink on a real node: each row of each batch is published once, whatever fails and is retried."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import pytest
from clients.servers import until
from pyspark.errors import PySparkException, StreamingQueryException

from hubsub import BlockingClient
from hubsub.pipeline.source import HubSubSource
from hubsub.testing import Node

DURABLE = {"durability": "durable", "history": {"bytes": "1GiB"}}
CLASSES = [
    {"name": "out", "match": ["out:*"], **DURABLE},
    {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 1_000, **DURABLE},
    {"name": "memory", "match": ["memory:*"], "history": {"messages": 10}},
    {"name": "small", "match": ["small:*"], "payload_bytes_max": 10, **DURABLE},
]
COUNT = 3_000


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})


def again(make_node: Callable[..., Node], node: Node, tmp_path: Path) -> Node:
    """The next node on the same data and address."""
    return make_node(classes=CLASSES, config={"data": str(tmp_path / "data"), "http": node.ready["http"]})


def payloads(node: Node, *rooms: str) -> Counter[str]:
    with BlockingClient(node.redis_url) as client:
        pages = [client.history(room, count=10_000) for room in rooms]
        return Counter(record.payload.decode() for page in pages for record in page.records)


ROOMS = tuple(f"out:{n}" for n in range(5))
ALL = Counter({str(n): 1 for n in range(COUNT)})


def shuffled(frame: Any, seed: int = 1) -> Any:
    """Rows to publish, shuffled into several tasks; their order is not guaranteed."""
    rows = frame.selectExpr("concat('out:', value % 5) as topic", "cast(value as string) as payload")
    return rows.repartition(3, "payload")


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Any:
    """A stream of the numbers below `COUNT` in two batches."""
    directory = tmp_path / "in"
    for part in range(2):
        numbers = spark.range(part * COUNT // 2, (part + 1) * COUNT // 2).selectExpr("id as value")
        numbers.coalesce(1).write.parquet(str(directory / f"part-{part}"))
    stream = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
    return stream.parquet(f"{directory}/part-*")


def start(frame: Any, node: Node, tmp_path: Path, name: str = "hubsub", **options: Any) -> Any:
    writer = frame.writeStream.format(name).option("servers", node.http_url)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).options(**options)
    return writer.trigger(availableNow=True).start()


def finish(query: Any) -> None:
    assert query.awaitTermination(120)


@pytest.fixture
def faulty(spark: Any, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`faulty("before")` makes the sink `faulty` fail once before its commit, and `faulty("behind")` once
    after it; returns the flag file, which the failure removes."""
    made: list[Path] = []

    def make(where: str) -> Path:
        flag = tmp_path / "fault"
        flag.write_text(where)
        made.append(flag)
        path = str(flag)

        class Faulty(HubSubSource):
            @classmethod
            def name(cls) -> str:
                return "faulty"

            def streamWriter(self, schema: Any, overwrite: bool) -> Any:
                from hubsub.pipeline.sink import HubSubStreamWriter

                class Writer(HubSubStreamWriter):
                    def commit(self, messages: Any, batchId: int) -> None:
                        import os
                        from pathlib import Path

                        fails = os.path.exists(path)
                        where = Path(path).read_text() if fails else ""
                        if where == "before":
                            os.unlink(path)
                            raise RuntimeError("the driver died before the commit")
                        super().commit(messages, batchId)
                        if where == "behind":
                            os.unlink(path)
                            raise RuntimeError("the driver died behind the commit")

                return Writer(self._sink_options(schema, overwrite))

        spark.dataSource.register(Faulty)
        return flag

    yield make


def test_a_stream_publishes_each_row_once(source: Any, node: Node, tmp_path: Path) -> None:
    finish(start(shuffled(source), node, tmp_path))
    assert payloads(node, *ROOMS) == ALL
    finish(start(shuffled(source), node, tmp_path))
    assert payloads(node, *ROOMS) == ALL


@pytest.mark.parametrize("end", ["fails", "is killed"])
def test_a_task_that_ends_half_way_is_tried_again_and_publishes_once(
    source: Any, node: Node, tmp_path: Path, end: str
) -> None:
    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for n, batch in enumerate(batches):
            yield batch
            if context.attemptNumber() == 0 and n == 0:
                if end == "is killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("the task died half-way")

    frame = shuffled(source).mapInArrow(fail_once, "topic string, payload string")
    finish(start(frame, node, tmp_path))
    assert payloads(node, *ROOMS) == ALL


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_driver_that_dies_beside_its_commit_publishes_once_from_its_checkpoint(
    source: Any, node: Node, tmp_path: Path, faulty: Callable[[str], Path], where: str
) -> None:
    flag = faulty(where)
    query = start(shuffled(source), node, tmp_path, "faulty")
    with pytest.raises(StreamingQueryException, match="the driver died"):
        query.awaitTermination(120)
    assert not flag.exists()
    half = COUNT // 2
    assert sum(payloads(node, *ROOMS).values()) == (0 if where == "before" else half)
    finish(start(shuffled(source, seed=2), node, tmp_path, "faulty"))
    assert payloads(node, *ROOMS) == ALL


def test_a_query_goes_on_through_a_node_that_is_killed_and_started_again(
    spark: Any, source: Any, node: Node, tmp_path: Path, make_node: Callable[..., Node]
) -> None:
    rows = source.selectExpr(
        "case when value % 500 = 0 then 'slow:a' else concat('out:', value % 5) end as topic",
        "cast(value as string) as payload",
    ).repartition(3, "payload")
    query = start(rows, node, tmp_path, query="q")

    def is_moving() -> bool:
        with BlockingClient(node.redis_url) as client:
            return bool(client.history("out:1", count=1).records)

    until(is_moving)
    node.stop(signal.SIGKILL)
    next_node = again(make_node, node, tmp_path)
    finish(query)
    assert payloads(next_node, *ROOMS, "slow:a") == ALL


def test_a_node_killed_before_the_commit_keeps_what_was_staged(
    source: Any, node: Node, tmp_path: Path, make_node: Callable[..., Node], faulty: Callable[[str], Path]
) -> None:
    faulty("before")
    query = start(shuffled(source), node, tmp_path, "faulty")
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)
    node.stop(signal.SIGKILL)
    next_node = again(make_node, node, tmp_path)
    finish(start(shuffled(source), next_node, tmp_path, "faulty"))
    assert payloads(next_node, *ROOMS) == ALL


# -- batches --


def write(frame: Any, node: Node, **options: Any) -> None:
    frame.write.format("hubsub").option("servers", node.http_url).options(**options).mode("append").save()


def test_a_batch_write_is_one_batch_and_a_named_one_is_published_once(spark: Any, node: Node) -> None:
    frame = shuffled(spark.range(100).selectExpr("id as value"))
    write(frame, node, query="nightly", batch=3)
    write(frame, node, query="nightly", batch=3)
    assert payloads(node, *ROOMS) == Counter({str(n): 1 for n in range(100)})
    write(frame, node)
    write(frame, node)
    assert payloads(node, *ROOMS) == Counter({str(n): 3 for n in range(100)})


def test_headers_publishers_and_one_topic_for_all(spark: Any, node: Node) -> None:
    frame = spark.sql("select cast('x' as binary) payload, map('k', 'v') headers, 'p' publisher")
    write(frame, node, topic="out:one")
    with BlockingClient(node.redis_url) as client:
        (record,) = client.history("out:one").records
    assert (record.payload, record.publisher) == (b"x", "p")
    again = spark.read.format("hubsub").option("servers", node.http_url).option("subscribe", "out:one").load()
    (row,) = again.collect()
    assert (row.headers, bytes(row.payload), row.publisher) == ({"k": "v"}, b"x", "p")


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no topic": ("select 'x' payload", {}, "a column is missing: topic"),
    "two topics": ("select 'a' topic, 'x' payload", {"topic": "b"}, "no such column: topic"),
    "no payload": ("select 'a' topic", {}, "a column is missing: payload"),
    "another column": ("select 'a' topic, 'x' payload, 1 n", {}, "no such column: n"),
    "another type": ("select 'a' topic, 1 payload", {}, "payload int"),
    "an unknown option": ("select 'a' topic, 'x' payload", {"subscribe": "a"}, "unknown option: subscribe"),
    "a batch of no query": ("select 'a' topic, 'x' payload", {"batch": 1}, "needs option query"),
    "a null topic": ("select cast(null as string) topic, 'x' payload", {}, "row 0 has no topic"),
    "a null payload": ("select 'a' topic, cast(null as string) payload", {}, "row 0 has no payload"),
    "a long topic": ("select repeat('a', 70000) topic, 'x' payload", {}, "topic length is out of range"),
    "a large payload": ("select 'small:a' topic, repeat('x', 11) payload", {}, "row 0"),
    "the node's own": ("select '$queries/q' topic, 'x' payload", {}, "row 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_rows_that_cannot_be_published_fail_with_what_is_wrong(spark: Any, node: Node, case: str) -> None:
    query, options, text = BAD[case]
    with pytest.raises(PySparkException) as raised:
        write(spark.sql(query), node, **options)
    assert text in str(raised.value)


def test_what_is_published_cannot_be_overwritten(spark: Any, node: Node) -> None:
    frame = spark.sql("select 'out:a' topic, 'x' payload")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("hubsub").option("servers", node.http_url).mode("overwrite").save()


def test_a_stream_goes_on_behind_a_batch_that_was_given_up(
    source: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    config, limits = {"data": str(tmp_path / "data"), "shards": 1}, {"rooms_max": 12}
    node = make_node(classes=CLASSES, config=config, limits=limits)
    topic = f"if(value < {COUNT // 2}, concat('memory:', value % 20), 'out:0') as topic"
    rows = source.selectExpr(topic, "cast(value as string) as payload")
    options = {"query": "q", "retrySeconds": 1}
    with pytest.raises(StreamingQueryException, match="max number of rooms reached"):
        finish(start(rows, node, tmp_path, **options))
    assert command_line.hubsub("query", "give-up", "q", 0, "--url", node.http_url).returncode == 0
    batch = source.sparkSession.createDataFrame([("out:0", "again")], ["topic", "payload"]).write.format(
        "hubsub"
    )
    with pytest.raises(PySparkException, match="the batch was given up: q, batch 0"):
        batch.option("servers", node.http_url).options(query="q", batch=0).mode("append").save()
    node.stop()
    node = again(make_node, node, tmp_path)  # The new node has room for all of them.
    finish(start(rows, node, tmp_path, **options))
    assert payloads(node, "out:0") == Counter(map(str, range(COUNT // 2, COUNT)))
    assert not payloads(node, "memory:0"), "nothing of it comes back"
