"""Bad input on the Redis port closes or refuses that one client and affects nothing else."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable, Iterator

import pytest
from clients.raw import TIMEOUT_S, Connection, encode
from clients.servers import Server, hubsub_node, until

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def server(needs: Callable[..., None]) -> Iterator[Server]:
    """A node with two shards."""
    needs("hubsub-core")
    with hubsub_node(2) as server:
        yield server


@pytest.fixture
def witness(server: Server) -> Iterator[Connection]:
    """A client that is served before and after the test."""
    with server.connect() as connection:
        assert connection.ask("PING") == b"PONG"
        yield connection
        assert connection.ask("PING") == b"PONG"


@pytest.fixture
def strange(start: Start) -> Iterator[Server]:
    """A node for one test: the node logs one unauthenticated peer a second, so another test's entry would
    hide this one's. It serves Redis clients before and after."""
    server = start(2)
    with server.connect() as connection:
        assert connection.ask("PING") == b"PONG"
        yield server
        assert connection.ask("PING") == b"PONG"


def logged_once(server: Server, protocol: str, peer: int) -> None:
    """One log line names the protocol of a peer; the peer is identified by its port."""
    server.log_line(protocol, f":{peer}")
    assert len(server.log_lines("another protocol on the Redis port")) == 1


def test_ten_gigabytes_announced_cost_nothing(server: Server, witness: Connection) -> None:
    before, refused = server.resident_bytes(), server.metric("protocol_errors_total")
    for announced in (b"*1\r\n$10737418240\r\n", b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$10737418240\r\n"):
        for _ in range(50):
            with server.connect() as connection:
                connection.send(announced)
                errors = [frame.value for frame in connection.read_to_end()]
                assert errors == [b"ERR Protocol error: invalid bulk length"]
    assert server.metric("protocol_errors_total") - refused == 100
    assert server.resident_bytes() - before < 4 << 20


def test_large_frames_announced_and_never_sent_cost_nothing(server: Server, witness: Connection) -> None:
    before, read = server.resident_bytes(), server.metric("bytes_in_total")
    begun = b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$60000000\r\nbegun"
    connections = [server.connect() for _ in range(200)]
    for connection in connections:
        connection.send(begun)
    until(lambda: server.metric("bytes_in_total") - read >= 200 * len(begun))
    assert server.resident_bytes() - before < 8 << 20
    for connection in connections:
        connection.close()


def test_a_million_arguments_announced_cost_nothing(server: Server, witness: Connection) -> None:
    before, read = server.resident_bytes(), server.metric("bytes_in_total")
    connections = [server.connect() for _ in range(100)]
    for connection in connections:
        connection.send(b"*1000000\r\n$4\r\nPING\r\n")
    until(lambda: server.metric("bytes_in_total") - read >= 100 * 20)
    assert server.resident_bytes() - before < 8 << 20
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_tls_client_gets_a_fatal_alert(strange: Server, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()
    context.minimum_version = context.maximum_version = version
    plain = socket.create_connection((strange.host, strange.port), timeout=TIMEOUT_S)
    peer = plain.getsockname()[1]
    with plain, pytest.raises(ssl.SSLError) as refused:
        context.wrap_socket(plain, server_hostname="localhost")
    assert "alert" in str(refused.value).lower()
    logged_once(strange, "tls", peer)


def test_an_http_client_gets_an_http_answer(strange: Server) -> None:
    with socket.create_connection((strange.host, strange.port), timeout=TIMEOUT_S) as http:
        http.sendall(b"GET /v1/rooms HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: http.recv(4096), b""))
        peer = http.getsockname()[1]
    assert answer.startswith(b"HTTP/1.1 400 ") and b"\r\n\r\n" in answer
    logged_once(strange, "http", peer)


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "OPTIONS"])
def test_no_method_of_http_executes_what_its_body_says(
    server: Server, witness: Connection, method: str
) -> None:
    with server.connect() as subscriber:
        subscriber.ask("SUBSCRIBE", "smuggled")
        with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as http:
            http.sendall(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\nPUBLISH smuggled x\r\n".encode())
            b"".join(iter(lambda: http.recv(4096), b""))
        assert witness.ask("PUBLISH", "smuggled", "end") == 1
        assert subscriber.read().plain() == [b"message", b"smuggled", b"end"]


def test_an_mqtt_client_is_closed(strange: Server) -> None:
    with socket.create_connection((strange.host, strange.port), timeout=TIMEOUT_S) as mqtt:
        mqtt.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test")
        assert mqtt.recv(100) == b""
        peer = mqtt.getsockname()[1]
    logged_once(strange, "mqtt", peer)


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100, bytes(range(256)), b"\xff" * 70_000, b"*" * 70_000, b"$" * 70_000, b"\r\r\r\n"]
)
def test_garbage_hurts_nobody_else(server: Server, witness: Connection, garbage: bytes) -> None:
    with server.connect() as connection:
        connection.send(garbage + b"\r\n")
        connection.socket.shutdown(socket.SHUT_WR)
        connection.read_to_end()


def test_a_command_byte_by_byte_is_understood(server: Server, witness: Connection) -> None:
    connections = [server.connect() for _ in range(20)]
    stream = encode("ECHO", "x" * 40) + b"ECHO 'inline words'\r\n" + encode("PUBLISH", "c", "y")
    for at in range(len(stream)):
        for connection in connections:
            connection.send(stream[at : at + 1])
    for connection in connections:
        assert [f.plain() for f in connection.read_many(3)] == [b"x" * 40, b"inline words", 0]
        connection.close()


def test_who_never_sends_a_whole_command_is_closed_and_who_did_may_stay(start: Start) -> None:
    server = start(limits={"handshake_ms": 300})
    with server.connect() as served, server.connect() as silent, server.connect() as partial:
        assert served.ask("PING") == b"PONG"
        partial.send(b"*2\r\n$4\r\nECHO\r\n$5\r\nab")
        assert silent.read_to_end() == []
        assert partial.read_to_end() == []
        until(lambda: server.metric("handshake_timeouts_total") == 2)
        assert served.ask("PING") == b"PONG"


def test_trickling_bytes_does_not_prolong_the_handshake(start: Start) -> None:
    server = start(limits={"handshake_ms": 300})
    with server.connect() as connection:
        connection.socket.settimeout(0.01)
        connection.send(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n")

        def is_closed() -> bool:
            try:
                connection.send(b"x")
                return connection.socket.recv(10) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(is_closed)
    until(lambda: server.metric("handshake_timeouts_total") == 1)


def test_running_out_of_descriptors_is_survived(start: Start) -> None:
    limited = ["sh", "-c", 'ulimit -n 80; exec "$@"', "sh", sys.executable, "-m", "hubsub"]
    server = start(command=limited, limits={"descriptors_reserved": 0})
    with server.connect() as first:
        assert first.ask("PING") == b"PONG"
        others = [server.connect() for _ in range(200)]
        server.log_line("cannot accept connections")
        assert first.ask("PING") == b"PONG", "who was served is served"
        for other in others:
            other.close()

        def is_served_again() -> bool:
            try:
                with server.connect() as late:
                    return late.ask("PING") == b"PONG"
            except (EOFError, ConnectionError):
                return False

        until(is_served_again)
        assert len(server.log_lines("cannot accept connections")) < 20, "and the log is not flooded"
    assert server.metric("accept_errors_total") >= 1


def test_one_client_too_many_is_told_so(start: Start) -> None:
    server = start(limits={"connections_max": 3})
    three = [server.connect() for _ in range(3)]
    for connection in three:
        assert connection.ask("PING") == b"PONG"
    with server.connect() as fourth:
        assert [f.value for f in fourth.read_to_end()] == [b"ERR max number of clients reached"]
    assert server.metric("connections_refused_total") == 1
    three.pop().close()
    until(lambda: server.metric("connections") == 2)
    with server.connect() as again:
        assert again.ask("PING") == b"PONG"
    for connection in three:
        connection.close()
