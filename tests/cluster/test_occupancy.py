"""Occupancy of rooms over the nodes of a cluster: docs/presence.md."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clients.mqtt import Wire
from clients.phoenix import Page
from clients.raw import Connection
from clients.roster import member
from clients.servers import until

from cluster.cluster import DEFAULT, Cluster
from cluster.test_classes import apply

LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
TOLD: dict[str, Any] = {
    "name": "told",
    "match": ["told:*"],
    "placement": "ring",
    "occupancy_records": True,
}
NOBODY = {"redis": 0, "mqtt": 0, "phoenix": 0, "events": 0}


def expected(room: str, publishers: int = 0, members: int = 0, **subscribers: int) -> dict[str, Any]:
    return {
        "room": room,
        "subscribers": sum(subscribers.values()),
        "by_protocol": NOBODY | subscribers,
        "publishers": publishers,
        "members": members,
    }


def occupancy(cluster: Cluster, name: str, room: str) -> dict[str, Any]:
    """The occupancy of a room from a node's REST API."""
    status, answer = cluster.get(name, f"/v1/rooms/{quote(room, safe='')}/occupancy")
    assert status == 200, answer
    return answer


def room_recorded_by(cluster: Cluster, node: str, prefix: str = "told:") -> str:
    """A room whose occupancy records are on that node."""
    with cluster.connect(node) as redis:
        for number in range(1_000):
            located: Any = redis.ask("HUBSUB", "LOCATE", f"$stats/room/{prefix}{number}/occupancy")
            if located[0][0] == node.encode():
                return f"{prefix}{number}"
    raise AssertionError(f"none of them is with {node}")


def told(follower: Connection, wanted: dict[str, Any]) -> None:
    """Reads records until the room's occupancy is as wanted."""
    seen = None
    while seen != wanted:
        frame: Any = follower.read().plain()
        row = json.loads(frame[-1])
        assert frame[-2] == f"$stats/room/{row['room']}/occupancy".encode() and row.pop("ts")
        seen = row if row["room"] == wanted["room"] else seen


def test_all_nodes_count_who_is_in_a_room_and_nobody_of_one_that_was_killed(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[TOLD, DEFAULT], config=LISTENERS) as cluster, ExitStack() as stack:
        cluster.settled()
        room, lone = room_recorded_by(cluster, "b"), room_recorded_by(cluster, "b", "told:lone")
        followers = {name: stack.enter_context(cluster.connect(name)) for name in "bc"}
        for follower in followers.values():
            follower.ask("PSUBSCRIBE", "$stats/room/*/occupancy")
        for name, node in cluster.nodes.items():
            redis = stack.enter_context(cluster.connect(name))
            redis.ask("SUBSCRIBE", room)
            redis.ask("PUBLISH", room, "x")
            page = stack.enter_context(Page(node.ws))
            page.join(room, {"presence": member(f"user of {name}")})
        device = stack.enter_context(Wire(cluster.nodes["c"].mqtt))
        device.connect("device")
        assert device.subscribe((room, 0), (lone, 0)) == [0, 0]

        full = expected(room, redis=3, mqtt=1, phoenix=3, publishers=3, members=3)
        for name in "abc":
            until(lambda name=name: occupancy(cluster, name, room) == full)  # type: ignore[misc]
        for follower in followers.values():
            told(follower, full)
        until(lambda: occupancy(cluster, "a", lone) == expected(lone, mqtt=1))

        cluster.kill("c")
        told(followers["b"], expected(room, redis=2, phoenix=2, publishers=2, members=2))
        until(lambda: occupancy(cluster, "b", lone) == expected(lone))


def test_a_room_that_only_the_killed_node_was_in_is_told_to_be_empty(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[TOLD, DEFAULT]) as cluster, ExitStack() as stack:
        cluster.settled()
        room = room_recorded_by(cluster, "b")
        follower = stack.enter_context(cluster.connect("b"))
        follower.ask("SUBSCRIBE", f"$stats/room/{room}/occupancy")
        # The oldest node writes the records, and dies together with the room's only client.
        stack.enter_context(cluster.connect("a")).ask("SUBSCRIBE", room)
        told(follower, expected(room, redis=1))
        cluster.kill("a")
        told(follower, expected(room))


def test_who_was_taken_for_gone_is_counted_again_when_it_is_heard(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[TOLD, DEFAULT]) as cluster, ExitStack() as stack:
        cluster.settled()
        room = room_recorded_by(cluster, "b")
        follower = stack.enter_context(cluster.connect("b"))
        follower.ask("SUBSCRIBE", f"$stats/room/{room}/occupancy")
        stack.enter_context(cluster.connect("c")).ask("SUBSCRIBE", room)
        told(follower, expected(room, redis=1))
        os.kill(cluster.nodes["c"].pid, signal.SIGSTOP)
        told(follower, expected(room))
        os.kill(cluster.nodes["c"].pid, signal.SIGCONT)
        told(follower, expected(room, redis=1))


def test_a_class_that_is_given_records_while_the_cluster_runs_tells_of_who_is_there_already(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[DEFAULT], config=LISTENERS) as cluster, ExitStack() as stack:
        cluster.settled()
        room = room_recorded_by(cluster, "b", "told:")
        follower = stack.enter_context(cluster.connect("b"))
        follower.ask("SUBSCRIBE", f"$stats/room/{room}/occupancy")
        for name in "ac":
            redis = stack.enter_context(cluster.connect(name))
            redis.ask("SUBSCRIBE", room)
        path, text = (
            tmp_path / "classes.toml",
            '[[class]]\nname = "told"\nmatch = ["told:*"]\nplacement = "ring"\n',
        )
        said = apply(cluster, "c", path, text + "occupancy_records = true\n")
        assert said == "applied: told, on 3 of 3 nodes\n"
        told(follower, expected(room, redis=2))
        until(lambda: occupancy(cluster, "b", room) == expected(room, redis=2))


def test_what_is_told_last_is_true_when_the_oldest_node_comes_back(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=[TOLD, DEFAULT]) as cluster, ExitStack() as stack:
        cluster.settled()
        room = room_recorded_by(cluster, "b")
        follower = stack.enter_context(cluster.connect("b"))
        follower.ask("SUBSCRIBE", f"$stats/room/{room}/occupancy")
        for name in "ac":
            stack.enter_context(cluster.connect(name)).ask("SUBSCRIBE", room)
        told(follower, expected(room, redis=2))
        os.kill(cluster.nodes["a"].pid, signal.SIGSTOP)
        told(follower, expected(room, redis=1))
        os.kill(cluster.nodes["a"].pid, signal.SIGCONT)
        told(follower, expected(room, redis=2))
