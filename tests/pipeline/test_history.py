"""The union read on a real node: archive and live log together equal what clients received."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from clients.servers import until
from pyspark.errors import PySparkException

from hubsub import BlockingClient
from hubsub.names import text_of
from hubsub.pipeline.archive import Archive
from hubsub.pipeline.union import history
from hubsub.testing import Node

DURABLE = {"durability": "durable"}
CHAT = {"name": "chat", "match": ["chat:*"], "history": {"bytes": "256KiB"}, **DURABLE}
OLD = {"name": "old", "match": ["old:*"], "history": {"bytes": "1GiB"}, **DURABLE}
LIMITS = {"log_segment_bytes": "64KiB", "log_checkpoint_ms": 20}
ROOMS = [f"chat:{n}" for n in range(5)]

Heard = Counter[tuple[str, int, int, bytes]]
"""Room, epoch, seq and payload of records."""


def say(node: Node, rooms: list[str], count: int, heard: Heard, size: int = 1_000) -> None:
    """Publishes to the rooms in turn, and adds what a subscriber receives to `heard`.

    Args:
        node: The node.
        rooms: Room names.
        count: Number of records in total.
        heard: Receives the records.
        size: Payload size in bytes.
    """
    with (
        BlockingClient(node.redis_url) as client,
        client.subscribe(*{room.encode() for room in rooms}) as subscription,
    ):
        begin = sum(heard.values())
        client.publish_many(
            (rooms[n % len(rooms)], f"message {begin + n}".ljust(size).encode()) for n in range(count)
        )
        for _, record in zip(range(count), subscription, strict=False):
            position = record.position
            assert position is not None
            heard[text_of(record.topic), position.epoch, position.seq, record.payload] += 1


def found(rows: Any) -> Heard:
    rows = rows.select("room", "epoch", "seq", "payload").collect()
    return Counter((row.room, row.epoch, row.seq, bytes(row.payload)) for row in rows)


def listing(node: Node) -> Any:
    with urlopen(f"{node.http_url}/v1/log") as answer:
        return json.load(answer)


def has_let_go(node: Node) -> bool:
    """Whether retention has removed some records of each chat hub."""
    return all(hub["earliest"] > 1 for hub in listing(node)["hubs"] if hub["class"] == "chat")


def archived(spark: Any, node: Node, archive: Archive, batch: int) -> None:
    """Archives the records since the last batch."""
    offsets = archive.offsets()
    there = listing(node)
    archive.log = there["log"]
    starts = {str(hub["hub"]): offsets.get(hub["hub"], -2) for hub in there["hubs"]}
    reader = spark.read.format("hubsub").option("servers", node.http_url)
    archive(reader.option("startingOffsets", json.dumps(starts)).load(), batch)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_history_is_what_clients_received_whatever_became_of_hubs_and_rooms(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path, table_format: str
) -> None:
    data = {"data": str(tmp_path / "data")}
    node = make_node(classes=[CHAT, OLD], config=data | {"shards": 2}, limits=LIMITS)
    archive = Archive(str(tmp_path / "archive"), table_format)
    heard: Heard = Counter()
    say(node, ["old:a"], 20, heard)
    for batch in range(6):
        say(node, ROOMS, 200, heard)
        archived(spark, node, archive, batch)
    with urlopen(Request(f"{node.http_url}/v1/rooms/chat%3A1", method="DELETE")):
        say(node, ["chat:1"], 10, heard)
    assert len({epoch for room, epoch, _, _ in heard if room == "chat:1"}) == 2
    until(lambda: has_let_go(node))
    servers = node.ready["http"]
    assert found(history(spark, archive.target, servers, table_format)) == heard

    # With one shard less, some hubs get no more records; and a new hub appears.
    node.stop()
    new = {"name": "new", "match": ["new:*"], "history": {"bytes": "1GiB"}, **DURABLE}
    node = make_node(classes=[CHAT, OLD, new], config=data | {"shards": 1}, limits=LIMITS)
    say(node, ["new:a", *ROOMS], 30, heard)
    servers = node.ready["http"]
    both = history(spark, archive.target, servers, table_format)
    assert found(both) == heard
    assert found(both.where("room = 'chat:1'")) == Counter(
        {k: n for k, n in heard.items() if k[0] == "chat:1"}
    )


def test_what_retention_removed_before_it_was_archived_is_told(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    config = {"data": str(tmp_path / "data"), "shards": 1}
    node = make_node(classes=[CHAT], config=config, limits=LIMITS)
    archive = Archive(str(tmp_path / "archive"))
    heard: Heard = Counter()
    say(node, ROOMS, 50, heard)
    archived(spark, node, archive, 0)
    say(node, ROOMS, 900, heard)
    until(lambda: has_let_go(node))
    with pytest.raises(PySparkException, match=r"records .* are gone.*51"):
        history(spark, archive.target, node.ready["http"]).count()
    some = found(history(spark, archive.target, node.ready["http"], failOnDataLoss="false"))
    assert not some - heard and 50 < sum(some.values()) < 950
