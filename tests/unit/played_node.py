"""A fake node, and the REST API over it, called without sockets."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import msgspec

from hubsub.api.app import App
from hubsub.api.clients import SORTS
from hubsub.api.console.now import COUNTED
from hubsub.api.state import State
from hubsub.api.table import openapi_document
from hubsub.config import resolve
from hubsub.control.memory import POOLS
from hubsub.errors import RoomInUseError
from hubsub.node import BusyRoom, Failed, HistoryRow, Published
from hubsub.node.status import Client, Log, Session, Store

ODD_ROOM = b"a/b c%2F\xff"


def room_row(name: bytes) -> dict[str, Any]:
    numbers = ("seq", "shard", "subscribers", "topics", "history", "history_bytes", "first_seq", "idle_ms")
    known = {"name": name, "class": "chat", "epoch": 2**63 + 1, "hub": "chat-0", "in_memory": True}
    return known | dict.fromkeys(numbers, 3)


def client_row(number: int) -> dict[str, Any]:
    texts = ("addr", "laddr", "name", "lib_name", "lib_ver")
    return (
        dict.fromkeys(SORTS, 0) | dict.fromkeys(texts, "x") | {"id": number, "shard": 0, "protocol": "resp3"}
    )


def hub_row(number: int, **more: Any) -> dict[str, Any]:
    texts = {"class": "chat", "durability": "durable", "state": "open", "reason": None, "damaged": None}
    numbers = ("shard", "earliest", "latest", "committed", "synced", "bytes", "segments", "rooms", "opened")
    traffic = dict.fromkeys(("deliveries", "bytes_in", "bytes_out"), 0)
    archive = {"archived": None, "archive_waiting_bytes": 0, "archive_lost": 0}
    times = archive | {"index_bytes": 9, "first_timestamp_us": 1_500_000, "last_timestamp_us": 2_500_000}
    return {"id": number, "index": number - 1} | dict.fromkeys(numbers, 3) | texts | traffic | times | more


def played_log(*hubs: dict[str, Any], state: str = "open", reason: str | None = None) -> dict[str, Any]:
    figures = {
        "records_total": 40,
        "syncs_total": 4,
        "sync_us_total": 3_000,
        "reads_waiting": 2,
        "pending_bytes": 0,
    }
    syncs = [(100, 0), (1_000, 3), (None, 1)]
    whole = {"identity": "00", "figures": figures, "syncs": syncs, "hubs": list(hubs)}
    return {"state": state, "reason": reason} | whole


class PlayedNode:
    """Returns the values that the test has set, and records the calls."""

    name = "one"
    addresses = {"redis": "127.0.0.1:3221"}
    shards = 2
    incarnation = 5
    uptime_s = 1.5
    running = True
    refused_requests = 0

    def __init__(self) -> None:
        self.known = {ODD_ROOM: room_row(ODD_ROOM)}
        self.listed = [b"r%03d" % i for i in range(250)]
        self.asked: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.published = 0
        self.fail: Exception | None = None
        self.played_log: dict[str, Any] | None = None
        self.played_store: dict[str, Any] | None = None
        self.peers: list[dict[str, Any]] = []
        self.connected = [client_row(4)]

    async def publish(self, items: list[Any]) -> list[Published | Failed]:
        self.asked.append(items)
        await self.gate.wait()
        if self.fail:
            raise self.fail
        self.published += len(items)
        return [
            Failed("payload_length", "too long")
            if payload == b"long"
            else Published(0 if payload == b"again" else 3, 7, i + 1, payload == b"again")
            for i, (_, payload, _, _, _) in enumerate(items)
        ]

    def link_peers(self) -> list[dict[str, Any]]:
        return self.peers

    async def room(self, room: bytes) -> dict[str, Any] | None:
        return self.known.get(room)

    async def rooms(self, match: bytes | None, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        self.asked.append((match, after, limit))
        names = sorted(name for name in self.listed if after is None or name > after)
        return [room_row(name) for name in names[:limit]]

    async def room_create(self, room: bytes) -> dict[str, Any] | None:
        if room.startswith(b"none"):
            return None
        return self.known.setdefault(room, room_row(room))

    def room_of(self, topic: bytes) -> tuple[bytes, str]:
        return topic, "default"

    async def room_delete(self, room: bytes) -> bool:
        if room == b"busy":
            raise RoomInUseError()
        return self.known.pop(room, None) is not None

    async def history(self, room: bytes, count: int, after: Any, topic: Any) -> tuple[bool, list[HistoryRow]]:
        self.asked.append((room, count, after, topic))
        rows = [HistoryRow(7, i, 1, b"t", "me", p, {"k": "v"}) for i, p in enumerate((b"text", b"\xff"), 1)]
        return after != (9, 9), rows[:count] if after != (9, 9) else []

    async def clients(
        self, sort: str, limit: int, client: int | None = None, client_ids: Sequence[str] = ()
    ) -> list[Client]:
        self.asked.append((sort, limit, client))
        rows = self.connected if client in (None, 4) else []
        shown = [row | {"node": self.name} for row in rows if not client_ids or row["name"] in client_ids]
        return msgspec.convert(shown, list[Client])

    async def client_kill(self, client: int, reason: str) -> bool:
        return client == 4

    async def sessions(
        self, limit: int, after: str | None = None, client_id: str | None = None
    ) -> list[Session]:
        names = [name for name in ("lamp/1", "lamp/2") if client_id in (None, name) and name > (after or "")]
        numbers = dict.fromkeys(("subscriptions", "unacknowledged", "queued", "queued_bytes", "dropped"), 1)
        row = {"node": self.name, "shard": 0, "client": None, "expiry_s": 60, "ends_in_s": 9, **numbers}
        return msgspec.convert([{"client_id": name, **row} for name in names][:limit], list[Session])

    async def session_end(self, client_id: str) -> bool:
        return client_id == "lamp/1"

    async def busiest_rooms(self, limit: int, *, own: bool = False) -> list[BusyRoom]:
        return [BusyRoom(b"r", 2.5, 250, 1_000)]

    def log(self) -> Log | None:
        return msgspec.convert(self.played_log, Log | None)

    def inflight_store(self) -> Store | None:
        return msgspec.convert(self.played_store, Store | None)

    def metrics(self) -> dict[str, Any]:
        gauges = {name: 0 for names, _ in POOLS.values() for name in names}
        shard = dict.fromkeys(COUNTED, 0) | gauges | {"socket_ns_total": 2_000_000_000, "connections": 1}
        return {
            "shards": [shard] * 2,
            "node": {
                "x_total": 4,
                "descriptors_max": 1_024,
                "descriptors_reserved": 24,
                "memory_used_bytes": 1_000,
            },
        }


class Answer:
    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = {k.decode(): v.decode() for k, v in headers}
        self.text = body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Api:
    """The application with a fake node, called without sockets."""

    def __init__(self, **file: Any) -> None:
        self.node = PlayedNode()
        self.state = State(resolve(file, {}, {}), self.node)  # type: ignore[arg-type]
        self.state.http_address = "127.0.0.1:3220"
        self.app = App(self.state)

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        stalls: bool = False,
    ) -> Answer:
        path, _, query = target.partition("?")
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 3220),
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if stalls:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return Answer(sent[0]["status"], sent[0]["headers"], b"".join(m.get("body", b"") for m in sent[1:]))

    async def get(self, target: str) -> Answer:
        return await self.ask("GET", target)


def fits(answer: Answer, path: str, method: str = "get") -> None:
    """Checks that the body fits the OpenAPI document's schema of this path."""
    document = openapi_document()
    response = document["paths"][path][method]["responses"][str(answer.status)]
    schema = response["content"]["application/json"]["schema"] | {"components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json)
