"""Input frames for job tests: records as the source yields them, from a seeded chat log; building them needs
no Spark.

`chat` is the log with its faults, `records` the rows that the source would yield for it, `frame` and `stream`
these rows in Spark.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hubsub.cli import demo
from hubsub.pipeline.schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in spark_schema())
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""Timestamp of the first record."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Row = dict[str, Any]


def chat(count: int = 600, seed: int = 1, rooms: int = 12, users: int = 30) -> list[Row]:
    """Events of the seeded chat log.

    Args:
        count: Number of events.
        seed: Seed of the generator.
        rooms: Number of rooms.
        users: Number of users.

    Returns:
        The events, in order.
    """
    return list(demo.events(count, rooms, users, seed))


def recorded(repository: Path, count: int) -> list[Row]:
    """Events of the recorded chat log if it exists, else of the seeded one."""
    path = repository.parent / "shared" / "data" / "irc" / "messages.jsonl.gz"
    if not path.exists():
        return chat(count, rooms=200, users=700)
    with gzip.open(path) as lines:
        return [json.loads(line) for _, line in zip(range(count), lines, strict=False)]


def records(
    events: Iterable[Mapping[str, Any] | bytes | None],
    hubs: int = 3,
    times: Callable[[int], datetime] = lambda n: START + timedelta(milliseconds=250 * n),
    epochs: Callable[[str, int], int] = lambda room, n: 7,
    **columns: Any,
) -> list[Row]:
    """One record per event, as the source yields it: offsets rise per hub, seqs per room and epoch.

    Args:
        events: Payloads: a mapping becomes JSON, and its `room` and `user` become the record's room and
            publisher.
        hubs: Number of hubs; a room lives in one.
        times: The record's timestamp by its number.
        epochs: The epoch of a room at a record's number.
        columns: Values for all records.

    Returns:
        The rows, in the order of `events`.
    """
    offsets: Counter[int] = Counter()
    seqs: Counter[tuple[str, int]] = Counter()
    rows = []
    for n, event in enumerate(events):
        fields = event if isinstance(event, Mapping) else {}
        payload = json.dumps(event, ensure_ascii=False).encode() if isinstance(event, Mapping) else event
        room = fields.get("room")
        room = str(columns.get("room", room if isinstance(room, str) else "lobby"))
        hub = zlib.crc32(room.encode()) % hubs
        epoch = epochs(room, n)
        seqs[room, epoch] += 1
        row = {
            "hub": hub,
            "term": 1,
            "offset": offsets[hub],
            "room": room,
            "epoch": epoch,
            "seq": seqs[room, epoch],
            "topic": room,
            "timestamp": times(n),
            "publisher": fields.get("user"),
            "device": None,
            "headers": {},
            "payload": payload,
        }
        offsets[hub] += 1
        rows.append(row | columns)
    return rows


def pieces(rows: list[Row], count: int, seed: int = 1) -> Iterator[list[Row]]:
    """Cuts the rows into random batches; rows within a batch come in any order, as from several tasks.

    Args:
        rows: The rows, in order.
        count: Number of batches, 1 to the number of rows.
        seed: Seed of the cuts and orders.

    Returns:
        The batches, in order.
    """
    dice = random.Random(seed)
    cuts = sorted(dice.sample(range(1, len(rows)), count - 1))
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        piece = rows[start:end]
        dice.shuffle(piece)
        yield piece


def frame(spark: SparkSession, rows: list[Row], schema: str = SCHEMA) -> DataFrame:
    """The rows as a batch frame.

    Args:
        spark: The session.
        rows: One mapping per row.
        schema: Columns of the frame, as Spark DDL.

    Returns:
        The frame, in the order of `rows`.
    """
    names = [part.split()[0] for part in schema.split(", ")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)


def stream(spark: SparkSession, batches: Iterable[list[Row]], directory: Path) -> DataFrame:
    """A stream that yields one of the batches at a time.

    Args:
        spark: The session.
        batches: The batches, in order.
        directory: Receives the batches as files.

    Returns:
        The streaming frame.
    """
    directory.mkdir(parents=True, exist_ok=True)
    known = len(list(directory.glob("*.json")))
    for number, rows in enumerate(batches, known):
        part = directory / f"part-{number:05d}"
        frame(spark, rows).coalesce(1).write.parquet(str(part))
        (directory / f"{number:05d}.json").write_text("")
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{directory}/part-*")


def drained(out: DataFrame, checkpoint: Path, mode: str = "append") -> list[Row]:
    """The stream's output once it has read everything available.

    Args:
        out: The streaming frame.
        checkpoint: The checkpoint directory.
        mode: The output mode.

    Returns:
        All rows, batch by batch.
    """
    got: list[Row] = []
    out.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)

    def take(batch: DataFrame, number: int) -> None:
        got.extend(row.asDict() for row in batch.collect())

    query = (
        out.writeStream.foreachBatch(take)
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return got


def table(out: DataFrame) -> pd.DataFrame:
    """The frame as a pandas table with times in UTC."""
    rows = [tuple(row) for row in out.collect()]
    return utc(pd.DataFrame(rows, columns=out.columns, dtype=object))


def utc(rows: pd.DataFrame) -> pd.DataFrame:
    """Converts Spark's naive times, which are in the machine's zone, to UTC."""
    for name in rows.columns:
        values = [value for value in rows[name] if value is not None]
        if values and isinstance(values[0], datetime):
            rows[name] = pd.Series([v and v.astimezone(UTC) for v in rows[name]], dtype=object)
    return rows


def same(got: pd.DataFrame, expected: pd.DataFrame, keys: list[str]) -> None:
    """Asserts that two tables are equal regardless of row order.

    Args:
        got: The actual table.
        expected: The expected table, with the same column order.
        keys: Columns that identify a row.

    Raises:
        AssertionError: The tables differ.
    """
    assert list(got.columns) == list(expected.columns)
    left = got.sort_values(keys, ignore_index=True)
    right = expected.sort_values(keys, ignore_index=True)
    assert left.to_dict("records") == right.to_dict("records")
