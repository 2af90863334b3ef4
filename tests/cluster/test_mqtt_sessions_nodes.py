"""An MQTT session follows its client to another node, gets a new owner when its node dies, and survives the
founding of a cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Paho,
    Wire,
)
from clients.mqtt_sessions import acknowledge, may_resume, payload, resume, say
from clients.servers import Server, until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from cluster.cluster import DEFAULT, Cluster
from hubsub.testing import Node

KEPT = {
    "name": "kept",
    "match": ["kept/#"],
    "placement": "ring",
    "durability": "durable",
    "history": {"bytes": "64MiB"},
}
MQTT = {"mqtt": "127.0.0.1:0"}
TAKEN_OVER, UNAVAILABLE = 0x8E, 0x88


@pytest.fixture(scope="module")
def nodes(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, and a class with a log. Each test uses client ids of its own, and leaves all nodes
    running."""
    needs("hubsub-core")
    directory = tmp_path_factory.mktemp("sessions")
    with Cluster(
        directory, classes=(KEPT, DEFAULT), config=MQTT, limits={"mqtt_takeover_ms": 500}
    ) as cluster:
        cluster.settled()
        yield cluster


class Clients(ExitStack):
    """MQTT clients of a cluster's nodes; closes all of them at exit."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster

    def come(self, name: str, client_id: str, **more: Any) -> tuple[Wire, bool]:
        """Connects a client with a persistent session; returns it, and whether the session existed. `more`:
        see `resume`."""
        one = self.enter_context(Wire(self.cluster.nodes[name].mqtt))
        return one, resume(one, client_id, **more)

    def back(self, name: str, client_id: str) -> Wire:
        """Connects a client whose session exists. Retries, because a node may answer that it is unavailable
        while the session's deciding node is replaced."""

        def come() -> Wire | None:
            one = Wire(self.cluster.nodes[name].mqtt)
            self.callback(one.close)
            present = may_resume(one, client_id, UNAVAILABLE)
            if present is None:
                one.close()
                return None
            assert present, "its session is there"
            return one

        return until(come)  # type: ignore[return-value]

    def publisher(self, name: str) -> Wire:
        """Connects a client without a session, for publishing."""
        one = self.enter_context(Wire(self.cluster.nodes[name].mqtt))
        assert one.connect(f"publisher-{name}").kind == CONNACK
        return one


def take(one: Wire, count: int) -> list[bytes]:
    """Reads `count` messages with complete acknowledgements; there must be no more."""
    came: list[bytes] = []
    unreleased: set[int] = set()
    while len(came) < count or unreleased:
        packet = one.read()
        if packet.kind == PUBREL:
            unreleased.discard(packet.id)
            one.answer(PUBCOMP, packet.id)
            continue
        assert packet.kind == PUBLISH, packet
        came.append(payload(one, packet))
        one.answer(PUBACK if packet.qos == 1 else PUBREC, packet.id)
        if packet.qos == 2:
            unreleased.add(packet.id)
    one.ping()
    assert one.read().kind == PINGRESP
    return came


def homes(cluster: Cluster, by: str, client_id: str) -> list[tuple[str, bool]]:
    """Nodes that have a session of this client id, and whether it is connected there."""
    code, found = cluster.get(by, "/v1/sessions")
    assert code == 200, found
    rows = [row for row in found["sessions"] if row["client_id"] == client_id]
    return [(row["node"], row["client"] is not None) for row in rows]


def rooms_of(client_id: str) -> list[str]:
    """The rooms where its session is recorded, and where it is arbitrated."""
    return [f"$system/session/{client_id}", f"$queue/{client_id}"]


def id_away_from(cluster: Cluster, dying: str, kind: str) -> str:
    """A client id with this prefix whose session is not recorded on the dying node."""
    with cluster.connect(dying) as redis:

        def is_away(room: str) -> bool:
            located: Any = redis.ask("HUBSUB", "LOCATE", room)
            return bool(located[0][0] != dying.encode())

        ids = (f"{kind}-{number}" for number in range(1_000))
        return next(one for one in ids if all(map(is_away, rooms_of(one))))


def leave(cluster: Cluster, name: str, one: Wire, client_id: str) -> None:
    """Disconnects a client; returns when its session is offline."""
    one.send(b"\xe0\x00")
    one.read_all()
    until(lambda: homes(cluster, name, client_id) == [(name, False)])


# --- live nodes


def test_a_session_goes_from_node_to_node_with_what_waits_and_what_is_under_way(nodes: Cluster) -> None:
    with Clients(nodes) as clients:
        publisher = clients.publisher("a")
        one, present = clients.come("a", "lamp")
        assert not present
        filters = (("plain", 1), ("w/#", 2), ("kept/a", 2), ("kept/b/#", 1))
        assert one.subscribe(*filters) == [qos for _, qos in filters]
        topics = ("plain", "w/1", "kept/a", "kept/b/1")
        for topic in topics:
            say(publisher, topic, b"under way", 2)
        under_way = {(message.topic, message.id): message for message in (one.read(PUBLISH) for _ in topics)}
        # The client connects to another node while it is connected to the first.
        two, present = clients.come("b", "lamp")
        assert present
        told = [packet for packet in one.read_all() if packet.kind == DISCONNECT]
        assert [packet.body[0] for packet in told] == [TAKEN_OVER]
        again = [two.read(PUBLISH) for _ in topics]
        assert {(message.topic, message.id) for message in again} == set(under_way)
        assert all(message.flags & 8 for message in again), "DUP"
        for message in again:
            acknowledge(two, message)
        assert take(two, 0) == []
        say(publisher, "w/2", b"live", 2)
        say(publisher, "kept/a", b"live", 2)
        assert take(two, 2) == [b"live"] * 2
        until(lambda: homes(nodes, "a", "lamp") == [("b", True)])
        # Now it is offline during the change of nodes, and later returns to a former node.
        before, session = "b", two
        for round_, name in enumerate(("c", "a", "b")):
            leave(nodes, before, session, "lamp")
            sent = {topic: b"%d %s" % (round_, topic.encode()) for topic in topics}
            for topic, said in sent.items():
                say(publisher, topic, said, 2)
            session, present = clients.come(name, "lamp")
            assert present
            assert sorted(take(session, len(topics))) == sorted(sent.values())
            before = name
        until(lambda: homes(nodes, "a", "lamp") == [("b", True)])


@pytest.mark.parametrize("version", [V311, V5])
def test_paho_finds_its_session_on_another_node(nodes: Cluster, version: int) -> None:
    properties = Properties(PacketTypes.CONNECT) if version == V5 else None  # type: ignore[no-untyped-call]
    if properties is not None:
        properties.SessionExpiryInterval = 3600

    def come(name: str) -> Paho:
        return Paho(nodes.nodes[name].mqtt, version, f"paho-{version}", properties=properties, clean=False)

    with Clients(nodes) as clients, come("a") as one:
        publisher = clients.publisher("c")
        assert not one.session_present
        assert one.subscribe(("kept/p", 2), ("plain/+", 1)) == [2, 1]
        one.vanish()
        for number in range(20):
            say(publisher, "kept/p", b"%d" % number, 2)
            say(publisher, "plain/1", b"%d" % number, 1)
        with come("b") as two:
            assert two.session_present
            came: dict[str, list[bytes]] = {"kept/p": [], "plain/1": []}
            for _ in range(40):
                message = two.message()
                came[message.topic].append(bytes(message.payload))
            assert list(came.values()) == [[b"%d" % number for number in range(20)]] * 2
            two.publish("plain/2", b"its own", 2)
            assert two.message().payload == b"its own"


def test_a_clean_start_on_another_node_ends_the_session(nodes: Cluster) -> None:
    with Clients(nodes) as clients:
        publisher = clients.publisher("c")
        for expiry_s in (0, 3600):
            one, _ = clients.come("a", "cleaned")
            one.subscribe(("other", 1))
            two, present = clients.come("b", "cleaned", clean=True, expiry_s=expiry_s)
            assert not present
            assert one.read(DISCONNECT).body[0] == TAKEN_OVER
            say(publisher, "other", b"nobody's", 1)
            assert take(two, 0) == []
            two.send(b"\xe0\x00")
            two.read_all()
            three, present = clients.come("c", "cleaned")
            assert present == (expiry_s > 0)
            assert take(three, 0) == []
            clients.come("a", "cleaned", clean=True, expiry_s=0)[0].close()


# --- nodes that die


def test_what_a_dead_node_held_goes_on_elsewhere(nodes: Cluster) -> None:
    """No acknowledged message in a class with a log is lost, and none of QoS 2 arrives twice."""
    ids = [id_away_from(nodes, "c", kind) for kind in ("connected", "absent")]
    topics = [nodes.room_led_by("b", "kept/"), nodes.room_led_by("a", "kept/")]
    with Clients(nodes) as clients:
        publisher = clients.publisher("a")
        held = {client_id: clients.come("c", client_id)[0] for client_id in ids}
        for one in held.values():
            assert one.subscribe(*((topic, 2) for topic in topics)) == [2, 2]
        for topic in topics:
            say(publisher, topic, b"first", 2)
        for one in held.values():
            assert take(one, 2) == [b"first"] * 2
        leave(nodes, "c", held[ids[1]], ids[1])
        for number in range(20):
            say(publisher, topics[number % 2], b"%d" % number, 2)
        nodes.kill("c")
        for number in range(20, 24):
            say(publisher, topics[number % 2], b"%d" % number, 2)
        for last, client_id in enumerate(ids, 24):
            two = clients.back("b", client_id)
            came = take(two, last)
            assert sorted(came, key=int) == [b"%d" % number for number in range(last)], client_id
            say(publisher, topics[0], b"%d" % last, 2)
            assert take(two, 1) == [b"%d" % last]
            two.send(b"\xe0\x00")
            two.read_all()
    nodes.start("c")
    nodes.settled()


def test_a_node_that_stops_leaves_its_sessions_to_one_that_queues_for_them(nodes: Cluster) -> None:
    ids = [id_away_from(nodes, "c", kind) for kind in ("served", "waiting")]
    topic = nodes.room_led_by("a", "kept/stops/")
    with Clients(nodes) as clients:
        publisher = clients.publisher("a")
        held = {client_id: clients.come("c", client_id)[0] for client_id in ids}
        for one in held.values():
            assert one.subscribe((topic, 2), ("stops", 1)) == [2, 1]
        leave(nodes, "c", held[ids[1]], ids[1])
        for said in (b"0", b"1"):
            say(publisher, topic, said, 2)
            say(publisher, "stops", said, 1)
        assert nodes.stop("c") == 0
        for client_id in ids:
            # The hub of the session's entry decides which remaining node has it.
            until(lambda client_id=client_id: homes(nodes, "a", client_id))  # type: ignore[misc]
        say(publisher, topic, b"2", 2)
        say(publisher, "stops", b"2", 1)
        for client_id in ids:
            two = clients.back("b", client_id)
            assert sorted(take(two, 6)) == [b"0", b"0", b"1", b"1", b"2", b"2"]
            two.send(b"\xe0\x00")
            two.read_all()
    nodes.start("c")
    nodes.settled()


def test_a_holder_that_was_halted_changes_nothing_of_what_the_next_one_has(nodes: Cluster) -> None:
    client_id, topic = id_away_from(nodes, "c", "halted"), nodes.room_led_by("a", "kept/halted/")
    with Clients(nodes) as clients:
        publisher = clients.publisher("a")
        one, _ = clients.come("c", client_id)
        assert one.subscribe((topic, 2)) == [2]
        say(publisher, topic, b"under way", 2)
        first = one.read(PUBLISH)
        halted = nodes.nodes["c"].process
        halted.send_signal(signal.SIGSTOP)
        try:
            two = clients.back("b", client_id)
            again = two.read(PUBLISH)
            assert (again.id, payload(two, again)) == (first.id, b"under way")
            acknowledge(two, again)
            say(publisher, topic, b"live", 2)
            assert take(two, 1) == [b"live"]
            # When the halted node continues, it gets these packets for a session that it no longer owns.
            one.answer(PUBREC, first.id)
            one.ask(("other", 1))
        finally:
            halted.send_signal(signal.SIGCONT)
        one.read_all()
        nodes.settled()
        until(lambda: homes(nodes, "a", client_id) == [("b", True)])
        leave(nodes, "b", two, client_id)
        say(publisher, topic, b"waits", 2)
        three = clients.back("a", client_id)
        assert take(three, 1) == [b"waits"]


def test_wills_of_a_dead_node_are_published_once_where_nobody_comes_back(nodes: Cluster) -> None:
    back, gone = (id_away_from(nodes, "c", kind) for kind in ("back", "gone"))
    with Clients(nodes) as clients:
        listener = clients.publisher("a")
        # Subscribers get no gap in a room whose leader lives.
        topics = {one: nodes.room_led_by("a", f"kept/{one}/") for one in (back, gone)}
        assert listener.subscribe(*((topic, 1) for topic in topics.values())) == [1, 1]
        for client_id, delay_s in ((back, 3600), (gone, 1)):
            clients.come("c", client_id, will=(topics[client_id], delay_s), will_qos=1)[0].ping()
        nodes.kill("c")
        two = clients.back("b", back)
        message = listener.read(PUBLISH)
        assert message.topic == topics[gone]
        acknowledge(listener, message)
        until(lambda: homes(nodes, "a", gone), "it has an owner again")
        assert not homes(nodes, "a", gone)[0][1]
        nodes.start("c")
        nodes.settled()
        assert clients.back("c", gone)
        assert take(two, 0) == take(listener, 0) == []


# --- a cluster that begins


def alone(directory: Path) -> Node:
    """A single node whose data directory later founds a cluster."""
    config = {
        "node": "a",
        "shards": 2,
        "data": str(directory / "a"),
        "redis": "127.0.0.1:0",
        "http": "127.0.0.1:0",
    }
    return Node(classes=(KEPT, DEFAULT), config=config | MQTT)


def test_sessions_of_a_lone_node_are_there_when_it_founds_a_cluster(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    classes = (KEPT, DEFAULT)
    cluster = Cluster(tmp_path, names=("a", "b"), classes=classes, config=MQTT)
    with alone(tmp_path) as node:
        cluster.nodes["a"] = node
        with Clients(cluster) as clients:
            publisher = clients.publisher("a")
            for client_id in ("first", "second"):
                one, _ = clients.come("a", client_id)
                one.subscribe(("kept/a", 2), ("plain", 1))
                leave(cluster, "a", one, client_id)
            say(publisher, "kept/a", b"kept", 2)
            say(publisher, "plain", b"plain", 1)
        assert cluster.stop("a") == 0
    with cluster, Clients(cluster) as clients:
        for name, client_id in (("b", "first"), ("a", "second")):
            until(lambda client_id=client_id: homes(cluster, "a", client_id))  # type: ignore[misc]
            two = clients.back(name, client_id)
            assert sorted(take(two, 2)) == [b"kept", b"plain"]


def test_sessions_without_an_owner_wait_for_room(needs: Callable[..., None], tmp_path: Path) -> None:
    """Never more sessions than the limit exist, and none is lost."""
    needs("hubsub-core")
    ids = [f"one-{number}" for number in range(8)]
    limits = {"mqtt_sessions_max": 2}
    cluster = Cluster(tmp_path, names=("a", "b"), classes=(KEPT, DEFAULT), config=MQTT, limits=limits)
    with alone(tmp_path) as node:
        cluster.nodes["a"] = node
        with Clients(cluster) as clients:
            for client_id in ids:
                one, _ = clients.come("a", client_id)
                assert one.subscribe(("kept/a", 1)) == [1]
                leave(cluster, "a", one, client_id)
        assert cluster.stop("a") == 0
    with cluster, Clients(cluster) as clients:
        servers = [Server(*node.redis, node.pid, node) for node in cluster.nodes.values()]
        until(
            lambda: sum(server.metric("mqtt_session_takeovers_failed_total") for server in servers),
            "there is no room for all",
        )
        met: set[str] = set()
        while met != set(ids):
            # Two nodes with two shards each hold one session per shard.
            found: Any = until(lambda: listed(cluster, "a"))
            assert len(found) <= 4
            for client_id in found:
                clients.come("a", client_id, clean=True, expiry_s=0)[0].close()
            met |= found


def listed(cluster: Cluster, by: str) -> set[str]:
    """The client ids of all sessions."""
    code, found = cluster.get(by, "/v1/sessions")
    assert code == 200, found
    return {row["client_id"] for row in found["sessions"]}
