"""Presence in rooms of a node, in each protocol: docs/presence.md."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clients.mqtt import PUBLISH, SUBACK, UNSUBACK, UNSUBSCRIBE, V5, V311, Wire, packet, text
from clients.mqtt_sessions import expiry
from clients.phoenix import LEAVE, V1, V2, Page
from clients.roster import COUNT, STATE, UPDATE, Roster, member
from clients.servers import Server, hubsub_node, until

from node.test_mqtt import client

Start = Callable[..., Server]

VERSIONS = [V1, V2]
LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
QUIET: dict[str, Any] = {"name": "quiet", "match": ["quiet:*"], "presence": "off"}
FLEET: dict[str, Any] = {"name": "fleet", "match": ["fleet/#"], "room": "fleet/+", "presence": "all"}
RECORDED: dict[str, Any] = {"name": "logged", "match": ["logged:*"], "presence_records": True}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with listeners for WebSockets, MQTT and Redis."""
    needs("hubsub-core")
    with hubsub_node(request.param, LISTENERS, classes=[QUIET, FLEET]) as server:
        yield server


def page(server: Server, version: str = V2) -> Page:
    assert server.node is not None
    return Page(server.node.ws, version)


def asked(server: Server, room: str, query: str = "") -> dict[str, Any]:
    """The REST presence of a room."""
    answer: dict[str, Any] = json.loads(server.get(f"/v1/rooms/{quote(room, safe='')}/presence{query}"))
    return answer


def keys(server: Server, room: str) -> list[str]:
    return [row["key"] for row in asked(server, room)["members"]]


def records(server: Server, room: str) -> list[dict[str, Any]]:
    """The recorded joins and leaves of a room."""
    path = f"/v1/rooms/{quote(f'$stats/presence/{room}', safe='')}/history"
    return [json.loads(row["payload"]) for row in json.loads(server.get(path))["records"]]


def wait_for(server: Server, room: str, *expected: str) -> None:
    until(lambda: keys(server, room) == sorted(expected), f"{expected} are in {room}")


# --- pages


@pytest.mark.parametrize("version", VERSIONS)
def test_a_page_is_told_who_is_there_and_then_who_comes_and_goes(server: Server, version: str) -> None:
    topic = f"chat:{version}"
    with page(server, version) as one:
        ann = Roster(one, topic, member("ann", name="Ann"))
        ann.until("ann")
        [(_, meta)] = ann.members.values()
        assert meta["name"] == "Ann" and meta["phx_ref"]
        with page(server, version) as two:
            bob = Roster(two, topic, member("bob"))
            assert bob.keys()[:1] == ["ann"]
            bob.until("ann", "bob")
            ann.until("ann", "bob")
            # Two pages of one user are two members with one key.
            with page(server, version) as three:
                Roster(three, topic, member("ann"))
                ann.until("ann", "ann", "bob")
            ann.until("ann", "bob")
        ann.until("ann")
        one.push(topic, LEAVE)
        wait_for(server, topic)


def test_who_does_not_say_who_it_is_is_told_and_is_nobody(server: Server) -> None:
    with page(server) as one, page(server) as two, page(server) as plain:
        watcher = Roster(one, "chat:watched")
        plain.join("chat:watched", {"presence": None})
        Roster(two, "chat:watched", member("ann"))
        watcher.until("ann")
        # A page that did not ask for presence receives none.
        plain.push("chat:watched", "say", {"n": 1})
        said = [plain.read()[3] for _ in "12"]
        assert sorted(said) == ["phx_reply", "say"]


def test_a_member_says_something_else_of_itself(server: Server) -> None:
    with page(server) as one, page(server) as two:
        ann, bob = Roster(one, "chat:away", member("ann", away=False)), Roster(two, "chat:away")
        bob.until("ann")
        ann.until("ann")
        [before] = bob.members
        one.push("chat:away", UPDATE, {"away": True})
        assert one.read()[4] == {"status": "ok", "response": {}}
        joins, leaves = bob.hear()
        [meta], [left] = joins["ann"], leaves["ann"]
        assert meta["away"] is True and meta["phx_ref_prev"] == left["phx_ref"] == before != meta["phx_ref"]
        two.push("chat:away", UPDATE, {"away": True})
        status = two.read()[4]
        assert status["status"] == "error" and status["response"]["reason"].startswith("no member; hint")


def test_nobody_can_take_the_reference_of_another_one(server: Server) -> None:
    with page(server) as one:
        ann = Roster(one, "chat:forged", member("ann", phx_ref="1.1"))
        ann.until("ann")
        assert "1.1" not in ann.members


@pytest.mark.parametrize(
    ("presence", "reason"),
    [
        (7, "presence is true or an object"),
        ({}, "presence needs a key"),
        ({"key": ""}, "presence needs a key"),
        ({"key": "a", "meta": []}, "the meta of presence is an object"),
    ],
    ids=str,
)
def test_what_is_no_member_is_refused_with_what_it_should_be(
    server: Server, presence: Any, reason: str
) -> None:
    with page(server) as one:
        status, response = one.try_join("chat:wrong", {"presence": presence})
        assert status == "error" and response["reason"].startswith(reason)


def test_a_class_may_have_no_members(server: Server) -> None:
    refused = server.metric("presence_refused_total")
    with page(server) as one:
        status, response = one.try_join("quiet:a", {"presence": True})
        assert status == "error" and response["reason"].startswith("not_allowed: ")
        assert one.join("quiet:a")["recovered"] is True
    assert server.metric("presence_refused_total") == refused + 1
    assert asked(server, "quiet:a") == {"room": "quiet:a", "count": 0, "members": []}


def test_topics_of_one_room_have_one_presence(server: Server) -> None:
    with page(server) as one:
        one.join("{lobby}.typing", {"presence": member("ann")})
        wait_for(server, "lobby", "ann")
        with page(server) as two:
            lobby = Roster(two, "lobby")
            lobby.until("ann")
        one.close()
    wait_for(server, "lobby")


def test_a_room_may_have_any_name(server: Server) -> None:
    topic = "chat:ä/+#%2F b\u0001"
    with page(server) as one:
        ann = Roster(one, topic, member("änn"))
        ann.until("änn")
        with server.connect() as redis:
            said: Any = redis.ask("HUBSUB", "PRESENCE", topic)
            assert said[0] == 1


# --- other protocols


def test_a_meta_that_only_some_can_read_hides_nobody(server: Server) -> None:
    with page(server) as ann, page(server) as bob:
        ann.join("chat:raw", {"presence": {"key": "ann", "meta": {"half": "\ud83d"}}})
        bob.join("chat:raw", {"presence": {"key": "bob", "meta": {"name": "Bob"}}})
        wait_for(server, "chat:raw", "ann", "bob")
        assert [row["meta"] for row in asked(server, "chat:raw")["members"]] == [
            {"half": "\ud83d"},
            {"name": "Bob"},
        ]


def test_redis_and_rest_say_the_same(server: Server) -> None:
    with page(server) as one, page(server) as two, server.connect() as redis:
        for who, key in ((one, "bob"), (two, "ann")):
            who.join("chat:asked", {"presence": member(key, of=key)})
        wait_for(server, "chat:asked", "ann", "bob")
        answer = asked(server, "chat:asked")
        assert (answer["room"], answer["count"]) == ("chat:asked", 2)
        assert [row["meta"] for row in answer["members"]] == [{"of": "ann"}, {"of": "bob"}]
        said: Any = redis.ask("HUBSUB", "PRESENCE", "chat:asked")
        count, rows = said
        assert count == 2
        assert [(key.decode(), ref.decode(), json.loads(meta)) for key, ref, meta in rows] == [
            (row["key"], row["ref"], row["meta"]) for row in answer["members"]
        ]
        assert [row["key"] for row in asked(server, "chat:asked", "?limit=1")["members"]] == ["ann"]
        assert redis.ask("HUBSUB", "PRESENCE", "chat:nobody") == [0, []]
        refused = redis.call("HUBSUB", "PRESENCE", "$members/x")
        assert refused.kind == "-"


def heard(device: Wire) -> tuple[bool, dict[str, Any]]:
    """The next message to a client before 5.0: its retain flag and its payload."""
    packet = device.read(PUBLISH)
    said: dict[str, Any] = json.loads(packet.rest)
    return bool(packet.flags & 1), said


def test_an_mqtt_client_is_told_who_is_there_and_then_what_changes(server: Server) -> None:
    with client(server, "tells", V311) as device, page(server) as one:
        assert device.subscribe(("$presence/chat:devices", 1)) == [1]
        assert heard(device) == (True, {"count": 0, "members": []})
        one.join("chat:devices", {"presence": member("ann", name="Ann")})
        is_retained, said = heard(device)
        [row] = said["joins"]
        assert not is_retained and (said["count"], said["leaves"]) == (1, [])
        assert (row["key"], row["meta"]) == ("ann", {"name": "Ann"})
        # A repeated subscription sends the list again.
        assert device.subscribe(("$presence/chat:devices", 0), number=2) == [0]
        assert heard(device) == (True, {"count": 1, "members": [row]})
        one.close()
        assert heard(device) == (False, {"count": 0, "joins": [], "leaves": [row]})


def test_mqtt_cannot_ask_for_more_rooms_at_once(server: Server) -> None:
    with client(server, "asks", V311) as device:
        for filter_ in (
            "$presence/#",
            "$presence/chat/+",
            "$presence/$SYS",
            "$presence/quiet:a",
            "$presence/",
        ):
            assert device.subscribe((filter_, 0)) == [0x80], filter_


def test_mqtt_clients_are_members_where_their_class_says_so(server: Server) -> None:
    with client(server, "truck-7", V311) as truck:
        truck.subscribe(("fleet/berlin/alerts", 0), ("other", 0))
        wait_for(server, "fleet/berlin", "truck-7")
        with page(server) as one:
            Roster(one, "fleet/berlin/map", member("ann")).until("ann", "truck-7")
        truck.send(packet(UNSUBSCRIBE << 4 | 2, b"\0\x09" + text("fleet/berlin/alerts")))
        truck.read(UNSUBACK)
        wait_for(server, "fleet/berlin")
        truck.subscribe(("fleet/berlin/alerts", 0), number=3)
        wait_for(server, "fleet/berlin", "truck-7")
    wait_for(server, "fleet/berlin")
    assert asked(server, "other")["count"] == 0


def test_a_session_without_a_connection_is_no_member_and_is_one_again_when_it_is_back(server: Server) -> None:
    stays: dict[str, Any] = {"properties": expiry(600), "flags": 0}
    with client(server, "truck-8", V5, **stays) as truck:
        truck.ask(("fleet/paris", 1), ("$presence/chat:back", 0))
        # The list may arrive before the other subscription is confirmed.
        while truck.read().kind != SUBACK:
            pass
        wait_for(server, "fleet/paris", "truck-8")
    wait_for(server, "fleet/paris")
    with client(server, "truck-8", V5, **stays) as truck:
        wait_for(server, "fleet/paris", "truck-8")
        packet = truck.read(PUBLISH)
        assert packet.topic == "$presence/chat:back" and packet.flags & 1


# --- limits


def test_a_member_that_says_too_much_of_itself_is_refused(start: Start) -> None:
    server = start(1, LISTENERS, limits={"presence_member_bytes_max": 64})
    with page(server) as one:
        status, response = one.try_join("chat:a", {"presence": member("a", text="x" * 64)})
        assert status == "error" and response["reason"].startswith("member_length: ")
        ann = Roster(one, "chat:a", member("a"))
        one.push("chat:a", UPDATE, {"text": "x" * 64})
        while (said := one.read())[3] != "phx_reply":
            pass
        assert said[4]["response"]["reason"].startswith("member_length: ")
        assert ann.topic == "chat:a"
    assert server.metric("presence_refused_total") == 2


def test_one_member_too_many_is_refused_until_another_has_left(start: Start) -> None:
    server = start(2, LISTENERS, limits={"presence_members_max": 2})
    with page(server) as one, page(server) as two, page(server) as other:
        one.join("chat:a", {"presence": member("ann")})
        other.join("chat:b", {"presence": member("ann")})
        status, response = two.try_join("chat:c", {"presence": member("bob")})
        assert status == "error" and response["reason"].startswith("too_many_members: ")
        # A page that only watches is no member.
        two.join("chat:c", {"presence": True})
        one.push("chat:a", LEAVE)
        with page(server) as three:
            until(lambda: three.try_join("chat:a", {"presence": member("bob")})[0] == "ok")
    until(lambda: server.metric("presence_members") == 0)


def test_members_beyond_those_that_are_listed_are_counted(start: Start) -> None:
    server = start(2, LISTENERS, limits={"presence_listed_max": 2})
    with page(server) as one, ExitStack() as stack:
        watcher = Roster(one, "chat:big")
        others = [stack.enter_context(page(server)) for _ in range(5)]
        for number, other in enumerate(others):
            other.join("chat:big", {"presence": member(f"user {number}")})
        watcher.until_count(5)
        assert len(watcher.members) == 2
        answer = asked(server, "chat:big")
        assert (answer["count"], len(answer["members"])) == (5, 2)
        with page(server) as late:
            late.join("chat:big", {"presence": True})
            event, state = late.said("chat:big")
            assert (event, len(state)) == (STATE, 2)
            assert late.said("chat:big") == (COUNT, {"count": 5})
        for other in others[2:]:
            other.close()
        watcher.until_count(2)
    # The metric is updated once a second.
    until(lambda: server.metric("presence_unlisted_total") == 3)
    until(lambda: server.metric("presence_rooms") == 0)


# --- recorded joins and leaves


def test_who_comes_and_goes_is_recorded_where_the_class_says_so(start: Start, data: Path) -> None:
    server = start(2, {**LISTENERS, "data": str(data)}, classes=[RECORDED])

    with page(server) as one, page(server) as two:
        one.join("logged:a", {"presence": member('ann "1"', name="Ann")})
        two.join("chat:a", {"presence": member("bob")})
        [came] = until(lambda: records(server, "logged:a"))
        [row] = asked(server, "logged:a")["members"] or [{"ref": came["ref"]}]
        # The leave event repeats the key of the join, whatever the page has set since.
        one.push("logged:a", UPDATE, {"away": True})
    _, went = until(lambda: len(found := records(server, "logged:a")) == 2 and found)
    assert [(row["kind"], row["user"], row["room"]) for row in (came, went)] == [
        ("join", 'ann "1"', "logged:a"),
        ("leave", 'ann "1"', "logged:a"),
    ]
    assert came["ref"] == went["ref"] == row["ref"] and came["ts"] <= went["ts"]
    assert records(server, "chat:a") == []


def test_members_of_a_node_that_was_killed_have_left_when_it_is_back(start: Start, data: Path) -> None:
    config = {**LISTENERS, "data": str(data)}
    server = start(2, config, classes=[RECORDED])
    with page(server) as ann, page(server) as bob:
        ann.join("logged:a", {"presence": member("ann")})
        bob.join("logged:a", {"presence": member("bob")})
        bob.push("logged:a", LEAVE)
        came = until(lambda: len(found := records(server, "logged:a")) == 3 and found)
        assert server.node is not None
        server.node.stop(signal.SIGKILL)
    server = start(2, config, classes=[RECORDED])
    *before, left = until(lambda: len(found := records(server, "logged:a")) > 3 and found)
    assert before == came
    [ref] = [row["ref"] for row in came if row["user"] == "ann"]
    assert (left["kind"], left["user"], left["ref"], left["why"]) == ("leave", "ann", ref, "node_gone")
    assert left["ts"] >= max(row["ts"] for row in came)
    # The current members belong to the new process.
    with page(server) as ann:
        ann.join("logged:a", {"presence": member("ann")})
        until(lambda: len(records(server, "logged:a")) == 5)
    *_, joined, gone = until(lambda: len(found := records(server, "logged:a")) == 6 and found)
    assert joined["ref"] == gone["ref"] != ref and "why" not in gone
