"""Long polls of a node, for pages without WebSockets: docs/protocol/phoenix.md, "Long poll"."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clients.longpoll import Poller
from clients.phoenix import CLOSE, JOIN, REPLY, Page
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, until

Start = Callable[..., Server]

CHAT: dict[str, Any] = {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}
SLOW: dict[str, Any] = {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 50}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with a WebSocket listener; its long-poll windows are short."""
    needs("hubsub-core")
    config = {
        "ws": "127.0.0.1:0",
        "ws_origins": ["https://good.example"],
        "phoenix": {"topics": ["chat:*", "slow:*"]},
    }
    limits = {"longpoll_window_ms": 300}
    with hubsub_node(request.param, config, classes=[CHAT, SLOW], limits=limits) as server:
        yield server


def polls(server: Server, query: str = "vsn=2.0.0", *, stays: bool = False) -> Poller:
    assert server.node is not None
    return Poller(server.node.ws, query, stays=stays)


@pytest.mark.parametrize("stays", [False, True], ids=["a-connection-each", "one-connection"])
def test_a_page_without_websockets_is_in_the_same_channels(server: Server, stays: bool) -> None:
    assert server.node is not None
    with polls(server, stays=stays) as one, Page(server.node.ws) as page, server.connect() as redis:
        assert one.join("chat:1")["recovered"] is True
        page.join("chat:1")
        assert one.post(["1", "2", "chat:1", "say", {"n": 1}], [None, "3", "phoenix", "heartbeat", {}]) == 200
        got = [one.read() for _ in "123"]
        assert [None, None, "chat:1", "say", {"n": 1}] in got
        assert [event for _, _, _, event, _ in got].count(REPLY) == 2
        assert page.said("chat:1") == ("say", {"n": 1})
        for n in range(30):
            redis.ask("PUBLISH", "chat:1", json.dumps({"n": n}))
        assert [one.read()[4]["n"] for _ in range(30)] == list(range(30)), "all, once, in order"
        assert [page.said("chat:1")[1]["n"] for _ in range(30)] == list(range(30))
        redis.ask("PUBLISH", "chat:1", b"\xff\x00")
        assert one.read() == [None, None, "chat:1", "message", {"base64": "/wA="}]
        assert one.post(["1", "4", "chat:1", "phx_leave", {}]) == 200
        assert [one.read()[3] for _ in "12"] == [REPLY, CLOSE]


def test_bytes_are_base64_in_requests(server: Server) -> None:
    assert server.node is not None
    with polls(server) as one, Page(server.node.ws) as page:
        one.join("chat:2")
        page.join("chat:2")
        fields = [b"1", b"2", b"chat:2", b"file"]
        message = bytes([0, *map(len, fields)]) + b"".join(fields) + b"\x00\xff\n"
        assert one.post(b64encode(message).decode()) == 200
        assert page.said("chat:2") == ("file", b"\x00\xff\n")


def test_version_1_polls_too(server: Server) -> None:
    with polls(server, "vsn=1.0.0") as one, server.connect() as redis:
        join = json.dumps({"topic": "chat:3", "event": JOIN, "payload": {}, "ref": "1"})
        assert one.post(join) == 200
        answer: Any = one.read()
        assert answer["payload"]["status"] == "ok"
        redis.ask("PUBLISH", "chat:3", "{}")
        said: Any = one.read()
        assert said == {"topic": "chat:3", "event": "message", "payload": {}, "ref": None}


def test_a_request_that_nothing_comes_for_is_answered_after_its_window(server: Server) -> None:
    with polls(server) as one:
        assert one.get() == {"status": 204, "token": one.token, "messages": []}


def test_lines_behind_a_join_wait_for_it(server: Server) -> None:
    with polls(server) as one:
        lines = [["1", "1", "slow:4", JOIN, {}]]
        lines += [["1", str(ref), "slow:4", "say", {"ref": ref}] for ref in range(2, 101)]
        assert one.post(*lines) == 200
        got = [one.read() for _ in range(199)]
        assert [ref for _, ref, _, event, _ in got if event == REPLY] == [str(ref) for ref in range(1, 101)]
        assert [payload["ref"] for *_, event, payload in got if event == "say"] == list(range(2, 101))


def test_who_asks_wrongly_is_told_so_in_the_body(server: Server) -> None:
    with polls(server) as one:
        line = [None, "1", "phoenix", "heartbeat", {}]
        assert one.post(*[line] * 100) == 200
        assert one.post(*[line] * 101) == 413
        assert one.post("no base64!") == 400
        assert json.loads(one.ask("PUT")[1]) == {"status": 400}
        assert len([one.read() for _ in range(100)]) == 100, "the session goes on"
    for query in ("vsn=3.0.0", "vsn=%ff", "positions=maybe"):
        with pytest.raises(AssertionError, match="403"):
            polls(server, query)


def test_a_method_whose_answer_may_have_no_body_ends_its_connection(server: Server) -> None:
    assert server.node is not None
    with socket.create_connection(server.node.ws, TIMEOUT_S) as client:
        client.sendall(b"HEAD /socket/longpoll HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1 and b"Connection: close" in answer


def test_a_session_is_its_token_and_nobody_guesses_it(server: Server) -> None:
    with polls(server) as one:
        secret, place = one.token[:32], one.token[32:]
        assert len(set(secret)) > 4
        other = f"{(int(secret, 16) ^ 1):032x}{place}"
        for token in (other, secret + "f" * 20):
            assert one.get(token) == {"status": 410}
            _, body = one.ask("POST", token, "[]")
            assert json.loads(body) == {"status": 410}
        assert one.get("mine")["token"] not in (one.token, "mine"), "a token of another kind begins a session"
        assert one.get()["status"] == 204


def test_what_is_no_message_ends_the_session(server: Server) -> None:
    with polls(server) as one:
        assert one.post("[1,2]") == 200
        assert one.get() == {"status": 410}


def test_a_page_of_another_origin_is_told_what_it_may_ask(server: Server) -> None:
    with polls(server) as one:
        answer, _ = one.ask("OPTIONS", Origin="https://good.example")
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        assert "content-type" in answer.headers["access-control-allow-headers"]
        answer, body = one.ask("GET", Origin="https://good.example")
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        answer, body = one.ask("GET", Origin="https://evil.example")
        assert (answer.status, json.loads(body)["code"]) == (403, "not_allowed")


def test_a_session_that_is_silent_for_too_long_ends(start: Start) -> None:
    limits = {"phoenix_silence_ms": 200, "longpoll_window_ms": 50}
    server = start(1, {"ws": "127.0.0.1:0"}, limits=limits)
    with polls(server) as one:
        until(lambda: server.metric("phoenix_silent_total") == 1)
        assert one.get() == {"status": 410}


def test_a_session_that_is_never_asked_with_its_token_ends_and_another_goes_on(start: Start) -> None:
    limits = {"handshake_ms": 100, "longpoll_window_ms": 50, "longpoll_sessions_max": 20}
    server = start(2, {"ws": "127.0.0.1:0"}, limits=limits)
    with polls(server) as one:
        one.get()
        bare = [polls(server) for _ in range(5)]
        until(lambda: server.metric("handshake_timeouts_total") == 5)
        until(lambda: server.metric("longpoll_sessions") == 1)
        assert [other.get() for other in bare] == [{"status": 410}] * 5
        assert one.get()["status"] == 204
        for other in bare:
            other.stack.close()


def test_a_body_that_dribbles_is_not_waited_for(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"phoenix_silence_ms": 1_000, "longpoll_window_ms": 50})
    assert server.node is not None
    with polls(server) as one, socket.create_connection(server.node.ws, TIMEOUT_S) as slow:
        slow.sendall(b"POST /socket/longpoll HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")

        def is_shut() -> bool:
            # Each byte soon follows the previous one while another page is served.
            assert one.get()["status"] == 204
            try:
                slow.sendall(b".")
            except ConnectionError:
                return True
            return False

        until(is_shut)


def test_a_session_that_fetches_nothing_of_what_it_asked_for_ends(start: Start) -> None:
    limits = {"phoenix_silence_ms": 1_000, "longpoll_window_ms": 50, "reply_bytes_max": 1_024}
    server = start(1, {"ws": "127.0.0.1:0"}, limits=limits)
    beat = [None, "1" * 200, "phoenix", "heartbeat", {}]
    with polls(server) as one:
        # In the end the backlog reaches its limit: the node pauses the session and answers no request before
        # it ends.
        while one.post(*[beat] * 100) == 200:
            pass
        assert server.metric("pauses_total") > 0
        until(lambda: server.metric("longpoll_sessions") == 0)


def test_a_body_that_is_too_long_is_told_so(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"phoenix_message_bytes_max": 1024})
    with polls(server) as one:
        answer, body = one.ask("POST", body=b"x" * 2049)
        assert (answer.status, json.loads(body)) == (200, {"status": 413})
        assert one.post([None, "1", "phoenix", "heartbeat", {}]) == 200, "the session goes on"
        assert one.read()[1] == "1"


def test_one_session_of_long_polls_too_many_is_refused(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"longpoll_sessions_max": 2})
    with polls(server), polls(server) as two:
        with pytest.raises(AssertionError, match="500"):
            polls(server)
        assert server.metric("connections_refused_total") == 1
        # A session that ends frees its place.
        two.post("[1,2]")
        until(lambda: server.metric("longpoll_sessions") == 1)
        polls(server).stack.close()


def test_what_a_page_does_not_fetch_meets_the_limit_of_slow_readers(start: Start) -> None:
    drops = {"name": "drops", "match": ["drops"], "on_slow": "drop-oldest"}
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"output_bytes_max": 100_000}, classes=[drops])
    with polls(server, "vsn=2.0.0&positions=true") as one, server.connect() as redis:
        one.join("drops")
        sent = 0
        while server.metric("dropped_total") == 0:
            redis.ask("PUBLISH", "drops", "x" * 20_000)
            sent += 1
        redis.ask("PUBLISH", "drops", "last")
        sent += 1
        spans: list[tuple[int, int]] = []
        while not spans or spans[-1][1] != sent:
            _, position, _, event, got = one.read()
            ends = [got["from"], got["to"]] if event == "phx_gap" else [position] * 2
            first, last = (int(end.split("-")[1]) for end in ends)
            spans.append((first, last))
        assert [first for first, _ in spans] == [1] + [last + 1 for _, last in spans[:-1]]
