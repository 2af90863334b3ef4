"""Numbered records over HTTP: each is stored once, however often it is sent, also across kill -9."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clients.servers import until

from hubsub.names import producer_id
from hubsub.testing import Node
from node.conftest import Start
from node.logged import DURABLE, REPLICATED

TIMEOUT_S = 30
ROOMS = [f"chat:{i}" for i in range(6)]


class Http:
    """One persistent HTTP connection."""

    def __init__(self, node: Node) -> None:
        self.connection = http.client.HTTPConnection(node.http_url.removeprefix("http://"), timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.connection.request(method, path, data)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())

    def publish(self, body: Any) -> tuple[int, Any]:
        return self.ask("POST", "/v1/publish", body)

    def history(self, room: str) -> list[tuple[str, str]]:
        """Position and payload of all records of a room."""
        path = f"/v1/rooms/{room.replace(':', '%3A')}/history?limit="
        status, page = self.ask("GET", path + "1")
        assert status == 200, page
        epoch = page["records"][0]["position"].split("-")[0]
        rows: list[tuple[str, str]] = []
        after: str | None = f"{epoch}-0"
        while after:
            status, page = self.ask("GET", f"{path}1000&after={after}")
            assert (status, page["recovered"]) == (200, True), page
            rows += [(r["position"], r["payload"]) for r in page["records"]]
            after = page["next"]
        return rows


@pytest.fixture
def http_of(start: Start, data: Path) -> Iterator[Any]:
    """A connection to a new node on the same data as its predecessors; `http_of.node` is that node."""

    def one(limits: dict[str, int] | None = None, shards: int = 2) -> Http:
        server = start(shards, {"data": str(data)}, classes=[DURABLE, REPLICATED], limits=limits)
        assert server.node
        one.node = server.node  # type: ignore[attr-defined]
        return Http(server.node)

    yield one


def batch(producer: str, first: int, count: int) -> dict[str, Any]:
    records = [
        {"topic": ROOMS[i % len(ROOMS)], "payload": f"{producer} {i}", "sequence": i}
        for i in range(first, first + count)
    ]
    return {"producer": producer, "records": records}


def test_what_is_repeated_after_kill_9_has_its_first_position_and_stands_once(http_of: Any) -> None:
    size, names = 7, [f"p{i}" for i in range(5)]
    answered: dict[tuple[str, int], str] = {}
    begun = dict.fromkeys(names, 1)
    seen_twice = 0
    for _ in range(3):
        http_of()
        node = http_of.node
        enough = threading.Semaphore(0)

        def run(name: str, node: Node = node, enough: threading.Semaphore = enough) -> list[Any]:
            """Repeats everything from the beginning and continues until the node is gone."""
            http_client, first, duplicates = Http(node), 1, []
            try:
                while first < 20_000:
                    begun[name] = max(begun[name], first + size)
                    status, answer = http_client.publish(batch(name, first, size))
                    assert status == 200, answer
                    for i, result in enumerate(answer["results"], first):
                        assert result["position"] == answered.setdefault((name, i), result["position"])
                        duplicates.append((i, result["duplicate"]))
                    first += size
                    enough.release()
            except (OSError, http.client.HTTPException):
                pass  # Killed: the result of the last batch is unknown.
            finally:
                enough.release()
            return duplicates

        before = {name: sum(key[0] == name for key in answered) for name in names}
        with ThreadPoolExecutor(len(names)) as pool:
            runs = {name: pool.submit(run, name) for name in names}
            for _ in range(len(answered) // size + 30):
                assert enough.acquire(timeout=TIMEOUT_S)
            node.stop(signal.SIGKILL)
        for name, done in runs.items():
            told = dict(done.result())
            assert all(told[i] for i in range(1, before[name] + 1) if i in told), (
                "what was answered is repeated"
            )
            seen_twice += sum(told.values())
    client = http_of()
    for name in names:
        for first in range(1, begun[name], size):
            status, answer = client.publish(batch(name, first, size))
            assert status == 200
            for i, result in enumerate(answer["results"], first):
                assert result["position"] == answered.setdefault((name, i), result["position"])
    kept = [row for room in ROOMS for row in client.history(room)]
    wanted = sorted((position, f"{name} {i}") for (name, i), position in answered.items())
    assert sorted(kept) == wanted, "each once, at the position that was told"
    assert seen_twice > 100


def test_one_sequence_from_many_connections_at_once_is_one_record(http_of: Any) -> None:
    client = http_of()
    others = [Http(http_of.node) for _ in range(12)]
    gate = threading.Barrier(len(others))

    def publish(http_client: Http, sequence: int) -> Any:
        gate.wait(TIMEOUT_S)
        body = {"topic": "chat:a", "payload": f"{sequence}", "producer": "p", "sequence": sequence}
        return http_client.publish(body)

    with ThreadPoolExecutor(len(others)) as pool:
        for sequence in range(1, 21):
            answers = list(pool.map(publish, others, [sequence] * len(others)))
            assert {status for status, _ in answers} == {200}
            assert len({answer["position"] for _, answer in answers}) == 1
            assert [a["duplicate"] for _, a in answers].count(False) == 1
            assert all(("receivers" in answer) is not answer["duplicate"] for _, answer in answers)
    assert [payload for _, payload in client.history("chat:a")] == [str(i) for i in range(1, 21)]


def record(sequence: Any, payload: str = "x", topic: str = "chat:a", producer: Any = "p") -> dict[str, Any]:
    return {"topic": topic, "payload": payload, "producer": producer, "sequence": sequence}


def test_where_the_log_is_damaged_no_number_is_guessed_and_the_rest_goes_on(http_of: Any, data: Path) -> None:
    limits = {
        "log_segment_bytes": 65_536,
        "producer_window_records": 100,
        "producer_window_bytes": 50_000_000,
    }
    client = http_of(limits, shards=1)
    for sequence in range(1, 31):
        assert client.publish(record(sequence, "x" * 10_000))[0] == 200
    http_of.node.stop()
    segments = sorted(data.rglob("*.segment"), key=lambda path: path.stat().st_size)
    content = bytearray(segments[-1].read_bytes())
    content[len(content) // 2] ^= 1
    segments[-1].write_bytes(content)
    client = http_of(limits, shards=1)
    for body in (record(30, "x" * 10_000), record(31), record(1, producer="new")):
        status, answer = client.publish(body)
        assert (status, answer["code"]) == (503, "quarantined")
    until(lambda: "cannot tell repeats" in http_of.node.log, "a log line")
    _, ready = client.ask("GET", "/readyz")
    assert ready["status"] == "ready" and "numbered records are refused" in ready["reasons"][0]
    assert segments[-1].name in ready["reasons"][0]
    plain = [{"topic": "chat:a", "payload": "y"}] * 100
    assert client.publish({"records": plain})[0] == 200
    assert client.publish(record(31))[1]["duplicate"] is False
    assert client.publish(record(31))[1]["duplicate"] is True


def test_a_log_shows_who_numbered_a_record(http_of: Any, tmp_path: Path) -> None:
    client = http_of(shards=1)
    assert client.publish(record(7))[0] == client.publish({"topic": "chat:a", "payload": "x"})[0] == 200
    http_of.node.stop()
    command = [sys.executable, "-m", "hubsub", "log", "show", str(tmp_path / "data"), "--hub", "1", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    numbered, plain = map(json.loads, run.stdout.splitlines())
    assert (numbered["producer"], numbered["sequence"]) == (producer_id("p"), 7)
    assert (plain["producer"], plain["sequence"], plain["kind"]) == (None, None, "message")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_knows_as_much_as_the_node_before(http_of: Any, how: int) -> None:
    limits = {"producer_window_records": 3, "producer_window_bytes": 100_000}
    cases = [
        (record(10), 409, "sequence_too_old"),
        (record(25), 409, "sequence_passed"),
        (record(30, "other"), 422, "sequence_reused"),
        (record(30, topic="chat:a.b"), 422, "sequence_reused"),
        (record(30), 200, None),
        (record(40), 200, None),
    ]
    client = http_of(limits, shards=1)
    for sequence in (10, 20, 30, 40):
        assert client.publish(record(sequence))[1]["duplicate"] is False
    for _ in range(2):
        for body, status, code in cases:
            answer = client.publish(body)
            assert (answer[0], answer[1].get("code")) == (status, code), body
        assert len(client.history("chat:a")) == 4
        http_of.node.stop(how)
        client = http_of(limits, shards=1)
    # A record larger than the window pushes all others out of it.
    assert client.publish({"topic": "chat:a", "payload": "x" * 100_000})[0] == 200
    assert client.publish(record(40))[1]["duplicate"] is False
    http_of.node.stop(how)
    assert http_of(limits, shards=1).publish(record(40))[1]["duplicate"] is True


def test_a_replicated_class_keeps_numbered_records_once_too(http_of: Any) -> None:
    client = http_of()
    first = client.publish(record(1, topic="fast:a"))[1]
    again = client.publish(record(1, topic="fast:a"))[1]
    assert (again["position"], again["duplicate"]) == (first["position"], True)
    http_of.node.stop()
    again = http_of().publish(record(1, topic="fast:a"))[1]
    assert (again["position"], again["duplicate"]) == (first["position"], True)


BAD = [
    (record(0), "bad_request"),
    (record(-1), "bad_request"),
    (record("1"), "bad_request"),
    (record(1.5), "bad_request"),
    (record(True), "bad_request"),
    (record(2**63), "bad_request"),
    (record(2**64 + 1), "bad_request"),
    (record(1, producer=""), "bad_request"),
    (record(1, producer="x" * 256), "bad_request"),
    (record(1, producer=7), "bad_request"),
    ({"topic": "chat:a", "payload": "x", "producer": "p"}, "bad_request"),
    ({"topic": "chat:a", "payload": "x", "sequence": 1}, "bad_request"),
    ({"producer": "p", "records": [{"topic": "chat:a", "payload": "x"}]}, "bad_request"),
    (b'{"topic": "chat:a", "payload": "x", "producer": "\\ud800", "sequence": 1}', "bad_request"),
    (record(1, topic="memory"), "not_logged"),
]


def test_a_number_that_is_none_is_refused_and_nothing_is_kept(http_of: Any) -> None:
    client = http_of(shards=1)
    for body, code in BAD:
        status, answer = client.publish(body)
        assert (status, answer["code"]) == (400, code), body
    assert client.publish(record(1))[1]["duplicate"] is False
    assert [payload for _, payload in client.history("chat:a")] == ["x"]


def test_in_a_batch_each_record_has_its_own_outcome(http_of: Any) -> None:
    client = http_of()
    records = [
        {"topic": "chat:a", "payload": "1", "sequence": 1},
        {"topic": "memory", "payload": "2", "sequence": 2},
        {"topic": "chat:a", "payload": "1", "sequence": 1},
        {"topic": "chat:a", "payload": "3", "sequence": 1, "producer": "another"},
    ]
    status, answer = client.publish({"producer": "p", "records": records})
    first, second, third, fourth = answer["results"]
    assert status == 200
    assert second["error"]["code"] == "not_logged"
    assert (first["duplicate"], third["duplicate"], fourth["duplicate"]) == (False, True, False)
    assert third["position"] == first["position"]
