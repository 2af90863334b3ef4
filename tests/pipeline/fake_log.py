"""A log over HTTP without a node: it serves the source's requests from memory and can inject faults.

It produces faults that a real node does not produce on demand. It records each request, so that a test can
check what the source requested.
"""

import io
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from hubsub.pipeline.schema import arrow_schema

START_US = 1_700_000_000_000_000
"""Timestamp of offset 0; each offset is a millisecond later."""
IDENTITY = "00c0ffee"


def rows(hub: int, first: int, end: int, rooms: Sequence[str] = ("lobby",), size: int = 32) -> pa.Table:
    """Records of a hub with the offsets `first` up to but not including `end`.

    Args:
        hub: The hub's id.
        first: The first offset.
        end: The offset after the last.
        rooms: The rooms, which alternate.
        size: Payload size in bytes.
    """
    offsets = range(first, end)
    names = [rooms[n % len(rooms)] for n in offsets]
    count = end - first
    return pa.table(
        {
            "hub": pa.array([hub] * count, pa.int32()),
            "term": pa.array([1] * count, pa.int64()),
            "offset": pa.array(offsets, pa.int64()),
            "room": names,
            "epoch": pa.array([7 << 32] * count, pa.int64()),
            "seq": pa.array([n // len(rooms) + 1 for n in offsets], pa.int64()),
            "topic": [f"{{{name}}}.text" for name in names],
            "timestamp": pa.array([START_US + n * 1_000 for n in offsets], pa.timestamp("us", "UTC")),
            "publisher": [f"p{n % 3}" for n in offsets],
            "device": pa.array([None] * count, pa.string()),
            "headers": pa.array([[("n", str(n))] for n in offsets], pa.map_(pa.string(), pa.string())),
            "payload": [f"{n:0{size}}".encode() for n in offsets],
        },
        schema=arrow_schema(),
    )


@dataclass
class Faults:
    """Injected faults; each occurrence decrements its counter."""

    break_after: list[int] = field(default_factory=list)
    """One entry per upcoming stream: the number of batches before the connection is cut."""
    end_short: int = 0
    """Number of streams that end after a batch with a final HTTP chunk but without Arrow's end mark."""
    refuse: list[tuple[int, str]] = field(default_factory=list)
    """One entry per upcoming stream: status and error code."""
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By hub: the lost offsets, from the first up to but not including the second."""
    deaf: bool = False
    """Whether reports get status 500."""


class FakeLog:
    """An HTTP server for one table per hub; a context manager.

    Args:
        tables: Records by hub id.
        batch_rows: Rows per Arrow batch.
        token: Requests without this token are refused; None allows all.
        tls: Server context; None serves plain HTTP.
    """

    def __init__(
        self,
        tables: dict[int, pa.Table],
        *,
        batch_rows: int = 1_000,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tables = tables
        self.batch_rows = batch_rows
        self.token = token
        """None allows all requests."""
        self.log = IDENTITY
        self.ephemeral: list[str] = []
        self.earliest = dict.fromkeys(tables, 1)
        self.faults = Faults()
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        """Path and parameters of each GET."""
        self.reports: list[tuple[str, dict[str, Any]]] = []
        """Query and body of each PUT."""
        self.headers: list[dict[str, str]] = []
        self.connections: list[Any] = []
        outer = self

        class Handler(_Handler):
            fake = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FakeLog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def append(self, hub: int, count: int, **kwargs: Any) -> None:
        """Appends records to a hub, or creates the hub."""
        there = self.tables.get(hub)
        first = self.end(hub)
        more = rows(hub, first, first + count, **kwargs)
        self.earliest.setdefault(hub, 1)
        self.tables[hub] = more if there is None else pa.concat_tables([there, more])

    def end(self, hub: int) -> int:
        table = self.tables.get(hub)
        return 1 if table is None or not table.num_rows else table.column("offset")[-1].as_py() + 1

    def streams(self) -> list[dict[str, list[str]]]:
        """Parameters of each request for records."""
        return [params for path, params in self.requests if path.endswith("/records")]

    def listing(self, params: dict[str, list[str]]) -> dict[str, Any]:
        hubs = []
        rooms = set(params["subscribe"][0].split(",")) if "subscribe" in params else None
        for hub, table in sorted(self.tables.items()):
            if rooms is not None and not rooms & set(table.column("room").unique().to_pylist()):
                continue
            stamps = table.column("timestamp").cast(pa.int64())
            hubs.append(
                {
                    "hub": hub,
                    "name": f"chat-{hub}",
                    "class": "chat",
                    "state": "open",
                    "earliest": self.earliest[hub],
                    "committed_until": self.end(hub),
                    "bytes": table.nbytes,
                    "first_timestamp_us": stamps[0].as_py() if table.num_rows else None,
                    "last_timestamp_us": stamps[-1].as_py() if table.num_rows else None,
                    "servers": [self.address],
                }
            )
        return {"log": self.log, "hubs": hubs, "ephemeral": self.ephemeral}

    def select(self, hub: int, params: dict[str, list[str]]) -> pa.Table:
        table = self.tables[hub]
        offset, stamp = table.column("offset"), table.column("timestamp").cast(pa.int64())
        keep = pc.and_(
            pc.greater_equal(offset, int(params["from"][0])), pc.less(offset, int(params["until"][0]))
        )
        for name in ("room", "topic", "device"):
            if name in params:
                keep = pc.and_(keep, pc.is_in(table.column(name), pa.array(params[name])))
            if f"{name}_prefix" in params:
                keep = pc.and_(keep, pc.starts_with(table.column(name), params[f"{name}_prefix"][0]))
        if "since_us" in params:
            keep = pc.and_(keep, pc.greater_equal(stamp, int(params["since_us"][0])))
        if "until_us" in params:
            keep = pc.and_(keep, pc.less(stamp, int(params["until_us"][0])))
        return table.filter(keep).select(params["columns"][0].split(","))


class _Handler(BaseHTTPRequestHandler):
    fake: FakeLog
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self) -> None:
        super().setup()
        self.fake.connections.append(self.client_address)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        params = parse_qs(url.query)
        self.fake.requests.append((url.path, params))
        self.fake.headers.append(dict(self.headers))
        token = self.fake.token
        if token is not None and self.headers["authorization"] != f"Bearer {token}":
            self._refuse(401, "not_authenticated")
            return
        match url.path.split("/")[1:]:
            case ["v1", "log"]:
                self._json(200, self.fake.listing(params))
            case ["v1", "hubs", hub, "offset"]:
                stamps = self.fake.tables[int(hub)].column("timestamp").cast(pa.int64()).to_pylist()
                before = sum(stamp < int(params["timestamp_us"][0]) for stamp in stamps)
                self._json(200, {"offset": self.fake.end(int(hub)) - len(stamps) + before})
            case ["v1", "hubs", hub, "records"]:
                self._records(int(hub), params)
            case _:
                self._refuse(404, "not_found")

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.fake.faults.deaf:
            return self._refuse(500, "internal")
        self.fake.reports.append((self.path.removeprefix("/v1/queries/"), body))
        self.send_response(204)
        return self.end_headers()

    def _records(self, hub: int, params: dict[str, list[str]]) -> None:
        fake, faults = self.fake, self.fake.faults
        if params["log"] != [fake.log]:
            return self._refuse(409, "other_log")
        if faults.refuse:
            return self._refuse(*faults.refuse.pop(0))
        lost = faults.lost.get(hub)
        first = int(params["from"][0])
        if lost and lost[0] <= first < lost[1]:
            return self._refuse(410, "offsets_lost", hub=f"chat-{hub}", first=first, end=lost[1])
        if int(params["until"][0]) > fake.end(hub):
            return self._refuse(416, "offset_unknown")
        self.send_response(200)
        self.send_header("content-type", "application/vnd.apache.arrow.stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        broken = faults.break_after.pop(0) if faults.break_after else None
        table = fake.select(hub, params)
        for n, (chunk, offsets) in enumerate(self._chunks(table)):
            if n - 1 == broken:
                self._chunk(chunk[: len(chunk) // 2])  # Cuts the connection in the middle of a batch.
                return self._cut()
            if faults.end_short and n == 2:
                faults.end_short -= 1
                break
            if lost and offsets and offsets[-1] >= lost[0] and first < lost[0]:
                return self._cut()
            if chunk:
                self._chunk(chunk)
        return self._chunk(b"")

    def _chunks(self, table: pa.Table) -> Iterator[tuple[bytes, list[int]]]:
        """Schema, each batch and Arrow's end mark as bytes, with the offsets in each."""
        sink = io.BytesIO()

        def written() -> bytes:
            data = sink.getvalue()
            sink.seek(0)
            sink.truncate()
            return data

        with pa.ipc.new_stream(sink, table.schema) as writer:
            yield written(), []
            for batch in table.combine_chunks().to_batches(max_chunksize=self.fake.batch_rows):
                writer.write_batch(batch)
                yield written(), batch.column("offset").to_pylist()
        yield written(), []

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _cut(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _refuse(self, status: int, code: str, **more: Any) -> None:
        self._json(status, {"code": code, "message": f"no: {code}", "hint": "a hint", **more})

    def _json(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
