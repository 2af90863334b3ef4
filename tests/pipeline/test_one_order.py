"""One room, one order: clients of Redis, MQTT and browsers publish at once and all receive the same order, as
does Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import PUBACK, PUBLISH, Wire
from clients.phoenix import REPLY, Page
from clients.raw import Connection
from clients.servers import hubsub_node
from clients.test_phoenix_live import HERE, Client

CHAT = {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "64MiB"}}
TOPIC = "chat:one"
EACH = 100
"""Number of messages per publisher."""


def by_redis(redis: Connection) -> None:
    for n in range(EACH):
        redis.command("PUBLISH", TOPIC, json.dumps({"redis": n}))
    assert {frame.kind for frame in redis.read_many(EACH)} == {":"}


def by_mqtt(device: Wire) -> None:
    for n in range(EACH):
        device.publish(TOPIC, json.dumps({"mqtt": n}).encode(), 1, n + 1)
    for _ in range(EACH):
        device.read(PUBACK)


def by_page(page: Page) -> list[Any]:
    """Publishes by a browser page, and reads all messages meanwhile."""
    for n in range(EACH):
        page.push(TOPIC, "say", {"page": n})
    heard, answers = [], 0
    while len(heard) < 3 * EACH or answers < EACH:
        *_, event, payload = page.read()
        if event == REPLY:
            assert payload["status"] == "ok", payload
            answers += 1
        else:
            heard.append(payload)
    return heard


def test_redis_mqtt_a_browsers_client_and_spark_see_one_room_in_one_order(
    spark: Any, needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core", "node")
    if not (HERE / "node_modules/phoenix").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    config = {"ws": "127.0.0.1:0", "mqtt": "127.0.0.1:0", "http": "127.0.0.1:0", "data": str(tmp_path)}
    with (
        hubsub_node(2, config, classes=[CHAT]) as server,
        closing(Client(server)) as browser,
        server.connect() as redis,
        server.connect() as says_redis,
        ThreadPoolExecutor() as pool,
    ):
        assert server.node is not None
        browser.join(TOPIC)
        redis.ask("SUBSCRIBE", TOPIC)
        with (
            Wire(server.node.mqtt) as device,
            Wire(server.node.mqtt) as says_mqtt,
            Page(server.node.ws) as says_page,
        ):
            device.connect("hears")
            assert device.subscribe((TOPIC, 0)) == [0]
            says_mqtt.connect("says")
            says_page.join(TOPIC)
            page = pool.submit(by_page, says_page)
            others = [pool.submit(by_mqtt, says_mqtt), pool.submit(by_redis, says_redis)]
            by = {
                "redis": [json.loads(frame.plain()[2]) for frame in redis.read_many(3 * EACH)],  # type: ignore[index]
                "mqtt": [json.loads(device.read(PUBLISH).rest) for _ in range(3 * EACH)],
                "browser": [browser.wait(topic=TOPIC)["payload"] for _ in range(3 * EACH)],
                "page": page.result(),
            }
            for other in others:
                other.result()
        frame = spark.read.format("hubsub").option("servers", server.node.http_url).load()
        rows = frame.where(f"room = '{TOPIC}'").select("seq", "payload").collect()
        by["spark"] = [json.loads(bytes(row.payload)) for row in sorted(rows)]
    assert {name: heard == by["redis"] for name, heard in by.items()} == dict.fromkeys(by, True)
    for who in ("redis", "mqtt", "page"):
        assert [said[who] for said in by["redis"] if who in said] == list(range(EACH))
