"""Phoenix channels on a node, over sockets: docs/protocol/phoenix.md."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from clients.mqtt import PUBLISH, V311
from clients.phoenix import CLOSE, GAP, JOIN, LEAVE, OK, REPLY, V1, V2, Page
from clients.servers import Server, hubsub_node, until
from websockets.exceptions import ConnectionClosed, InvalidStatus

from node.test_mqtt import client

Start = Callable[..., Server]

VERSIONS = [V1, V2]

CHAT: dict[str, Any] = {"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}
SLOW: dict[str, Any] = {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 150}
NEWS: dict[str, Any] = {"name": "news", "match": ["news:*"], "browser_events": False}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with listeners for WebSockets, MQTT and Redis."""
    needs("hubsub-core")
    config = {
        "mqtt": "127.0.0.1:0",
        "ws": "127.0.0.1:0",
        "ws_origins": ["https://good.example"],
        "phoenix": {"topics": ["chat:*", "topics:*", "slow:*", "news:*", "a/+", "{"]},
    }
    with hubsub_node(request.param, config, classes=[CHAT, SLOW, NEWS]) as server:
        yield server


def page(server: Server, version: str = V2, **how: Any) -> Page:
    assert server.node is not None
    return Page(server.node.ws, version, **how)


def refused(reason: str) -> list[Any]:
    return ["error", {"reason": reason}]


# --- connecting


@pytest.mark.parametrize("version", VERSIONS)
def test_the_transcript_of_the_first_system(server: Server, version: str) -> None:
    with page(server, version, token="x") as one, page(server, version, token="x") as two:
        for who in (one, two):
            status, response = who.try_join("topics:matrix")
            assert status == "ok" and response["recovered"] is True
        ref = one.push("topics:matrix", "publish", ["event", {"message": "Hi"}])
        for who in (one, two):
            got = [who.read() for _ in "12"[: 2 if who is one else 1]]
            assert [None, None, "topics:matrix", "event", {"message": "Hi"}] in got
            if who is one:
                answer = [
                    one.joins["topics:matrix"],
                    ref,
                    "topics:matrix",
                    REPLY,
                    {"status": "ok", "response": {}},
                ]
                assert answer in got


def test_the_words_on_the_wire(server: Server) -> None:
    with page(server, token="x") as one:
        one.socket.send('["1","1","topics:matrix","phx_join",{}]')
        head, body = str(one.socket.recv()).split('"response":')
        assert head == '["1","1","topics:matrix","phx_reply",{"status":"ok",'
        assert json.loads(body.removesuffix("}]"))["recovered"] is True
        one.socket.send('["1","2","topics:matrix","publish",["event",{"message":"Hi"}]]')
        assert sorted(str(one.socket.recv()) for _ in "12") == [
            '["1","2","topics:matrix","phx_reply",{"status":"ok","response":{}}]',
            '[null,null,"topics:matrix","event",{"message":"Hi"}]',
        ]
        one.socket.send('[null,"6","phoenix","heartbeat",{}]')
        assert one.socket.recv() == '[null,"6","phoenix","phx_reply",{"status":"ok","response":{}}]'


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"version": "3.0.0"}, 403),
        ({"version": "x"}, 403),
        ({"positions": "maybe"}, 400),
        ({"path": "/socket/elsewhere"}, 404),
        ({"origin": "https://evil.example"}, 403),
        ({"subprotocols": ["other"]}, 403),
        ({"subprotocols": ["phoenix", "base64url.bearer.phx.!!"]}, 403),
    ],
    ids=str,
)
def test_who_is_not_let_in_is_told_why(server: Server, how: dict[str, Any], status: int) -> None:
    with pytest.raises(InvalidStatus) as error:
        page(server, **how)
    assert error.value.response.status_code == status
    assert error.value.response.body


def test_a_token_may_be_a_subprotocol_and_then_phoenix_is_the_answer(server: Server) -> None:
    token = "base64url.bearer.phx." + urlsafe_b64encode(b"secret").decode().rstrip("=")
    with page(server, subprotocols=["phoenix", token], origin="https://good.example") as one:
        assert one.socket.subprotocol == "phoenix"
        assert one.ask("phoenix", "heartbeat") == OK


def test_a_client_is_shown_with_its_protocol_and_topics(server: Server) -> None:
    with page(server) as one:
        one.join("chat:shown")
        rows = json.loads(server.get("/v1/clients"))["clients"]
        (row,) = [row for row in rows if row["protocol"] == "phoenix" and row["subscriptions"]]
        assert row["subscriptions"] == 1
    until(lambda: server.metric("phoenix_connections") == 0)


# --- messages


@pytest.mark.parametrize("version", VERSIONS)
def test_heartbeats_joins_and_leaves(server: Server, version: str) -> None:
    with page(server, version) as one:
        assert one.ask("phoenix", "heartbeat") == OK
        assert one.try_join("other:room") == refused("unmatched topic")
        assert one.try_join("phoenix") == refused("unmatched topic")
        assert one.ask("chat:1", "say") == refused("unmatched topic")
        assert one.ask("chat:1", LEAVE) == OK
        one.join("chat:1")
        of_join = one.joins["chat:1"] or str(one.refs)
        assert one.ask("chat:1", LEAVE, join_ref=one.joins["chat:1"]) == OK
        assert one.read()[1:] == [of_join, "chat:1", CLOSE, {}]
        assert one.ask("chat:1", "say") == refused("unmatched topic")


def test_a_second_join_closes_the_first_and_a_late_leave_is_ignored(server: Server) -> None:
    with page(server) as one:
        one.join("chat:2")
        first = one.joins["chat:2"]
        ref = one.send("chat:2", JOIN, {}, "9")
        assert one.read() == [first, first, "chat:2", CLOSE, {}]
        assert one.answer(ref)[0] == "ok"
        one.send("chat:2", LEAVE, {}, first)
        one.joins["chat:2"] = "9"
        ref = one.push("chat:2", "say", {"n": 1})
        got = [one.read() for _ in "12"]
        assert [None, None, "chat:2", "say", {"n": 1}] in got, "it is joined still, and once"
        assert ["9", ref, "chat:2", REPLY, {"status": "ok", "response": {}}] in got
        assert one.ask("phoenix", "heartbeat") == OK


@pytest.mark.parametrize("event", ["phx_close", "phx_reply", "presence_state", "presence_diff", "phx_gap"])
def test_the_protocols_own_events_are_refused(server: Server, event: str) -> None:
    with page(server) as one:
        one.join("chat:3")
        assert one.answer(one.push("chat:3", event)) == refused("reserved event")
        assert one.answer(one.push("chat:3", "publish", [event, {}])) == refused("reserved event")
        assert one.answer(one.push("chat:3", "publish", {"no": "list"})) == refused(
            "publish takes [event, payload]"
        )


def test_events_reach_all_who_joined_and_no_others(server: Server) -> None:
    with page(server) as one, page(server, V1) as two, page(server) as three:
        for who in (one, two):
            who.join("chat:4")
        three.join("chat:44")
        for number in range(20):
            ref = one.push("chat:4", "typing", {"n": number})
            got = [one.read() for _ in "12"]
            assert [None, None, "chat:4", "typing", {"n": number}] in got
            assert [one.joins["chat:4"], ref, "chat:4", REPLY, {"status": "ok", "response": {}}] in got
            assert two.said("chat:4") == ("typing", {"n": number})
        assert three.ask("phoenix", "heartbeat") == OK


def test_bytes_are_binary_messages_and_base64_in_version_1(server: Server) -> None:
    with page(server) as one, page(server, V1) as two:
        for who in (one, two):
            who.join("chat:5")
        for data in (b"\x00\xff", b"", b"text"):
            one.push("chat:5", "file", data)
            got = [one.read() for _ in "12"]
            assert [None, None, "chat:5", "file", data] in got
            assert two.said("chat:5") == ("file", {"base64": b64encode(data).decode()})


def test_answers_come_in_order_also_where_one_takes_its_time(server: Server) -> None:
    with page(server) as one:
        one.join("chat:6")
        one.join("slow:6")
        refs = [one.push(topic, "say", {}) for topic in ("slow:6", "chat:6", "slow:6", "chat:6")]
        got = [one.read() for _ in range(8)]
        assert [ref for _, ref, _, event, _ in got if event == REPLY] == refs


def test_a_message_that_follows_its_join_waits_for_it(server: Server) -> None:
    with page(server) as one:
        for number in range(20):
            topic = f"chat:7.{number}"
            join, say = one.send(topic, JOIN, {}, f"j{number}"), one.send(topic, "say", {}, f"j{number}")
            assert one.answer(join)[0] == "ok"
            got = [one.read() for _ in "12"]
            assert [None, None, topic, "say", {}] in got
            assert [f"j{number}", say, topic, REPLY, {"status": "ok", "response": {}}] in got


def test_a_class_may_refuse_what_browsers_say(server: Server) -> None:
    words = "not_allowed: the class of this topic takes no events of browsers"
    with page(server) as one, server.connect() as redis:
        one.join("news:1")
        assert one.answer(one.push("news:1", "say")) == refused(words)
        assert one.answer(one.push("news:1", "publish", ["say", {}])) == refused(words)
        assert redis.ask("PUBLISH", "news:1", "all read") == 1
        assert one.said("news:1") == ("message", {"data": "all read"})


# --- messages across protocols


def test_redis_and_mqtt_say_and_read_what_pages_do(server: Server) -> None:
    with page(server) as one, page(server, V1) as two, server.connect() as redis, server.connect() as sub:
        device = client(server, "device", V311)
        one.join("a/8")
        two.join("a/8")
        sub.ask("SUBSCRIBE", "a/8")
        assert device.subscribe(("a/8", 0)) == [0]
        for payload, wanted in [
            (b'{"n":1}', {"n": 1}),
            (b"[1]", {"data": "[1]"}),
            ("ünï".encode(), {"data": "ünï"}),
            (b"\xff", b"\xff"),
        ]:
            assert redis.ask("PUBLISH", "a/8", payload) == 4
            assert one.said("a/8") == ("message", wanted)
            v1 = {"base64": b64encode(wanted).decode()} if isinstance(wanted, bytes) else wanted
            assert two.said("a/8") == ("message", v1)
            assert sub.read().plain() == [b"message", b"a/8", payload]
            assert device.read(PUBLISH).rest == payload
        for said, payload in [({"n": 1}, b'{"n": 1}'), ([1], b"[1]"), (b"\x01", b"\x01"), ("x", b'"x"')]:
            one.push("a/8", "say", said)
            got = [one.read() for _ in "12"]
            assert [None, None, "a/8", "say", said] in got, "a page gets what a page said"
            two.read()
            assert sub.read().plain() == [b"message", b"a/8", payload]
            assert device.read(PUBLISH).rest == payload
        device.close()


# --- history


def test_a_join_says_where_it_is_and_brings_what_is_asked_for(server: Server) -> None:
    with page(server) as one, server.connect() as redis:
        for number in range(5):
            redis.ask("PUBLISH", "chat:9", json.dumps({"n": number}))
        last = 4

        def back(params: object) -> tuple[list[int], dict[str, Any]]:
            """The messages that a join delivers before the next published one, and the join's reply."""
            nonlocal last
            last += 1
            at = one.join("chat:9", params)
            redis.ask("PUBLISH", "chat:9", json.dumps({"n": last}))
            seen: list[int] = []
            while last not in seen:
                event, payload = one.said("chat:9")
                assert event == "message"
                seen.append(payload["n"])
            assert one.ask("chat:9", LEAVE, join_ref=one.joins["chat:9"]) == OK
            one.read()
            return seen[:-1], at

        got, at = back({"rewind": 3})
        assert (got, at["recovered"]) == ([2, 3, 4], True)
        epoch, seq = at["position"].split("-")
        assert seq == "5"
        got, at = back({"after": f"{epoch}-6"})
        assert (got, at) == ([], {"position": f"{epoch}-6", "recovered": True})
        got, at = back({"after": f"{epoch}-5"})
        assert (got, at) == ([5, 6], {"position": f"{epoch}-7", "recovered": True})
        assert back({"after": "12345-2"})[1] == {"position": f"{epoch}-8", "recovered": False}, "another life"
        assert back({})[0] == []


def test_a_rewind_by_time_and_what_cannot_be_one(server: Server) -> None:
    with page(server) as one, server.connect() as redis:
        redis.ask("PUBLISH", "chat:10", '{"n":1}')
        for params, hint in [
            ({"rewind": "x"}, "rewind is a count or a time"),
            ({"after": 1}, "after is a position"),
            ({"after": "1-1", "rewind": 1}, "either rewind or after"),
        ]:
            status, response = one.try_join("chat:10", params)
            assert status == "error" and hint in response["reason"]
        one.join("chat:10", {"rewind": "1h"})
        assert one.said("chat:10") == ("message", {"n": 1})


def test_positions_stand_in_the_place_of_refs_for_who_asks(server: Server) -> None:
    with (
        page(server, positions="true") as one,
        page(server, V1, positions="true") as two,
        server.connect() as redis,
    ):
        at = [who.join("chat:11") for who in (one, two)]
        assert at[0] == at[1]
        for number, payload in enumerate([b'{"n":1}', b"\xff"], 1):
            redis.ask("PUBLISH", "chat:11", payload)
            for who in (one, two):
                _, position, _, _, got = who.read()
                epoch, seq = position.split("-")
                assert (int(seq), got) == (number, {"n": 1} if number == 1 else {"base64": "/w=="})
        with page(server) as late:
            assert late.join("chat:11", {"after": f"{epoch}-1"})["recovered"] is True
            assert late.said("chat:11") == ("message", b"\xff")


# --- bad input


def closes(server: Server, *said: str | bytes, version: str = V2) -> tuple[int, str]:
    """Sends the messages; returns how the server closes the connection."""
    with page(server, version) as one:
        for message in said:
            one.socket.send(message)
        return one.closed()


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ("{", 1007, "not JSON"),
        ("[1,2]", 1007, "version 2 is"),
        ('[null,null,"a","b",{}] x', 1007, "not JSON"),
        ('[true,null,"a","b",{}]', 1007, "ref"),
        ('[null,null,"\\ud800","b",{}]', 1007, "half a character"),
        (json.dumps([None, None, "a", "b" * 256, {}]), 1008, "event too long"),
        (json.dumps([None, "1" * 256, "a", "b", {}]), 1008, "ref too long"),
        ('[null,null,"a","b",' + "[" * 200 + "]" * 200 + "]", 1008, "nested too deep"),
        (b"", 1007, "ends inside"),
        (b"\x01\x00\x00\x00\x00", 1007, "unknown kind"),
        (b"\x00\x01\x01\x01\x01a", 1007, "ends inside"),
        (b"\x00\x00\x00\x01\x01\xffb", 1007, "not UTF-8"),
    ],
    ids=str,
)
def test_what_is_no_message_closes_with_its_code(
    server: Server, said: str | bytes, code: int, words: str
) -> None:
    got, reason = closes(server, said)
    assert (got, words in reason) == (code, True), reason


def test_version_1_has_no_binary_messages(server: Server) -> None:
    assert closes(server, b"\x00\x00\x00\x00\x00", version=V1) == (
        1003,
        "version 1 has no binary messages; hint: connect with vsn=2.0.0",
    )


def test_a_message_that_is_too_long_closes(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"phoenix_message_bytes_max": 2000})
    text = json.dumps([None, "1", "phoenix", "heartbeat", {"x": "x" * 1900}])
    with page(server) as one:
        one.socket.send(text)
        assert one.answer("1") == OK
        one.socket.send([text[:1000], text[1000:]])
        assert one.answer("1") == OK
    for said in (text + " " * 100, [text[:1900], text[1900:] + " " * 100]):
        with page(server) as one:
            # The server may close before everything is sent.
            with suppress(ConnectionClosed):
                one.socket.send(said)
            assert one.closed()[0] == 1009


def test_one_channel_too_many_is_refused(start: Start) -> None:
    server = start(2, {"ws": "127.0.0.1:0"}, limits={"phoenix_channels_max": 3})
    with page(server) as one:
        refs = [one.send(f"t:{number}", JOIN, {}, str(number)) for number in range(5)]
        answers = {ref: payload["status"] for _, ref, _, _, payload in (one.read() for _ in refs)}
        assert [answers[ref] for ref in refs] == ["ok", "ok", "ok", "error", "error"]
        assert one.try_join("t:9") == refused("too many channels joined")
        assert one.ask("t:0", LEAVE, join_ref="0") == OK
        one.read()
        one.join("t:9")


def test_a_flood_of_joins_is_refused_and_harms_nobody_else(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"phoenix_joins_per_second_max": 2})
    with page(server) as one, page(server) as two:
        rate = refused("join_rate: too many joins in a second")
        # With more joins than the seconds allow, some are refused.
        refs = [one.send("t:1", JOIN, {}, str(number)) for number in range(200)]
        answers: dict[str, list[Any]] = {}
        while len(answers) < len(refs):
            _, ref, _, event, payload = one.read()
            if event != CLOSE:
                answers[ref] = [payload["status"], payload["response"]]
        assert answers[refs[0]][0] == answers[refs[1]][0] == "ok"
        assert rate in answers.values()
        assert two.ask("phoenix", "heartbeat") == OK
        two.join("t:1")
        # It may join again in the next second; the refusal has no other effect.
        while (answer := one.try_join("t:2")) == rate:
            pass
        assert answer[0] == "ok"


def test_a_page_that_is_silent_for_too_long_is_closed(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"phoenix_silence_ms": 200})
    with page(server) as one:
        assert one.closed() == (1001, "silent for too long")
    assert server.metric("phoenix_silent_total") == 1


def test_who_says_no_topics_joins_none(start: Start) -> None:
    server = start(1, {"ws": "127.0.0.1:0", "phoenix": {"topics": []}})
    with page(server) as one:
        assert one.try_join("any") == refused("unmatched topic")


def test_a_ping_is_answered_and_a_close_too(server: Server) -> None:
    with page(server) as one:
        assert one.socket.ping(b"there").wait(60)
        one.socket.close(4000, "bye")
        assert one.socket.close_code == 4000


# --- slow pages and node stops


def test_a_slow_page_is_told_what_it_missed(start: Start) -> None:
    drops = {"name": "drops", "match": ["drops"], "on_slow": "drop-oldest"}
    server = start(1, {"ws": "127.0.0.1:0"}, limits={"output_bytes_max": 100_000}, classes=[drops])
    payload = "x" * 50_000
    with page(server, positions="true") as one, server.connect() as redis:
        one.join("drops")
        sent = 0
        while server.metric("dropped_total") == 0:
            for _ in range(20):
                redis.ask("PUBLISH", "drops", payload)
            sent += 20
        redis.ask("PUBLISH", "drops", "last")
        sent += 1
        seen: list[tuple[int, int]] = []
        while not seen or seen[-1][1] != sent:
            _, position, _, event, got = one.read()
            ends = [got["from"], got["to"]] if event == GAP else [position] * 2
            first, last = (int(end.split("-")[1]) for end in ends)
            seen.append((first, last))
    assert any(first < last or event == GAP for first, last in seen)
    assert [first for first, _ in seen] == [1] + [last + 1 for _, last in seen[:-1]], (
        "each is seen or told, once"
    )


def test_a_stop_is_told_and_the_page_may_come_back(start: Start) -> None:
    server = start(2, {"ws": "127.0.0.1:0"})
    assert server.node is not None
    with page(server) as one:
        one.join("chat:1")
        server.node.stop()
        assert one.closed()[0] == 1012


def test_a_page_that_goes_leaves_its_topics(server: Server) -> None:
    with page(server) as one, server.connect() as redis:
        one.join("chat:12")
        assert redis.ask("PUBSUB", "NUMSUB", "chat:12") == [b"chat:12", 1]
        one.close()
        until(lambda: redis.ask("PUBSUB", "NUMSUB", "chat:12") == [b"chat:12", 0])
