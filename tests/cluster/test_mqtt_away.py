"""MQTT service while a node is away that stores sessions and retained messages."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from clients.mqtt import CONNACK, PINGRESP, PUBACK, PUBLISH, SUBACK, V5, V311, Packet, Wire, text
from clients.mqtt_sessions import may_resume, payload, resume, say
from clients.servers import until

from cluster.cluster import DEFAULT, Cluster

MQTT = {"mqtt": "127.0.0.1:0"}
RETAINED = 40
UNAVAILABLE = 0x88
GOODBYE = b"\xe0\x00"


def recorded_on(cluster: Cluster, name: str, kind: str) -> str:
    """A client id whose session entry is on that node."""
    with cluster.connect(name) as redis:

        def is_there(client_id: str) -> bool:
            located: Any = redis.ask("HUBSUB", "LOCATE", f"$system/session/{client_id}")
            return bool(located[0][0] == name.encode())

        return next(one for one in (f"{kind}-{number}" for number in range(1_000)) if is_there(one))


def metric(cluster: Cluster, name: str, family: str) -> int:
    """A metric of a node, summed over its shards."""
    with urllib.request.urlopen(cluster.nodes[name].http_url + "/metrics") as answer:
        text = answer.read().decode()
    values = re.findall(rf"^hubsub_shard_{family}{{.*}} (\S+)$", text, re.MULTILINE)
    assert values, f"no metric {family}"
    return sum(int(float(value)) for value in values)


def test_a_client_without_a_session_connects_while_the_hub_of_its_row_is_away(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits = {"mqtt_takeover_ms": 1_000}  # A client waits so long for a session that is away.
    with (
        Cluster(tmp_path, classes=[DEFAULT], config=MQTT, limits=limits) as cluster,
        ExitStack() as stack,
    ):
        cluster.settled()

        def wire(name: str) -> Wire:
            return stack.enter_context(Wire(cluster.nodes[name].mqtt))

        old = recorded_on(cluster, "c", "old")
        first = wire("a")
        assert not resume(first, old)
        first.subscribe(("plain", 1))
        first.send(GOODBYE)
        first.read_all()
        cluster.kill("c")
        # New sessions work although the hubs of a third of the ids are away.
        for version in (V5, V311):
            for number in range(24):
                answer = wire("ab"[number % 2]).connect(f"new-{version}-{number}", version)
                assert (answer.kind, answer.body[1]) == (CONNACK, 0), (version, number)
        # A client that wants to resume needs to know whether its session exists.
        assert may_resume(wire("a"), old, UNAVAILABLE) is None
        # A client with a clean start ends it, although the end cannot be recorded yet.
        again = wire("b")
        answer = again.connect(old, V5)
        assert answer.body[1] == 0
        until(lambda: metric(cluster, "b", "mqtt_session_ends_pending") > 0)
        cluster.start("c")
        until(lambda: metric(cluster, "b", "mqtt_session_ends_pending") == 0)
        again.send(GOODBYE)
        again.read_all()
        assert until(lambda: (may_resume(wire("b"), old, UNAVAILABLE) is False) or None)


def test_retained_messages_of_a_hub_that_is_away_come_when_it_is_back(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    topics = [f"kept/{number}" for number in range(RETAINED)]
    with Cluster(tmp_path, classes=[DEFAULT], config=MQTT) as cluster, ExitStack() as stack:
        cluster.settled()

        def client(name: str, client_id: str, version: int = V5) -> Wire:
            wire = stack.enter_context(Wire(cluster.nodes[name].mqtt))
            assert wire.connect(client_id, version).body[1] == 0
            return wire

        def retain(wire: Wire, topic: str, said: bytes) -> None:
            wire.publish(topic, said, 1, 7, 1)
            wire.read(PUBACK)

        def granted(wire: Wire, name: str) -> bool:
            """Subscribes; returns whether the reply announces later retained messages."""
            wire.ask((name, 0))
            answer = wire.read(SUBACK)
            assert answer.rest[-1] == 0, "it is granted all the same"
            return b"retained" in answer.rest

        def take(wire: Wire, count: int) -> dict[str, bytes]:
            came: list[Packet] = [wire.read(PUBLISH) for _ in range(count)]
            assert all(one.flags & 1 for one in came)
            return {one.topic: payload(wire, one) for one in came}

        publisher = client("a", "publisher")
        for topic in topics:
            retain(publisher, topic, b"old")
        with cluster.connect("a") as redis:
            found: Any = {
                topic: redis.ask("HUBSUB", "LOCATE", f"$system/retained/{topic}") for topic in topics
            }
        away = {topic for topic, located in found.items() if located[0][0] == b"c"}
        here = set(topics) - away
        assert away and here
        cluster.kill("c")
        wild, old = client("b", "wild"), client("b", "old", V311)
        assert granted(wild, "kept/+")
        assert take(wild, len(here)) == dict.fromkeys(here, b"old")
        assert not granted(old, sorted(away)[0]), "its version has no words"
        exact = client("a", "exact")
        assert granted(exact, sorted(away)[0])
        assert not granted(exact, sorted(here)[0])
        assert take(exact, 1) == {sorted(here)[0]: b"old"}
        # An unsubscribed client gets none of them.
        gone = client("b", "gone")
        assert granted(gone, "kept/#")
        take(gone, len(here))
        gone.send(b"\xa2\x0b\x00\x02\x00\x00\x06kept/#")
        gone.read()
        until(lambda: metric(cluster, "b", "retained_unread") == 2)
        cluster.start("c")
        assert take(wild, len(away)) == dict.fromkeys(away, b"old")
        assert take(exact, 1) == take(old, 1) == {sorted(away)[0]: b"old"}
        until(lambda: metric(cluster, "b", "retained_unread") == 0)
        gone.ping()
        assert gone.read().kind == PINGRESP
        told = "retained messages are delivered later"
        assert until(lambda: cluster.nodes["b"].log.count(told)) == 1


def test_a_will_that_is_recorded_comes_though_its_node_is_killed(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    config = MQTT | {"mqtt_wills_recorded": True}
    with Cluster(tmp_path, classes=[DEFAULT], config=config) as cluster, ExitStack() as stack:
        cluster.settled()

        def wire(name: str) -> Wire:
            return stack.enter_context(Wire(cluster.nodes[name].mqtt))

        def willing(name: str, client_id: str, version: int = V5) -> Wire:
            """A client with a will and without a session."""
            one = wire(name)
            will = (b"\x00" if version == V5 else b"") + text(f"gone/{client_id}") + text("x")
            answer = one.connect(client_id, version, flags=2 | 4 | 1 << 3, rest=will)
            assert list(answer.body[:2]) == [0, 0]
            return one

        watch = wire("a")
        assert watch.connect("watch", V5).body[1] == 0
        assert watch.subscribe(("gone/+", 0)) == [0]
        ids = {name: [recorded_on(cluster, name, f"{name}{number}") for number in range(3)] for name in "ac"}
        for client_id in (*ids["a"], *ids["c"]):
            one = willing("c", client_id, V311 if client_id.startswith("a0") else V5)
            # It works like any client without a session.
            assert one.subscribe((f"own/{client_id}", 2)) == [2]
            say(one, f"other/{client_id}", b"2", 2)
        # A DISCONNECT removes the will, and no state remains.
        polite = willing("c", "polite")
        polite.send(GOODBYE)
        polite.read_all()
        # Its id is free once its entry is deleted: a node that is killed before that publishes the will.
        assert wire("c").connect("polite").body[1] == 0
        cluster.kill("c")
        came = {watch.read(PUBLISH).topic for _ in ids["a"]}
        assert came == {f"gone/{client_id}" for client_id in ids["a"]}
        # A will never makes a client wait for a hub that is away.
        late = willing("a", recorded_on_dead := ids["c"][0])
        assert metric(cluster, "a", "mqtt_wills_unrecorded_total") == 1
        late.close()
        assert watch.read(PUBLISH).topic == f"gone/{recorded_on_dead}"
        # The other wills are published once the node that has them is back.
        cluster.start("c")
        left = {watch.read(PUBLISH).topic for _ in ids["c"]}
        assert left == {f"gone/{client_id}" for client_id in ids["c"]}
        until(lambda: cluster.get("a", "/v1/sessions")[1]["sessions"] == [])
