"""Server-sent events of a node: docs/protocol/events.md."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import pytest
from browser import chromium
from clients.events import Stream
from clients.phoenix import Page
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, until

from hubsub.config import split_address

Start = Callable[..., Server]

CHAT: dict[str, Any] = {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}
SHORT: dict[str, Any] = {"name": "short", "match": ["short:*"], "history": {"messages": 3}}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with a listener for WebSockets."""
    needs("hubsub-core")
    config = {"ws": "127.0.0.1:0", "ws_origins": ["https://good.example"]}
    with hubsub_node(request.param, config, classes=[CHAT, SHORT]) as server:
        yield server


def stream(server: Server, room: str | bytes, query: str = "", **fields: str) -> Stream:
    assert server.node is not None
    return Stream(server.node.ws, room, query, **fields)


def test_records_come_as_events_whose_ids_are_their_positions(server: Server) -> None:
    assert server.node is not None
    with stream(server, "chat:1") as one, server.connect() as redis, Page(server.node.ws) as page:
        assert (one.status, one.fields["content-type"]) == (200, "text/event-stream")
        assert "content-length" not in one.fields
        assert one.fields["x-content-type-options"] == "nosniff", "no page runs it as a script"
        epoch, seq = one.place().split("-")
        assert seq == "0"
        page.join("chat:1")
        for payload, data in [
            (b'{"n": 1}', {"n": 1}),
            (b'{"n":\n\r\n2}', {"n": 2}),
            ("ünï\n".encode(), {"data": "ünï\n"}),
            (b"[1]", {"data": "[1]"}),
            (b"\xff", {"base64": "/w=="}),
        ]:
            assert redis.ask("PUBLISH", "chat:1", payload) == 2
            assert one.event() == ("message", data)
        page.push("chat:1", "say", {"text": "hello"})
        assert one.event() == ("say", {"text": "hello"})
        page.push("chat:1", "gap", {"from": "1-1"})
        assert one.event() == ("message", {"from": "1-1"}), (
            "nobody else says what the stream's own events say"
        )
        page.push("chat:1", "a\nid: 9-9\n\ndata: x", {})
        assert one.event() == ("message", {})
        assert one.last_id == f"{epoch}-8"


def test_a_room_may_have_any_name(server: Server) -> None:
    for room in ("chat:a/b c", "chat:ü?%&", b"\xff/\x01"):
        with stream(server, room) as one, server.connect() as redis:
            one.place()
            assert redis.ask("PUBLISH", room, "{}") == 1
            assert one.event() == ("message", {})


@pytest.mark.parametrize(
    ("query", "says_last", "expected"),
    [
        ("", True, [1, 2, 3]),
        ("?after={last}", False, [1, 2, 3]),
        # A returning browser sends its last event id beside the query of its original URL.
        ("?rewind=1", True, [1, 2, 3]),
        ("?after={place}", True, [1, 2, 3]),
        ("?rewind=2", False, [2, 3]),
        ("?rewind=1h", False, [0, 1, 2, 3]),
        ("", False, []),
    ],
)
def test_who_comes_back_gets_what_it_missed_once(
    server: Server, query: str, says_last: bool, expected: list[int]
) -> None:
    room = f"chat:2.{query.replace('{', '').replace('}', '')}{says_last}"
    with server.connect() as redis:
        with stream(server, room) as one:
            place = one.place()
            redis.ask("PUBLISH", room, '{"n":0}')
            assert one.event() == ("message", {"n": 0})
            last = one.last_id
        for n in range(1, 4):
            redis.ask("PUBLISH", room, json.dumps({"n": n}))
        fields = {"Last_Event_ID": last} if says_last else {}
        with stream(server, room, query.format(last=last, place=place), **fields) as one:
            if not expected:
                assert one.place() == f"{last.split('-')[0]}-4"
            redis.ask("PUBLISH", room, '{"n":4}')
            assert [one.event() for _ in [*expected, 4]] == [("message", {"n": n}) for n in [*expected, 4]]


def test_a_place_is_told_where_nothing_older_is_to_come(server: Server) -> None:
    with server.connect() as redis:
        redis.ask("PUBLISH", "chat:3", '{"n":0}')
        with stream(server, "chat:3") as one:
            place = one.place()
        redis.ask("PUBLISH", "chat:3", '{"n":1}')
        with stream(server, "chat:3", Last_Event_ID=place) as one:
            assert one.event() == ("message", {"n": 1}), "it had seen nothing, and missed nothing"


def test_what_is_not_there_any_more_is_told_in_its_place(server: Server) -> None:
    with server.connect() as redis:
        with stream(server, "short:1") as one:
            epoch = one.place().split("-")[0]
        for n in range(1, 7):
            redis.ask("PUBLISH", "short:1", json.dumps({"n": n}))
        with stream(server, "short:1", Last_Event_ID=f"{epoch}-1") as one:
            assert one.event() == ("gap", {"from": f"{epoch}-2", "to": f"{epoch}-3"})
            assert one.last_id == f"{epoch}-3"
            assert [one.event()[1]["n"] for _ in "123"] == [4, 5, 6]
        with stream(server, "short:1", Last_Event_ID="7-9") as one:
            assert one.event() == ("gap", {"from": "7-10", "to": None}), "another life"
            assert one.last_id == f"{epoch}-6"
        with stream(server, "short:1", Last_Event_ID=f"{epoch}-99") as one:
            assert one.event() == ("gap", {"from": f"{epoch}-100", "to": None}), "it has said less than that"


@pytest.mark.parametrize(
    ("room", "query", "fields", "status", "code"),
    [
        ("chat:4", "?rewind=x", {}, 400, "bad_request"),
        ("chat:4", "?after=x", {}, 400, "bad_request"),
        ("chat:4", "?rewind=1&after=1-1", {}, 400, "bad_request"),
        ("chat:4", "?token=%ff", {}, 400, "bad_request"),
        ("chat:4", "", {"Last_Event_ID": "x"}, 400, "bad_request"),
        ("chat:4", "", {"Origin": "https://evil.example"}, 403, "not_allowed"),
        ("$hubsub/own", "", {}, 403, "not_allowed"),
    ],
    ids=str,
)
def test_what_is_asked_wrongly_is_told_so(
    server: Server, room: str, query: str, fields: dict[str, str], status: int, code: str
) -> None:
    before = server.metric("events_refused_total")
    with stream(server, room, query, **fields) as one:
        assert one.status == status
        error = one.error()
        assert error["code"] == code and error["message"]
    until(lambda: server.metric("events_refused_total") == before + 1)


def test_a_page_of_a_listed_origin_may_read_the_answer(server: Server) -> None:
    with stream(server, "chat:5", Origin="https://good.example") as one:
        assert one.fields["access-control-allow-origin"] == "https://good.example"
    with stream(server, "chat:5", "?after=x", Origin="https://good.example") as one:
        assert one.fields["access-control-allow-origin"] == "https://good.example"
    with stream(server, "chat:5", Origin="https://evil.example") as one:
        assert "access-control-allow-origin" not in one.fields


@pytest.mark.parametrize(
    ("request_line", "status"), [("POST /v1/rooms/a/events", b"405"), ("GET /v1/rooms", b"426")]
)
def test_another_method_or_path_is_told_so(server: Server, request_line: str, status: bytes) -> None:
    assert server.node is not None
    with socket.create_connection(server.node.ws, TIMEOUT_S) as client:
        client.sendall(f"{request_line} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
        assert answer.split()[1] == status


def test_the_rest_api_says_where_the_events_are(server: Server) -> None:
    assert server.node is not None
    path = "/v1/rooms/chat%3Aa%2Fb/events?rewind=1"
    with closing(http.client.HTTPConnection(*split_address(server.node.ready["http"]), TIMEOUT_S)) as rest:
        rest.request("GET", path)
        answer = rest.getresponse()
        assert answer.status == 307
        assert answer.headers["location"] == f"http://{server.node.ready['ws']}{path}"
    with urlopen(f"{server.node.http_url}{path}", timeout=TIMEOUT_S) as found:
        assert found.headers["content-type"] == "text/event-stream"
        assert found.readline().startswith(b"id: ")


def test_a_stream_is_a_client_until_it_goes(server: Server) -> None:
    with stream(server, "chat:6") as one, server.connect() as redis:
        one.place()

        def shown() -> list[int]:
            rows = json.loads(server.get("/v1/clients"))["clients"]
            return [row["subscriptions"] for row in rows if row["protocol"] == "events"]

        until(lambda: shown() == [1])
        until(lambda: server.metric("events_connections") == 1)
        # The server discards further input.
        one.socket.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        redis.ask("PUBLISH", "chat:6", "{}")
        assert one.event() == ("message", {})
        one.stack.close()
        until(lambda: redis.ask("PUBSUB", "NUMSUB", "chat:6") == [b"chat:6", 0])
    until(lambda: server.metric("events_connections") == 0)


def test_a_stream_that_has_nothing_to_say_says_that_it_is_there(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"events_heartbeat_ms": 50})
    with stream(server, "chat:7") as one, server.connect() as redis:
        one.place()
        assert [one.block() for _ in "123"] == [(":", "")] * 3
        redis.ask("PUBLISH", "chat:7", "{}")
        while (block := one.block()) == (":", ""):
            pass
        assert block == ("message", "{}")


@pytest.mark.parametrize(
    ("policy", "says"), [("drop-oldest", True), ("catch-up", False), ("disconnect", False)]
)
def test_a_slow_reader_meets_its_limit_as_its_class_says(start: Start, policy: str, says: bool) -> None:
    kept = {"history": {"messages": 1_000_000, "bytes": "1GiB"}} if policy == "catch-up" else {}
    slow = {"name": "slow", "match": ["slow"], "on_slow": policy, **kept}
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"output_bytes_max": 100_000}, classes=[slow])
    met = {"drop-oldest": "dropped_total", "catch-up": "catch_ups_total", "disconnect": "slow_closed_total"}
    with stream(server, "slow") as one, server.connect() as redis:
        one.place()
        sent = 0
        while server.metric(met[policy]) == 0:
            for _ in range(20):
                redis.ask("PUBLISH", "slow", "x" * 50_000)
            sent += 20
        if policy == "disconnect":
            until(lambda: server.metric("events_connections") == 0)
            return
        redis.ask("PUBLISH", "slow", "last")
        sent += 1
        spans: list[tuple[int, int]] = []
        while not spans or spans[-1][1] != sent:
            event, data = one.event()
            ends = [data["from"], data["to"]] if event == "gap" else [one.last_id] * 2
            first, last = (int(end.split("-")[1]) for end in ends)
            spans.append((first, last))
            assert event == "message" or says
        assert [first for first, _ in spans] == [1] + [last + 1 for _, last in spans[:-1]], (
            "each is seen or told, once"
        )


def test_what_pages_may_not_join_they_do_not_read(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0", "phoenix": {"topics": ["chat:*"]}})
    with stream(server, "secret") as one:
        assert (one.status, one.error()["code"]) == (403, "not_allowed")
    with stream(server, "chat:9") as one:
        assert one.status == 200


def test_a_stop_ends_streams(start: Start) -> None:
    server = start(2, {"ws": "127.0.0.1:0"})
    assert server.node is not None
    with stream(server, "chat:8") as one:
        one.place()
        server.node.stop()
        assert one.lines.read() == b""


@pytest.mark.needs("chromium")
def test_an_event_source_of_a_browser_comes_back_by_itself_and_goes_on(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = {"name": "kept", "match": ["kept:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    data = str(tmp_path_factory.mktemp("kept"))
    config = {"ws": "127.0.0.1:0", "ws_origins": ["*"], "data": data}
    server = start(2, config, classes=[kept])
    assert server.node is not None
    where = server.node.ready["ws"]
    with chromium() as browser, server.connect() as redis:
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_S * 1_000)
        page.goto(f"{server.node.http_url}/v1/health")
        page.evaluate(
            """where => {
                window.seen = [];
                window.source = new EventSource(`http://${where}/v1/rooms/kept%3Aa/events`);
                source.onopen = () => seen.push("open");
                source.onmessage = event => seen.push(JSON.parse(event.data).n);
                source.addEventListener("gap", event => seen.push(event.data));
            }""",
            where,
        )
        page.wait_for_function("seen.length === 1")
        redis.ask("PUBLISH", "kept:a", '{"n":0}')
        page.wait_for_function("seen.length === 2")
        server.node.stop()
        again = start(2, {**config, "ws": where}, classes=[kept])
        with again.connect() as redis_again:
            for n in (1, 2):
                redis_again.ask("PUBLISH", "kept:a", json.dumps({"n": n}))
            page.wait_for_function("seen.includes(2)")
        assert page.evaluate("seen") == ["open", 0, "open", 1, 2]
