"""Request heads of the length limit, and one byte longer; and of the limit of all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from sys import getsizeof
from typing import Any

import h11
import pytest

from hubsub.api import HttpServer
from hubsub.api.strict import FIELDS_MAX, HEAD_BYTES_MAX, SHORT_BYTES, StrictConnection

from .played_node import Api

END = b" HTTP/1.1\r\nHost: a\r\n\r\n"


def unfinished(size: int) -> bytes:
    """A head of this many bytes that lacks its last one."""
    return b"GET /".ljust(size - len(END), b"x") + END[:-1]


def test_a_head_of_the_maximum_length_is_read_and_a_longer_one_refused() -> None:
    one = StrictConnection()
    one.receive_data(unfinished(HEAD_BYTES_MAX + 1))
    assert one.next_event() is h11.NEED_DATA
    one.receive_data(END[-1:])
    request = one.next_event()
    assert isinstance(request, h11.Request)
    assert len(request.target) == HEAD_BYTES_MAX + 1 - len(b"GET ") - len(END)

    other = StrictConnection()
    other.receive_data(unfinished(HEAD_BYTES_MAX + 2))
    with pytest.raises(h11.RemoteProtocolError) as refused:
        other.next_event()
    assert refused.value.error_status_hint == 431


@pytest.mark.parametrize("more", [0, 1])
def test_a_head_of_the_maximum_number_of_fields_is_read_and_a_longer_one_refused(more: int) -> None:
    one = StrictConnection()
    one.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * (FIELDS_MAX - 1 + more) + b"\r\n")
    if more:
        with pytest.raises(h11.RemoteProtocolError, match="too many fields"):
            one.next_event()
    else:
        assert isinstance(one.next_event(), h11.Request)


LIMITS = {"http_body_bytes_max": "1KiB", "http_bodies_bytes_max": "3KiB", "request_timeout_ms": 2_000}
PUBLISH = b'{"topic": "a", "payload": "x"}'


def long_head(counted: int) -> bytes:
    """An unfinished head of which this many bytes are counted."""
    return unfinished(SHORT_BYTES + counted + 1)


class Served:
    """A node whose HTTP listener takes connections."""

    def __init__(self, api: Api, address: str, connections: set[Any]) -> None:
        self.api, self.connections = api, connections
        self._host, _, self._port = address.rpartition(":")

    async def sends(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        writer.write(data)
        return reader, writer

    async def holds(self, size: int) -> None:
        """Waits until the requests that are here have this many counted bytes."""
        async with asyncio.timeout(10):
            while self.api.state.request_bytes != size:
                await asyncio.sleep(0)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    api = Api(limits=LIMITS)
    server = HttpServer(api.state)
    address = server.bind("127.0.0.1:0")
    await server.start()
    assert server._server is not None
    yield Served(api, address, server._server.server_state.connections)
    await server.stop()


async def test_heads_that_are_too_long_together_are_turned_away(served: Served) -> None:
    _, first = await served.sends(long_head(2_048))
    await served.holds(2_048)
    answer, second = await served.sends(long_head(1_025))
    assert (await answer.read()).startswith(b"HTTP/1.1 503 "), "one byte above the limit"
    second.close()
    answer, second = await served.sends(long_head(1_024))
    await served.holds(3_072)
    short, writer = await served.sends(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert (await short.read()).startswith(b"HTTP/1.1 200 "), "a short head is never too much"
    writer.close()
    first.close()
    await served.holds(1_024)
    second.write(END[-1:])
    assert (await answer.readline()).startswith(b"HTTP/1.1 404 ")
    await served.holds(0)
    second.close()
    assert served.api.state.requests_turned_away == 1


@pytest.mark.parametrize("stays", [True, False])
async def test_a_long_head_counts_while_its_request_is_at_work(served: Served, stays: bool) -> None:
    served.api.node.gate.clear()
    lines = b"Host: a\r\nX: %b\r\nContent-Length: %d\r\n\r\n" % (b"x" * SHORT_BYTES, len(PUBLISH))
    head = b"POST /v1/publish HTTP/1.1\r\n" + lines
    fields = len("hostaxcontent-length30")
    target = getsizeof("/v1/publish") + getsizeof(b"/v1/publish") + getsizeof(b"")
    counted = target + fields + len(PUBLISH)
    answer, writer = await served.sends(head + PUBLISH)
    await served.holds(counted)
    if not stays:
        writer.close()
        while served.connections:
            await asyncio.sleep(0)
        assert served.api.state.request_bytes == counted
    served.api.node.gate.set()
    if stays:
        assert (await answer.readline()).startswith(b"HTTP/1.1 200 ")
    await served.holds(0)
    writer.close()


async def test_who_sends_too_much_behind_a_request_at_work_is_disconnected(served: Served) -> None:
    served.api.node.gate.clear()
    head = b"POST /v1/publish HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(PUBLISH)
    answer, writer = await served.sends(head + PUBLISH)
    await served.holds(len(PUBLISH))
    writer.write(long_head(3_072))
    assert await answer.read() == b""
    writer.close()
    served.api.node.gate.set()
    await served.holds(0)


async def test_who_reads_no_responses_keeps_a_long_request_for_a_limited_time(served: Served) -> None:
    (answer, writer), request = (
        await served.sends(b""),
        b"GET /v1/openapi.json?%b HTTP/1.1\r\nHost: a\r\n\r\n",
    )
    answer._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request % b"")
    while not served.connections:
        await asyncio.sleep(0)
    (connection,) = served.connections
    while not connection.flow.write_paused:
        if connection.cycle is None or connection.cycle.response_complete:
            writer.write(request % b"")
        await asyncio.sleep(0)
    writer.write(request % (b"x" * (SHORT_BYTES + 1_000)))
    async with asyncio.timeout(10):
        while served.api.state.request_bytes == 0:
            await asyncio.sleep(0)
    await served.holds(0)
    writer.transport.abort()
