"""Presence in rooms over the nodes of a cluster: docs/presence.md."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clients.mqtt import PUBLISH, Wire
from clients.phoenix import Page
from clients.roster import Roster, member
from clients.servers import Server, until
from clients.test_phoenix_live import HERE, Client

from cluster.cluster import DEFAULT, Cluster

LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
# The node that dies leads the nodes' rooms (docs/presence.md) of some of these, but not of all.
ROOMS = [f"talk:{number}" for number in range(8)]
RECORDED = {"name": "talk", "match": ["talk:*"], "placement": "ring", "presence_records": True}


def asked(cluster: Cluster, name: str, room: str) -> dict[str, Any]:
    """The presence of a room from a node's REST API."""
    status, answer = cluster.get(name, f"/v1/rooms/{quote(room, safe='')}/presence")
    assert status == 200, answer
    return answer


def test_all_nodes_see_who_is_there_and_nobody_of_one_that_was_killed(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[DEFAULT], config=LISTENERS) as cluster, ExitStack() as stack:
        cluster.settled()
        rosters = {
            (name, room): Roster(stack.enter_context(Page(cluster.nodes[name].ws)), room)
            for name in ("a", "b")
            for room in ROOMS
        }
        for name, node in cluster.nodes.items():
            for room in ROOMS:
                page = stack.enter_context(Page(node.ws))
                page.join(room, {"presence": member(f"user of {name}")})
        for roster in rosters.values():
            roster.until("user of a", "user of b", "user of c")
        for room in ROOMS:
            answers = [asked(cluster, name, room) for name in "abc"]
            assert answers[0] == answers[1] == answers[2]
            assert [row["key"] for row in answers[0]["members"]] == ["user of a", "user of b", "user of c"]
            with cluster.connect("c") as redis:
                said: Any = redis.ask("HUBSUB", "PRESENCE", room)
            count, rows = said
            assert (count, [key for key, *_ in rows]) == (3, [b"user of a", b"user of b", b"user of c"])

        with Wire(cluster.nodes["b"].mqtt) as device:
            device.connect("device")
            assert device.subscribe((f"$presence/{ROOMS[0]}", 0)) == [0]
            assert json.loads(device.read(PUBLISH).rest)["count"] == 3
            cluster.kill("c")
            for roster in rosters.values():
                roster.until("user of a", "user of b")
            while json.loads(device.read(PUBLISH).rest)["count"] != 2:
                pass
        for room in ROOMS:
            for name in "ab":
                until(lambda name=name, room=room: asked(cluster, name, room)["count"] == 2)  # type: ignore[misc]

        # The node and its member are back: under a new reference.
        before = dict(rosters["a", ROOMS[0]].members)
        cluster.start("c")
        with Page(cluster.nodes["c"].ws) as page:
            page.join(ROOMS[0], {"presence": member("user of c")})
            rosters["a", ROOMS[0]].until("user of a", "user of b", "user of c")
            assert set(before) < set(rosters["a", ROOMS[0]].members)


def test_members_of_a_node_that_stops_are_gone(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[DEFAULT], config=LISTENERS) as cluster, ExitStack() as stack:
        cluster.settled()
        watchers = [Roster(stack.enter_context(Page(cluster.nodes[name].ws)), "talk:0") for name in "ab"]
        page = stack.enter_context(Page(cluster.nodes["c"].ws))
        page.join("talk:0", {"presence": member("ann")})
        for watcher in watchers:
            watcher.until("ann")
        cluster.stop("c")
        for watcher in watchers:
            watcher.until()


def test_members_of_a_node_that_was_taken_for_gone_are_there_again_when_it_is_heard(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[DEFAULT], config=LISTENERS) as cluster, ExitStack() as stack:
        cluster.settled()
        watchers = [Roster(stack.enter_context(Page(cluster.nodes[name].ws)), "talk:0") for name in "ab"]
        page = stack.enter_context(Page(cluster.nodes["c"].ws))
        page.join("talk:0", {"presence": member("ann")})
        for watcher in watchers:
            watcher.until("ann")
        os.kill(cluster.nodes["c"].pid, signal.SIGSTOP)
        for watcher in watchers:
            watcher.until()
        os.kill(cluster.nodes["c"].pid, signal.SIGCONT)
        for watcher in watchers:
            watcher.until("ann")


def records(cluster: Cluster, name: str, room: str) -> list[dict[str, Any]] | None:
    """Join and leave records of a room, as that node reports them; None: not available now."""
    path = f"/v1/rooms/{quote(f'$stats/presence/{room}', safe='')}/history?limit=1000"
    status, answer = cluster.get(name, path)
    return [json.loads(row["payload"]) for row in answer["records"]] if status == 200 else None


def figure(cluster: Cluster, name: str, metric: str) -> float:
    node = cluster.nodes[name]
    return Server(*node.redis, node.pid, node).metric(metric)


def there(rows: list[dict[str, Any]] | None) -> list[str] | None:
    """Users who joined and did not leave; None: the records are not available."""
    if rows is None:
        return None
    went = {row["ref"] for row in rows if row["kind"] == "leave"}
    return sorted(row["user"] for row in rows if row["kind"] == "join" and row["ref"] not in went)


def test_each_member_that_was_recorded_as_it_came_has_left_in_the_records_too_whoever_died(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits = {"presence_members_max": 12}
    with (
        Cluster(tmp_path, classes=[RECORDED, DEFAULT], config=LISTENERS, limits=limits) as cluster,
        ExitStack() as stack,
    ):
        cluster.settled()
        pages = {}
        for name, node in cluster.nodes.items():
            for room in ROOMS:
                page = pages[name, room] = stack.enter_context(Page(node.ws))
                page.join(room, {"presence": member(f"user of {name}")})
        # One member in a room of its own: only the node with the records knows of it.
        lonely = stack.enter_context(Page(cluster.nodes["c"].ws))
        lonely.join("talk:lonely", {"presence": member("lonely")})
        for room in ROOMS:
            until(lambda room=room: len(records(cluster, "a", room) or ()) == 3)  # type: ignore[misc]
        until(lambda: records(cluster, "a", "talk:lonely"))
        kept = [room for room in ROOMS if cluster.leader_of(f"$stats/presence/{room}") != "c"]
        assert 0 < len(kept) < len(ROOMS)

        cluster.kill("c")
        # Where another node has the records, the leave is recorded as soon as the dead node is no longer
        # registered.
        for room in kept:
            until(lambda room=room: there(records(cluster, "a", room)) == ["user of a", "user of b"], room)  # type: ignore[misc]
        # Some leave while their leaves cannot be recorded: their nodes record them later.
        for room in ROOMS:
            pages["b", room].close()
        for room in ROOMS:
            until(lambda room=room: asked(cluster, "b", room)["count"] == 1)  # type: ignore[misc]
        # A node queues at most as many records as it may have members. Lost are records of members that
        # joined and left.
        [away, *_] = [room for room in ROOMS if room not in kept]
        while figure(cluster, "b", "presence_records_lost_total") == 0:
            with Page(cluster.nodes["b"].ws) as page:
                page.try_join(away, {"presence": member("passer-by")})
        cluster.start("c")
        for room in ROOMS:
            until(lambda room=room: there(records(cluster, "a", room)) == ["user of a"], room)  # type: ignore[misc]
        until(lambda: there(records(cluster, "a", "talk:lonely")) == [])
        for room in [*ROOMS, "talk:lonely"]:
            leaves = [row for row in records(cluster, "a", room) or () if row["kind"] == "leave"]
            gone = [row["user"] for row in leaves if row.get("why") == "node_gone"]
            assert gone == ["lonely" if room == "talk:lonely" else "user of c"]


@pytest.mark.needs("node")
def test_the_real_presence_class_on_two_nodes(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    if not (HERE / "node_modules/phoenix").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    with Cluster(tmp_path, names=("a", "b"), config={"ws": "127.0.0.1:0"}) as cluster, ExitStack() as stack:
        cluster.settled()
        nodes = [cluster.nodes[name] for name in "ab"]
        one, two = (Client(Server(*node.redis, node.pid, node)) for node in nodes)
        stack.callback(one.close)
        stack.callback(two.close)
        one.join("chat:a", params={"presence": member("ann", name="Ann")}, watches=True)
        one.wait(topic="chat:a", there=[["ann", [{"name": "Ann"}]]])
        two.join("chat:a", params={"presence": member("bob")}, watches=True)
        assert one.wait(topic="chat:a", came="bob")["isNew"] is True
        for page in (one, two):
            seen = page.wait_until(lambda seen: len(seen.get("there", ())) == 2)
            assert sorted(seen["there"]) == [["ann", [{"name": "Ann"}]], ["bob", [{}]]]
        # Only its metadata changes: it was present before, and still is.
        one.do("push", topic="chat:a", event="presence_update", payload={"name": "Anna"})
        two.wait_until(lambda seen: ["ann", [{"name": "Anna"}]] in seen.get("there", ()))
        two.do("leave", topic="chat:a")
        assert one.wait(topic="chat:a", went="bob")["isLast"] is True
        one.wait(topic="chat:a", there=[["ann", [{"name": "Anna"}]]])
