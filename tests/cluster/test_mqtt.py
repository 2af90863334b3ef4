"""MQTT clients on the nodes of one cluster: any of them serves every room."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, V5, V311, Wire

from cluster.cluster import DEFAULT, Cluster

FIELD = {"name": "field", "match": ["field/#"], "placement": "ring", "history": {"messages": 10_000}}
KEPT = {
    "name": "kept",
    "match": ["kept/#"],
    "placement": "ring",
    "durability": "durable",
    "history": {"bytes": "64MiB"},
}
ROOMS = [f"{kind}/{i}" for kind in ("field", "kept") for i in range(20)] + ["plain"]
QOS = {"field": 1, "kept": 2, "plain": 0}


def test_clients_of_all_nodes_are_in_the_same_rooms(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    classes = (FIELD, KEPT, DEFAULT)
    with Cluster(tmp_path, classes=classes, config={"mqtt": "127.0.0.1:0"}) as cluster, ExitStack() as stack:
        cluster.settled()
        wires = {name: stack.enter_context(Wire(node.mqtt)) for name, node in cluster.nodes.items()}
        for (name, wire), version in zip(wires.items(), (V311, V5, V311), strict=True):
            wire.connect(f"device-{name}", version)
            assert wire.subscribe(("field/+", 1), ("kept/#", 2), ("plain", 0)) == [1, 2, 0]
        redis = stack.enter_context(cluster.connect("c"))
        redis.ask("PSUBSCRIBE", "*")
        publisher = stack.enter_context(Wire(cluster.nodes["a"].mqtt))
        publisher.connect("publisher")
        for topic in ROOMS:
            qos = QOS[topic.partition("/")[0]]
            publisher.publish(topic, b"1", qos, 7)
            if qos == 1:
                publisher.read(PUBACK)
            elif qos == 2:
                publisher.read(PUBREC)
                publisher.answer(PUBREL, 7)
                publisher.read(PUBCOMP)
        for wire in wires.values():
            came = {}
            for _ in ROOMS:
                one = wire.read(PUBLISH)
                came[one.topic] = one.qos
            # The window has room for all of them, so no acknowledgement is needed.
            assert came == {topic: QOS[topic.partition("/")[0]] for topic in ROOMS}
        topics = [bytes(redis.read().plain()[2]).decode() for _ in ROOMS]  # type: ignore[index]
        assert sorted(topics) == sorted(ROOMS)


def test_what_topics_keep_is_known_on_all_nodes(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    classes = (FIELD, KEPT, DEFAULT)
    with Cluster(tmp_path, classes=classes, config={"mqtt": "127.0.0.1:0"}) as cluster, ExitStack() as stack:
        cluster.settled()

        def client(name: str, client_id: str) -> Wire:
            wire = stack.enter_context(Wire(cluster.nodes[name].mqtt))
            wire.connect(client_id)
            return wire

        def keep(wire: Wire, topic: str, payload: bytes) -> None:
            wire.publish(topic, payload, 1, 7, 1)
            wire.read(PUBACK)

        def kept(wire: Wire, *filters: str) -> dict[str, bytes]:
            # Once the subscriptions hold, the fence's retained message arrives after theirs.
            came: dict[str, bytes] = {}
            for number, names in enumerate((filters, ("fence",)), 1):
                wire.ask(*((one, 0) for one in names), number=number)
                is_over = False
                while not is_over or (number == 2 and "fence" not in came):
                    if (one := wire.read()).kind == PUBLISH:
                        assert one.topic not in came and one.flags & 1, "each comes once, with RETAIN"
                        came[one.topic] = one.rest
                    else:
                        assert one.kind == SUBACK
                        is_over = True
            return {topic: payload for topic, payload in came.items() if topic != "fence"}

        a, b = client("a", "pa"), client("b", "pb")
        for topic in ROOMS:
            keep(a, topic, b"old")
            keep(b, topic, b"new")
        keep(a, "fence", b".")
        for name in cluster.nodes:
            assert kept(client(name, f"all-{name}"), "field/+", "kept/#", "plain") == dict.fromkeys(
                ROOMS, b"new"
            )
            assert kept(client(name, f"one-{name}"), "kept/3", "field/3", "nothing") == {
                "kept/3": b"new",
                "field/3": b"new",
            }
        for topic in ROOMS[1:]:
            keep(b, topic, b"")
        assert kept(client("c", "late"), "field/#", "kept/#", "plain") == {ROOMS[0]: b"new"}


def test_topics_of_the_greatest_length_keep_their_message_on_all_nodes(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    """Their entries have longer names, which must fit into links and logs."""
    needs("hubsub-core")
    topics = [f"{n:02}".ljust(65_535, "x") for n in range(12)]
    with (
        Cluster(tmp_path, classes=[DEFAULT], config={"mqtt": "127.0.0.1:0"}) as cluster,
        ExitStack() as stack,
    ):
        cluster.settled()
        wires = {name: stack.enter_context(Wire(node.mqtt)) for name, node in cluster.nodes.items()}
        for name, wire in wires.items():
            wire.connect(f"device-{name}", V311)
        for number, topic in enumerate(topics, 1):
            publisher = list(wires.values())[number % 3]
            publisher.publish(topic, b"kept", 1, number, 1)
            assert publisher.read(PUBACK).id == number
        for wire in wires.values():
            came = set()
            for number, topic in enumerate(topics, 1):
                wire.ask((topic, 0), number=number)
            while len(came) < len(topics):
                if (packet := wire.read()).kind == PUBLISH:
                    came.add(packet.topic)
            assert came == set(topics)
