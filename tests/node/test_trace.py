"""Traces of one node: `GET /v1/trace` and `hubsub trace`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from clients.mqtt import PUBACK
from clients.raw import encode
from clients.servers import Server, until
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
    with client(server, "writer") as device:

        def publish() -> None:
            device.publish("chat:1", b"x", qos=1, number=1)
            device.read(PUBACK)

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


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("has_data", [False, True])
def test_one_trace_more_than_the_limit_is_refused_and_an_ended_one_makes_room(
    start: Start, data: Path, most: int, has_data: bool
) -> None:
    config = {"data": str(data)} if has_data else {}
    server = start(2, config, classes=[CHAT], limits={"traces_max": most})
    for number in range(most):
        assert part(server, "PUT", number, topic="chat:1") == 204
    for _ in range(2):
        assert refused(server, topic="chat:1") == (429, "too_many_traces"), "it leaves nothing"
    if most > 0:
        assert part(server, "DELETE", 0) == 204
        assert trace(server, "chat:1", wait_ms=1) == []
        assert part(server, "PUT", 0, topic="chat:1") == 204
        assert part(server, "PUT", 0, topic="chat:1") == 204, "it opens the trace of its number"


@pytest.mark.parametrize("has_data", [False, True])
def test_a_topic_may_be_as_long_as_the_limit(start: Start, data: Path, has_data: bool) -> None:
    config = {"data": str(data)} if has_data else {}
    server = start(1, config, classes=[CHAT], limits={"topic_bytes_max": 100})
    with server.connect() as reader, server.connect() as writer:
        for length in (99, 100):
            topic = "chat:".ljust(length, "x")
            reader.ask("SUBSCRIBE", topic)
            (record,) = traced(server, topic, lambda topic=topic: writer.ask("PUBLISH", topic, "x"))  # type: ignore[misc]
            assert "delivered" in kinds(record)
    assert refused(server, topic="chat:".ljust(101, "x"))[1] == "topic_length"


@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_trace_has_as_many_records_as_it_asks_for_of_a_topic_that_is_busy(
    start: Start, records: int
) -> None:
    server = start(2, classes=[CHAT])
    burst = encode("PUBLISH", "chat:1", "x") * 500
    with server.connect() as writer:

        def publish() -> None:
            writer.send(burst)
            writer.read_many(500)

        found = traced(server, "chat:1", publish, records)
    assert len({record["position"] for record in found}) == records
    for record in found:
        assert {"received", "committed", "acknowledged"} <= set(kinds(record))


def test_publishes_that_are_refused_leave_place_for_records(start: Start) -> None:
    server = start(1, classes=[CHAT | {"payload_bytes_max": 1}])
    with server.connect() as writer:

        def publish() -> None:
            for payload in ("xx", "xx", "xx", "x"):
                writer.call("PUBLISH", "chat:1", payload)

        (record,) = traced(server, "chat:1", publish)
    assert kinds(record) == ["received", "committed", "acknowledged"]


def test_a_record_of_a_shared_subscription_is_delivered_once(start: Start) -> None:
    server = start(1, {"mqtt": "127.0.0.1:0"}, classes=[CHAT])
    with client(server, "one") as one, client(server, "two") as two, server.connect() as writer:
        for member in (one, two):
            assert member.subscribe(("$share/g/chat:1", 0)) == [0]
        (record,) = traced(server, "chat:1", lambda: writer.ask("PUBLISH", "chat:1", "x"))
    counts = [(step["kind"], step.get("count")) for step in record["steps"]]
    assert counts == [("received", None), ("committed", 1), ("delivered", 1), ("acknowledged", None)]


def test_a_trace_outlives_publishers_that_disconnect(start: Start) -> None:
    server = start(2, classes=[CHAT])

    def publish() -> None:
        with server.connect() as writer:
            writer.ask("PUBLISH", "chat:1", "x")

    found = traced(server, "chat:1", publish, 3)
    assert len(found) == 3 and all("acknowledged" in kinds(record) for record in found)


def test_the_trace_of_a_client_that_disconnects_ends(start: Start) -> None:
    server = start(2, classes=[CHAT], limits={"traces_max": 1})
    assert server.node is not None
    address = server.node.http_url.removeprefix("http://")
    with closing(HTTPConnection(address, timeout=20)) as gone:
        gone.request("GET", "/v1/trace?topic=chat:1&wait_ms=60000")
        until(lambda: not started(server, "chat:2"))
    until(lambda: started(server, "chat:2"))


def test_a_pattern_is_the_name_of_a_topic(start: Start) -> None:
    server = start(1, classes=[CHAT])
    with server.connect() as writer:

        def publish() -> None:
            writer.ask("PUBLISH", "chat:1", "x")
            writer.ask("PUBLISH", "chat:*", "x")

        (record,) = traced(server, "chat:*", publish)
        assert kinds(record) == ["received", "committed", "acknowledged"]


def test_a_name_that_is_not_utf8_is_given_as_in_every_answer(start: Start) -> None:
    server = start(1, classes=[CHAT])
    with server.connect() as writer:
        for text, topic in (("chat:a%FF", b"chat:a\xff"), ("chat:%2541&+ ", b"chat:%41&+ ")):
            (record,) = traced(server, text, lambda topic=topic: writer.ask("PUBLISH", topic, "x"))  # type: ignore[misc]
            assert "acknowledged" in kinds(record)


def test_a_node_without_a_log_has_no_steps_of_one(start: Start) -> None:
    server = start(1, classes=[CHAT])
    with server.connect() as writer:
        (record,) = traced(server, "chat:1", lambda: writer.ask("PUBLISH", "chat:1", "x"))
    assert not {"logged", "synced"} & set(kinds(record))


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


def part(server: Server, method: str, number: int, **query: object) -> int:
    """Calls a node's own part of a trace; returns the status."""
    assert server.node is not None
    url = f"{server.node.http_url}/v1/traces/{number}?{urlencode(query)}"
    with urlopen(Request(url, method=method), timeout=20) as answer:
        status: int = answer.status
        return status


def started(server: Server, topic: str) -> bool:
    """Whether there is place for a trace, which lasts 1 ms."""
    try:
        trace(server, topic, wait_ms=1)
    except HTTPError as error:
        assert error.code == 429
        return False
    return True


def refused(server: Server, **query: str) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        server.get(f"/v1/trace?{urlencode(query)}")
    return caught.value.code, json.loads(caught.value.read())["code"]
