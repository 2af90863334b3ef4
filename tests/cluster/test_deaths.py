"""Clients while nodes are killed: the controller, a leader of rooms with a log, and a leader while all
publish. The tests share a cluster, and the nodes that one has killed start again for the next.

Uses the embedded coordinator; `test_three` covers the death of a node that is not the controller, for all
coordinators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from clients.raw import Connection, Frame
from clients.servers import until

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")


@pytest.fixture(scope="module")
def nodes(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs("hubsub-core")
    with Cluster(tmp_path_factory.mktemp("deaths")) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Cluster:
    """The cluster, with all its nodes."""
    for name in set(NAMES) - set(nodes.nodes):
        nodes.start(name)
    nodes.settled()
    return nodes


def takes(client: Connection, room: str, payload: str) -> bool:
    """Whether a publish was acknowledged."""
    return not isinstance(client.call("PUBLISH", room, payload).plain(), Frame)


def records(cluster: Cluster, name: str, room: str) -> object:
    with cluster.connect(name) as client:
        answer = client.ask("HUBSUB", "HISTORY", room, "COUNT", 10_000)
        return [row[4].decode() for row in answer] if isinstance(answer, list) else answer


def test_the_death_of_the_controller_is_a_death_as_any_other(cluster: Cluster) -> None:
    dies = str(cluster.status("a")["controller"])
    lives = [name for name in NAMES if name != dies]
    room = cluster.room_led_by(dies)
    with cluster.connect(lives[0]) as subscriber, cluster.connect(lives[1]) as publisher:
        subscriber.call("SUBSCRIBE", room)
        cluster.kill(dies)
        until(lambda: publisher.ask("PUBLISH", room, "after") == 1)
        assert subscriber.read().plain() == [b"message", room.encode(), b"after"]
        cluster.start(dies)
        cluster.settled()
        with cluster.connect(dies) as again:
            assert again.ask("PUBLISH", room, "again") == 1
        assert subscriber.read().plain() == [b"message", room.encode(), b"again"]


def test_rooms_with_a_log_wait_for_their_node_and_have_all_that_was_acknowledged(cluster: Cluster) -> None:
    leader = cluster.leaders("a", "logged")[0]
    elsewhere = next(name for name in NAMES if name != leader)
    room = cluster.room_led_by(leader, "log:")
    with cluster.connect(elsewhere) as subscriber, cluster.connect(elsewhere) as publisher:
        subscriber.call("SUBSCRIBE", room)
        acknowledged = [payload for n in range(50) if takes(publisher, room, payload := f"before {n}")]
        assert len(acknowledged) == 50
        cluster.kill(leader)
        cluster.start(leader)
        until(lambda: takes(publisher, room, "after"))
        acknowledged.append("after")
        pushed = [subscriber.read().plain()[2].decode() for _ in acknowledged]  # type: ignore[index]
        assert pushed == acknowledged
        for name in NAMES:
            assert records(cluster, name, room) == acknowledged


class Publishing(threading.Thread):
    """Publishes to rooms in turn until it is stopped; collects what was acknowledged."""

    def __init__(self, cluster: Cluster, name: str, rooms: list[str]) -> None:
        super().__init__(daemon=True)
        self.on, self.client, self.rooms = name, cluster.connect(name), rooms
        self.ends = threading.Event()
        self.taken: dict[str, list[str]] = {room: [] for room in rooms}

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            for room in self.rooms:
                payload = f"{self.on} {(number := number + 1)}"
                if takes(self.client, room, payload):
                    self.taken[room].append(payload)

    def enough(self, count: int) -> Callable[[], bool]:
        before = {room: len(taken) for room, taken in self.taken.items()}
        return lambda: all(len(taken) >= before[room] + count for room, taken in self.taken.items())

    def end(self) -> None:
        self.ends.set()
        self.join(60)
        assert not self.is_alive()
        self.client.close()


def test_a_leader_dies_while_all_publish_and_rooms_of_others_lose_nothing(cluster: Cluster) -> None:
    controller = cluster.status("a")["controller"]
    dies = next(name for name in NAMES if name != controller)
    lives = [name for name in NAMES if name != dies]
    rooms = {name: cluster.room_led_by(name) for name in NAMES}
    subscribers = {name: cluster.connect(name) for name in lives}
    for subscriber in subscribers.values():
        for room in rooms.values():
            subscriber.call("SUBSCRIBE", room)
    publishing = [Publishing(cluster, name, list(rooms.values())) for name in lives]
    for one in publishing:
        one.start()
    for one in publishing:
        until(one.enough(20))
    cluster.kill(dies)
    for one in publishing:
        until(one.enough(20), "rooms whose leader has died go on, too")
    for one in publishing:
        one.end()
    with cluster.connect(lives[0]) as last:
        for room in rooms.values():
            assert last.ask("PUBLISH", room, "end") == len(lives)
    for subscriber in subscribers.values():
        got: dict[str, list[str]] = {room: [] for room in rooms.values()}
        while not all(payloads[-1:] == ["end"] for payloads in got.values()):
            push = subscriber.read().plain()
            assert isinstance(push, list) and push[0] == b"message", push
            got[push[1].decode()].append(push[2].decode())
        for leader, room in rooms.items():
            seen = got[room][:-1]
            assert len(seen) == len(set(seen)), "each once"
            for one in publishing:
                own = [payload for payload in seen if payload.startswith(f"{one.on} ")]
                assert own == sorted(own, key=lambda payload: int(payload.split()[1])), "in its order"
                lost = set(one.taken[room]) - set(own)
                # Records that a leader acknowledged and did not send yet are lost with it: rooms in memory
                # promise no more.
                assert not lost or leader == dies, (leader, lost)
        subscriber.close()
