"""A long MQTT message in Spark: 20 MB, or `LARGE_BYTES` in a soak, up to the protocol's maximum."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.mqtt import CONNACK, PUBACK, Wire

from hubsub.testing import Node

CLASSES = [
    {
        "name": "long",
        "match": ["long/#"],
        "durability": "durable",
        "history": {"bytes": "1GiB"},
        "payload_bytes_max": "256MiB",
    }
]
LIMITS = {"mqtt_packet_bytes_max": 268_435_460}


def test_a_long_message_of_mqtt_is_a_row(spark: Any, make_node: Callable[..., Node], tmp_path: Path) -> None:
    payload = random.Random(6).randbytes(int(os.environ.get("LARGE_BYTES", 20_000_000)))
    config = {"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0"}
    node = make_node(classes=CLASSES, config=config, limits=LIMITS)
    with Wire(node.mqtt) as client:
        assert client.connect("camera").kind == CONNACK
        for number, one in enumerate((b"before", payload, b"after"), 1):
            client.publish("long/picture", one, qos=1, number=number)
            assert client.read(PUBACK).id == number
    rows = spark.read.format("hubsub").option("servers", node.http_url).load()
    said = rows.selectExpr("offset", "length(payload) as length", "sha2(payload, 256) as digest")
    assert [tuple(row) for row in said.orderBy("offset").select("length", "digest").collect()] == [
        (len(one), hashlib.sha256(one).hexdigest()) for one in (b"before", payload, b"after")
    ]
