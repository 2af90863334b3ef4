"""Stages and batches on a real node: each row is published once, with the node killed at each point.

A class with delayed commits keeps a batch at the point where the test kills the node.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from clients.raw import TIMEOUT_S
from clients.servers import PAUSE_S, Server, until

from hubsub.testing import Node
from node.home import Home, home

CHAT = {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
FAST = CHAT | {"name": "fast", "match": ["fast:*"], "durability": "replicated"}
SLOW = CHAT | {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 2_000}
MEMORY = {"name": "memory", "match": ["memory:*"], "history": {"messages": 1_000}, "payload_bytes_max": 100}
CLASSES = [CHAT, FAST, SLOW, MEMORY]

Answer = tuple[int, dict[str, Any]]


class Api:
    """The node's HTTP API; one connection per request."""

    def __init__(self, server: Server) -> None:
        assert server.node
        self.address = server.node.http_url.removeprefix("http://")

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
        finally:
            connection.close()

    def stage(self, attempt: str, body: bytes, query: str = "q", topic: str = "") -> Answer:
        return self.ask("PUT", f"/v1/queries/{query}/stages/{attempt}{topic and '?topic=' + topic}", body)

    def commit(self, batch: int, *attempts: str, query: str = "q") -> Answer:
        """Commits a batch, also where this takes longer than a request may."""
        while True:
            body = json.dumps({"attempts": attempts}).encode()
            answer = self.ask("POST", f"/v1/queries/{query}/batches/{batch}", body)
            if answer[1].get("code") != "batch_moving":
                return answer

    def records(self, query: str = "q") -> int:
        """Number of records with the query's progress."""
        status, room = self.ask("GET", f"/v1/rooms/%24queries%2F{query}")
        return int(room["position"].partition("-")[2]) if status == 200 else 0

    def payloads(self, room: str) -> list[str]:
        status, page = self.ask("GET", f"/v1/rooms/{room.replace(':', '%3A')}/history?count=10000")
        assert status == 200, page
        return [record["payload"] for record in page["records"]]


def arrow(rows: Sequence[tuple[str, str | bytes]], batch_rows: int = 1_000, **columns: Any) -> bytes:
    """Rows of topic and payload as an Arrow stream."""
    topics, payloads = [topic for topic, _ in rows], [payload for _, payload in rows]
    table = pa.table({"topic": pa.array(topics, pa.string()), "payload": payloads, **columns})
    return stream(table, batch_rows)


def stream(table: pa.Table, batch_rows: int = 1_000) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return bytes(out.getvalue().to_pybytes())


@pytest.fixture
def node(needs: Callable[..., None], tmp_path: Path) -> Iterator[Home]:
    needs("hubsub-core")
    with home(tmp_path / "data", classes=CLASSES) as one:
        yield one


@pytest.fixture
def api(node: Home) -> Api:
    return Api(node.server)


def committing(api: Api, batch: int, *attempts: str) -> threading.Thread:
    """A commit in a thread without its response: the node is killed meanwhile."""

    def commit() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            api.commit(batch, *attempts)

    thread = threading.Thread(target=commit)
    thread.start()
    return thread


# -- stages and commits --


def test_rows_of_all_classes_are_published_with_what_they_carry(api: Api) -> None:
    topics = ["chat:a", "fast:b", "memory:c"] * 1_000
    headers = pa.array(
        [[("n", str(n)), ("m", None)] for n in range(3_000)], pa.map_(pa.string(), pa.string())
    )
    publishers = pa.array([None if n % 2 else f"p{n}" for n in range(3_000)], pa.string())
    rows = [(topic, b"\xff%d" % n) for n, topic in enumerate(topics)]
    body = arrow(rows, 700, headers=headers, publisher=publishers)
    assert api.stage("a", body) == (200, {"rows": 3_000})
    assert api.ask("GET", "/v1/rooms/chat%3Aa")[0] == 404, "nothing is there before the commit"
    assert api.commit(0, "a") == (200, {"published": 3_000, "duplicate": False})
    assert api.commit(0, "a") == (200, {"published": 3_000, "duplicate": True})
    for room, start in (("chat%3Aa", 0), ("fast%3Ab", 1), ("memory%3Ac", 2)):
        _, page = api.ask("GET", f"/v1/rooms/{room}/history?count=10000")
        found = [
            (record["payload_base64"], record["headers"]["n"], record["headers"]["m"], record["publisher"])
            for record in page["records"]
        ]
        assert found == [
            (base64.b64encode(b"\xff%d" % n).decode(), str(n), "", "q" if n % 2 else f"p{n}")
            for n in range(start, 3_000, 3)
        ]


def test_a_large_batch_of_many_stages_is_published_in_the_order_of_its_stages(api: Api) -> None:
    for part in range(3):
        rows = [("chat:a", f"{part}-{n:05} " + "x" * 900) for n in range(2_000)]
        assert api.stage(f"s{part}", arrow(rows, 500)) == (200, {"rows": 2_000})
    assert api.commit(0, "s2", "s0", "s1") == (200, {"published": 6_000, "duplicate": False})
    found = [payload.split()[0] for payload in api.payloads("chat:a")]
    assert found == [f"{part}-{n:05}" for part in (2, 0, 1) for n in range(2_000)]


def test_one_topic_for_all_rows_and_topics_that_are_no_utf8(api: Api) -> None:
    assert api.stage("a", stream(pa.table({"payload": ["x", "y"]})), topic="chat%3Aone")[0] == 200
    assert api.stage("b", arrow([("chat:%FF", "z")])) == (200, {"rows": 1})
    assert api.commit(0, "a", "b")[1]["published"] == 3
    assert api.payloads("chat:one") == ["x", "y"]
    assert api.payloads("chat:%FF") == ["z"]


def test_subscribers_hear_of_a_batch_when_it_is_committed_and_never_of_its_stage(
    node: Home, api: Api
) -> None:
    connection = node.server.connect()
    connection.ask("PSUBSCRIBE", "*")
    api.stage("a", arrow([("chat:a", "x")]))
    api.commit(0, "a")
    assert connection.read().plain() == [b"pmessage", b"*", b"chat:a", b"x"]


# -- kill -9 --


def test_a_node_killed_between_staging_and_commit_has_the_stages_and_publishes_once(
    node: Home, api: Api
) -> None:
    api.stage("a", arrow([("chat:a", "x"), ("fast:a", "y")]))
    api = Api(node.restart(kills=True))
    assert api.commit(0, "a") == (200, {"published": 2, "duplicate": False})
    assert (api.payloads("chat:a"), api.payloads("fast:a")) == (["x"], ["y"])


def test_a_node_killed_behind_the_commit_record_publishes_at_its_start(node: Home, api: Api) -> None:
    api.stage("a", arrow([("slow:a", "x"), ("slow:b", "y")]))
    thread = committing(api, 0, "a")
    until(lambda: api.records() == 1, pause_s_max=PAUSE_S)
    node.kill()
    thread.join()
    api = Api(node.start())
    assert (api.payloads("slow:a"), api.payloads("slow:b")) == (["x"], ["y"]), "before the ready line"
    assert api.commit(0, "a") == (200, {"published": 2, "duplicate": True})
    assert api.payloads("slow:a") == ["x"]


def test_a_node_killed_amid_the_move_publishes_each_row_once(node: Home, api: Api) -> None:
    rows = [("chat:a", f"{n:04} " + "x" * 900) for n in range(1_000)]
    api.stage("a", arrow([*rows, ("slow:a", "last"), *rows], 100))
    thread = committing(api, 0, "a")
    until(lambda: api.records() >= 2 and api.ask("GET", "/v1/rooms/chat%3Aa")[0] == 200)
    node.kill()
    thread.join()
    api = Api(node.start())
    assert Counter(payload.split()[0] for payload in api.payloads("chat:a")) == Counter(
        {f"{n:04}": 2 for n in range(1_000)}
    )
    assert api.payloads("slow:a") == ["last"]
    assert api.commit(0, "a") == (200, {"published": 2_001, "duplicate": True})


def test_a_node_killed_behind_the_move_answers_the_repeated_commit(node: Home, api: Api) -> None:
    api.stage("a", arrow([("chat:a", "x")]))
    thread = committing(api, 7, "a")
    until(lambda: api.records() == 2, pause_s_max=PAUSE_S)
    node.kill()
    thread.join()
    api = Api(node.start())
    assert api.commit(7, "a") == (200, {"published": 1, "duplicate": True})
    assert api.payloads("chat:a") == ["x"]
    assert api.commit(6)[1]["code"] == "batch_passed"


# -- refused requests --


BAD: dict[str, tuple[bytes, str, str]] = {
    "a null topic": (arrow([(None, "x")]), "bad_rows", "row 0 has no topic"),  # type: ignore[list-item]
    "a null payload": (arrow([("chat:a", "x"), ("chat:a", None)]), "bad_rows", "row 1 has no payload"),  # type: ignore[list-item]
    "an empty topic": (arrow([("", "x")]), "topic_length", "row 0"),
    "a long topic": (arrow([("chat:a", "x"), ("c" * 70_000, "x")]), "topic_length", "row 1"),
    "a large payload": (arrow([("memory:a", "x" * 101)]), "payload_length", "row 0"),
    "a reserved topic": (arrow([("$queries/q", "x")]), "not_allowed", "row 0"),
    "a reserved room": (arrow([("x{$queries/q}", "x")]), "not_allowed", "row 0"),
    "no columns": (stream(pa.table({"a": [1]}).select([])), "bad_rows", "there is no column: topic"),
    "no payload": (stream(pa.table({"topic": ["a"]})), "bad_rows", "there is no column: payload"),
    "a strange column": (arrow([("a", "x")], key=["k"]), "bad_rows", "no such column: key"),
    "a topic of another type": (
        stream(pa.table({"topic": [1], "payload": ["x"]})),
        "bad_rows",
        "column topic is Int64",
    ),
    "a payload of another type": (arrow([("a", 1)]), "bad_rows", "column payload is Int64"),  # type: ignore[list-item]
    "headers of another type": (arrow([("a", "x")], headers=["h"]), "bad_rows", "column headers"),
    "no Arrow": (b"hello, world" * 100, "bad_rows", "no whole Arrow IPC stream"),
    "nothing": (b"", "bad_rows", "no whole Arrow IPC stream"),
    "a stream that ends early": (arrow([("chat:a", "x")])[:-8], "bad_rows", "no whole Arrow IPC stream"),
}


def test_rows_of_the_longest_names_are_published_and_read(api: Api) -> None:
    longest = "chat:".ljust(65_535, "x")
    of_it = "$stats/room/" + longest
    assert api.stage("a", arrow([(longest, "said"), (of_it, "told")]))[0] == 200
    assert api.commit(0, "a") == (200, {"published": 2, "duplicate": False})
    assert api.payloads(longest) == ["said"]
    assert api.payloads(quote(of_it, safe="")) == ["told"]
    for topic in (longest + "x", "$stats/room/".ljust(65_535 + 64 + 1, "x")):
        assert api.stage("b", arrow([(topic, "x")]))[1]["code"] == "topic_length"
        assert api.ask("GET", f"/v1/rooms/{quote(topic, safe='')}")[1]["code"] == "topic_length"


@pytest.mark.parametrize("case", BAD)
def test_rows_that_cannot_be_published_are_refused_before_they_are_committed(api: Api, case: str) -> None:
    body, code, text = BAD[case]
    status, answer = api.stage("a", body)
    assert (status >= 400, answer["code"]) == (True, code) and text in answer["message"], answer
    status, answer = api.commit(0, "a")
    assert (status, answer["code"]) == (409, "stages_missing") and "a" in answer["message"]


def test_every_cut_of_a_stream_is_refused(api: Api) -> None:
    body = arrow([("chat:a", "x")])
    for n, end in enumerate(range(0, len(body) - 1, 16)):
        status, answer = api.stage(f"a{n}", body[:end])
        assert (status, answer["code"]) == (422, "bad_rows"), (end, answer)


def test_names_and_bodies_that_are_none_are_told(api: Api) -> None:
    body = arrow([("chat:a", "x")])
    for path, text in {
        "/v1/queries/q/stages/a%2Fb": "attempt",
        f"/v1/queries/{'q' * 201}/stages/a": "query",
    }.items():
        status, answer = api.ask("PUT", path, body)
        assert (status, answer["code"]) == (400, "bad_request") and text in answer["message"], answer
    for batch, commit in (("x", b'{"attempts": []}'), ("0", b"{}"), ("0", b'{"attempts": ["a", "a"]}')):
        status, answer = api.ask("POST", f"/v1/queries/q/batches/{batch}", commit)
        assert (status, answer["code"]) == (400, "bad_request"), answer
    api.stage("a", body)
    assert api.stage("a", body)[1]["code"] == "stage_exists"
    assert api.ask("DELETE", "/v1/queries/q/stages/a") == (204, {})
    assert api.commit(0, "a")[1]["code"] == "stages_missing"
    assert api.commit(0)[0] == 200


def test_queries_of_any_name_are_apart(node: Home, api: Api) -> None:
    names = ["a%2Fb", "a", "%7Ba%7D", "%25", "%2B", "%23", "%C3%A9"]
    for n, query in enumerate(names):
        assert api.stage("s", arrow([(f"chat:{n}", query)]), query=query)[0] == 200
        assert api.commit(5, "s", query=query) == (200, {"published": 1, "duplicate": False})
    api = Api(node.restart())
    for n, query in enumerate(names):
        assert api.commit(5, "s", query=query) == (200, {"published": 1, "duplicate": True})
        assert api.payloads(f"chat:{n}") == [query]


@pytest.mark.parametrize("limits", [{"http_stage_bytes_max": "1KiB"}])
def test_a_stage_above_its_limit_is_refused(
    needs: Callable[..., None], tmp_path: Path, limits: dict[str, Any]
) -> None:
    with home(tmp_path / "data", classes=CLASSES, limits=limits) as one:
        api = Api(one.server)
        status, answer = api.stage("a", arrow([("chat:a", "x" * 2_000)]))
        assert (status, answer["code"]) == (413, "stage_too_large")


def test_a_node_that_keeps_nothing_keeps_no_stages(make_node: Callable[..., Node]) -> None:
    node = make_node()
    api = Api(Server(*node.redis, node.pid, node))
    for status, answer in (
        api.stage("a", arrow([("a", "x")])),
        api.commit(0),
        api.ask("DELETE", "/v1/queries/q/stages/a"),
    ):
        assert (status, answer["code"]) == (409, "no_stages")


def test_the_nodes_own_names_are_not_for_clients(node: Home, api: Api) -> None:
    connection = node.server.connect()
    for command in (
        ["PUBLISH", "$queries/q", "x"],
        ["PUBLISH", "a{$queries/q}", "x"],
        ["PUBLISH", "$stats/a", "x"],
        ["SUBSCRIBE", "$stage/q/a"],
        ["PSUBSCRIBE", "$*"],
        ["HUBSUB", "HISTORY", "$queries/q"],
    ):
        assert b"NOPERM" in connection.ask(*command).value, command  # type: ignore[union-attr, operator]
    for method, path in (("DELETE", "/v1/rooms/%24queries%2Fq"), ("PUT", "/v1/rooms/%24stage%2Fq%2Fa")):
        assert api.ask(method, path)[1]["code"] == "not_allowed"
    assert connection.ask("SUBSCRIBE", "$stats/a") == [b"subscribe", b"$stats/a", 1]
