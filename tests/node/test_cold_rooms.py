"""A room unused since the start exists only in its hub's log, and is listed and shown like others."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import command_line
import pytest
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, until

from node.logged import DURABLE, QUIET, REPLICATED

CLASSES = [
    DURABLE,
    REPLICATED,
    {"name": "kept", "match": ["kept:*"], "history": {"messages": 10}},
]
ROOMS = 300


def names(page: dict[str, Any]) -> list[str]:
    return [room["name"] for room in page["rooms"]]


def get(server: Server, path: str, **query: Any) -> Any:
    return json.loads(server.get(path + ("?" + urlencode(query) if query else "")))


def pages(server: Server, limit: int, **query: Any) -> list[dict[str, Any]]:
    """All rooms, read page by page."""
    rooms: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    for _ in range(ROOMS * 4):
        page = get(server, "/v1/rooms", limit=limit, **query, **after)
        assert len(page["rooms"]) <= limit
        rooms += page["rooms"]
        if page["next"] is None:
            return rooms
        after = {"after": page["next"]}
    raise AssertionError("there is always one more page")


def room(i: int) -> str:
    return f"{'fast' if i % 3 == 0 else 'chat'}:{i:03} {'é' * (i % 7)}"


def publish(server: Server, rooms: list[str]) -> dict[str, str]:
    """Publishes one record into each room and another into every fifth; returns the rooms' positions."""
    positions = {}
    body = {"records": [{"topic": name, "payload": "x"} for name in rooms + rooms[::5]]}
    assert server.node
    host, _, port = server.node.http_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    connection.request("POST", "/v1/publish", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    for record, result in zip(body["records"], answer["results"], strict=True):
        positions[record["topic"]] = result["position"]
    return positions


@pytest.fixture
def restarted(needs: Callable[..., None], data: Path) -> Callable[..., Any]:
    """Returns a function that restarts a node on one data directory."""
    needs("hubsub-core")
    return lambda shards=2: hubsub_node(shards, {"data": str(data)}, classes=CLASSES, limits=QUIET)


def test_rooms_of_the_log_are_listed_and_shown_after_a_restart(restarted: Callable[..., Any]) -> None:
    rooms = [room(i) for i in range(ROOMS)]
    with restarted() as server:
        positions = publish(server, rooms)
        before = {r["name"]: r for r in pages(server, 100)}
        assert sorted(before) == sorted(rooms)
        assert all(r["in_memory"] for r in before.values())
    # The number of shards may change between starts.
    with restarted(shards=3) as server:
        listed = pages(server, 70)
        assert [r["name"] for r in listed] == sorted(rooms, key=str.encode)
        for r in listed:
            assert r["position"] == positions[r["name"]]
            assert r["in_memory"] is False and r["subscribers"] == r["topics"] == 0
            assert r["history"] is r["history_bytes"] is r["first_seq"] is r["idle_ms"] is None
            assert r["class"] == before[r["name"]]["class"] and r["hub"] == before[r["name"]]["hub"]
            shown = get(server, f"/v1/rooms/{quote(r['name'], safe='')}")
            assert shown == r
        until(lambda: server.metric("rooms_logged") == ROOMS, "all rooms are known to the log")
        assert server.metric("rooms") == 0
        # The room's details match its history.
        history = get(server, f"/v1/rooms/{quote(rooms[5], safe='')}/history")
        assert history["records"][-1]["position"] == positions[rooms[5]]


def test_a_page_holds_rooms_in_memory_and_others_each_once(restarted: Callable[..., Any]) -> None:
    rooms = [room(i) for i in range(ROOMS)]
    with restarted() as server:
        publish(server, rooms)
    with restarted() as server:
        with server.connect() as client:
            used = [rooms[7], rooms[120], "chat:new", "kept:a", "other"]
            for name in used:
                client.call("SUBSCRIBE", name)
            expected = sorted([*rooms, *used[2:]], key=str.encode)
            for limit in (1000, 33):
                listed = pages(server, limit)
                assert [r["name"] for r in listed] == expected
                assert {r["name"] for r in listed if r["in_memory"]} == set(used)
                assert {r["name"] for r in listed if r["subscribers"]} == set(used)
        matching = [name for name in sorted(rooms, key=str.encode) if name.startswith("fast:1")]
        assert [r["name"] for r in pages(server, 10, match="fast:1*")] == matching
        assert names(get(server, "/v1/rooms", match="nothing*")) == []
        behind = get(server, "/v1/rooms", after="chat:2", limit=3)
        assert names(behind) == [name for name in expected if name > "chat:2"][:3]
        assert behind["next"] == names(behind)[-1]


def test_a_deleted_room_is_listed_no_more_and_a_lost_file_of_names_is_made_again(
    restarted: Callable[..., Any], data: Path
) -> None:
    rooms = [room(i) for i in range(60)]
    with restarted() as server:
        publish(server, rooms)
    with restarted() as server:
        for name in rooms[::4]:
            delete(server, name)
            assert name not in names(get(server, "/v1/rooms", limit=1000))
    left = sorted((name for i, name in enumerate(rooms) if i % 4), key=str.encode)
    with restarted() as server:
        assert [r["name"] for r in pages(server, 9)] == left
    files = sorted(data.rglob("names"))
    assert len(files) == 4 + 6, "one a hub, those of the node's own six classes with a log too"
    for i, file in enumerate(files):
        if i % 2:
            file.unlink()
        else:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    with restarted() as server:
        assert [r["name"] for r in pages(server, 9)] == left
        assert not server.log_lines('"level": "error"')


def test_room_ls_and_room_show_know_rooms_of_the_log(restarted: Callable[..., Any]) -> None:
    rooms = [room(i) for i in range(40)]
    with restarted() as server:
        positions = publish(server, rooms)
    with restarted() as server:
        lines = hubsub(server, "room", "ls", "--json", "--limit", "25").splitlines()
        assert [json.loads(line)["name"] for line in lines] == sorted(rooms, key=str.encode)[:25]
        table = hubsub(server, "room", "ls", "fast:*").splitlines()
        assert len(table) == 1 + sum(name.startswith("fast:") for name in rooms)
        assert table[0].split()[:4] == ["name", "class", "subscribers", "seq"]
        shown = json.loads(hubsub(server, "room", "show", rooms[8], "--json"))
        assert shown["position"] == positions[rooms[8]] and shown["in_memory"] is False


def delete(server: Server, name: str) -> None:
    assert server.node
    host, _, port = server.node.http_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    connection.request("DELETE", f"/v1/rooms/{quote(name, safe='')}")
    assert connection.getresponse().status == 204
    connection.close()


def hubsub(server: Server, *args: str) -> str:
    """Output of the command-line program."""
    assert server.node
    done = command_line.hubsub(*args, "--url", server.node.http_url)
    assert done.returncode == 0, done.stderr
    return done.stdout
