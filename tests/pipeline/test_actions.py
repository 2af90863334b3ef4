"""Actions on a real node: a subscriber to a device's topic receives this device's messages and no others."""

from __future__ import annotations

import json
import re
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.mqtt import PUBACK, PUBLISH, Wire

from hubsub import BlockingClient
from hubsub.pipeline.devices import actions, latest, named, readings, unaddressed
from hubsub.testing import Node

CLASSES = [
    {
        "name": "devices",
        "match": ["devices/#"],
        "durability": "durable",
        "history": {"bytes": "1GiB"},
    }
]


def received(subscription: Any, count: int) -> list[tuple[bytes, Any]]:
    return [(r.topic, json.loads(r.payload)) for _, r in zip(range(count), subscription, strict=False)]


def test_a_device_gets_its_actions_and_no_other(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})
    with BlockingClient(node.redis_url) as client:
        for device, heat in (("d1", 81), ("d2", 20), ("d3", 95)):
            client.publish(f"devices/{device}/state", json.dumps({"heat": heat}))
        records = spark.read.format("hubsub").option("servers", node.http_url).load()
        hot = latest(readings(named(records, "devices/{device}/#"))).where(
            "key = 'heat' and cast(value as double) > 80"
        )
        rows = hot.selectExpr("device", "'cool' as action", "cast(value as int) as was")
        strange = spark.sql(
            "select 'd2/actions/x' device, 'cool' action, 1 was union all select '+', 'cool', 1"
        )
        asked = rows.unionByName(strange).repartition(3)
        with (
            client.subscribe("devices/d1/actions") as first,
            client.subscribe(patterns=["devices/*"]) as all_of_them,
        ):
            writer = actions(asked).write.format("hubsub").option("servers", node.http_url)
            writer.mode("append").save()
            client.publish("devices/d1/actions", '"end"')
            assert received(first, 2) == [
                (b"devices/d1/actions", {"action": "cool", "was": 81}),
                (b"devices/d1/actions", "end"),
            ]
            *got, end = received(all_of_them, 3)
    assert sorted(topic for topic, _ in got) == [b"devices/d1/actions", b"devices/d3/actions"]
    assert end[1] == "end"
    assert sorted(row.device for row in unaddressed(asked).collect()) == ["+", "d2/actions/x"]


def test_a_device_is_in_sparks_table_and_does_what_spark_tells_it(
    spark: Any, pipeline: Callable[..., Any], make_node: Callable[..., Node], tmp_path: Path, repository: Path
) -> None:
    """The devices example of the README."""
    classes = tomllib.loads((repository / "sample" / "hubsub.toml").read_text())["class"]
    config = {"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0"}
    node = make_node(classes=classes, config=config)
    with Wire(node.mqtt) as device:
        device.connect("thermostat-07")
        device.subscribe(("devices/thermostat-07/actions/+", 1))
        device.publish("devices/thermostat-07/state", b'{"temperature": 17.5}', 1, 1)
        device.read(PUBACK)
        places = ("--checkpoint", tmp_path / "checkpoint", "--out", tmp_path / "out")
        shown = pipeline(
            "devices", "--once", "--servers", node.http_url, "--pattern", "devices/+", *places
        ).out
        assert re.search(r"thermostat-07 .*temperature +17\.5 ", shown), shown
        state = spark.read.parquet(str(tmp_path / "out" / "state"))
        told = state.where("cast(value AS double) < 18").selectExpr("device", "'heat' action", "'21' payload")
        writer = actions(told, "devices/{device}/actions/{action}").write.format("hubsub")
        writer.option("servers", node.http_url).mode("append").save()
        action = device.read(PUBLISH)
        assert (action.topic, action.rest) == ("devices/thermostat-07/actions/heat", b"21")
        device.answer(PUBACK, action.id)
        device.publish(f"{action.topic}/done", b"at 21", 1, 2)
        device.read(PUBACK)
    with urllib.request.urlopen(f"{node.http_url}/v1/devices/thermostat-07/actions") as answer:
        (done,) = json.load(answer)["actions"]
    assert (done["name"], done["state"], done["answer"]["payload"]) == ("heat", "acknowledged", "at 21")


def test_a_stream_of_readings_answers_each_device_once(
    spark: Any, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = make_node(classes=CLASSES, config={"data": str(tmp_path / "data")})
    with BlockingClient(node.redis_url) as client:
        for n in range(300):
            client.publish(f"devices/d{n % 10}/state", json.dumps({"n": n}))
    stream = spark.readStream.format("hubsub").option("servers", node.http_url)
    stream = stream.option("startingOffsets", "earliest").option("topicFilter", "devices/+/state")
    seen = named(stream.load(), "devices/{device}/#").selectExpr(
        "device", "get_json_object(cast(payload as string), '$.n') as n"
    )
    for _ in range(2):
        writer = actions(seen).writeStream.format("hubsub").option("servers", node.http_url)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    with BlockingClient(node.redis_url) as client:
        for d in range(10):
            said = [
                json.loads(r.payload) for r in client.history(f"devices/d{d}/actions", count=1_000).records
            ]
            assert said == [{"n": str(n)} for n in range(d, 300, 10)]
