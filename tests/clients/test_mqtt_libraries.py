"""aiomqtt and mqtt.js, each alone on its node: the same sequence over TCP and WebSocket, in each version."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes

from clients.mqtt import V5, V31, V311, VERSIONS, properties
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node

HERE = Path(__file__).parent
Transport = Literal["tcp", "websockets"]
TRANSPORTS: list[Transport] = ["tcp", "websockets"]

PROPERTIES: dict[str, Any] = {
    "ContentType": "text/plain",
    "ResponseTopic": "answers",
    "CorrelationData": b"\x00\xff",
    "UserProperty": [("k", "1"), ("k", "2")],
}

SEEN = {
    "granted": [0, 1, 2],
    "messages": [
        [topic, f"{topic} {qos}", min(qos, granted)]
        for granted, topic in enumerate(["low/a", "mid/a/b", "high"])
        for qos in (0, 1, 2)
    ],
    "left": [["high", "left", 2]],
    "ordered": True,
    "long": True,
    "will": [["wills/lost", "gone", 1]],
    "retained": [["kept/a", "now", 1, True]],
    "away": [["away", "1", 1], ["away", "2", 2]],
}
SEEN_IN_5_0 = {"properties": ["text/plain", "answers", "00ff", ["1", "2"]]}


@pytest.fixture
def server(needs: Callable[..., None]) -> Iterator[Server]:
    """A node for this test's clients only."""
    needs("hubsub-core")
    with hubsub_node(2, {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}) as server:
        yield server


def address(server: Server, transport: Transport) -> tuple[str, int]:
    """The address of the listener for this transport."""
    assert server.node is not None
    return server.node.mqtt if transport == "tcp" else server.node.ws


def expected(version: int) -> dict[str, Any]:
    """The observations that each library must make."""
    return SEEN | (SEEN_IN_5_0 if version == V5 else {})


@pytest.mark.needs("node")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mqtt_js(server: Server, transport: Transport, version: int) -> None:
    if not (HERE / "node_modules").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    host, port = address(server, transport)
    url = f"mqtt://{host}:{port}" if transport == "tcp" else f"ws://{host}:{port}/mqtt"
    command = ["node", str(HERE / "mqttjs.mjs"), url, str(version)]
    done = subprocess.run(command, capture_output=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    # 3.1 has no session-present flag.
    assert json.loads(done.stdout) == expected(version) | {"present": [False, version != V31]}


def aio(server: Server, transport: Transport, version: int, name: str, **more: Any) -> aiomqtt.Client:
    host, port = address(server, transport)
    protocol = {
        V31: aiomqtt.ProtocolVersion.V31,
        V311: aiomqtt.ProtocolVersion.V311,
        V5: aiomqtt.ProtocolVersion.V5,
    }[version]
    path = "/mqtt" if transport == "websockets" else None
    return aiomqtt.Client(
        host,
        port,
        identifier=name,
        protocol=protocol,
        transport=transport,
        websocket_path=path,
        timeout=TIMEOUT_S,
        **more,
    )


async def take(client: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    """The next `count` messages."""
    return [await anext(client.messages) for _ in range(count)]


def said(messages: list[aiomqtt.Message]) -> list[list[Any]]:
    """Topics, payloads and QoS."""
    return [[str(message.topic), bytes(message.payload).decode(), message.qos] for message in messages]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_aiomqtt(server: Server, transport: Transport, version: int) -> None:
    async with asyncio.timeout(2 * TIMEOUT_S):
        assert await course(server, transport, version) == expected(version)


async def course(server: Server, transport: Transport, version: int) -> dict[str, Any]:
    """The sequence of mqttjs.mjs, with aiomqtt."""
    seen: dict[str, Any] = {}
    async with (
        aio(server, transport, version, "subscriber") as subscriber,
        aio(server, transport, version, "publisher") as publisher,
    ):
        granted = [await subscriber.subscribe(*one) for one in (("low/+", 0), ("mid/#", 1), ("high", 2))]
        # Paho has numbers before 5.0, and reason codes in 5.0.
        seen["granted"] = [getattr(one[0], "value", one[0]) for one in granted]
        seen["messages"] = []
        for topic in ("low/a", "mid/a/b", "high"):
            for qos in (0, 1, 2):
                await publisher.publish(topic, f"{topic} {qos}", qos)
                seen["messages"] += said(await take(subscriber, 1))

        await subscriber.unsubscribe("low/+")
        await publisher.publish("low/a", "nobody", 1)
        await publisher.publish("high", "left", 2)
        seen["left"] = said(await take(subscriber, 1))

        sent = [f"{i} of 500" for i in range(500)]
        await asyncio.gather(*(publisher.publish("mid/order", text, i % 2) for i, text in enumerate(sent)))
        came = [payload for _, payload, _ in said(await take(subscriber, 500))]
        # Paho sends QoS 1 messages as its window allows.
        seen["ordered"] = all(
            [text for text in came if int(text.split()[0]) % 2 == odd] == sent[odd::2] for odd in (0, 1)
        )

        long = bytes(i % 251 for i in range(300_000))
        await publisher.publish("high", long, 1)
        seen["long"] = (await take(subscriber, 1))[0].payload == long

        if version == V5:
            own = properties(PacketTypes.PUBLISH, PROPERTIES)
            await publisher.publish("high", "asked", 1, properties=own)
            told: Any = (await take(subscriber, 1))[0].properties
            values = [value for _, value in told.UserProperty]
            seen["properties"] = [told.ContentType, told.ResponseTopic, told.CorrelationData.hex(), values]

        await subscriber.subscribe("wills/#", 1)
        will = aiomqtt.Will("wills/lost", "gone", qos=1)
        with pytest.raises(aiomqtt.MqttError):
            async with aio(server, transport, version, "lost", will=will) as lost:
                # Another client with the same id ends this connection as if its network had failed.
                async with aio(server, transport, version, "lost"):
                    await anext(lost.messages)
        seen["will"] = said(await take(subscriber, 1))

        await publisher.publish("kept/a", "now", 1, retain=True)
        async with aio(server, transport, version, "late") as late:
            await late.subscribe("kept/+", 1)
            (message,) = await take(late, 1)
            seen["retained"] = [[*said([message])[0], message.retain]]
        await publisher.publish("kept/a", "", 1, retain=True)

        lasting: dict[str, Any] = {"clean_session": False}
        if version == V5:
            expiry = properties(PacketTypes.CONNECT, {"SessionExpiryInterval": 600})
            lasting = {"clean_start": False, "properties": expiry}
        async with aio(server, transport, version, "away", **lasting) as away:
            await away.subscribe("away", 2)
        for qos in (1, 2):
            await publisher.publish("away", str(qos), qos)
        async with aio(server, transport, version, "away", **lasting) as away:
            seen["away"] = said(await take(away, 2))
    return seen
