"""Reads from a real node that fails: the exact records, or an error that names the missing ones.

Processes are killed with SIGKILL in the middle of an operation that has started and cannot have ended.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clients.servers import until
from pyspark.errors import PySparkException, StreamingQueryException

from hubsub import BlockingClient
from hubsub.errors import OffsetsLostError, OtherLogError, QuarantinedError
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.run.failures import failure
from hubsub.pipeline.wire import Wire
from hubsub.testing import Node

DURABLE = {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
LIMITS = {"log_segment_bytes": "64KiB", "log_checkpoint_ms": 20}


def publish(node: Node, count: int, first: int = 0, size: int = 1_000) -> None:
    with BlockingClient(node.redis_url) as client:
        client.publish_many(("chat:a", f"{n:0{size}}".encode()) for n in range(first, first + count))


def read(spark: Any, node: Node, **options: str) -> Any:
    return spark.read.format("hubsub").options(servers=node.http_url, **options).load()


def run(frame: Any, checkpoint: Path, take: Callable[[Any, int], None], mode: str = "append") -> None:
    writer = frame.writeStream.foreachBatch(take).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


class Seen:
    """Collects the offsets of each batch."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def __call__(self, frame: Any, _: int) -> None:
        self.offsets += sorted(row.offset for row in frame.select("offset").collect())


def stream(spark: Any, node: Node, **options: str) -> Any:
    chosen = {"servers": node.http_url, "startingOffsets": "earliest", **options}
    return spark.readStream.format("hubsub").options(**chosen).load()


# -- the log --


def test_a_damaged_segment_ends_a_read_and_a_stream_with_its_name_and_the_offsets(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    config = {"data": str(tmp_path / "data"), "shards": 1}
    node = make_node(classes=[DURABLE], config=config, limits=LIMITS | {"log_tail_bytes_max": "64KiB"})
    publish(node, 500)
    segments = tmp_path / "data" / "log" / "hubs" / "1"
    segment, *_ = until(lambda: sorted(segments.glob("*.segment"))[1:-1], "sealed segments")
    with segment.open("r+b") as file:
        file.seek(30_000)
        file.write(b"damage")
    damaged = int(segment.stem) + 30_000 // 1_000

    def told(error: PySparkException) -> tuple[int, int]:
        """First and last offset that the error reports as not read."""
        ours = failure(error)
        assert isinstance(ours, QuarantinedError) and segment.name in ours.message
        first, last = ours.message.rpartition("hub 1, offsets ")[2].split(" to ")
        assert int(segment.stem) <= int(first) <= damaged
        return int(first), int(last)

    with pytest.raises(PySparkException) as raised:
        read(spark, node).count()
    first, last = told(raised.value)
    assert last == 500
    assert read(spark, node, endingOffsets=f'{{"1": {first}}}').count() == first - 1, "all before is whole"

    seen = Seen()
    with pytest.raises(StreamingQueryException) as ended:
        run(stream(spark, node, maxRowsPerBatch="50"), tmp_path / "query", seen)
    _, last = told(ended.value)
    assert seen.offsets == list(range(1, last - 49)), "all batches before that one"


def test_what_retention_removed_ends_a_stream_with_the_range_or_is_left_out_of_it(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    small = DURABLE | {"history": {"bytes": "256KiB"}}
    config = {"data": str(tmp_path / "data"), "shards": 1}
    node = make_node(classes=[small], config=config, limits=LIMITS)
    seen = Seen()
    publish(node, 100)
    run(stream(spark, node), tmp_path / "query", seen)
    publish(node, 1_000, 100)

    def earliest() -> int:
        with Wire(SourceOptions.parse({"servers": node.http_url}).access) as wire:
            return wire.listing().hubs[1].earliest

    until(lambda: earliest() > 200, "retention")
    with pytest.raises(StreamingQueryException) as ended:
        run(stream(spark, node), tmp_path / "query", seen)
    lost = failure(ended.value)
    assert isinstance(lost, OffsetsLostError)
    assert f"records of hub chat-0 are gone: offsets 101 to {earliest() - 1}" in lost.message
    run(stream(spark, node, failOnDataLoss="false"), tmp_path / "query", seen)
    assert seen.offsets == [*range(1, 101), *range(earliest(), 1_101)]


def test_a_checkpoint_of_another_nodes_log_is_refused(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    one, other = (
        make_node(classes=[DURABLE], config={"data": str(tmp_path / name), "shards": 1})
        for name in ("one", "other")
    )
    for node in (one, other):
        publish(node, 10)
    seen = Seen()
    run(stream(spark, one), tmp_path / "query", seen)
    with pytest.raises(StreamingQueryException) as ended:
        run(stream(spark, other), tmp_path / "query", seen)
    assert isinstance(failure(ended.value), OtherLogError)
    assert seen.offsets == list(range(1, 11))


# -- the node and the tasks --

COUNT = 2_000
SIZE = 40_000
"""Bytes per record: all records together exceed what sockets and pipes between node and task buffer."""


class Halt:
    """Blocks a frame's first task at its first batch until `go`."""

    def __init__(self, directory: Path) -> None:
        self.reached, self.free = directory / "reached", directory / "free"
        for path in (self.reached, self.free):
            os.mkfifo(path)  # Opening one end waits for the other.

    def __call__(self, frame: Any) -> Any:
        reached, free = str(self.reached), str(self.free)

        def hold(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            for n, batch in enumerate(batches):
                if n == 0 and context.partitionId() == 0:
                    open(reached, "w").close()
                    open(free).close()
                yield batch.select(["offset"])

        return frame.mapInArrow(hold, "offset bigint")

    def wait(self) -> None:
        open(self.reached).close()

    def go(self) -> None:
        open(self.free, "w").close()


@pytest.fixture
def halt(spark: Any, tmp_path: Path) -> Iterator[Halt]:
    """The task receives rows in batches of 2 MB. In a single batch it would block after the read, not in the
    middle."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "50")
    yield Halt(tmp_path)
    spark.conf.set(name, before)


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with 80 MB of records in one hub: more than sockets and readers buffer."""
    node = make_node(classes=[DURABLE], config={"data": str(tmp_path / "data"), "shards": 1})
    publish(node, COUNT, size=SIZE)
    return node


def again(make_node: Callable[..., Node], node: Node, tmp_path: Path) -> Node:
    """The next node on the same data and address."""
    config = {"data": str(tmp_path / "data"), "shards": 1, "http": node.ready["http"]}
    return make_node(classes=[DURABLE], config=config)


EXACT = (COUNT, COUNT, COUNT * (COUNT + 1) // 2)


def figures(frame: Any) -> tuple[int, ...]:
    return tuple(frame.selectExpr("count(*)", "count(distinct offset)", "sum(offset)").collect()[0])


def test_a_node_killed_amid_a_read_and_started_again_costs_no_record(
    spark: Any,
    node: Node,
    make_node: Callable[..., Node],
    tmp_path: Path,
    halt: Halt,
    background: ThreadPoolExecutor,
) -> None:
    found = background.submit(figures, halt(read(spark, node)))
    halt.wait()
    node.stop(signal.SIGKILL)
    again(make_node, node, tmp_path)
    halt.go()
    assert found.result(120) == EXACT


def test_a_node_that_goes_away_amid_a_read_is_told_with_the_offsets_that_were_not_read(
    spark: Any, node: Node, halt: Halt, background: ThreadPoolExecutor
) -> None:
    once = read(spark, node, retrySeconds="0.3")
    found = background.submit(figures, halt(once))
    halt.wait()
    node.stop(signal.SIGKILL)
    halt.go()
    # The task's second attempt finds no server at once and names all of its offsets.
    error = failure(found.exception(120))  # type: ignore[arg-type]
    assert "records were not read: no server answers" in error.message
    assert re.search(rf"hub 1, offsets \d+ to ({COUNT // 2}|{COUNT})$", error.message), (
        "either task may be the first"
    )


def test_a_node_killed_amid_a_streams_batch_and_started_again_costs_no_record(
    spark: Any,
    node: Node,
    make_node: Callable[..., Node],
    tmp_path: Path,
    halt: Halt,
    background: ThreadPoolExecutor,
) -> None:
    seen = Seen()
    done = background.submit(run, halt(stream(spark, node)), tmp_path / "query", seen)
    halt.wait()
    node.stop(signal.SIGKILL)
    publish(again(make_node, node, tmp_path), 10, COUNT)
    halt.go()
    done.result(120)
    assert seen.offsets == list(range(1, COUNT + 1)), "what came later is of the next batch"
    run(stream(spark, node), tmp_path / "query", seen)
    assert seen.offsets == list(range(1, COUNT + 11))


def test_a_task_killed_amid_its_read_is_tried_again_and_costs_no_record(
    spark: Any, node: Node, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.select(["offset"])
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    frame = read(spark, node, minPartitions="2")
    assert figures(frame.mapInArrow(die_once, "offset bigint")) == EXACT
    assert killed.exists()
