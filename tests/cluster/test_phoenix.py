"""Phoenix clients on the nodes of one cluster: any node serves every room, in one order with Redis and MQTT
clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from clients.mqtt import PUBACK, PUBLISH, Wire
from clients.phoenix import REPLY, V1, V2, Page
from clients.raw import Connection

from cluster.cluster import DEFAULT, Cluster

CHAT = {"name": "talk", "match": ["talk/#"], "placement": "ring", "history": {"messages": 10_000}}
LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
ROOMS = [f"{kind}/{i}" for kind in ("talk", "plain") for i in range(6)]
EACH = 60


def test_pages_of_all_nodes_are_in_one_room_in_one_order(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=(CHAT, DEFAULT), config=LISTENERS) as cluster, ExitStack() as stack:
        cluster.settled()
        nodes = cluster.nodes
        pages = [
            stack.enter_context(Page(node.ws, version))
            for node, version in zip(nodes.values(), (V1, V2, V2), strict=True)
        ]
        for topic in ROOMS:
            for page in pages:
                assert page.join(topic)["recovered"] is True
        # Joined on all nodes, published on one: all receive it.
        pusher = stack.enter_context(Page(nodes["b"].ws))
        for number, topic in enumerate(ROOMS):
            pusher.join(topic)
            pusher.push(topic, "publish", ["event", {"n": number}])
            said = [pusher.read() for _ in "12"]
            assert [None, None, topic, "event", {"n": number}] in said
            assert {"status": "ok", "response": {}} in [
                payload for *_, event, payload in said if event == REPLY
            ]
            for page in pages:
                assert page.said(topic) == ("event", {"n": number})

        # All protocols at once, each on another node.
        for topic in (ROOMS[0], ROOMS[6]):
            one_order(cluster, pages, topic)


def one_order(cluster: Cluster, pages: list[Page], topic: str) -> None:
    """Concurrent publishes of three protocols have one order for all subscribers."""
    with (
        Wire(cluster.nodes["c"].mqtt) as device,
        cluster.connect("a") as redis,
        Wire(cluster.nodes["a"].mqtt) as by_mqtt,
        cluster.connect("b") as by_redis,
        Page(cluster.nodes["c"].ws) as by_page,
    ):
        device.connect("hears")
        assert device.subscribe((topic, 0)) == [0]
        redis.ask("SUBSCRIBE", topic)
        by_mqtt.connect("says")
        by_page.join(topic)

        def say_by_page() -> list[Any]:
            """Publishes, and meanwhile receives its own and all other messages."""
            heard = []
            for number in range(EACH):
                by_page.push(topic, "say", {"page": number})
            answers = 0
            while len(heard) < 3 * EACH or answers < EACH:
                _, _, _, event, payload = by_page.read()
                if event == REPLY:
                    assert payload["status"] == "ok", payload
                    answers += 1
                else:
                    heard.append(payload)
            return heard

        def say_by_mqtt() -> None:
            for number in range(EACH):
                by_mqtt.publish(topic, json.dumps({"mqtt": number}).encode(), 1, number + 1)
            for _ in range(EACH):
                by_mqtt.read(PUBACK)

        def say_by_redis(connection: Connection) -> None:
            for number in range(EACH):
                connection.command("PUBLISH", topic, json.dumps({"redis": number}))
            assert {frame.kind for frame in connection.read_many(EACH)} == {":"}

        with ThreadPoolExecutor() as pool:
            page_heard = pool.submit(say_by_page)
            others = [pool.submit(say_by_mqtt), pool.submit(say_by_redis, by_redis)]
            redis_heard = [json.loads(frame.plain()[2]) for frame in redis.read_many(3 * EACH)]  # type: ignore[index]
            device_heard = [json.loads(device.read(PUBLISH).rest) for _ in range(3 * EACH)]
            for page in pages:
                assert [page.said(topic)[1] for _ in range(3 * EACH)] == redis_heard
            for other in others:
                other.result()
            assert page_heard.result() == device_heard == redis_heard
        for who in ("page", "mqtt", "redis"):
            assert [row[who] for row in redis_heard if who in row] == list(range(EACH))
