"""Hubs assigned to a running node: opened, closed, refused, and all present after kill -9."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from clients.raw import Connection
from clients.servers import until

from hubsub.errors import StartError
from hubsub.testing import Node
from node.given import Given, given
from node.home import CHAT
from node.logged import QUIET, manifest, numbers
from node.test_disk_full import FULL, LIMITS, MOUNT, Disk, namespace

pytestmark = pytest.mark.needs("hubsub-core")

ROOMS = 12
CLOSED = b"ERR the hub of this room is not open here, try again later"
HUBS = [(699, "chat", 0), (4, "chat", 1), (41, "chat", 2)]
"""Hub id, class, place. Each id maps to the shard of its place: without routes the node knows no other shard.
"""


def publish(connection: Connection, batch: range) -> list[int]:
    """Publishes numbers into `ROOMS` rooms; returns those that were accepted."""
    for n in batch:
        connection.command("PUBLISH", f"chat:{n % ROOMS}", b"%d " % n + b"." * 90)
    frames = connection.read_many(len(batch))
    assert {frame.value for frame in frames if frame.kind != ":"} <= {CLOSED}
    return [n for n, frame in zip(batch, frames, strict=True) if frame.kind == ":"]


def held(connection: Connection) -> list[int]:
    return sorted(n for room in range(ROOMS) for n in numbers(connection, f"chat:{room}"))


def test_hubs_that_come_while_a_node_runs_take_records_and_are_all_there_after_kill_9(data: Path) -> None:
    with given(data) as node, node.connect() as connection:
        assert node.hubs() == {} and publish(connection, range(20)) == [], "it makes none by itself"
        opened = [node.call("open_hub", *hub) for hub in HUBS]
        assert [(hub["id"], hub["class"], hub["index"], hub["state"], hub["opened"]) for hub in opened] == [
            (*hub, "open", 1) for hub in HUBS
        ]
        assert publish(connection, range(3_000)) == list(range(3_000))
        hubs = node.hubs()
        assert sum(hub["committed"] for hub in hubs.values()) == 3_000 and min(hubs) == 4
        for hub in hubs:
            assert node.call("offsets", hub) == list(range(1, hubs[hub]["committed"] + 1)), "streams, too"
        node.end(signal.SIGKILL)
    assert [hub["hub"] for hub in manifest(data)["hubs"]] == [4, 41, 699]
    with given(data) as node, node.connect() as connection:
        assert held(connection) == list(range(3_000)), "opened by the start, with no word from anybody"
        again = [node.call("open_hub", *hub) for hub in HUBS]
        assert sum(hub["opened"] - 1 for hub in again) == 3_000
        assert publish(connection, range(3_000, 3_100)) == list(range(3_000, 3_100))
        assert node.end() == 0


def test_an_id_or_a_place_that_is_another_hubs_is_refused_with_both(data: Path) -> None:
    with given(data, classes=[CHAT, CHAT | {"name": "orders", "match": ["orders:*"]}]) as node:
        node.call("open_hub", 7, "chat", 0)
        for hub in [(7, "chat", 1), (7, "orders", 0), (8, "chat", 0)]:
            code, message = node.refused("open_hub", *hub)
            asked = f"hub {hub[0]} ({hub[1]}-{hub[2]}) was asked for"
            assert code == "hub_differs" and message.endswith(f"hub 7 (chat-0) is here, {asked}")
        assert node.refused("open_hub", 8, "none", 0)[0] == "bad_request"
        assert node.refused("open_hub", 0, "chat", 1)[0] == "bad_request"
        assert list(node.hubs()) == [7]


def test_a_hub_that_is_closed_under_publishing_keeps_what_was_acknowledged_and_comes_back(data: Path) -> None:
    with given(data) as node, node.connect() as connection:
        for hub in HUBS:
            node.call("open_hub", *hub)
        taken: list[int] = []
        for turn in range(5):
            closing = node.ask("close_hub", 4)
            taken += publish(connection, range(turn * 1_000, turn * 1_000 + 1_000))
            assert node.answer(closing)["answer"] is not None
            assert sorted(node.hubs()) == [41, 699] and node.call("close_hub", 4) is None
            node.call("open_hub", *HUBS[1])
            assert held(connection) == taken
        node.call("close_hub", 4)
        node.end(signal.SIGKILL)
    with given(data) as node, node.connect() as connection:
        assert held(connection) == taken, "it is on the disk, and a start opens it"


def test_two_hundred_hubs_are_opened_while_clients_publish(data: Path) -> None:
    classes = [CHAT, CHAT | {"name": "many", "match": ["many:*"]}]
    with given(data, shards=2, classes=classes) as node, node.connect() as connection:
        for index in range(2):
            node.call("open_hub", index + 2, "chat", index)
        asked = [node.ask("open_hub", 100 + index, "many", index) for index in range(200)]
        taken: list[int] = []
        for batch in range(20):
            taken += publish(connection, range(batch * 100, batch * 100 + 100))
        assert taken == list(range(2_000))
        assert [node.answer(number)["answer"]["id"] for number in asked] == list(range(100, 300))
        assert len(node.hubs()) == 202 and held(connection) == taken
        assert connection.call("PUBLISH", "many:1", "x").kind == ":"
        node.end(signal.SIGKILL)
    with given(data, shards=2, classes=classes) as node, node.connect() as connection:
        assert len(node.hubs()) == 202 and held(connection) == taken


def test_an_opening_on_a_full_disk_is_refused_and_the_node_goes_on(tmp_path: Path) -> None:
    command = [*namespace(), "sh", "-c", MOUNT, str(tmp_path)]
    with given(tmp_path / "data", shards=1, limits=LIMITS, command=command) as node:
        disk = Disk(node, tmp_path)  # type: ignore[arg-type]
        with node.connect() as connection:
            node.call("open_hub", 1, "chat", 0)
            assert publish(connection, range(100)) == list(range(100))
            disk.fill()
            until(lambda: connection.call("PUBLISH", "chat:0", "100").value == FULL, "a refusal")
            before = len(held(connection))
            code, message = node.refused("open_hub", 2, "chat", 1)
            assert code == "disk_full" and list(node.hubs()) == [1], message
            assert len(held(connection)) == before, "what is there is served"
            disk.free()
            until(lambda: "answer" in node.answer(node.ask("open_hub", 2, "chat", 1)), "it is opened")
            assert sorted(node.hubs()) == [1, 2]
            until(lambda: connection.call("PUBLISH", "chat:0", "101").kind == ":", "records are taken again")
            assert node.end() == 0


def test_a_directory_of_another_cluster_or_of_none_is_refused_with_both_named(
    data: Path, make_node: Callable[..., Node]
) -> None:
    with given(data) as node:
        node.call("open_hub", 1, "chat", 0)
        node.end()
    assert manifest(data)["cluster"] == "red"
    assert json.loads((data / "log/hubs/1/hub.json").read_text().splitlines()[0])["cluster"] == "red"
    with pytest.raises(StartError, match="it is of cluster red, this node is of cluster blue"):
        Given(data, ("blue", True))
    with pytest.raises(StartError, match="it is of cluster red, this node is of none"):
        make_node(classes=[CHAT], config={"data": str(data)})
    with given(data) as node:
        assert list(node.hubs()) == [1]


def test_what_a_node_numbered_alone_is_the_clusters_only_where_that_is_said(
    data: Path, make_node: Callable[..., Node]
) -> None:
    alone = make_node(classes=[CHAT], config={"data": str(data), "shards": 2}, limits=QUIET)
    with Connection(*alone.redis) as connection:
        assert publish(connection, range(200)) == list(range(200))
    alone.stop(signal.SIGKILL)
    told = "it has hubs that its node numbered itself, this node is of cluster red"
    with pytest.raises(StartError, match=told):
        Given(data)
    with given(data, ("red", True), shards=1) as node, node.connect() as connection:
        assert held(connection) == list(range(200))
        names = {(hub["class"], hub["index"]): hub["id"] for hub in node.hubs().values()}
        assert (names["chat", 0], names["chat", 1]) == (1, 2), "the ids that it gave them"
        node.end(signal.SIGKILL)
    with given(data, shards=1) as node, node.connect() as connection:
        assert held(connection) == list(range(200))
