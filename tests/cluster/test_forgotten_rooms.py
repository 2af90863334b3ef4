"""Records of unused rooms are removed, which makes space for other rooms; rooms in use keep their records."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import PUBACK, PUBLISH, V5, Wire
from clients.servers import until

from cluster.cluster import BUSY, DEFAULT, Cluster
from cluster.test_moves import Publisher
from cluster.test_room_limits import FULL, metrics

pytestmark = pytest.mark.needs("hubsub-core")

PLAIN = {"name": "plain", "match": ["plain:*"]}
"""A class whose rooms are placed individually, without history."""
CLASSES = [BUSY, PLAIN, DEFAULT]
ROOMS = 1_000
FORGOTTEN = "hubsub_room_records_forgotten_total"
READ = 300


def records(cluster: Cluster, room_class: str) -> int:
    """Records of a class, summed over all nodes."""
    return metrics(cluster, f'hubsub_room_records{{class="{room_class}"}}')


def test_a_flood_of_names_is_forgotten_and_rooms_that_are_used_stay(tmp_path: Path) -> None:
    limits = {"placed_rooms_class_max": ROOMS, "room_record_idle_ms": 2_000}
    config: dict[str, Any] = {"mqtt": "127.0.0.1:0"}
    with Cluster(tmp_path, classes=CLASSES, limits=limits, config=config) as cluster:
        cluster.settled()
        mqtt = cluster.nodes["c"].mqtt
        with cluster.connect("a") as client, cluster.connect("b") as sub, Wire(mqtt) as device:
            sub.ask("SUBSCRIBE", "plain:used")
            assert client.ask("PUBLISH", "busy:kept", "one") == 0
            device.connect("device", version=V5)
            device.publish("plain:retained", b"last", 1, 7, flags=1)
            device.read(PUBACK)
            for number in range(ROOMS + 100):
                client.command("PUBLISH", f"plain:{number}", "x")
            answers = client.read_many(ROOMS + 100)
            assert answers.count(FULL) < 110 and all(
                answer == FULL or answer.plain() == 0 for answer in answers
            )
            most = metrics(cluster, "hubsub_room_records_bytes ")
            # Only the room with a subscriber is left. A retained message is stored elsewhere, and remains.
            until(lambda: records(cluster, "plain") == 3)
            assert metrics(cluster, FORGOTTEN) >= ROOMS - 10
            assert metrics(cluster, "hubsub_room_records_bytes ") < most / 2
            assert records(cluster, "busy") == 3, "it keeps its history, and its record"
            # New rooms are accepted, forgotten rooms can return, and rooms in use lose nothing.
            for room in ("plain:new", "plain:0"):
                assert client.ask("PUBLISH", room, "x") == 0
            assert client.ask("PUBLISH", "plain:used", "hello") == 1
            assert sub.read().plain() == [b"message", b"plain:used", b"hello"]
            assert device.subscribe(("plain:retained", 1)) == [1]
            assert device.read(PUBLISH).topic == "plain:retained"


def test_a_room_that_is_used_while_it_is_forgotten_loses_nothing_and_keeps_its_order(tmp_path: Path) -> None:
    with Cluster(tmp_path, classes=CLASSES, limits={"room_record_idle_ms": 1}) as cluster:
        cluster.settled()
        publishers = [Publisher(cluster, name, "plain:x") for name in cluster.nodes]
        try:
            # There are no subscribers and no history, so the room is forgotten repeatedly.
            until(lambda: metrics(cluster, FORGOTTEN) >= 3)
            with cluster.connect("b") as sub:
                sub.ask("SUBSCRIBE", "plain:x")
                forgotten = metrics(cluster, FORGOTTEN)
                messages = [frame.plain() for frame in sub.read_many(READ)]
                assert metrics(cluster, FORGOTTEN) == forgotten, "somebody subscribes"
        finally:
            for publisher in publishers:
                publisher.end()
        assert not any(publisher.refused for publisher in publishers)
        assert all(isinstance(row, list) and row[0] == b"message" for row in messages)
        payloads = [row[2].decode().split(":") for row in messages if isinstance(row, list)]
        for name in cluster.nodes:
            numbers = [int(number) for by, number in payloads if by == name]
            assert numbers and all(after == before + 1 for before, after in pairwise(numbers))


def test_records_stay_where_the_setting_is_zero(tmp_path: Path) -> None:
    with Cluster(tmp_path, names=("a",), classes=CLASSES, limits={"room_record_idle_ms": 0}) as cluster:
        with cluster.connect("a") as client:
            assert client.ask("PUBLISH", "plain:x", "x") == 0
            for _ in range(50):
                client.ask("PUBLISH", "plain:y", "x")
        assert records(cluster, "plain") == 2 and metrics(cluster, FORGOTTEN) == 0
