"""Streams of a hub's log over connections: the cost of a slow reader, closed readers, and the limit of
streams."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.servers import TIMEOUT_S, Server, until

from node.arrow import connection, fetch, path, refusal
from node.logged import DURABLE, figure, publish

pa = pytest.importorskip("pyarrow")

Start = Callable[..., Server]

MIB = 1 << 20


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Start:
    """Starts a node with one shard, so that each class has one hub."""

    def one(**limits: Any) -> Server:
        return start(config={"data": str(tmp_path / "data")}, classes=[DURABLE], limits=limits)

    return one


def fill(server: Server, mib: int) -> None:
    """Publishes `mib` MiB of payload into one hub."""
    with server.connect() as speaker:
        for n in range(mib):
            publish(speaker, "chat:a", range(n * 16, n * 16 + 16), length=MIB // 16)


def streams(server: Server) -> int:
    return int(figure(server, "hubsub_log_streams_open"))


@contextlib.contextmanager
def unread(server: Server, where: str, receive_bytes: int = 64 << 10) -> Iterator[socket.socket]:
    """A connection that has sent its request and reads nothing by itself."""
    assert server.node
    host, port = server.node.http_url.removeprefix("http://").split(":")
    with socket.socket() as reader:
        reader.settimeout(TIMEOUT_S)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        reader.connect((host, int(port)))
        reader.sendall(f"GET {where} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield reader


def head(reader: socket.socket) -> bytes:
    """The first bytes of the response."""
    return reader.recv(200)


def test_a_reader_that_does_not_read_holds_two_chunks_and_nothing_else(begin: Start) -> None:
    server = begin()
    fill(server, 64)
    fetch(server, "chat-0", columns="offset")
    before = figure(server, "hubsub_log_stream_bytes_total")
    with unread(server, path("chat-0", batch_bytes=MIB)) as reader:
        assert head(reader).startswith(b"HTTP/1.1 200")
        until(lambda: given(server, before) >= 2 * MIB, "the second chunk")
        # The kernel's connection buffers take a few MiB.
        assert max(given(server, before) for _ in range(50)) <= 12 * MIB
        assert streams(server) == 1
        body = bytearray(reader.recv(1 << 16))
        while not body.endswith(b"0\r\n\r\n"):
            body += reader.recv(1 << 20)
    assert len(body) > 64 * MIB
    assert streams(server) == 0


def given(server: Server, before: float) -> float:
    return figure(server, "hubsub_log_stream_bytes_total") - before


def test_many_readers_that_do_not_read_cost_two_chunks_each(begin: Start) -> None:
    server = begin(log_streams_max=32)
    fill(server, 64)
    before = server.resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            reader = stack.enter_context(unread(server, path("chat-0", batch_bytes=MIB)))
            assert head(reader).startswith(b"HTTP/1.1 200")
        assert streams(server) == 32
        # The allocators keep some free memory; whole ranges would be 2 GiB.
        assert server.resident_bytes() - before < 32 * 8 * MIB
    until(lambda: streams(server) == 0, "streams to close with their connections")


def test_a_reader_that_goes_away_closes_its_stream(begin: Start) -> None:
    server = begin()
    fill(server, 32)
    with unread(server, path("chat-0")) as reader:
        head(reader)
        assert streams(server) == 1
    until(lambda: streams(server) == 0, "the stream to close")
    client = connection(server)
    client.request("GET", path("chat-0", from_=100))
    assert client.getresponse().read(10_000)
    client.close()
    until(lambda: streams(server) == 0, "the stream to close")
    assert "Traceback" not in (server.node.log if server.node else "")


def test_one_stream_too_many_is_refused_until_another_has_ended(begin: Start) -> None:
    server = begin(log_streams_max=2)
    fill(server, 32)
    with unread(server, path("chat-0")) as one, unread(server, path("chat-0")) as two:
        assert head(one) and head(two)
        client = connection(server)
        client.request("GET", path("chat-0"))
        answer = client.getresponse()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert b"too_many_streams" in answer.read()
        client.close()
    until(lambda: streams(server) == 0, "streams to close")
    assert fetch(server, "chat-0", columns="offset").num_rows == 512
    assert figure(server, "hubsub_log_streams_refused_total") == 1


def test_a_stream_that_nobody_reads_is_closed_after_its_time_and_does_not_look_ended(begin: Start) -> None:
    server = begin(log_stream_idle_ms=100)
    fill(server, 64)
    with unread(server, path("chat-0")) as reader:
        assert head(reader).startswith(b"HTTP/1.1 200")
        until(lambda: streams(server) == 0, "the stream to close")
        server.log_line("stream of records closed")
        body = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while piece := reader.recv(1 << 20):
                body += piece
        assert len(body) < 64 * MIB and not body.endswith(b"0\r\n\r\n")
    assert fetch(server, "chat-0", columns="offset").num_rows == 1024


def test_a_stopping_node_breaks_its_streams_off(begin: Start) -> None:
    server = begin(drain_ms=100)
    fill(server, 64)
    with unread(server, path("chat-0")) as reader:
        assert head(reader).startswith(b"HTTP/1.1 200")
        assert server.node and server.node.stop() == 0
        body = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while piece := reader.recv(1 << 20):
                body += piece
        assert not body.endswith(b"0\r\n\r\n")


def test_a_payload_as_long_as_a_class_may_have_is_one_row(begin: Start) -> None:
    server = begin()
    payload = b"%d" % 7 * (20 * MIB)
    with server.connect() as speaker:
        publish(speaker, "chat:a", range(3))
        speaker.ask("PUBLISH", "chat:a", payload)
        publish(speaker, "chat:a", range(3, 6))
    stream = pa.ipc.open_stream(server.get(path("chat-0")))
    batches = list(stream)
    assert [batch.num_rows for batch in batches] == [4, 3]
    assert batches[0]["payload"][3].as_py() == payload


def test_a_head_is_answered_without_a_stream(begin: Start) -> None:
    server = begin()
    client = connection(server)
    client.request("HEAD", path("chat-0"))
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    client.close()
    assert streams(server) == 0
    assert refusal(server, path("chat-0", from_=9)).code == "offset_unknown"


def test_a_connection_serves_one_range_after_the_other(begin: Start) -> None:
    server = begin()
    fill(server, 4)
    client = connection(server)
    for first in (1, 30, 64):
        client.request("GET", path("chat-0", from_=first))
        answer: http.client.HTTPResponse = client.getresponse()
        rows = pa.ipc.open_stream(answer.read()).read_all()
        assert rows["offset"].to_pylist() == list(range(first, 65))
    client.close()
