"""Clients connect and disconnect: nothing leaks, other clients are not disturbed, dead peers are detected."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S, encode
from clients.servers import Server, until

from node.crowd import Member

Start = Callable[..., Server]

CONNECTS = 10_000
AT_ONCE = 250
GAUGES = ["connections", "output_bytes", "mailbox_bytes", "rooms", "patterns", "cursors", "stalled"]


def gauges(server: Server) -> dict[str, int]:
    """Gauges that must return to their old values after all clients have left."""
    return {name: server.metric(name) for name in GAUGES}


@pytest.mark.parametrize("shards", [1, 2])
def test_ten_thousand_connects_and_disconnects_leak_nothing(start: Start, shards: int) -> None:
    server = start(shards)

    async def visit(n: int) -> None:
        member = await Member.join(server.host, server.port)
        topics = [f"topic-{n % 700}", f"other-{n}"]
        await member.call("SUBSCRIBE", *topics)
        if n % 3 == 0:
            await member.call("PSUBSCRIBE", f"top*-{n % 50}")
        await member.call("PUBLISH", topics[0], b"x" * (n % 1000))
        if n % 2:
            member.transport.write(encode("PING")[: n % 14])
            member.transport.abort()
        else:
            member.leave()

    async def crowd(count: int) -> None:
        async with asyncio.timeout(4 * TIMEOUT_S):
            for first in range(0, count, AT_ONCE):
                await asyncio.gather(*(visit(n) for n in range(first, first + AT_ONCE)))

    # The first clients grow tables and pools to their final size.
    asyncio.run(crowd(CONNECTS // 5))
    until(lambda: server.metric("connections") == 0)
    before, descriptors, resident = gauges(server), server.descriptors(), server.resident_bytes()
    asyncio.run(crowd(CONNECTS))
    until(lambda: gauges(server) == before, "gauges as before")
    until(lambda: server.descriptors() <= descriptors, "descriptors as before")
    assert server.metric("connections_accepted_total") == CONNECTS * 6 // 5
    assert server.resident_bytes() - resident < 16 << 20
    with server.connect() as connection:
        info = connection.ask("INFO", "clients")
        assert isinstance(info, bytes) and b"connected_clients:1\r\n" in info
        assert connection.ask("PUBSUB", "CHANNELS") == []
        assert connection.ask("PUBSUB", "NUMPAT") == 0


def test_a_peer_that_closes_its_sending_side_still_gets_its_replies(start: Start) -> None:
    with start().connect() as connection:
        connection.send(encode("PING") + encode("ECHO", "x"))
        connection.socket.shutdown(socket.SHUT_WR)
        assert [frame.plain() for frame in connection.read_to_end()] == [b"PONG", b"x"]


def test_a_reset_peer_is_no_receiver_any_more(start: Start) -> None:
    server = start(2)
    with server.connect() as other:
        for _ in range(20):
            peer = server.connect()
            peer.ask("SUBSCRIBE", "c")
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
        until(lambda: other.ask("PUBSUB", "NUMSUB", "c") == [b"c", 0])
        assert other.ask("PUBLISH", "c", "x") == 0


def keepalive_timer(port: int, peer_port: int) -> str:
    """Kind of the kernel's timer for the server's side of a connection; 02 is keepalive."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if int(local.partition(":")[2], 16) == port and int(remote.partition(":")[2], 16) == peer_port:
            return timer.partition(":")[0]
    raise AssertionError("no such connection")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp")
@pytest.mark.parametrize(("probe_ms", "timer"), [(60_000, "02"), (0, "00")])
def test_a_silent_peer_is_probed_by_keepalive(start: Start, probe_ms: int, timer: str) -> None:
    server = start(limits={"tcp_keepalive_ms": probe_ms})
    with server.connect() as connection:
        assert connection.ask("PING") == b"PONG"
        own = connection.socket.getsockname()[1]
        # Right after an exchange the kernel may still run its acknowledgement timer.
        until(lambda: keepalive_timer(server.port, own) == timer)


def test_graceful_stop_answers_what_was_asked_and_delivers_what_was_published(start: Start) -> None:
    server = start(2, classes=[{"name": "slow", "match": ["slow:*"], "commit_delay_ms": 300}])
    with server.connect() as subscriber, server.connect() as publisher:
        subscriber.ask("SUBSCRIBE", "slow:a")
        commands = [encode("PUBLISH", "slow:a", i) for i in range(20)]
        publisher.send(b"".join(commands) + encode("PING"))
        until(lambda: server.metric("commands_total") >= 22, "the node has read them")
        assert server.node
        server.node.process.terminate()
        assert [frame.plain() for frame in publisher.read_to_end()] == [1] * 20 + [b"PONG"]
        messages = [frame.plain() for frame in subscriber.read_to_end()]
        assert messages == [[b"message", b"slow:a", b"%d" % i] for i in range(20)]
        assert server.node.process.wait(TIMEOUT_S) == 0


def test_graceful_stop_lets_a_long_output_drain(start: Start) -> None:
    server = start()
    payload = b"x" * 100_000
    with server.connect(receive_bytes=4096) as subscriber, server.connect() as publisher:
        subscriber.ask("SUBSCRIBE", "c")
        assert publisher.ask("PUBLISH", "c", payload) == 1
        for _ in range(99):
            publisher.ask("PUBLISH", "c", payload)
        assert server.node
        server.node.process.terminate()
        assert len(subscriber.read_to_end()) == 100
        assert server.node.process.wait(TIMEOUT_S) == 0
