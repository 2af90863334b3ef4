"""Nodes with a log: classes, bulk publishing, and API reads of hubs and the log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from clients.raw import Connection, Frame, encode
from clients.servers import Server

DURABLE: dict[str, Any] = {
    "name": "chat",
    "match": ["chat:*"],
    "durability": "durable",
    "history": {"bytes": "1GiB"},
    "on_slow": "catch-up",
}

QUIET = {"load_sample_ms": 0}
"""Limits of a node that publishes no samples of its own, so that all counts are those of the test."""

REPLICATED: dict[str, Any] = DURABLE | {"name": "fast", "match": ["fast:*"], "durability": "replicated"}


def publish(connection: Connection, topic: str, numbers: range, length: int = 100) -> list[Frame]:
    """Publishes `NUMBER …` for each number in one pipeline.

    Args:
        connection: A Redis connection.
        topic: The topic.
        numbers: The numbers to publish.
        length: Approximate payload size in bytes.

    Returns:
        The replies, in order.
    """
    payloads = (b"%d " % n + b"." * (length - 10) for n in numbers)
    connection.send(b"".join(encode("PUBLISH", topic, payload) for payload in payloads))
    return connection.read_many(len(numbers))


def history(connection: Connection, room: str, count: int = 100_000) -> list[tuple[str, int]]:
    """The history of a room.

    Args:
        connection: A Redis connection.
        room: The room's name.
        count: Maximum number of records, the latest ones.

    Returns:
        Position and payload number of each record, oldest first.
    """
    rows = connection.ask("HUBSUB", "HISTORY", room, "COUNT", count)
    assert isinstance(rows, list)
    return [(row[0].decode(), int(row[4].split()[0])) for row in rows]


def numbers(connection: Connection, room: str) -> list[int]:
    """The payload numbers of a room's records."""
    return [number for _, number in history(connection, room)]


def hubs(server: Server) -> list[dict[str, Any]]:
    """The entries of /v1/hubs."""
    listed: list[dict[str, Any]] = json.loads(server.get("/v1/hubs"))["hubs"]
    return listed


def figure(server: Server, name: str) -> float:
    """A metric by its full name, summed over its labels."""
    lines = server.get("/metrics").decode().splitlines()
    found = [line.rpartition(" ") for line in lines]
    values = [float(value) for key, _, value in found if key.partition("{")[0] == name]
    assert values, f"no metric {name}"
    return sum(values)


def files(data: Path, pattern: str) -> dict[str, int]:
    """Name and size in bytes of a log's files; a file may disappear meanwhile."""
    found = {}
    for path in sorted((data / "log").glob(pattern)):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_size
    return found


def manifest(data: Path) -> dict[str, Any]:
    """The log's manifest as of the last checkpoint."""
    json_line, _ = (data / "log" / "manifest.json").read_text().splitlines()
    parsed: dict[str, Any] = json.loads(json_line)
    return parsed
