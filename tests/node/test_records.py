"""A hub's log over HTTP: a read returns the published records in order, or an error with the reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.raw import encode
from clients.servers import Server, until

from hubsub.names import text_of
from node.arrow import fetch, hub, log, offset, path, post, refusal
from node.home import home
from node.logged import DURABLE, REPLICATED, figure, files, publish

pa = pytest.importorskip("pyarrow")

Start = Callable[..., Server]

CLASSES = [DURABLE, REPLICATED]

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

COLUMNS = {
    "hub": pa.int32(),
    "term": pa.int64(),
    "offset": pa.int64(),
    "room": pa.string(),
    "epoch": pa.int64(),
    "seq": pa.int64(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "publisher": pa.string(),
    "device": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "payload": pa.binary(),
}


@pytest.fixture
def one(start: Start, tmp_path: Path) -> Server:
    """A node with one shard, so that each class has one hub."""
    return start(config={"data": str(tmp_path / "data")}, classes=CLASSES)


@pytest.mark.parametrize("durability", ["durable", "replicated"])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_what_was_published_is_what_is_read_in_order(
    start: Start, tmp_path: Path, durability: str, compression: str
) -> None:
    cls = DURABLE | {"durability": durability}
    server = start(config={"data": str(tmp_path / "data")}, classes=[cls])
    sent = [
        {"topic": f"chat:{n % 7}", "payload": f"message {n}", "headers": {"n": str(n), "é": ""}}
        for n in range(500)
    ]
    positions = [result["position"] for result in post(server, sent)]
    table = fetch(server, "chat-0", compression=compression, batch_rows=100)
    assert table.schema == pa.schema(COLUMNS)
    rows = table.to_pylist()
    assert [row["payload"].decode() for row in rows] == [record["payload"] for record in sent]
    assert [row["topic"] for row in rows] == [row["room"] for row in rows] == [r["topic"] for r in sent]
    assert [dict(row["headers"]) for row in rows] == [record["headers"] for record in sent]
    assert [f"{row['epoch']}-{row['seq']}" for row in rows] == positions
    assert [row["offset"] for row in rows] == list(range(1, 501))
    assert {(row["hub"], row["term"], row["device"]) for row in rows} == {(1, 1, None)}
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)


def test_names_that_are_no_utf8_are_read_as_rest_tells_them(one: Server) -> None:
    names = ["chat:é".encode(), b"chat:\xff", b"chat:%41", b"chat:100%"]
    with one.connect() as connection:
        for name in names:
            connection.ask("PUBLISH", name, b"\x00\xff")
    texts = ["chat:é", "chat:%FF", "chat:%2541", "chat:100%"]
    rows = fetch(one, "chat-0").to_pylist()
    assert [row["room"] for row in rows] == [row["topic"] for row in rows] == texts
    assert {row["payload"] for row in rows} == {b"\x00\xff"}
    for number, text in enumerate(texts, 1):
        assert fetch(one, "chat-0", room=text)["offset"].to_pylist() == [number]


def test_the_template_of_a_rooms_class_names_the_devices(start: Start, tmp_path: Path) -> None:
    """Each room uses its own class's template: `x/{…}` is a room of the first class, whatever its topic looks
    like."""
    classes = [
        DURABLE | {"device": "+/{device}/#"},
        REPLICATED | {"match": ["devices/#"], "room": "devices/+", "device": "devices/{device}/state"},
        DURABLE | {"name": "plain", "match": ["plain/#"]},
    ]
    server = start(config={"data": str(tmp_path / "data")}, classes=classes)
    topics: dict[str, dict[str | bytes, bytes | None]] = {
        "chat-0": {
            "chat:a": None,
            "x/d1/{chat:b}": b"d1",
            "devices/d2/{chat:b}/state": b"d2",
            "x//{chat:b}": None,
        },
        "fast-0": {"devices/d1/state": b"d1", "devices/d2/set": None, b"devices/d\xff/state": b"d\xff"},
        "plain-0": {"plain/d1": None},
    }
    with server.connect() as connection:
        for topic in (topic for of_hub in topics.values() for topic in of_hub):
            connection.ask("PUBLISH", topic, b"x")
    for name, expected in topics.items():
        found = fetch(server, name, columns="topic,device").to_pylist()
        names = [topic if isinstance(topic, bytes) else topic.encode() for topic in expected]
        devices = [device and text_of(device) for device in expected.values()]
        texts = list(zip(map(text_of, names), devices, strict=True))
        assert [(row["topic"], row["device"]) for row in found] == texts
    assert fetch(server, "chat-0", device=["d1", "d2"])["device"].to_pylist() == ["d1", "d2"]
    assert fetch(server, "fast-0", device="d%FF", columns="seq").num_rows == 1
    assert fetch(server, "plain-0", device="d1").num_rows == 0


def test_deleted_rooms_leave_offsets_without_rows(one: Server) -> None:
    with one.connect() as connection:
        publish(connection, "chat:a", range(3))
        publish(connection, "chat:b", range(2))
    assert one.node
    request = urllib.request.Request(f"{one.node.http_url}/v1/rooms/chat%3Aa", method="DELETE")
    urllib.request.urlopen(request, timeout=30).close()
    with one.connect() as connection:
        publish(connection, "chat:a", range(1))
    rows = fetch(one, "chat-0").to_pylist()
    assert [(row["room"], row["offset"]) for row in rows] == [
        *(("chat:a", n) for n in (1, 2, 3)),
        *(("chat:b", n) for n in (4, 5)),
        ("chat:a", 7),
    ]


def test_filters_are_anded_and_columns_come_in_their_order(one: Server) -> None:
    with one.connect() as connection:
        for n in range(200):
            connection.send(encode("PUBLISH", f"{{chat:{n % 10}}}.t/{n % 4}", b"%d" % n))
        connection.read_many(200)
    rows = fetch(one, "chat-0").to_pylist()
    at = [int(row["timestamp"].timestamp() * 1e6) for row in rows]
    us = fetch(one, "chat-0", columns="timestamp")["timestamp"].cast(pa.int64()).to_pylist()
    assert len(at) == len(us) == 200

    def numbers(**query: Any) -> list[int]:
        table = fetch(one, "chat-0", columns="payload", **query)
        assert table.column_names == ["payload"]
        return [int(payload) for payload in table["payload"].to_pylist()]

    def where(wanted: Callable[[int], bool]) -> list[int]:
        return [n for n in range(200) if wanted(n)]

    assert numbers(room=["chat:3", "chat:5"]) == where(lambda n: n % 10 in (3, 5))
    assert numbers(room_pattern=["chat:[12]", "chat:9"]) == where(lambda n: n % 10 in (1, 2, 9))
    assert numbers(room_prefix="chat:3") == where(lambda n: n % 10 == 3)
    assert numbers(topic_filter="+/1") == where(lambda n: n % 4 == 1)
    assert numbers(topic="{chat:3}.t/1", room="chat:3") == where(lambda n: n % 20 == 13)
    assert numbers(topic_prefix="{chat:4}.t/") == where(lambda n: n % 10 == 4)
    assert numbers(room="chat:3", topic_filter="+/0") == []
    assert numbers(from_=101, until=111) == list(range(100, 110))
    assert numbers(since_us=us[50], until_us=us[150]) == [n for n in range(200) if us[50] <= us[n] < us[150]]
    assert numbers(from_=41, room="chat:0", since_us=us[60], batch_rows=1)[0] == next(
        n for n in where(lambda n: n % 10 == 0) if n >= 40 and us[n] >= us[60]
    )
    table = fetch(one, "chat-0", columns="payload,offset,hub")
    assert table.column_names == ["hub", "offset", "payload"]


def test_a_batch_ends_with_its_rows_or_its_bytes(one: Server) -> None:
    with one.connect() as connection:
        publish(connection, "chat:a", range(100), length=1000)
    stream = pa.ipc.open_stream(one.get(path("chat-0", batch_rows=30)))
    assert [batch.num_rows for batch in stream] == [30, 30, 30, 10]
    stream = pa.ipc.open_stream(one.get(path("chat-0", batch_bytes=9_000, columns="payload")))
    assert [batch.num_rows for batch in stream] == [10] * 10


def test_an_empty_range_is_a_schema_and_an_end(one: Server) -> None:
    table = fetch(one, "chat-0")
    assert (table.num_rows, table.schema) == (0, pa.schema(COLUMNS))
    with one.connect() as connection:
        publish(connection, "chat:a", range(5))
    assert fetch(one, "chat-0", from_=3, until=3).num_rows == 0
    assert fetch(one, "chat-0", from_=6).num_rows == 0


def test_what_is_acknowledged_is_read_at_once_and_by_ranges_each_once(one: Server) -> None:
    stop = threading.Event()
    sent = 0

    def speak() -> None:
        nonlocal sent
        with one.connect() as connection:
            while not stop.is_set():
                publish(connection, f"chat:{sent % 3}", range(sent, sent + 50))
                sent += 50

    thread = threading.Thread(target=speak)
    thread.start()
    seen: list[int] = []
    try:
        for _ in range(40):
            end = hub(one, "chat-0")["committed_until"]
            table = fetch(one, "chat-0", from_=len(seen) + 1, until=end, columns="offset,payload")
            assert table["offset"].to_pylist() == list(range(len(seen) + 1, end))
            seen += [int(payload.split()[0]) for payload in table["payload"].to_pylist()]
    finally:
        stop.set()
        thread.join()
    end = hub(one, "chat-0")["committed_until"]
    assert end == sent + 1
    table = fetch(one, "chat-0", from_=len(seen) + 1, until=end)
    seen += [int(payload.split()[0]) for payload in table["payload"].to_pylist()]
    assert seen == list(range(sent))


def test_a_node_killed_in_the_middle_gives_the_rest_from_the_offset_on(tmp_path: Path) -> None:
    with home(tmp_path / "data", shards=1, classes=CLASSES) as node:
        with node.server.connect() as connection:
            publish(connection, "chat:a", range(3000))
        identity = log(node.server)["log"]
        first = fetch(node.server, "chat-0", until=1501, log=identity)
        node.kill()
        node.start()
        with node.server.connect() as connection:
            publish(connection, "chat:a", range(3000, 3100))
        rest = fetch(node.server, "chat-0", from_=1501, log=identity)
        payloads = pa.concat_tables([first, rest])["payload"].to_pylist()
        assert [int(payload.split()[0]) for payload in payloads] == list(range(3100))
        assert len(set(pa.concat_tables([first, rest])["epoch"].to_pylist())) == 1


def test_a_time_is_found_in_a_hub(start: Start, tmp_path: Path) -> None:
    server = start(
        config={"data": str(tmp_path / "data")}, classes=CLASSES, limits={"log_segment_bytes": "64KiB"}
    )
    with server.connect() as connection:
        for n in range(30):
            publish(connection, "chat:a", range(n * 100, n * 100 + 100))
    us = fetch(server, "chat-0", columns="timestamp")["timestamp"].cast(pa.int64()).to_pylist()
    assert len(files(tmp_path / "data", "hubs/1/*.segment")) > 3
    assert offset(server, "chat-0", 0) == 1
    for at in range(0, 3000, 97):
        assert offset(server, "chat-0", us[at]) == us.index(us[at]) + 1
        assert offset(server, "chat-0", us[at] + 1) == next(
            (n for n, other in enumerate(us, 1) if other > us[at]), 3001
        )
    assert offset(server, "chat-0", us[-1] + 1) == hub(server, "chat-0")["committed_until"] == 3001


def test_the_log_names_its_hubs_and_what_is_in_memory_only(start: Start, tmp_path: Path) -> None:
    classes = [*CLASSES, {"name": "live", "match": ["live:*"]}]
    server = start(2, config={"data": str(tmp_path / "data")}, classes=classes)
    with server.connect() as connection:
        for n in range(20):
            publish(connection, f"chat:{n}", range(n + 1))
    info = log(server)
    assert [row["name"] for row in info["hubs"]] == ["chat-0", "chat-1", "fast-0", "fast-1"]
    assert info["ephemeral"] == ["live", "default"]
    assert server.node
    address = server.node.http_url.removeprefix("http://")
    assert all(row["servers"] == [address] for row in info["hubs"])
    assert sum(row["committed_until"] - 1 for row in info["hubs"]) == sum(range(1, 21))
    for n in range(20):
        (row,) = log(server, subscribe=f"chat:{n}")["hubs"]
        assert fetch(server, row["hub"], room=f"chat:{n}").num_rows == n + 1
    two = log(server, subscribe="chat:1,live:x")
    assert (len(two["hubs"]), two["ephemeral"]) == (1, ["live"])
    assert [row["name"] for row in log(server, subscribePattern="chat:*")["hubs"]] == ["chat-0", "chat-1"]
    assert log(server, subscribePattern="live:*") == info | {"hubs": [], "ephemeral": ["live", "default"]}
    assert [row["class"] for row in log(server, **{"class": "fast"})["hubs"]] == ["fast", "fast"]
    assert refusal(server, "/v1/log?class=none").code == "no_such_class"


def test_what_cannot_be_read_says_why(one: Server) -> None:
    with one.connect() as connection:
        publish(connection, "chat:a", range(10))
    refused = refusal(one, path("chat-9"))
    assert (refused.status, refused.code) == (404, "no_such_hub")
    refused = refusal(one, path("chat-0", log="0123456789abcdef"))
    assert (refused.status, refused.code) == (409, "other_log")
    for query in ({"until": 12}, {"from_": 12}):
        refused = refusal(one, path("chat-0", **query))
        assert (refused.status, refused.code) == (416, "offset_unknown")
    refused = refusal(one, path("chat-0", from_=0))
    assert (refused.status, refused.code) == (410, "offsets_lost")
    assert (refused.body["hub"], refused.body["first"], refused.body["end"]) == ("chat-0", 0, 1)
    for query in (
        {"from_": 5, "until": 4},
        {"columns": "offset,nothing"},
        {"compression": "zip"},
        {"batch_rows": 0},
        {"batch_bytes": 1 << 40},
        {"from_": "x"},
        {"topic_filter": "a/#/b#"},
    ):
        refused = refusal(one, path("chat-0", **query))
        assert (refused.status, refused.code) == (400, "bad_request"), query
    assert refusal(one, "/v1/hubs/chat-0/offset").code == "bad_request"


def test_a_range_that_retention_removed_is_an_error_that_says_where_to_go_on(
    start: Start, tmp_path: Path
) -> None:
    small = DURABLE | {"history": {"bytes": "256KiB"}}
    limits = {"log_segment_bytes": "64KiB", "log_checkpoint_ms": 20}
    server = start(config={"data": str(tmp_path / "data")}, classes=[small], limits=limits)
    with server.connect() as connection:
        publish(connection, "chat:a", range(1000), length=1000)
    until(lambda: hub(server, "chat-0")["earliest"] > 500, "retention")
    refused = refusal(server, path("chat-0", from_=1))
    assert (refused.status, refused.code, refused.body["first"]) == (410, "offsets_lost", 1)
    rows = fetch(server, "chat-0", from_=refused.body["end"], columns="offset")
    assert rows["offset"].to_pylist() == list(range(refused.body["end"], 1001))
    assert fetch(server, "chat-0", columns="offset")["offset"].to_pylist()[-1] == 1000


def test_damage_is_told_with_its_segment_and_all_before_it_is_read(tmp_path: Path) -> None:
    limits = {"log_segment_bytes": "64KiB", "log_checkpoint_ms": 20}
    with home(tmp_path / "data", shards=1, classes=CLASSES, limits=limits) as node:
        with node.server.connect() as connection:
            publish(connection, "chat:a", range(500), length=1000)
        (segment, *_) = until(
            lambda: sorted((tmp_path / "data/log/hubs/1").glob("*.segment"))[1:-1],
            "sealed segments",
        )
        first = int(segment.stem)
        with segment.open("r+b") as file:
            file.seek(30_000)
            file.write(b"damage")
        offsets = []
        while True:
            where = path("chat-0", from_=len(offsets) + 1, columns="offset", batch_rows=7)
            try:
                stream = pa.ipc.open_stream(node.server.get(where))
            except OSError:
                break
            except Exception as broken:
                # The body ends early; the received part is valid.
                assert type(broken).__name__ == "IncompleteRead", broken
                offsets += whole_batches(broken.partial)
                continue
            raise AssertionError(stream.read_all().num_rows)
        assert offsets == list(range(1, len(offsets) + 1))
        assert first < len(offsets) < first + 30
        refused = refusal(node.server, path("chat-0", from_=len(offsets) + 1))
        assert (refused.status, refused.code) == (503, "quarantined")
        assert segment.name in refused.body["message"]
        assert figure(node.server, "hubsub_log_streams_failed_total") >= 2
        node.server.log_line("a stream of records broke off", segment.name)
        assert hub(node.server, "chat-0")["state"] == "damaged"


def whole_batches(partial: bytes) -> list[int]:
    """Offsets of the complete batches in a truncated body."""
    assert not partial.endswith(END_OF_STREAM)
    offsets: list[int] = []
    # pyarrow treats the missing rest as an end; the HTTP client detects the truncated body.
    for batch in pa.ipc.open_stream(partial):
        offsets += batch["offset"].to_pylist()
    return offsets


@pytest.mark.needs("curl")
def test_the_examples_of_the_page_read_what_was_published(
    start: Start, tmp_path: Path, repository: Path
) -> None:
    server = start(2, config={"data": str(tmp_path / "data")}, classes=[DURABLE])
    with server.connect() as connection:
        for n in range(5):
            publish(connection, f"chat:{n}", range(n + 1))
    assert server.node
    page = (repository / "docs/protocol/records.md").read_text()
    page = page.replace("http://127.0.0.1:3220", server.node.http_url)
    said = {}
    for kind, text in re.findall(r"```(sh|python)\n(.*?)```", page, re.S):
        command = ["bash", "-euc", text] if kind == "sh" else [sys.executable, "-c", text]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr
        said[kind] = ran.stdout
    assert said["python"].splitlines() == [f"chat:{n} {n + 1}" for n in range(5)]
    rows = pa.ipc.open_stream((tmp_path / "chat-0.arrows").read_bytes()).read_all()
    assert rows.num_rows == hub(server, "chat-0")["committed_until"] - 1


def test_the_document_of_the_api_has_the_stream(one: Server) -> None:
    paths = json.loads(one.get("/v1/openapi.json"))["paths"]
    answer = paths["/v1/hubs/{hub}/records"]["get"]["responses"]["200"]
    assert list(answer["content"]) == ["application/vnd.apache.arrow.stream"]
