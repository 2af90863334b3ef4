"""Generated conversations: the bytes that one connection sends, by protocol, with boundary lengths and
numbers.

A talk consists of batches. Each batch ends with a request whose reply is known, so the sender waits for that
reply instead of a time. A server that refuses a batch may close the connection instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote

from clients.mqtt import V5, V311, packet, text, varying
from clients.raw import encode

from extremes.draw import NAME_BYTES_MAX, NUMBERS, Draw


@dataclass(frozen=True)
class Batch:
    """Bytes sent together, and a part of the reply that shows that all of them were executed. If `until` is
    empty, the connection ends instead."""

    data: bytes
    until: bytes
    requests: int = 1
    """Number of requests in `data` that may each wait for something, executed one after the other."""


@dataclass(frozen=True)
class Talk:
    """One connection to the node with the index `node` and its listener named `listener`."""

    node: int
    listener: str
    batches: list[Batch]


# -- Redis --


def position(draw: Draw) -> str:
    """A valid position, an invalid one or a number."""
    return draw.one(
        [
            f"{draw.number()}-{draw.number()}",
            f"{draw.number()}-{draw.number()}-{draw.number()}",
            str(draw.number()),
            "$",
            "-",
            draw.text(300),
        ]
    )


def redis_command(draw: Draw) -> bytes:
    name, other = draw.name(), draw.name()
    number = draw.number()
    return encode(
        *draw.one(
            [
                ("PUBLISH", name, draw.payload()),
                ("SPUBLISH", name, draw.payload()),
                ("PUBLISH", name, draw.payload()),
                ("SUBSCRIBE", name, other),
                ("SSUBSCRIBE", name),
                ("PSUBSCRIBE", draw.text(1_024, draw.one(["*", "?", "[a-z]", "\\", "[^", "a*", "$", "é"]))),
                ("PSUBSCRIBE", name[: draw.length(1_024)] + "*"),
                ("UNSUBSCRIBE", name),
                ("PUNSUBSCRIBE",),
                ("SUNSUBSCRIBE", name),
                ("PUBSUB", draw.one(["CHANNELS", "SHARDCHANNELS"]), draw.text(1_024, "*")),
                (
                    "PUBSUB",
                    draw.one(["NUMSUB", "SHARDNUMSUB"]),
                    *[draw.name() for _ in range(draw.one([0, 1, 64]))],
                ),
                ("PUBSUB", "NUMPAT"),
                ("HUBSUB", "LOCATE", name),
                ("HUBSUB", "HISTORY", name, "COUNT", number),
                ("HUBSUB", "HISTORY", name, "COUNT", number, "AFTER", position(draw)),
                ("HUBSUB", "HISTORY", name, "AFTER", position(draw)),
                ("HUBSUB", "PRESENCE", name),
                ("HUBSUB", "SUBSCRIBE", name, "FROM", position(draw)),
                ("HUBSUB", "SUBSCRIBE", name, "LAST", number),
                ("HUBSUB", "SUBSCRIBE", name, "SINCE", number),
                ("HUBSUB", "SUBSCRIBE", name, "AS", other),
                ("HUBSUB", "SUBSCRIBE", name, "AS", other, draw.name()),
                ("HUBSUB", "ACK", *[position(draw) for _ in range(draw.one([1, 2, 200]))]),
                ("HUBSUB", "POSITIONS", draw.one(["ON", "OFF"])),
                ("CLIENT", "SETNAME", draw.text(256)),
                ("CLIENT", "SETINFO", draw.one(["LIB-NAME", "LIB-VER"]), draw.text(256)),
                ("CLIENT", "LIST", "ID", *[draw.random.randrange(1, 50) for _ in range(draw.one([1, 300]))]),
                ("CLIENT", "INFO"),
                ("CLUSTER", "KEYSLOT", name),
                ("CLUSTER", "COUNTKEYSINSLOT", number),
                ("CLUSTER", "GETKEYSINSLOT", number, draw.number()),
                ("COMMAND", draw.one(["INFO", "DOCS"]), draw.text(300), name),
                ("COMMAND", "GETKEYS", "PUBLISH", name, "x"),
                ("CONFIG", "GET", draw.text(300, "*")),
                ("ECHO", draw.payload()),
                ("HELLO", draw.one(["2", "3", str(number)]), "SETNAME", draw.text(256)),
                ("MULTI",),
                ("WATCH", name),
                ("EXEC",),
                ("DISCARD",),
                ("RESET",),
                ("SELECT", number),
                (draw.text(300), name),
            ]
        )
    )


def redis(draw: Draw) -> list[Batch]:
    """Pipelined commands in batches, each of which ends with a PING."""
    hello = encode("HELLO", draw.one(["2", "3"]))
    batches = [Batch(hello + encode("PING", "begin"), b"begin")]
    for number in range(draw.random.randrange(1, 8)):
        said = [redis_command(draw) for _ in range(draw.random.randrange(1, 12))]
        token = b"done %d" % number
        batches.append(Batch(b"".join(said) + encode("DISCARD") + encode("PING", token), token, len(said)))
    return batches


# -- MQTT --


def number_of(draw: Draw, bits: int) -> int:
    """A non-negative number of at most `bits` bits, at the bounds of the integer types."""
    return draw.one([number for number in NUMBERS if 0 <= number < 1 << bits])


def properties(draw: Draw, *allowed: int) -> bytes:
    """MQTT 5.0 properties, each at most once, with their length prefix."""
    out = b""
    for kind in allowed:
        if not draw.chance(0.3):
            continue
        out += bytes([kind])
        match kind:
            case 0x01 | 0x17 | 0x19:
                out += bytes([draw.random.randrange(2)])
            case 0x02 | 0x11 | 0x18 | 0x27:
                out += number_of(draw, 32).to_bytes(4, "big")
            case 0x0B:
                out += varying(draw.one([1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455]))
            case 0x21 | 0x22 | 0x23:
                out += number_of(draw, 16).to_bytes(2, "big")
            case 0x26:
                out += text(draw.text(NAME_BYTES_MAX - 1)) + text(draw.text(1_024))
            case 0x09:
                out += text(draw.payload(NAME_BYTES_MAX - 1))
            case _:
                out += text(topic(draw))
    return varying(len(out)) + out


def cut(name: str) -> str:
    """The name, cut to the maximum length of an MQTT string."""
    return name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")


def topic(draw: Draw) -> str:
    """A topic for PUBLISH: not empty, without wildcards."""
    return cut(draw.name().replace("+", "p").replace("#", "h").replace("\0", "n")) or "a"


def topic_filter(draw: Draw) -> str:
    """A topic filter: a topic, one with wildcards, a shared subscription, or levels only."""
    name = topic(draw)
    return cut(
        draw.one(
            [
                name,
                name,
                name[: draw.length(1_020)] + "/#",
                "+/" + name[:1_000],
                "#",
                "+",
                "/" * draw.length(1_024) or "/",
                "+/" * (draw.length(1_020) // 2) + "#",
                f"$share/{draw.text(300, 'g') or 'g'}/{name}",
                f"$share/g/{name[:1_000]}/#",
                "$SYS/#",
            ]
        )
    )


def mqtt_packet(draw: Draw, version: int) -> bytes:
    """One packet of a connected client."""
    is_v5 = version == V5
    number = number_of(draw, 16) or 1
    some = number.to_bytes(2, "big")
    kind = draw.one(["publish"] * 6 + ["subscribe"] * 3 + ["unsubscribe", "answer", "ping"])
    if kind == "publish":
        qos = draw.random.randrange(3)
        own = properties(draw, 0x01, 0x02, 0x03, 0x08, 0x09, 0x23, 0x26) if is_v5 else b""
        flags = qos << 1 | draw.random.randrange(2) | (8 if qos and draw.chance(0.2) else 0)
        return packet(0x30 | flags, text(topic(draw)) + (some if qos else b"") + own + draw.payload())
    if kind == "subscribe":
        own = properties(draw, 0x0B, 0x26) if is_v5 else b""
        options = [draw.random.randrange(3) | (draw.random.randrange(4) << 2 if is_v5 else 0)] * draw.one(
            [1, 1, 20]
        )
        return packet(0x82, some + own + b"".join(text(topic_filter(draw)) + bytes([one]) for one in options))
    if kind == "unsubscribe":
        own = properties(draw, 0x26) if is_v5 else b""
        return packet(0xA2, some + own + text(topic_filter(draw)))
    if kind == "answer":
        first = draw.one([0x40, 0x50, 0x62, 0x70])
        reason = bytes([draw.one([0x00, 0x80, 0x97])]) if is_v5 and draw.chance(0.5) else b""
        return packet(first, some + reason)
    return b"\xc0\x00"


def mqtt(draw: Draw) -> list[Batch]:
    """CONNECT, with or without a will, then other packets."""
    version = draw.one([V5, V311])
    is_v5 = version == V5
    client_id = cut(draw.name()) or "c"
    flags, rest = draw.one([0, 2]), b""
    own = properties(draw, 0x11, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27) if is_v5 else b""
    if draw.chance(0.4):
        flags |= 0x04 | draw.random.randrange(3) << 3 | draw.one([0, 0x20])
        rest += properties(draw, 0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26) if is_v5 else b""
        rest += text(topic(draw)) + text(draw.payload(NAME_BYTES_MAX - 1))
    if draw.chance(0.2):
        flags |= 0x80
        rest += text(cut(draw.name()))
    head = text("MQTT") + bytes([version, flags]) + number_of(draw, 16).to_bytes(2, "big")
    ping, pong = b"\xc0\x00", b"\xd0\x00"
    batches = [Batch(packet(0x10, head + own + text(client_id) + rest) + ping, pong)]
    for _ in range(draw.random.randrange(1, 6)):
        said = [mqtt_packet(draw, version) for _ in range(draw.random.randrange(1, 12))]
        batches.append(Batch(b"".join(said) + ping, pong, len(said)))
    if draw.chance(0.4):
        reason = bytes([draw.one([0x00, 0x04])]) if is_v5 else b""
        batches.append(Batch(packet(0xE0, reason), b""))
    return batches


# -- HTTP --


def path(draw: Draw, name: str) -> str:
    """A name as a URL path segment."""
    return quote(name, safe="") or "-"


def http(draw: Draw) -> list[Batch]:
    """One request; the node closes the connection after it."""
    name, number = path(draw, draw.name()), draw.number()
    method, target = draw.one(
        [
            ("GET", f"/v1/rooms?match={name}&limit={number}"),
            ("GET", f"/v1/rooms?after={name}"),
            ("GET", f"/v1/rooms/{name}"),
            ("POST", f"/v1/rooms/{name}"),
            ("PUT", f"/v1/rooms/{name}"),
            ("DELETE", f"/v1/rooms/{name}"),
            ("GET", f"/v1/rooms/{name}/history?count={number}&after={path(draw, position(draw))}"),
            ("GET", f"/v1/rooms/{name}/history?topic={name}"),
            ("GET", f"/v1/rooms/{name}/presence?limit={number}"),
            ("GET", f"/v1/rooms/{name}/occupancy"),
            ("GET", f"/v1/retained?match={name}&after={name}&limit={number}"),
            ("GET", f"/v1/retained/{name}"),
            ("DELETE", f"/v1/retained/{name}"),
            ("GET", f"/v1/sessions?client_id={name}&limit={number}"),
            ("GET", f"/v1/sessions/{name}"),
            ("DELETE", f"/v1/sessions/{name}"),
            ("GET", f"/v1/consumers?limit={number}"),
            ("GET", f"/v1/consumers/{name}/{path(draw, draw.name())}"),
            ("DELETE", f"/v1/consumers/{name}/{path(draw, draw.name())}"),
            ("GET", f"/v1/clients?client_id={name}&limit={number}"),
            ("GET", f"/v1/clients/{number}"),
            ("GET", f"/v1/devices/{name}"),
            ("GET", f"/v1/hubs/{abs(number)}/records?from={number}&limit={draw.number()}"),
            ("GET", f"/v1/jobs/{name}"),
            ("GET", f"/v1/cluster/reached?room={name}"),
            ("POST", "/v1/publish"),
            ("POST", "/v1/publish"),
        ]
    )
    body = b""
    if target == "/v1/publish":
        row = {"topic": draw.name(), "payload": draw.text(1 << 16)}
        if draw.chance(0.3):
            row |= {"producer": draw.name()[:300], "sequence": number}
        rows = [row | {"topic": draw.name()} for _ in range(draw.one([0, 1, 40]))]
        body = json.dumps({"messages": rows} if draw.chance(0.5) else row).encode()
    heads = {"Host": "node", "Connection": "close", "Content-Length": str(len(body))}
    if body:
        heads["Content-Type"] = "application/json"
    if draw.chance(0.2):
        heads["Idempotency-Key"] = draw.text(256, "k") or "k"
    lines = [f"{method} {target} HTTP/1.1", *(f"{head}: {value}" for head, value in heads.items()), "", ""]
    return [Batch("\r\n".join(lines).encode() + body, b"")]


# -- Phoenix --


def frame(opcode: int, data: bytes) -> bytes:
    """A client's WebSocket frame, masked by zeros."""
    size = len(data)
    if size < 126:
        head = bytes([0x80 | size])
    elif size < 1 << 16:
        head = b"\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\xff" + size.to_bytes(8, "big")
    return bytes([0x80 | opcode]) + head + b"\0\0\0\0" + data


def phoenix_message(draw: Draw) -> bytes:
    """A version 2 message, as text or binary."""
    room, event = (
        draw.name(),
        draw.one(["phx_join", "phx_join", "phx_leave", "new_msg", "new_msg", draw.text(300)]),
    )
    refs = [draw.one(["1", "2", draw.text(300, "9")]) for _ in range(2)]
    if draw.chance(0.2):
        parts = [part.encode()[:255] for part in (*refs, room, event)]
        return frame(2, bytes([0, *map(len, parts)]) + b"".join(parts) + draw.payload())
    payload = {"body": draw.text(1 << 16), "number": draw.number()}
    if event == "phx_join":
        payload |= draw.one(
            [{}, {"after": position(draw)}, {"rewind": draw.number()}, {"presence": {"key": room[:900]}}]
        )
    return frame(1, json.dumps([*refs, room, event, payload]).encode())


def phoenix(draw: Draw) -> list[Batch]:
    """A browser page's connection."""
    lines = [
        "GET /socket/websocket?vsn=2.0.0 HTTP/1.1",
        "Host: node",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "",
        "",
    ]
    batches = [Batch("\r\n".join(lines).encode(), b"\r\n\r\n")]
    for number in range(draw.random.randrange(1, 6)):
        said = [phoenix_message(draw) for _ in range(draw.random.randrange(1, 8))]
        token = f"done-{number}"
        beat = frame(1, json.dumps([None, token, "phoenix", "heartbeat", {}]).encode())
        batches.append(Batch(b"".join(said) + beat, token.encode(), len(said)))
    return batches


SPEAKERS = {"redis": redis, "redis_cluster": redis, "mqtt": mqtt, "http": http, "ws": phoenix}


def talks(seed: int, nodes: int, count: int) -> list[Talk]:
    """`count` conversations with `nodes` nodes. Concurrent ones share names.

    Args:
        seed: Determines all conversations.
        nodes: Number of nodes.
        count: Number of conversations.
    """
    draw = Draw(seed)
    said = []
    for _ in range(count):
        listener = draw.one(["redis", "redis", "mqtt", "mqtt", "mqtt", "http", "ws", "redis_cluster"])
        said.append(Talk(draw.random.randrange(nodes), listener, SPEAKERS[listener](draw)))
    return said
