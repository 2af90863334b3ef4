"""Devices on a whole node: MQTT devices and a Redis one, by REST and by the command line, also across kill
-9."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.mqtt import PINGRESP, PUBACK, PUBLISH, PUBREC, V5, V311, Paho, Wire, properties
from clients.servers import until
from paho.mqtt.packettypes import PacketTypes

from boundary.test_node import ask, hubsub
from hubsub.client import BlockingClient
from hubsub.testing import Node

HISTORY = {"bytes": "64MiB"}
CLASSES = [
    {
        "name": "actions",
        "match": ["devices/+/actions/#"],
        "room": "devices/+/actions",
        "durability": "durable",
        "history": HISTORY,
    },
    {
        "name": "devices",
        "match": ["devices/#"],
        "room": "devices/+",
        "device": "devices/{device}/#",
        "durability": "durable",
        "history": HISTORY,
    },
    {"name": "plain", "match": ["device:*"], "device": "device:{device}:*", "history": {"messages": 10}},
]


def begin(make_node: Callable[..., Node], tmp_path: Path, **config: Any) -> Node:
    return make_node(
        classes=CLASSES, config={"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0", **config}
    )


def states(node: Node, device: str) -> list[tuple[str, str]]:
    status, answer = ask(node, "GET", f"/v1/devices/{device}/actions")
    assert status == 200 and answer["is_whole"]
    return [(action["name"], action["state"]) for action in answer["actions"]]


def test_a_device_says_its_state_is_given_an_action_and_answers(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = begin(make_node, tmp_path)
    with Wire(node.mqtt) as device:
        device.connect("7")
        assert device.subscribe(("devices/7/actions/+", 1)) == [1]
        device.publish("devices/7/state", b'{"heat": 20}', 1, 1)
        device.read(PUBACK)
        shown = ask(node, "GET", "/v1/devices/7")[1]
        assert shown["state"]["payload"] == '{"heat": 20}' and shown["state"]["publisher"] == "7"
        assert shown["connection"]["protocol"] == "mqtt3.1.1"
        status, given = ask(node, "POST", "/v1/devices/7/actions", {"name": "heat", "payload": "21"})
        assert (status, given["state"], given["receivers"]) == (201, "queued", 1)
        action = device.read(PUBLISH)
        assert (action.topic, action.qos, action.rest) == ("devices/7/actions/heat", 1, b"21")
        assert states(node, "7") == [("heat", "queued")]
        device.answer(PUBACK, action.id)
        until(lambda: states(node, "7") == [("heat", "delivered")], "it has it")
        device.publish(f"{action.topic}/done", b"ok", 1, 2)
        device.read(PUBACK)
        (done,) = ask(node, "GET", "/v1/devices/7/actions")[1]["actions"]
        assert (done["id"], done["state"]) == (given["id"], "acknowledged")
        assert given["timestamp_us"] <= done["delivered_us"] <= done["answer"]["timestamp_us"]
        assert (done["answer"]["payload"], done["answer"]["publisher"]) == ("ok", "7")
    while ask(node, "GET", "/v1/devices/7")[1]["connection"] is not None:
        pass
    listed = hubsub(node, "device", "ls", "--absent", "--json").stdout
    assert [json.loads(line)["id"] for line in listed.splitlines()] == ["7"]


def test_a_device_of_mqtt_5_answers_the_action_that_it_was_sent(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = begin(make_node, tmp_path)
    with Paho(node.mqtt, V5, "7") as device:
        device.subscribe(("devices/7/actions/+", 1))
        ids = [ask(node, "POST", "/v1/devices/7/actions", {"name": "go"})[1]["id"] for _ in range(3)]
        came = [device.message() for _ in range(3)]
        assert [dict(m.properties.UserProperty)["hubsub-action"] for m in came] == ids  # type: ignore[union-attr]
        own: Any = came[1].properties
        assert 86_390 < own.MessageExpiryInterval <= 86_400
        answer = properties(PacketTypes.PUBLISH, {"CorrelationData": own.CorrelationData})
        device.publish(own.ResponseTopic, b"", 1, properties=answer)
    due = [("go", "delivered"), ("go", "acknowledged"), ("go", "delivered")]
    until(lambda: states(node, "7") == due, "its client has acknowledged all")


def test_an_action_is_delivered_when_its_own_device_has_acknowledged_it_by_any_qos(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = begin(make_node, tmp_path)
    with Wire(node.mqtt) as device, Wire(node.mqtt) as other, Wire(node.mqtt) as refuses:
        for one, name, version in ((device, "7", V311), (other, "8", V311), (refuses, "9", V5)):
            one.connect(name, version)
        assert other.subscribe(("devices/+/actions/go", 1), ("devices/7/actions/+/delivered", 0)) == [1, 0]
        assert device.subscribe(("devices/7/actions/#", 2)) == [2]
        assert refuses.subscribe(("devices/9/actions/#", 1)) == [1]
        for name in "79":
            ask(node, "POST", f"/v1/devices/{name}/actions", {"name": "go"})
            other.answer(PUBACK, other.read(PUBLISH).id)
        # Neither the other recipients of the action nor a device that refuses it produce a delivery report.
        refuses.answer(PUBACK, refuses.read(PUBLISH).id, b"\x80")
        for one in (other, refuses):
            one.ping()
            one.read(PINGRESP)
        device.answer(PUBACK if (came := device.read(PUBLISH)).qos == 1 else PUBREC, came.id)
        told = other.read(PUBLISH)
        assert (told.topic, told.rest) == ("devices/7/actions/go/delivered", b"")
        assert states(node, "7") == [("go", "delivered")] and states(node, "9") == [("go", "queued")]
    node.stop(signal.SIGKILL)
    node = begin(make_node, tmp_path)
    assert states(node, "7") == [("go", "delivered")]


def test_what_became_of_actions_is_the_same_after_a_kill_and_waits_for_an_absent_device(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = begin(make_node, tmp_path)
    for name in ("one", "two", "three"):
        assert hubsub(node, "device", "act", "7", name, "now", "--expiry", "never").returncode == 0
    with BlockingClient(node.redis_url) as client:
        client.publish("devices/7/actions/two/done", "ok")
    before = ask(node, "GET", "/v1/devices/7/actions")
    node.stop(signal.SIGKILL)
    node = begin(make_node, tmp_path)
    assert ask(node, "GET", "/v1/devices/7/actions") == before
    assert states(node, "7") == [("one", "queued"), ("two", "acknowledged"), ("three", "queued")]
    with BlockingClient(node.redis_url) as client:
        left = [record.topic for record in client.history("devices/7/actions", count=9).records]
    assert left[0] == b"devices/7/actions/one"
    table = hubsub(node, "device", "actions", "7", "--state", "queued").stdout.splitlines()
    assert [line.split()[1] for line in table] == ["name", "one", "three"]
    for args in (
        ("act", "7", "a/b"),
        ("act", "+", "go"),
        ("show", "nobody"),
        ("show", "7", "--class", "none"),
    ):
        run = hubsub(node, "device", *args)
        assert run.returncode == 1 and "hint:" in run.stderr, args
    assert hubsub(node, "device", "act", "7", "go", "--expiry", "soon").returncode == 2


def test_an_action_whose_time_is_over_is_not_sent_and_not_given_again(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = begin(make_node, tmp_path)
    ask(node, "POST", "/v1/devices/7/actions", {"name": "go", "expiry_s": 1})
    while states(node, "7") != [("go", "expired")]:
        pass
    with BlockingClient(node.redis_url) as client:
        client.publish("devices/7/actions/stop/done", "of nothing")
    assert states(node, "7") == [("go", "expired")]


def test_topics_of_redis_are_devices_too(make_node: Callable[..., Node], tmp_path: Path) -> None:
    node = begin(make_node, tmp_path)
    with BlockingClient(node.redis_url) as client:
        for name in ("1", "2", "é"):
            client.publish(f"device:{name}:state", name)
        client.publish("device:2:other", "x")
    listed = hubsub(node, "device", "ls", "--class", "plain", "--limit", "2", "--json")
    assert [json.loads(line)["id"] for line in listed.stdout.splitlines()] == ["1", "2"]
    assert "more behind 2" in listed.stderr
    rest = hubsub(node, "device", "ls", "--class", "plain", "--after", "2", "--json").stdout
    assert json.loads(rest)["id"] == "é"
    shown = json.loads(hubsub(node, "device", "show", "é", "--class", "plain", "--json").stdout)
    assert shown["state"]["topic"] == "device:é:state"
    status, refused = ask(node, "POST", "/v1/devices/1/actions?class=plain", {"name": "go"})
    assert (status, refused["code"]) == (409, "actions_not_kept")
