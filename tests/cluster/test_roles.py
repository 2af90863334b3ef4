"""Two hub nodes that serve no clients, and two edge nodes that serve clients and hold no rooms.

They are configured like `deploy/roles`, except for names, addresses and additional classes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from clients.raw import Connection, Frame
from clients.servers import until

from cluster.cluster import BUSY, CHAT, DEFAULT, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

HUBS, EDGES = ("h1", "h2"), ("e1", "e2")
LOGGED = "past:"
"""Prefix of the sample's class with a log, renamed because `chat` has no log in these tests."""


def sample(repository: Path, role: str) -> dict[str, Any]:
    """The configuration in `deploy/roles` without a node's addresses and network."""
    table = tomllib.loads((repository / "deploy" / "roles" / f"{role}.toml").read_text())
    own = ("node", "data", "advertise", "http", "link", "join", "insecure_open")
    if table["redis"] != "off":
        own += ("redis",)
    return {key: value for key, value in table.items() if key not in own}


@pytest.fixture(scope="module")
def roles(
    repository: Path, needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    needs("hubsub-core")
    hub, edge = sample(repository, "hub"), sample(repository, "edge")
    [kept] = hub.pop("class")
    hub["redis_cluster"] = "off"
    hub["class"] = [
        {**kept, "name": "past", "match": [f"{LOGGED}*"], "placement": "ring"},
        CHAT,
        BUSY,
        DEFAULT,
    ]
    each = dict.fromkeys(HUBS, hub) | dict.fromkeys(EDGES, edge)
    with Cluster(tmp_path_factory.mktemp("roles"), names=(*HUBS, *EDGES), classes=(), each=each) as cluster:
        yield cluster


def message(room: str, payload: str) -> list[bytes]:
    return [b"message", room.encode(), payload.encode()]


def pushed(client: Connection) -> list[Any]:
    frame = client.read().plain()
    assert isinstance(frame, list)
    return frame


def epoch(position: bytes) -> bytes:
    return position.partition(b"-")[0]


def taken(client: Connection, room: str, payload: str) -> int:
    """Publishes; returns the number of receivers, or -1 if refused."""
    answer = client.ask("PUBLISH", room, payload)
    return -1 if isinstance(answer, Frame) else int(str(answer))


def rooms_of(cluster: Cluster, name: str) -> list[str]:
    """A room of each class; this hub node leads it where the test can choose."""
    leaders = set(cluster.leaders(name, "past"))
    logged = name if name in leaders else leaders.pop()
    return [
        cluster.room_led_by(name),
        cluster.room_led_by(name, "plain:"),
        cluster.room_led_by(logged, f"{LOGGED}{name}-"),
        f"busy:{name}",
    ]


def test_edges_hold_no_hub_and_hubs_have_no_listener_for_clients(roles: Cluster) -> None:
    for name in (*HUBS, *EDGES):
        seen = roles.status(name)
        assert {row["name"]: row["roles"] for row in seen["nodes"]} == {
            **{edge: ["edge"] for edge in EDGES},
            **{hub: ["hub"] for hub in HUBS},
        }
        assert seen["controller"] in HUBS
        assert {hub["leader"] for hub in seen["hubs"] if hub["class"] in ("chat", "default")} == set(HUBS)
        assert {hub["leader"] for hub in seen["hubs"]} == set(HUBS)
        assert roles.get(name, "/readyz")[0] == 200
    for name in HUBS:
        ready = roles.nodes[name].ready
        assert {key for key, address in ready.items() if address} == {"event", "http", "link", "raft"}


def test_rooms_of_hubs_are_one_for_the_clients_of_all_edges(roles: Cluster) -> None:
    for leader, on in product(HUBS, EDGES):
        for room in rooms_of(roles, leader):
            with roles.connect(on) as subscriber, roles.connect(EDGES[0]) as a, roles.connect(EDGES[1]) as b:
                subscriber.call("SUBSCRIBE", room)
                subscriber.call("PSUBSCRIBE", f"{room[:-1]}?")
                for publisher in (a, b):
                    assert publisher.ask("PUBLISH", room, "x") == 2
                    assert publisher.ask("PUBSUB", "NUMSUB", room) == [room.encode(), 1]
                    assert subscriber.read().plain() == message(room, "x")
                    assert subscriber.read().plain() == [
                        b"pmessage",
                        f"{room[:-1]}?".encode(),
                        *message(room, "x")[1:],
                    ]


def test_history_is_read_from_any_edge(roles: Cluster) -> None:
    for leader in HUBS:
        room, _, logged, busy = rooms_of(roles, leader)
        for name in (f"{room}-past", f"{logged}-past", f"{busy}-past"):
            with roles.connect("e1") as a, roles.connect("e2") as b:
                for number in range(4):
                    assert (a, b)[number % 2].ask("PUBLISH", name, number) == 0
                past = [client.ask("HUBSUB", "HISTORY", name) for client in (a, b)]
                assert past[0] == past[1]
                assert isinstance(past[0], list) and [row[4] for row in past[0]] == [b"0", b"1", b"2", b"3"]
                b.command("HUBSUB", "SUBSCRIBE", name, "LAST", 2)
                replayed = [frame.plain() for frame in b.read_many(3)]
                assert replayed[1:] == [message(name, "2"), message(name, "3")]


def test_a_client_that_asks_where_a_room_is_is_told_the_edge_that_it_asked(roles: Cluster) -> None:
    for leader, on in product(HUBS, EDGES):
        for room in rooms_of(roles, leader):
            with roles.connect(on) as client:
                there = [[on.encode(), roles.addresses[on]["redis"].encode()]]
                assert client.ask("HUBSUB", "LOCATE", room) == there


@pytest.mark.parametrize("is_controller", [False, True], ids=["a-hub", "the-controller"])
def test_a_hub_that_dies_is_replaced_by_the_other_and_clients_of_edges_stay(
    roles: Cluster, is_controller: bool
) -> None:
    """Last in this file, because it restarts a hub node."""
    roles.settled()
    controller = roles.status("e1")["controller"]
    dies = next(name for name in HUBS if (name == controller) == is_controller)
    lives = next(name for name in HUBS if name != dies)
    room = roles.room_led_by(dies, f"chat:{dies}-")
    subscribers = [roles.connect(name) for name in EDGES]
    for subscriber in subscribers:
        subscriber.call("HUBSUB", "POSITIONS", "ON")
        subscriber.call("SUBSCRIBE", room)
    with roles.connect("e1") as publisher:
        assert taken(publisher, room, "before") == 2
        firsts = [pushed(subscriber) for subscriber in subscribers]
        roles.kill(dies)
        until(lambda: taken(publisher, room, "after") == 2)
        assert roles.leader_of(room, by=lives) == lives
    for subscriber, before in zip(subscribers, firsts, strict=True):
        over, after = pushed(subscriber), pushed(subscriber)
        assert [before[:-1], over[:2], after[:-1]] == [
            message(room, "before"),
            [b"gap", room.encode()],
            message(room, "after"),
        ]
        # The gap notification is for the epoch that ended.
        assert epoch(over[2]) == epoch(before[-1]) != epoch(after[-1])
        subscriber.close()
    roles.start(dies)
