"""The REST API over a fake node: routing, bodies, errors, the OpenAPI document."""

import asyncio
import json
import re
import socket
from urllib.parse import quote

import openapi_spec_validator
import pytest

pytest.importorskip("hubsub._core", reason="needs hubsub-core")

from hubsub.api import HttpServer
from hubsub.api.routes import digits
from hubsub.api.table import ROUTES, openapi_document
from hubsub.config import resolve
from hubsub.errors import BY_CODE
from hubsub.names import producer_id

from .played_node import ODD_ROOM, Api, fits


def test_the_document_is_openapi() -> None:
    openapi_spec_validator.validate(json.loads(json.dumps(openapi_document())))


def test_every_route_is_in_the_document_once() -> None:
    pairs = [(route.method, route.path) for route in ROUTES]
    assert len(set(pairs)) == len(pairs)
    paths = openapi_document()["paths"]
    assert {(m.upper(), p) for p, methods in paths.items() for m in methods} == set(pairs)
    assert all(code in BY_CODE for route in ROUTES for code in route.errors)


async def test_a_room_is_named_by_its_percent_encoded_bytes() -> None:
    answer = await Api().get(f"/v1/rooms/{quote(ODD_ROOM, safe='')}")
    assert answer.status == 200
    assert answer.json["name"] == "a/b c%252F%FF"
    assert answer.json["epoch"] == str(2**63 + 1) and answer.json["position"] == f"{2**63 + 1}-3"
    addresses = {"redis": "127.0.0.1:3221", "redis_cluster": None, "http": "127.0.0.1:3220"}
    assert answer.json["nodes"] == [{"name": "one", **addresses}]
    fits(answer, "/v1/rooms/{room}")


async def test_a_room_that_is_not_there_is_404_and_made_if_asked_to() -> None:
    api = Api()
    answer = await api.get("/v1/rooms/new")
    assert (answer.status, answer.json["code"]) == (404, "no_such_room")
    assert answer.json["hint"] and "new" in answer.json["message"]
    assert (await api.get("/v1/rooms/new?create=true")).status == 404, "reading makes nothing"
    assert (await api.ask("POST", "/v1/rooms/new")).status == 200
    assert (await api.get("/v1/rooms/new")).status == 200
    assert (await api.ask("POST", "/v1/rooms/new")).status == 200


async def test_who_will_hold_a_room_is_told_even_if_its_class_keeps_no_record() -> None:
    answer = await Api().ask("POST", "/v1/rooms/none")
    assert (answer.status, answer.json["class"], answer.json["hub"]) == (200, "default", None)
    assert answer.json["nodes"][0]["name"] == "one"
    fits(answer, "/v1/rooms/{room}", "post")


@pytest.mark.parametrize("scope", ["", "cluster", "Node", "node&scope=all"])
async def test_a_scope_that_there_is_not_is_refused(scope: str) -> None:
    answer = await Api().get(f"/v1/rooms?scope={scope}")
    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert "scope must be node" in answer.json["message"]
    assert (await Api().get("/v1/rooms?scope=node")).status == 200


async def test_a_whole_number_may_be_written_with_a_point() -> None:
    api = Api()
    body = b'{"topic": "a", "payload": "x", "producer": "p", "sequence": 60.0}'
    assert (await api.ask("POST", "/v1/publish", body)).status == 200
    assert api.node.asked[-1][0].producer == (producer_id("p"), 60)
    for wrong in (b"60.5", b'"60"', b"1e300"):
        assert (await api.ask("POST", "/v1/publish", body.replace(b"60.0", wrong))).status == 400


@pytest.mark.parametrize("most", [0, 9, 10, 19, 123, 2**32 - 1, 2**64 - 1])
def test_an_expression_has_the_numbers_up_to_one_and_no_others(most: int) -> None:
    expression = re.compile(digits(most))
    near = {0, 1, 9, 10, most // 10, most // 2, most - 1, most}
    assert all(expression.fullmatch(str(number)) for number in near if 0 <= number <= most)
    beyond = {most + 1, most * 10, most * 2 + 1, most + 10 ** len(str(most))} - {0}
    assert not any(expression.fullmatch(str(number)) for number in beyond)
    assert not any(expression.fullmatch(text) for text in ("", "-1", "00", "01", "x"))


async def test_put_makes_a_room_and_tells_whether_it_was_there() -> None:
    api = Api()
    assert [(await api.ask("PUT", "/v1/rooms/new")).status for _ in range(2)] == [201, 200]
    refused = await api.ask("PUT", "/v1/rooms/none")
    assert refused.status == 400 and "history" in refused.json["message"]


async def test_delete_answers_what_became_of_it() -> None:
    api = Api()
    room = f"/v1/rooms/{quote(ODD_ROOM, safe='')}"
    assert [(await api.ask("DELETE", room)).status for _ in range(2)] == [204, 404]
    busy = await api.ask("DELETE", "/v1/rooms/busy")
    assert (busy.status, busy.json["code"]) == (409, "room_in_use")
    assert busy.headers["retry-after"] == "1"


async def test_listing_rooms_page_by_page_names_each_once() -> None:
    api, names, target = Api(), [], "/v1/rooms?limit=100"
    while True:
        page = await api.get(target)
        fits(page, "/v1/rooms")
        names += [room["name"] for room in page.json["rooms"]]
        if page.json["next"] is None:
            break
        target = f"/v1/rooms?limit=100&after={quote(page.json['next'])}"
    assert names == [f"r{i:03d}" for i in range(250)]


async def test_history_gives_text_where_it_is_text() -> None:
    api = Api()
    answer = await api.get("/v1/rooms/r/history?count=5&after=7-0&topic=a%25FF")
    fits(answer, "/v1/rooms/{room}/history")
    text, binary = answer.json["records"]
    assert (text["payload"], text["payload_base64"]) == ("text", None)
    assert (binary["payload"], binary["payload_base64"]) == (None, "/w==")
    assert api.node.asked == [(b"r", 5, (7, 0), b"a\xff")]
    assert not (await api.get("/v1/rooms/r/history?after=9-9")).json["recovered"]


async def test_one_record_is_published_with_its_bytes() -> None:
    api = Api()
    body = {"topic": "a%FF", "payload_base64": "AP8=", "headers": {"k": "v"}}
    answer = await api.ask("POST", "/v1/publish", body)
    assert answer.json == {"receivers": 3, "position": "7-1"}
    fits(answer, "/v1/publish", "post")
    assert api.node.asked == [[(b"a\xff", b"\x00\xff", {"k": "v"}, "http:127.0.0.1:9", None)]]


async def test_a_refused_record_of_a_batch_leaves_the_others() -> None:
    body = {"records": [{"topic": "a", "payload": "x"}, {"topic": "a", "payload": "long"}]}
    answer = await Api().ask("POST", "/v1/publish", body)
    assert answer.status == 200
    first, second = answer.json["results"]
    assert first == {"receivers": 3, "position": "7-1"} and second["error"]["code"] == "payload_length"
    alone = await Api().ask("POST", "/v1/publish", body["records"][1])
    assert (alone.status, alone.json["code"]) == (413, "payload_length")


async def test_a_numbered_record_goes_with_its_producer_and_tells_whether_it_was_there() -> None:
    api = Api()
    body = {"topic": "a", "payload": "x", "producer": "billing-7", "sequence": 2**62}
    answer = await api.ask("POST", "/v1/publish", body)
    assert answer.json == {"receivers": 3, "position": "7-1", "duplicate": False}
    assert api.node.asked[-1][0].producer == (producer_id("billing-7"), 2**62)
    records = [
        {"topic": "a", "payload": "again", "sequence": 1},
        {"topic": "a", "payload": "x", "sequence": 2, "producer": "other"},
    ]
    answer = await api.ask("POST", "/v1/publish", {"producer": "billing-7", "records": records})
    fits(answer, "/v1/publish", "post")
    first, second = answer.json["results"]
    assert first == {"position": "7-1", "duplicate": True}
    assert second == {"receivers": 3, "position": "7-2", "duplicate": False}
    sent = [item.producer for item in api.node.asked[-1]]
    assert sent == [(producer_id("billing-7"), 1), (producer_id("other"), 2)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b'{"topic": "a"}',
        b'{"topic": "", "payload": "x"}',
        b'{"topic": "a", "payload": "x", "payload_base64": "eA=="}',
        b'{"topic": "a", "payload_base64": "?"}',
        '{"topic": "a", "payload_base64": "é"}'.encode(),
        b'{"topic": "\\ud800", "payload": "x"}',
        b'{"topic": ' + b"[" * 100_000,
        b'{"topic": "a", "payload": "x", "hedaers": {}}',
        b'{"topic": "a", "payload": "x", "producer": "p"}',
        b'{"topic": "a", "payload": "x", "sequence": 1}',
        b'{"topic": "a", "payload": "x", "producer": "p", "sequence": 0}',
        b'{"topic": "a", "payload": "x", "producer": "", "sequence": 1}',
        b'{"producer": "p", "records": [{"topic": "a", "payload": "x"}]}',
        b'{"records": []}',
        b'{"topic": "a", "payload": "\xff"}',
    ],
)
async def test_a_body_that_does_not_fit_is_400_and_nothing_is_published(body: bytes) -> None:
    api = Api()
    answer = await api.ask("POST", "/v1/publish", body)
    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert api.node.asked == []
    fits(answer, "/v1/publish", "post")


async def test_the_same_idempotency_key_publishes_once() -> None:
    api, headers = Api(), {"Idempotency-Key": "k"}
    body = {"topic": "a", "payload": "x"}
    answers = [await api.ask("POST", "/v1/publish", body, headers) for _ in range(3)]
    assert {a.text for a in answers} == {answers[0].text} and api.node.published == 1
    other = await api.ask("POST", "/v1/publish", body | {"payload": "y"}, headers)
    assert (other.status, other.json["code"]) == (422, "idempotency_mismatch")


async def test_a_key_is_of_one_endpoint_and_one_topic() -> None:
    api, headers = Api(), {"Idempotency-Key": "k"}
    bodies = [{"topic": "a", "payload": "x"}, {"topic": "b", "payload": "x"}]
    batch = {"records": bodies}
    for _ in range(2):
        for body in (*bodies, batch):
            assert (await api.ask("POST", "/v1/publish", body, headers)).status == 200
    assert api.node.published == 4, "each once, though another had the same key"
    other = await api.ask("POST", "/v1/publish", {"records": bodies[::-1]}, headers)
    assert (other.status, other.json["code"]) == (422, "idempotency_mismatch")


async def test_a_time_out_is_told_as_unknown_and_a_repeat_finds_the_answer() -> None:
    api, headers = Api(limits={"request_timeout_ms": 1}), {"Idempotency-Key": "k"}
    body = {"topic": "a", "payload": "x"}
    api.node.gate.clear()
    late = await api.ask("POST", "/v1/publish", body, headers)
    assert (late.status, late.json["code"]) == (504, "timed_out")
    api.node.gate.set()
    api.state.config = resolve({}, {}, {})
    assert (await api.ask("POST", "/v1/publish", body, headers)).json["receivers"] == 3
    assert api.node.published == 1


async def test_a_body_above_the_limit_is_refused_and_counted() -> None:
    api = Api(limits={"http_body_bytes_max": "2KiB"})
    for headers in ({}, {"Content-Length": "999999"}):
        answer = await api.ask("POST", "/v1/publish", b"x" * 3_000, headers)
        assert (answer.status, answer.json["code"]) == (413, "body_too_large")
    assert 'hubsub_control_refused_total{limit="http_body_bytes_max"} 2' in (await api.get("/metrics")).text


async def test_bodies_that_are_too_long_together_are_turned_away() -> None:
    api = Api(limits={"http_body_bytes_max": "2KiB", "http_bodies_bytes_max": "3KiB"})
    pad = b" " * 2_000
    api.node.gate.clear()
    first = asyncio.create_task(api.ask("POST", "/v1/publish", b'{"topic": "a", "payload": "x"}' + pad))
    while api.state.request_bytes == 0:
        await asyncio.sleep(0)
    there = api.state.request_bytes
    answer = await api.ask("POST", "/v1/publish", b" " * (3 * 1024 - there + 1))
    assert (answer.status, answer.json["code"]) == (503, "too_busy")
    answer = await api.ask("POST", "/v1/publish", b" " * (3 * 1024 - there))
    assert answer.status == 400, "it is read, and is no JSON"
    assert api.state.request_bytes == there
    api.node.gate.set()
    assert (await first).status == 200
    assert api.state.request_bytes == 0
    assert 'hubsub_control_refused_total{limit="http_bodies_bytes_max"} 1' in (await api.get("/metrics")).text


async def test_a_body_that_does_not_come_is_given_up_in_time() -> None:
    api = Api(limits={"request_timeout_ms": 10})
    answer = await api.ask("POST", "/v1/publish", stalls=True)
    assert (answer.status, answer.json["code"]) == (400, "bad_request") and "in time" in answer.text


async def test_clients_are_listed_sorted_shown_and_closed() -> None:
    api = Api()
    answer = await api.get("/v1/clients?sort=bytes_out_60s&limit=7")
    fits(answer, "/v1/clients")
    assert api.node.asked == [("bytes_out_60s", 7, None)]
    assert (await api.get("/v1/clients?sort=addr")).status == 400
    fits(await api.get("/v1/clients/4"), "/v1/clients/{id}")
    assert (await api.get("/v1/clients/5")).json["code"] == "no_such_client"
    for number in ("x", str(2**64), "99999999999999999999"):
        assert (await api.get(f"/v1/clients/{number}")).status == 400
    assert [(await api.ask("DELETE", f"/v1/clients/{i}")).status for i in (4, 5)] == [204, 404]


async def test_sessions_are_listed_page_by_page_shown_and_ended() -> None:
    api = Api()
    first = await api.get("/v1/sessions?limit=1")
    fits(first, "/v1/sessions")
    assert ([row["client_id"] for row in first.json["sessions"]], first.json["next"]) == (
        ["lamp/1"],
        "lamp/1",
    )
    second = await api.get("/v1/sessions?limit=1&after=lamp/1")
    assert ([row["client_id"] for row in second.json["sessions"]], second.json["next"]) == (["lamp/2"], None)
    assert (await api.get("/v1/sessions?client_id=lamp/3")).json["sessions"] == []
    fits(await api.get("/v1/sessions/lamp%2F1"), "/v1/sessions/{client_id}")
    assert (await api.get("/v1/sessions/lamp")).json["code"] == "no_such_session"
    ended = [(await api.ask("DELETE", f"/v1/sessions/lamp%2F{i}")).status for i in (1, 2)]
    assert ended == [204, 404]


@pytest.mark.parametrize(
    "path", ["/v1/nodes", "/v1/classes", "/nodes", "/s/ver", "/s/stat", "/v1/busiest", "/v1/nodes/one"]
)
async def test_what_is_shown_fits_the_document(path: str) -> None:
    answer = await Api().get(path)
    assert answer.status == 200
    fits(answer, path.replace("/one", "/{node}"))


async def test_classes_end_with_the_default_class() -> None:
    cls = {"name": "chat", "match": ["chat:*"], "device": "chat:{device}", "history": {"messages": 5}}
    api = Api(**{"class": [cls]})
    classes = (await api.get("/v1/classes")).json["classes"]
    assert [c["name"] for c in classes] == ["chat", "default"]
    history = {"messages": 5, "bytes": 0, "age_ms": 0, "archive_wait": 0}
    assert [c["history"] for c in classes] == [history, None]
    assert [c["device"] for c in classes] == ["chat:{device}", None]


async def test_an_unknown_path_or_method_is_told_as_json() -> None:
    api = Api()
    nowhere = await api.get("/v2/rooms")
    assert (nowhere.status, nowhere.json["code"]) == (404, "not_found")
    wrong = await api.ask("POST", "/v1/rooms")
    assert (wrong.status, wrong.json["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "GET")
    assert (await api.get("/v1/rooms/a/b")).status == 404


async def test_a_failure_inside_is_500_without_its_details() -> None:
    api = Api()
    api.node.fail = ZeroDivisionError("secret")
    answer = await api.ask("POST", "/v1/publish", {"topic": "a", "payload": "x"})
    assert (answer.status, answer.json["code"]) == (500, "internal") and "secret" not in answer.text


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=-1"])
async def test_a_page_of_no_size_is_refused(query: str) -> None:
    assert (await Api().get(f"/v1/rooms?{query}")).status == 400


async def test_a_page_is_bounded() -> None:
    api = Api(limits={"http_page_max": 10})
    assert len((await api.get("/v1/rooms?limit=1000000000000000000000")).json["rooms"]) == 10


async def test_a_wildcard_bind_tells_the_address_of_the_route() -> None:
    api = Api(redis="0.0.0.0:3221", insecure_open=True)
    api.node.addresses = {"redis": "0.0.0.0:3221"}
    assert (await api.get("/nodes")).json[0]["redis"] == "127.0.0.1:3221"
    api.state.config = resolve({"advertise": "hub.example"}, {}, {})
    assert (await api.get("/nodes?room=x")).json[0]["redis"] == "hub.example:3221"


async def test_a_small_answer_does_not_wait_for_an_acknowledgement() -> None:
    server = HttpServer(Api().state)
    host, _, port = server.bind("127.0.0.1:0").rpartition(":")
    await server.start()
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/log HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert server._server is not None
        (connection,) = server._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        writer.close()
    finally:
        await server.stop()


async def test_a_node_alone_moves_no_rooms() -> None:
    api = Api()
    for answer in [
        await api.ask("POST", "/v1/rooms/new/move", {"to": "two"}),
        await api.get("/v1/moves"),
    ]:
        assert (answer.status, answer.json["code"]) == (404, "no_cluster") and answer.json["hint"]
