"""Classes change while nodes run: applied on any node, they take effect on all of them without a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients.raw import Connection
from clients.servers import until
from command_line import hubsub

from cluster.cluster import BUSY, CHAT, LOGGED, NAMES, Cluster
from hubsub.control.cluster.classes import LOGGED_HUBS

pytestmark = pytest.mark.needs("hubsub-core")

FILE = """
[[class]]
name = "news"
match = ["news:*"]
placement = "ring"
history = { messages = 100 }

[[class]]
name = "orders"
match = ["orders:*"]
placement = "ring"
durability = "durable"
history = { bytes = "64MiB" }

[[class]]
name = "games"
match = ["games:*"]
history = { messages = 10 }
"""


def apply(cluster: Cluster, name: str, path: Path, text: str) -> str:
    """Runs `hubsub class apply` with a file on a node; returns its messages."""
    path.write_text(text)
    return hubsub("class", "apply", str(path), "--url", cluster.nodes[name].http_url).stderr


def history(client: Connection, room: str) -> list[bytes] | None:
    """Payloads of a room's history; None: the request was refused."""
    rows = client.ask("HUBSUB", "HISTORY", room, "COUNT", 100)
    return [row[4] for row in rows] if isinstance(rows, list) else None


def messages(client: Connection, count: int) -> list[object]:
    return [frame.plain()[-1] for frame in client.read_many(count)]  # type: ignore[index]


def behind(cluster: Cluster, name: str) -> set[int]:
    """Versions of the classes on nodes that are not the latest, as one node sees them."""
    code, shown = cluster.get(name, "/v1/classes")
    assert code == 200
    return {row["version"] for row in shown["nodes"]} - {shown["version"]}


def test_what_is_applied_counts_on_all_nodes_while_they_run_and_after_a_restart(tmp_path: Path) -> None:
    with Cluster(tmp_path, classes=(CHAT, LOGGED, BUSY)) as cluster:
        subscribers = {name: cluster.connect(name, resp=2) for name in NAMES}
        rooms = [f"news:{number}" for number in range(6)]
        for client in subscribers.values():
            for room in rooms:
                client.call("SUBSCRIBE", room)
        said = apply(cluster, "b", tmp_path / "classes.toml", FILE)
        assert "applied: news, orders, games, on 3 of 3 nodes" in said
        for name in NAMES:
            # Each node has them by now, and learns the versions of the others with the next ping.
            until(lambda name=name: not behind(cluster, name))
            _, shown = cluster.get(name, "/v1/classes")
            classes = {row["name"]: row for row in shown["classes"]}
            assert (classes["orders"]["version"], classes["orders"]["hubs"]) == (2, LOGGED_HUBS)
            assert list(classes)[-1] == "default", "it still matches what no other does"

        # Rooms of the default class now belong to the new one, and subscriptions remain.
        for publisher in NAMES:
            with cluster.connect(publisher) as client:
                for room in rooms:
                    assert client.ask("PUBLISH", room, f"{publisher}-{room}") == len(NAMES)
        expected = sorted(f"{publisher}-{room}".encode() for publisher in NAMES for room in rooms)
        for client in subscribers.values():
            assert sorted(map(bytes, messages(client, len(expected)))) == expected  # type: ignore[call-overload]
            client.close()
        assert "nothing to change" in apply(cluster, "c", tmp_path / "classes.toml", FILE)

        # Hubs of a new class with a log are spread over all nodes from the beginning.
        until(lambda: set(cluster.leaders(room_class="orders")) == set(NAMES))
        payloads = {
            room: [] for room in (f"{prefix}:{n}" for prefix in ("orders", "games") for n in range(9))
        }
        for publisher in NAMES:
            with cluster.connect(publisher) as client:
                for room, taken in payloads.items():
                    assert client.ask("PUBLISH", room, publisher) == 0
                    taken.append(publisher.encode())
        for name in NAMES:
            with cluster.connect(name) as client:
                for room, taken in payloads.items():
                    assert history(client, room) == taken, room

        # An invalid change is refused as a whole.
        bad = FILE.replace("history = { messages = 10 }", "history = { messages = 11 }").replace(
            '"durable"', '"replicated"'
        )
        said = apply(cluster, "a", tmp_path / "bad.toml", bad)
        assert "class orders keeps its durability" in said and "hint:" in said
        _, shown = cluster.get("a", "/v1/classes/games")
        assert (shown["version"], shown["history"]["messages"]) == (2, 10), "nothing is half applied"

        said = apply(cluster, "a", tmp_path / "bad.toml", '[[class]]\nname = "forgot"\n')
        assert "class forgot is new and has no `match`" in said and "hint:" in said
        assert cluster.get("a", "/v1/classes/forgot")[0] == 404

        # A removed class keeps its rooms.
        run = hubsub("class", "rm", "orders", "--url", cluster.nodes["c"].http_url)
        assert "removed: orders, on 3 of 3 nodes" in run.stderr
        with cluster.connect("a") as client:
            assert client.ask("PUBLISH", "orders:1", "more") == 0
            assert "gets no new rooms" in repr(client.ask("PUBLISH", "orders:new", "x"))
        hubsub("class", "rm", "games", "--url", cluster.nodes["c"].http_url)
        for name in NAMES:
            with cluster.connect(name) as client:
                for _ in range(2):
                    assert "gets no new rooms" in repr(client.ask("PUBLISH", "games:new", "x"))
                    assert "gets no new rooms" in repr(client.ask("HUBSUB", "LOCATE", "games:new"))
                assert isinstance(client.ask("HUBSUB", "LOCATE", "games:1"), list)
        rows = hubsub("class", "ls", "--json", "--url", cluster.nodes["b"].http_url).stdout.splitlines()
        states = {row["name"]: row["state"] for row in map(json.loads, rows)}
        assert states["orders"] == "removed" and states["news"] == "in_force"

        cluster.kill("c")
        cluster.start("c")
        with cluster.connect("c") as client:
            kept = [b"a", b"b", b"c", b"more"]
            until(lambda: history(client, "orders:1") == kept)
            assert "gets no new rooms" in repr(client.ask("PUBLISH", "orders:new", "x"))
            assert client.ask("PUBLISH", "news:1", "x") == 0
