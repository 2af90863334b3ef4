"""Traces of one node: `GET /v1/trace` and `hubsub trace`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from clients.servers import Server
from command_line import hubsub

from node.test_mqtt import client

Start = Callable[..., Server]

CHAT: dict[str, Any] = {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}
SAVED: dict[str, Any] = {
    "name": "saved",
    "match": ["saved:*"],
    "durability": "durable",
    "history": {"bytes": "64MiB"},
}


def trace(server: Server, topic: str, **query: object) -> list[dict[str, Any]]:
    answer = json.loads(server.get(f"/v1/trace?{urlencode({'topic': topic} | query)}"))
    assert answer["topic"] == topic
    records: list[dict[str, Any]] = answer["records"]
    return records


def traced(
    server: Server, topic: str, publish: Callable[[], object], records: int = 1
) -> list[dict[str, Any]]:
    """Follows a topic, and publishes until the trace has its records."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(trace, server, topic, records=records, wait_ms=20_000)
        while not found.done():
            publish()
            time.sleep(0.02)
        return found.result()


def kinds(record: dict[str, Any]) -> list[str]:
    times = [step["at_us"] for step in record["steps"]]
    assert times == sorted(times)
    return [step["kind"] for step in record["steps"]]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_record_of_a_room_in_memory_has_each_of_its_steps(start: Start, shards: int) -> None:
    server = start(shards, classes=[CHAT])
    with server.connect() as reader, server.connect() as writer:
        reader.ask("SUBSCRIBE", "chat:1")
        first, second = traced(server, "chat:1", lambda: writer.ask("PUBLISH", "chat:1", "x"), 2)
    assert first["position"] != second["position"]
    for record in (first, second):
        found = kinds(record)
        assert found[0] == "received" and {"committed", "delivered", "acknowledged"} <= set(found)
        counts = {step["kind"]: step.get("count") for step in record["steps"]}
        assert (counts["committed"], counts["delivered"]) == (1, 1)
        assert ("sent_to_shard" in counts) == ("from_shard" in counts) == ("answered" in counts)


def test_a_record_of_a_durable_room_is_logged_and_synced_before_it_is_committed(
    start: Start, data: Path
) -> None:
    server = start(1, {"data": str(data)}, classes=[SAVED])
    with server.connect() as writer:
        (record,) = traced(server, "saved:1", lambda: writer.ask("PUBLISH", "saved:1", "x"))
    assert kinds(record) == ["received", "logged", "synced", "committed", "acknowledged"]
    assert [step.get("count", 0) > 0 for step in record["steps"] if step["kind"] == "logged"] == [True]


def test_a_publish_of_an_mqtt_client_is_followed(start: Start) -> None:
    server = start(1, {"mqtt": "127.0.0.1:0"}, classes=[CHAT])
    numbers = count(1)
    with client(server, "writer") as device:
        publish = lambda: device.publish("chat:1", b"x", qos=1, number=next(numbers))  # noqa: E731
        (record,) = traced(server, "chat:1", publish)
    assert kinds(record) == ["received", "committed", "acknowledged"]


def test_the_command_prints_the_steps_of_each_record(start: Start) -> None:
    server = start(1, classes=[CHAT])
    assert server.node is not None
    url = server.node.http_url
    with server.connect() as writer, ThreadPoolExecutor(1) as pool:
        ran = pool.submit(hubsub, "trace", "chat:1", "--records", "2", "--wait", "20", "--url", url)
        while not ran.done():
            writer.ask("PUBLISH", "chat:1", "x")
            time.sleep(0.02)
    lines = ran.result().stdout.splitlines()
    heads = [line for line in lines if line.startswith("chat:1 ")]
    assert (ran.result().returncode, len(heads)) == (0, 2), ran.result()
    texts = [line.split(maxsplit=3)[3] for line in lines[2 : lines.index("")]]
    assert texts == [
        "received from its publisher",
        "committed; subscribers in all: 0",
        "acknowledged to its publisher",
    ]
    empty = hubsub("trace", "chat:2", "--wait", "0.1", "--json", "--url", url)
    assert (empty.returncode, empty.stdout) == (0, "") and "no record came in 0.1 s" in empty.stderr


def test_a_trace_without_records_is_empty_when_its_time_is_over(start: Start) -> None:
    server = start(2, classes=[CHAT])
    began = time.monotonic()
    assert trace(server, "chat:1", wait_ms=300) == []
    assert 0.3 <= time.monotonic() - began < 5


def test_one_trace_more_than_the_limit_is_refused_and_an_ended_one_makes_room(start: Start) -> None:
    server = start(2, classes=[CHAT], limits={"traces_max": 2})
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(trace, server, "chat:1", wait_ms=2_000) for _ in range(2)]
        time.sleep(0.5)
        assert refused(server, topic="chat:1") == (429, "too_many_traces")
        assert [each.result() for each in found] == [[], []]
    assert trace(server, "chat:1", wait_ms=1) == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({}, "bad_request"),
        ({"topic": "chat:1", "records": "0"}, "bad_request"),
        ({"topic": "chat:1", "records": "101"}, "bad_request"),
        ({"topic": "chat:1", "wait_ms": "60001"}, "bad_request"),
        ({"topic": "chat:1", "wait_ms": "x"}, "bad_request"),
        ({"topic": ""}, "topic_length"),
        ({"topic": "a" * 101}, "topic_length"),
    ],
)
def test_arguments_that_are_not_valid_are_refused(start: Start, query: dict[str, str], code: str) -> None:
    server = start(1, limits={"topic_bytes_max": 100})
    assert refused(server, **query)[1] == code


def refused(server: Server, **query: str) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        server.get(f"/v1/trace?{urlencode(query)}")
    return caught.value.code, json.loads(caught.value.read())["code"]
