"""The source on a real node: Spark reads what clients published and see in history."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clients.raw import TIMEOUT_S
from clients.servers import Server, until
from node import test_chat_log_restart as chat_log_restart
from node.home import Home
from node.test_chat_log import Rooms, chat_log
from pyspark.errors import PySparkException

from hubsub import BlockingClient
from hubsub.names import text_of
from hubsub.testing import Node

CLASSES = [
    {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}},
    {"name": "memory", "match": ["memory:*"], "history": {"messages": 10}},
]
ROOMS = [f"chat:{n}".encode() for n in range(7)] + [b"chat:\xff", b"chat:100%", "chat:é".encode()]

COLUMNS = "hub,offset,room,epoch,seq,payload"

Row = tuple[str, int, int, str, bytes]


@pytest.fixture
def chat(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with 1,000 records in ten rooms."""
    node = make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})
    publish(node, 1_000)
    return node


def publish(node: Node, count: int) -> None:
    with BlockingClient(node.redis_url) as client:
        client.publish_many((ROOMS[n % len(ROOMS)], f"message {n}".encode()) for n in range(count))


def history(node: Node) -> list[Row]:
    """The records that clients see: room, epoch, seq, topic, payload."""
    with BlockingClient(node.redis_url) as client:
        return sorted(
            (text_of(room), record.position.epoch, record.position.seq, text_of(record.topic), record.payload)
            for room in ROOMS
            for record in client.history(room, count=10_000).records
        )


def rows(frame: Any) -> list[Row]:
    found = frame.select("room", "epoch", "seq", "topic", "payload").collect()
    return sorted((row.room, row.epoch, row.seq, row.topic, bytes(row.payload)) for row in found)


def test_a_batch_is_what_clients_see(spark: Any, chat: Node) -> None:
    frame = spark.read.format("hubsub").option("servers", chat.http_url).load()
    assert rows(frame) == history(chat)
    assert frame.where("device is not null or timestamp < '2024-01-01'").count() == 0


@pytest.mark.parametrize("room", [text_of(room) for room in ROOMS[5:]])
def test_a_room_is_found_whatever_its_name(spark: Any, chat: Node, room: str) -> None:
    expected = [row for row in history(chat) if row[0] == room]
    reader = spark.read.format("hubsub").option("servers", chat.http_url)
    assert rows(reader.load().where(f"room = '{room}'")) == expected
    assert rows(reader.option("subscribe", room).load()) == expected


class Addressed(Home):
    """A home whose nodes also keep their HTTP address."""

    def start(self) -> Server:
        server = super().start()
        assert server.node
        self._config["http"] = server.node.ready["http"]
        return server


def positions(tables: list[pa.Table]) -> Rooms:
    """Position and payload of each record, by room, in offset order."""
    found: Rooms = defaultdict(list)
    whole = pa.concat_tables(tables).sort_by([("hub", "ascending"), ("offset", "ascending")])
    for row in whole.select(["room", "epoch", "seq", "payload"]).to_pylist():
        found[row["room"].encode()].append((f"{row['epoch']}-{row['seq']}".encode(), row["payload"]))
    return found


def test_batch_and_streams_have_the_chat_log_as_clients_received_it_through_a_killed_node(
    spark: Any, needs: Callable[..., None], repository: Path, tmp_path: Path
) -> None:
    """Each record once, compared by position: a stream that runs through the kill, a stream of available
    data, and a batch."""
    needs("hubsub-core")
    events = chat_log(repository)
    one = Addressed(tmp_path / "data", shards=3, limits={"log_tail_bytes_max": "256KiB"})
    live: list[pa.Table] = []
    later: list[pa.Table] = []

    def start(found: list[pa.Table], name: str, **trigger: Any) -> Any:
        assert one.server.node
        options = {"servers": one.server.node.http_url, "startingOffsets": "earliest"}
        options |= {"maxRowsPerBatch": "20000", "columns": COLUMNS}
        stream = spark.readStream.format("hubsub").options(**options).load()
        writer = stream.writeStream.foreachBatch(lambda frame, _: found.append(frame.toArrow()))
        return writer.option("checkpointLocation", str(tmp_path / name)).trigger(**trigger).start()

    def kill() -> None:
        until(lambda: live, "the stream to read")
        one.kill()

    async def bounded() -> Rooms:
        async with asyncio.timeout(4 * TIMEOUT_S):
            return await chat_log_restart.run(one, events, kill)

    one.start()
    try:
        query = start(live, "live", processingTime="0 seconds")
        received = asyncio.run(bounded())
        query.processAllAvailable()
        query.stop()
        assert start(later, "later", availableNow=True).awaitTermination(60)
        assert one.server.node
        reader = spark.read.format("hubsub").option("servers", one.server.node.http_url)
        batch = reader.option("columns", COLUMNS).load().toArrow()
    finally:
        one.server.node.stop(signal.SIGKILL)  # type: ignore[union-attr]
    assert sum(map(len, received.values())) == len(events)
    for tables in ([batch], later, live):
        assert positions(tables) == received


def test_load_samples_are_a_table_and_who_reads_all_rooms_does_not_get_them(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    config = {"data": str(tmp_path / "data"), "shards": 1}
    node = make_node(classes=CLASSES, config=config, limits={"load_sample_ms": 50})
    with BlockingClient(node.redis_url) as client:
        until(lambda: client.history("$stats/load").records)
        publish(node, 1_000)

        def sampled() -> bool:
            records = client.history("$stats/load", count=10_000).records
            hubs = [json.loads(record.payload) for record in records if b"chat-0" in record.payload]
            return any(hub["messages_per_second"] for hub in hubs if hub["kind"] == "hub")

        until(sampled)

    def read(**options: str) -> Any:
        return spark.read.format("hubsub").options(servers=node.http_url, **options).load()

    fields = "at timestamp, seconds double, kind string, hub string, messages_per_second double"
    payloads = f"from_json(cast(payload as string), '{fields}') as load"
    load = read(subscribe="$stats/load").selectExpr(payloads, "timestamp").selectExpr("load.*", "timestamp")
    done = load.where("hub = 'chat-0' and kind = 'hub'").selectExpr(
        "sum(messages_per_second * seconds) as done"
    )
    assert done.first().done == pytest.approx(1_000, abs=1)
    assert load.where("abs(unix_micros(at) - unix_micros(timestamp)) > 60e6 or at is null").count() == 0
    for pattern in ("*", "#"):
        rooms = read(subscribePattern=pattern).select("room").distinct().collect()
        assert sorted(row.room for row in rooms) == sorted(map(text_of, ROOMS))
    found: list[str] = []
    stream = spark.readStream.format("hubsub").option("servers", node.http_url)
    stream = stream.options(subscribe="$stats/load", startingOffsets="earliest").load().select("room")
    writer = stream.writeStream.foreachBatch(lambda frame, _: found.extend(r.room for r in frame.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "q")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert set(found) == {"$stats/load"}


def test_rooms_in_memory_only_fail_with_what_to_do(spark: Any, chat: Node) -> None:
    reader = spark.read.format("hubsub").option("servers", chat.http_url).option("subscribe", "memory:a")
    with pytest.raises(PySparkException) as raised:
        reader.load().count()
    assert "so Spark cannot see them: memory\nhint: set durability" in str(raised.value)
