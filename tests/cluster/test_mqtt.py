"""MQTT clients on the nodes of one cluster: any of them serves every room."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V311, Wire

from cluster.cluster import CLASSES, Cluster

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
    classes = (FIELD, KEPT, *CLASSES)
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
            # The window has room for all of them, so nobody need acknowledge.
            assert came == {topic: QOS[topic.partition("/")[0]] for topic in ROOMS}
        topics = [bytes(redis.read().plain()[2]).decode() for _ in ROOMS]  # type: ignore[index]
        assert sorted(topics) == sorted(ROOMS)
