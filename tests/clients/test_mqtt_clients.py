"""Real MQTT clients, of all three versions, in the same rooms as Redis clients: Eclipse Paho's client for Python,
mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes

from clients.mqtt import V5, V31, V311, VERSIONS, Message, Paho, properties
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, until
from hubsub.testing import Node


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def running(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with an MQTT listener."""
    needs("hubsub-core")
    classes = [{"name": "past", "match": ["past/#"], "history": {"messages": 1000}}]
    with hubsub_node(request.param, {"mqtt": "127.0.0.1:0"}, classes=classes) as server:
        yield server


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """The node. A test ends when its clients are gone."""
    yield running
    running.wait_until_alone()


def mqtt(server: Server) -> tuple[str, int]:
    """The address of the MQTT listener."""
    assert isinstance(server.node, Node)
    return server.node.mqtt


@pytest.mark.parametrize("version", VERSIONS)
def test_every_qos_both_ways(server: Server, version: int) -> None:
    # From 3.1.1 on, a client may let the server assign its id.
    own_id = "publisher" if version == V31 else ""
    with (
        Paho(mqtt(server), version, "subscriber") as subscriber,
        Paho(mqtt(server), version, own_id) as publisher,
    ):
        assert subscriber.subscribe(("low", 0), ("mid", 1), ("high", 2)) == [0, 1, 2]
        for topic, granted in (("low", 0), ("mid", 1), ("high", 2)):
            for qos in (0, 1, 2):
                payload = f"{topic} {qos}".encode()
                publisher.publish(topic, payload, qos)
                assert subscriber.next() == Message(topic, payload, min(qos, granted))


@pytest.mark.parametrize("version", VERSIONS)
def test_wildcards_and_their_end(server: Server, version: int) -> None:
    with (
        Paho(mqtt(server), version, "subscriber") as subscriber,
        Paho(mqtt(server), version, "publisher") as publisher,
    ):
        assert subscriber.subscribe(("home/+/lamp", 1), ("office/#", 1)) == [1, 1]
        for topic in (
            "home/kitchen/lamp",
            "home/kitchen",
            "home/a/b/lamp",
            "office",
            "office/x/y",
            "$office/x",
        ):
            publisher.publish(topic, b"on", 0 if topic.startswith("$") else 1)
        expected = ["home/kitchen/lamp", "office", "office/x/y"]
        assert [subscriber.next().topic for _ in expected] == expected
        assert subscriber.unsubscribe("office/#", "nothing") == ([0, 17] if version == V5 else [])
        publisher.publish("office/x", b"on", 1)
        publisher.publish("home/hall/lamp", b"off", 1)
        assert subscriber.next() == Message("home/hall/lamp", b"off", 1)


def test_filters_that_overlap_bring_a_message_once_with_the_highest_qos(server: Server) -> None:
    with (
        Paho(mqtt(server), V5, "subscriber") as subscriber,
        Paho(mqtt(server), V311, "publisher") as publisher,
    ):
        assert subscriber.subscribe(("a/b", 0), ("a/+", 2), ("#", 1)) == [0, 2, 1]
        for topic, payload, qos, highest in (("a/b", b"1", 2, 2), ("a/c", b"2", 1, 1), ("z", b"3", 2, 1)):
            publisher.publish(topic, payload, qos)
            assert subscriber.next() == Message(topic, payload, highest)


def test_properties_of_5_0_arrive_and_expiry_counts_down(server: Server) -> None:
    said: dict[str, Any] = {
        "PayloadFormatIndicator": 1,
        "MessageExpiryInterval": 3600,
        "ContentType": "text/plain",
        "ResponseTopic": "answers/7",
        "CorrelationData": b"\x00\xff7",
        "UserProperty": [("k", "1"), ("k", "2"), ("mqtt.content-type", "mine")],
    }
    with Paho(mqtt(server), V5, "subscriber") as subscriber, Paho(mqtt(server), V5, "publisher") as publisher:
        subscriber.subscribe(("asked/#", 2))
        publisher.publish("asked/7", b"?", 1, properties=properties(PacketTypes.PUBLISH, said))
        message = subscriber.message()
        told = message.properties
        assert told is not None and 3590 < told.MessageExpiryInterval <= 3600
        assert {name: getattr(told, name) for name in said if name != "MessageExpiryInterval"} == {
            name: value for name, value in said.items() if name != "MessageExpiryInterval"
        }


def test_what_has_expired_is_not_sent(server: Server) -> None:
    before = server.metric("mqtt_unsent_total")
    with Paho(mqtt(server), V5, "subscriber") as subscriber, Paho(mqtt(server), V5, "publisher") as publisher:
        subscriber.subscribe(("brief", 1))
        publisher.publish(
            "brief", b"1", 1, properties=properties(PacketTypes.PUBLISH, {"MessageExpiryInterval": 0})
        )
        publisher.publish("brief", b"2", 1)
        assert subscriber.next() == Message("brief", b"2", 1)
    until(lambda: server.metric("mqtt_unsent_total") == before + 1, "it is counted")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_published_when_its_client_vanishes_and_not_when_it_says_goodbye(
    server: Server, version: int
) -> None:
    with Paho(mqtt(server), version, "watcher") as watcher:
        watcher.subscribe(("wills/#", 1))
        with Paho(mqtt(server), version, "polite", will=("wills/polite", b"gone")):
            pass
        Paho(mqtt(server), version, "lost", will=("wills/lost", b"gone")).vanish()
        assert watcher.next() == Message("wills/lost", b"gone", 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_id_is_taken_over(server: Server, version: int) -> None:
    with Paho(mqtt(server), version, "twin") as first:
        first.client.on_connect_fail = None
        first.client.reconnect_delay_set(60, 60)
        with Paho(mqtt(server), version, "twin") as second:
            reason = first.disconnected()
            assert reason.value == 0x8E if version == V5 else reason.is_failure
            assert second.subscribe(("t", 0)) == [0]
        first.client.loop_stop()


@pytest.mark.parametrize("version", [V311, V5])
def test_redis_and_mqtt_clients_are_in_one_room_in_one_order(server: Server, version: int) -> None:
    each = 200
    with (
        Paho(mqtt(server), version, "device") as device,
        server.connect() as redis,
        server.connect() as publisher,
    ):
        # Paho delivers a message of QoS 2 at its PUBREL, so after later messages; this subscribes with QoS 1.
        assert device.subscribe(("past/lobby", 1)) == [1]
        redis.ask("SUBSCRIBE", "past/lobby")
        for i in range(each):
            device.client.publish("past/lobby", f"mqtt {i}", qos=i % 3)
            publisher.command("PUBLISH", "past/lobby", f"redis {i}")
        assert [publisher.read().plain() for _ in range(each)] == [2] * each
        by_mqtt = [device.message().payload for _ in range(2 * each)]
        by_redis = [frame.plain()[2] for frame in redis.read_many(2 * each)]  # type: ignore[index]
        assert by_mqtt == by_redis
        for who in (b"mqtt", b"redis"):
            assert [p for p in by_mqtt if p.startswith(who)] == [b"%s %d" % (who, i) for i in range(each)]
        rows = publisher.ask("HUBSUB", "HISTORY", "past/lobby", "COUNT", 2 * each)
        assert [row[4] for row in rows] == by_mqtt  # type: ignore[attr-defined]
        assert {row[3] for row in rows if row[4].startswith(b"mqtt")} == {b"device"}  # type: ignore[attr-defined]


def test_a_topic_that_mqtt_cannot_say_is_passed_over(server: Server) -> None:
    before = server.metric("mqtt_unsent_total")
    with Paho(mqtt(server), V311, "all") as device, server.connect() as redis:
        device.subscribe(("#", 1))
        for topic in (b"a+b", b"c#", b"\xff", b"nul\0", b"good"):
            redis.ask("PUBLISH", topic, "x")
        assert device.next() == Message("good", b"x", 1)
    assert server.metric("mqtt_unsent_total") - before == 4


def test_clients_are_listed_by_their_ids_and_versions(server: Server) -> None:
    with Paho(mqtt(server), V31, "old"), Paho(mqtt(server), V5, "new"), server.connect() as redis:
        listed = bytes(redis.ask("CLIENT", "LIST")).decode()  # type: ignore[call-overload]
        assert " name=old " in listed and " name=new " in listed
        assert b'"protocol":"mqtt3.1"' in server.get("/v1/clients").replace(b" ", b"")
        until(lambda: server.metric("mqtt_connections") == 2, "both are counted")


def mosquitto(program: str, server: Server, version: int, *arguments: str) -> list[str]:
    """The command line of a mosquitto client."""
    name = {V31: "mqttv31", V311: "mqttv311", V5: "mqttv5"}[version]
    host, port = mqtt(server)
    return [program, "-h", host, "-p", str(port), "-V", name, *arguments]


@pytest.mark.needs("mosquitto_pub", "mosquitto_sub")
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_pub_and_mosquitto_sub(server: Server, version: int) -> None:
    arguments = ["-t", "m/#", "-q", "2", "-C", "6", "-F", "%t %q %p", "-i", "msub"]
    command = mosquitto("mosquitto_sub", server, version, *arguments)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as subscriber,
        server.connect() as redis,
    ):
        until(lambda: redis.ask("PUBSUB", "NUMPAT") == 1, "it has subscribed")
        for qos in "012":
            lines = "".join(f"{line} of {qos}\n" for line in (1, 2))
            publish = mosquitto(
                "mosquitto_pub", server, version, "-t", f"m/{qos}", "-q", qos, "-l", "-i", "mpub"
            )
            subprocess.run(publish, input=lines, text=True, check=True, timeout=TIMEOUT_S)
        out, _ = subscriber.communicate(timeout=TIMEOUT_S)
    assert out.splitlines() == [f"m/{qos} {qos} {line} of {qos}" for qos in "012" for line in (1, 2)]
