"""Bytes that are no valid request, at both HTTP listeners: refused at once, never parsed ambiguously."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator

import pytest
from clients.servers import Server

Start = Callable[..., Server]

HOST = b"Host: localhost\r\n"
POST = b"POST /v1/publish HTTP/1.1\r\n" + HOST
HELLO = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"
"""The beginning of a TLS ClientHello."""
ALERT = b"\x15\x03\x01\x00\x02\x02\x28"

REFUSED = {
    "two lengths": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths, the other order": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "a field in two lines": b"GET /livez HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a field in two lines, by a tab": b"GET /livez HTTP/1.1\r\n" + HOST + b"X: a\r\n\tb\r\n\r\n",
    "no carriage returns": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "one without": b"GET /livez HTTP/1.1\r\nHost: localhost\nX: a\r\n\r\n",
    "version 1.2": b"GET /livez HTTP/1.2\r\n" + HOST + b"\r\n",
    "version 2.0": b"GET /livez HTTP/2.0\r\n" + HOST + b"\r\n",
    "version 0.9": b"GET /livez HTTP/0.9\r\n" + HOST + b"\r\n",
}
OF_BODIES = {
    "a chunk of 17 digits": POST + b"Transfer-Encoding: chunked\r\n\r\n00000000000000001\r\n{\r\n0\r\n\r\n",
    "digits without an end": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 17,
    "a trailer without a carriage return": POST
    + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: a\n\r\n",
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.fixture(scope="module")
def server(needs: Callable[..., None]) -> Iterator[Server]:
    from clients.servers import hubsub_node

    needs("hubsub-core")
    with hubsub_node(1, {"ws": "127.0.0.1:0"}) as one:
        yield one


def answer(server: Server, listener: str, said: bytes) -> bytes:
    """The response until the node closes; bytes after a refused request are never answered."""
    assert server.node
    host, _, port = str(server.node.ready[listener]).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(said)
        came = b""
        while part := connection.recv(4_096):
            came += part
    return came


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("listener", ["http", "ws"])
def test_a_head_that_could_be_read_in_two_ways_is_400_and_the_end(
    server: Server, listener: str, what: str
) -> None:
    # WebSocket upgrades use GET.
    said = (
        REFUSED[what].replace(POST, b"GET /socket/longpoll HTTP/1.1\r\n" + HOST)
        if listener == "ws"
        else REFUSED[what]
    )
    came = answer(server, listener, said)
    assert came.startswith(b"HTTP/1.1 400 ") and came.count(b"HTTP/1.1 ") == 1, came


@pytest.mark.parametrize("what", OF_BODIES)
def test_a_body_whose_end_is_in_doubt_is_400_and_the_end(server: Server, what: str) -> None:
    came = answer(server, "http", OF_BODIES[what])
    assert came.startswith(b"HTTP/1.1 400 ") and came.count(b"HTTP/1.1 ") == 1, came


def test_what_all_read_alike_is_served(server: Server) -> None:
    body = b'{"topic": "a",\n "payload": "x"}'
    chunked = b"%016x\r\n%b\r\n0\r\nX: a\r\n\r\n" % (len(body), body)
    requests = (
        POST + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
        b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /livez HTTP/1.0\r\n\r\n",
    )
    came = answer(server, "http", b"".join(requests))
    assert came.count(b"HTTP/1.1 200 ") == len(requests), came


@pytest.mark.parametrize("listener", ["http", "ws"])
def test_tls_gets_an_alert_at_once(server: Server, listener: str) -> None:
    assert server.node
    assert answer(server, listener, HELLO) == ALERT
    assert answer(server, listener, HELLO[:1]) == ALERT
    host, _, port = str(server.node.ready[listener]).rpartition(":")
    context = ssl.create_default_context()
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)alert handshake failure"),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    if listener == "ws":
        server.log_line("another protocol on the WebSocket port", '"protocol": "tls"')
