"""Messages across protocols: subscribers of every protocol read each publisher's message alike, live and
later.

docs/protocol/meaning.md specifies the mapping.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V31, V311, properties
from clients.phoenix import REPLY, V1, V2, Page
from clients.servers import Server, hubsub_node, until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from hubsub.names import text_of
from node.arrow import fetch, post
from node.test_mqtt import client

pytest.importorskip("pyarrow")

PAYLOADS = {
    "a JSON object": b'{"a": [1, "\xc3\xa9"]}',
    "text": "h\u00e9llo \u2603 \U0001f600".encode(),
    "bytes that are no UTF-8": b"\x00\xff\xfe\x80",
    "nothing": b"",
    "a NUL": b"\x00",
    "lines": b"a\r\nb\n$5\r\nhello\r\n",
    "much": bytes(range(256)) * 300,
}

USER = [("event", "said"), ("k", "1"), ("\u00e9", "")]
"""User properties, which become headers."""

SAID: dict[str, Any] = {
    "ContentType": "text/plain",
    "ResponseTopic": "answers/7",
    "CorrelationData": b"\x00\xff",
    "UserProperty": USER,
}
"""All properties of a message that an MQTT 5.0 publisher can set."""

HEADERS = {
    "mqtt.content-type": "text/plain",
    "mqtt.response-topic": "answers/7",
    "mqtt.correlation-data.hex": "00ff",
    **dict(USER),
}
"""The same properties as headers."""


class Seen(NamedTuple):
    """A message as a subscriber received it."""

    topic: bytes
    payload: bytes
    qos: int | None = None
    """None unless the subscriber uses MQTT."""
    told: dict[str, Any] | None = None
    """MQTT 5.0 properties, or the event of a browser's message."""


@pytest.fixture(scope="module")
def server(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node whose rooms `kept/…` have a log with one hub; its other rooms retain nothing."""
    needs("hubsub-core")
    kept = {"name": "kept", "match": ["kept/#"], "durability": "durable", "history": {"bytes": "1GiB"}}
    config = {
        "mqtt": "127.0.0.1:0",
        "ws": "127.0.0.1:0",
        "data": str(tmp_path_factory.mktemp("meaning") / "data"),
    }
    with hubsub_node(1, config, classes=[kept]) as server:
        yield server


# --- subscribers


class Redis:
    """SUBSCRIBE to the topic, or PSUBSCRIBE to all topics with its first five bytes."""

    def __init__(self, server: Server, topic: bytes, resp: int = 2, pattern: bool = False) -> None:
        self.connection = server.connect(resp)
        self.kind = b"pmessage" if pattern else b"message"
        self.connection.ask("PSUBSCRIBE", topic[:5] + b"*") if pattern else self.connection.ask(
            "SUBSCRIBE", topic
        )

    def next(self) -> Seen:
        kind, *rest = self.connection.read().plain()  # type: ignore[misc]
        assert kind == self.kind
        return Seen(*rest[-2:])

    def close(self) -> None:
        self.connection.__exit__(None, None, None)


class Mqtt:
    """SUBSCRIBE with that QoS to the topic, or to its first level and all below."""

    def __init__(self, server: Server, topic: bytes, version: int, qos: int, wildcard: bool = False) -> None:
        self.wire = client(server, f"sub{version}{qos}"[:23], version)
        name = topic.decode().split("/")[0] + "/#" if wildcard else topic.decode()
        assert self.wire.subscribe((name, qos)) == [qos]

    def next(self) -> Seen:
        got = self.wire.read(PUBLISH)
        assert got.flags & 9 == 0, "neither again nor retained"
        rest, told = got.rest, None
        if self.wire.version == V5:
            own, length = Properties(PacketTypes.PUBLISH).unpack(rest)
            told = {name: getattr(own, name) for name in SAID if hasattr(own, name)}
            # REST headers have no order.
            told |= {"UserProperty": sorted(told["UserProperty"])} if "UserProperty" in told else {}
            rest = rest[length:]
        return Seen(got.topic.encode(), rest, got.qos, told)

    def close(self) -> None:
        self.wire.close()


class Browser:
    """A browser that joins the topic."""

    def __init__(self, server: Server, topic: bytes, version: str) -> None:
        assert server.node is not None
        self.page, self.topic = Page(server.node.ws, version), topic
        self.page.join(topic.decode())

    def next(self) -> Seen:
        """The next message with its event; a binary payload is returned as bytes."""
        event, payload = self.page.said(self.topic.decode())
        if isinstance(payload, dict) and "base64" in payload:
            payload = b64decode(payload["base64"])
        written = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False).encode()
        return Seen(self.topic, written, None, {"event": event})

    def close(self) -> None:
        self.page.close()


SUBSCRIBERS: dict[str, tuple[int | None, Callable[[Server, bytes], Redis | Mqtt | Browser]]] = {
    "Redis, RESP2": (None, lambda server, topic: Redis(server, topic)),
    "Redis, RESP3": (None, lambda server, topic: Redis(server, topic, resp=3)),
    "Redis, pattern": (None, lambda server, topic: Redis(server, topic, pattern=True)),
    "MQTT 3.1": (0, lambda server, topic: Mqtt(server, topic, V31, 0)),
    "MQTT 3.1.1": (1, lambda server, topic: Mqtt(server, topic, V311, 1)),
    "MQTT 5.0": (2, lambda server, topic: Mqtt(server, topic, V5, 2)),
    "MQTT 5.0, wildcard": (1, lambda server, topic: Mqtt(server, topic, V5, 1, wildcard=True)),
    "Phoenix, version 1": (None, lambda server, topic: Browser(server, topic, V1)),
    "Phoenix, version 2": (None, lambda server, topic: Browser(server, topic, V2)),
}
"""Per protocol: the QoS that the subscriber requests, and its constructor."""


# --- publishers


def by_redis(server: Server, topic: str, payload: bytes) -> None:
    """Publishes by Redis PUBLISH."""
    with server.connect() as connection:
        connection.ask("PUBLISH", topic, payload)


def by_rest(server: Server, topic: str, payload: bytes) -> None:
    """Publishes by POST /v1/publish, with headers."""
    try:
        body = {"payload": payload.decode()}
    except UnicodeDecodeError:
        body = {"payload_base64": b64encode(payload).decode()}
    post(server, [{"topic": topic, "headers": HEADERS, **body}])


def by_mqtt(version: int, qos: int) -> Callable[[Server, str, bytes], None]:
    """Publishes by MQTT with that QoS; in 5.0 with all properties."""

    def publish(server: Server, topic: str, payload: bytes) -> None:
        with client(server, "pub", version) as wire:
            told = properties(PacketTypes.PUBLISH, SAID).pack() if version == V5 else b""
            own = told[1:] if version == V5 else b""
            assert len(told) < 128
            wire.publish(topic, payload, qos, 1, properties=own)
            if qos == 1:
                wire.read(PUBACK)
            if qos == 2:
                wire.read(PUBREC)
                wire.answer(PUBREL, 1)
                wire.read(PUBCOMP)
            if qos == 0:
                wire.ping()
                wire.read()

    return publish


def by_browser(server: Server, topic: str, payload: bytes) -> None:
    """Pushes the event `said` in a binary message."""
    assert server.node is not None
    with Page(server.node.ws, V2) as page:
        page.join(topic)
        ref = page.push(topic, "said", payload)
        answer = next(said for said in iter(page.read, None) if said[3] == REPLY)
        assert (answer[1], answer[4]) == (ref, {"status": "ok", "response": {}})


class Way(NamedTuple):
    """A way to publish a message."""

    publish: Callable[[Server, str, bytes], None]
    qos: int | None
    """None: the protocol has no QoS and does not cap the subscriber's."""
    headers: dict[str, str]
    publisher: str
    says_form: bool = False
    """Whether the publisher marks text payloads as binary."""

    def headers_of(self, payload: bytes) -> dict[str, str]:
        """The headers of a record with that payload."""
        return {**self.headers, "form": "binary"} if self.says_form and is_text(payload) else self.headers


PUBLISHERS = {
    "Redis": Way(by_redis, None, {}, ""),
    "REST": Way(by_rest, None, HEADERS, ""),
    "MQTT 3.1": Way(by_mqtt(V31, 0), 0, {}, "pub"),
    "MQTT 3.1.1": Way(by_mqtt(V311, 1), 1, {}, "pub"),
    "MQTT 5.0, QoS 0": Way(by_mqtt(V5, 0), 0, HEADERS, "pub"),
    "MQTT 5.0": Way(by_mqtt(V5, 2), 2, HEADERS, "pub"),
    "Phoenix": Way(by_browser, None, {"event": "said"}, "", says_form=True),
}


def to_pages(payload: bytes, headers: dict[str, str]) -> tuple[bytes, dict[str, Any]]:
    """Payload and event as pages receive them."""
    told = {"event": headers.get("event", "message")}
    if not is_text(payload) or "form" in headers:
        return payload, told
    text = payload.decode()
    shown = json.loads(text) if text.startswith("{") else {"data": text}
    return json.dumps(shown, ensure_ascii=False).encode(), told


@pytest.mark.parametrize("by", PUBLISHERS)
def test_what_one_publishes_is_what_all_others_read(server: Server, by: str) -> None:
    way = PUBLISHERS[by]
    topic = f"kept/{by}/\u00e9"
    subscribers = {name: (qos, begin(server, topic.encode())) for name, (qos, begin) in SUBSCRIBERS.items()}
    for what, payload in PAYLOADS.items():
        way.publish(server, topic, payload)
        for name, (qos, subscriber) in subscribers.items():
            due = qos if way.qos is None or qos is None else min(qos, way.qos)
            told, given, headers = None, payload, way.headers_of(payload)
            if name.startswith("MQTT 5.0"):
                of_page = {"UserProperty": sorted(headers.items())}
                told = SAID if headers == HEADERS else of_page if headers else {}
            if name.startswith("Phoenix"):
                given, told = to_pages(payload, headers)
            assert subscriber.next() == Seen(topic.encode(), given, due, told), f"{what}, {by} to {name}"
    for _, subscriber in subscribers.values():
        subscriber.close()

    payloads = list(PAYLOADS.values())
    with server.connect() as connection:
        rows: Any = connection.ask("HUBSUB", "HISTORY", topic)
    assert [(row[2], row[4]) for row in rows] == [(topic.encode(), payload) for payload in payloads]
    page = json.loads(server.get(f"/v1/rooms/{quote(topic, safe='')}/history"))["records"]
    for row, payload in zip(page, payloads, strict=True):
        assert (row["topic"], row["headers"]) == (topic, way.headers_of(payload))
        told_as = row["payload"].encode() if is_text(payload) else b64decode(row["payload_base64"])
        assert told_as == payload
    table = fetch(server, "kept-0", room=topic).to_pylist()
    for row, payload in zip(table, payloads, strict=True):
        assert (row["topic"], row["payload"], dict(row["headers"])) == (
            topic,
            payload,
            way.headers_of(payload),
        )
    assert [row["publisher"] for row in table] == [row["publisher"] for row in page]
    assert not way.publisher or {row["publisher"] for row in table} == {way.publisher}


def is_text(payload: bytes) -> bool:
    """Whether it is UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_what_is_retained_is_a_message_to_all_and_kept_for_mqtt(server: Server, version: int) -> None:
    topic = f"kept/retained/{version}"
    before = Redis(server, topic.encode())
    with client(server, "pub", version) as pub:
        pub.publish(topic, b"mode", 1, 1, flags=1)
        pub.read(PUBACK)
    by_redis(server, topic, b"passing")
    by_rest(server, topic, b"passing, too")
    assert [before.next().payload for _ in "123"] == [b"mode", b"passing", b"passing, too"]
    before.close()
    after = Redis(server, topic.encode())
    with client(server, "sub", version) as sub:
        assert sub.subscribe((topic, 1)) == [1]
        kept = sub.read(PUBLISH)
        assert (kept.flags & 1, kept.rest[version == V5 :]) == (1, b"mode")
        sub.answer(PUBACK, kept.id)
        by_redis(server, topic, b"later")
        live = sub.read(PUBLISH)
        assert (live.flags & 1, live.rest[version == V5 :]) == (0, b"later")
    assert after.next().payload == b"later"
    after.close()
    with client(server, "pub", version) as pub:
        # Removes the retained message, so that later tests do not receive it.
        pub.publish(topic, b"", 1, 2, flags=1)
        pub.read(PUBACK)


# --- names


UNSAYABLE = [b"kept/\xff", b"kept/nul\x00", b"kept/a+b", b"kept/a#"]
"""Names that MQTT cannot express."""

SAYABLE = [b"kept/%41", b"kept/100%", "kept/\u00e9".encode(), b"kept/ ", b"kept//"]


def test_a_name_is_the_same_everywhere_or_is_not_told(server: Server) -> None:
    before = server.metric("mqtt_unsent_total")
    with server.connect() as connection:
        by_pattern = Redis(server, b"kept/", pattern=True)
        by_filter = Mqtt(server, b"kept/", V5, 1, wildcard=True)
        for name in UNSAYABLE + SAYABLE:
            connection.ask("PUBLISH", name, name)
        assert [by_pattern.next().topic for _ in UNSAYABLE + SAYABLE] == UNSAYABLE + SAYABLE
        assert [by_filter.next().topic for _ in SAYABLE] == SAYABLE
        by_pattern.close()
        by_filter.close()
        until(lambda: server.metric("mqtt_unsent_total") - before == len(UNSAYABLE), "the others are counted")
        for name in UNSAYABLE + SAYABLE:
            # In REST and in Spark names are text that decodes to the original bytes.
            told = text_of(name)
            assert [row["payload"] for row in fetch(server, "kept-0", room=told).to_pylist()] == [name]
            page = json.loads(server.get(f"/v1/rooms/{quote(name, safe='')}/history"))["records"]
            assert [row["topic"] for row in page] == [told]


@pytest.mark.parametrize("name", ["$own", "$own/t", "a{$own}"])
def test_nobody_publishes_to_what_is_the_nodes_own(server: Server, name: str) -> None:
    with server.connect() as connection:
        assert connection.ask("PUBLISH", name, "x").value.startswith(b"NOPERM")  # type: ignore[attr-defined]
    assert post(server, [{"topic": name, "payload": "x"}])[0]["error"]["code"] == "not_allowed"
    with client(server, "pub", V5) as wire:
        wire.publish(name, b"x", 1, 1)
        assert wire.read(PUBACK).rest[:1] == b"\x87"
    with client(server, "pub", V311) as wire:
        wire.publish(name, b"x", 1, 1)
        assert wire.read(PUBACK).rest == b"", "there is no word for it"
