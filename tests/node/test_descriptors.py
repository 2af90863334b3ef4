"""Nodes with a low limit of open files, and clients that use all of them."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from clients.raw import Connection
from clients.servers import Server, until

Start = Callable[..., Server]

SAFE = [{"name": "safe", "match": ["safe:*"], "durability": "durable", "history": {"bytes": "64MiB"}}]
SMALL_FILES = {"log_journal_bytes": "64KiB", "log_segment_bytes": "64KiB", "log_checkpoint_bytes": "64KiB"}


def limited(descriptors: int) -> list[str]:
    """A command that runs a node with a limit of `descriptors` open files."""
    run = f'ulimit -n {descriptors}; exec "$@"'
    return ["sh", "-c", run, "sh", sys.executable, "-m", "hubsub.testing"]


def silent(stack: contextlib.ExitStack, server: Server, count: int) -> None:
    """Opens `count` silent connections to each listener; the kernel also connects those that the node
    refuses."""
    assert server.node
    ready = server.node.ready
    for name in ("redis", "mqtt", "ws", "http"):
        host, _, port = str(ready[name]).rpartition(":")
        for _ in range(count):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))


def publish(client: Connection, first: int, count: int) -> None:
    """Publishes records of 1 KiB into a logged room and awaits each reply."""
    for number in range(first, first + count):
        assert client.ask("PUBLISH", "safe:a", f"{number:06}" + "x" * 1_000) == 0


def test_silent_connections_leave_the_log_its_files(start: Start, tmp_path: Path) -> None:
    listeners = {"data": str(tmp_path / "data"), "mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
    server = start(2, listeners, classes=SAFE, limits=SMALL_FILES, command=limited(256))
    server.log_line("few descriptors", '"descriptors_max": 256')
    with server.connect() as client:
        publish(client, 0, 10)
        with contextlib.ExitStack() as stack:
            silent(stack, server, 150)
            server.log_line("connection refused: the descriptors left are reserved")
            # Creates and reads about ten journals and segments while no one else gets a descriptor.
            publish(client, 10, 600)
            page = client.ask("HUBSUB", "HISTORY", "safe:a", "COUNT", 3)
            assert isinstance(page, list) and len(page) > 0
            assert server.descriptors() < 256
        publish(client, 610, 10)
    until(lambda: server.metric("connections") == 0)
    with server.connect() as late:
        publish(late, 620, 10)
    metrics = server.get("/metrics").decode()
    assert 'hubsub_log_state{state="open"} 1' in metrics
    assert "hubsub_log_opens_failed_total 0" in metrics
    assert "hubsub_descriptors_max 256" in metrics
    assert server.metric("accept_errors_total") == 0
    assert server.metric("connections_refused_total") > 100
    hubs = json.loads(server.get("/v1/hubs"))["hubs"]
    assert sum(hub["committed"] for hub in hubs if hub["class"] == "safe") == 630


def test_each_listener_without_descriptors_tries_again_by_itself(start: Start) -> None:
    shards = 2
    listeners = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
    limits = {"descriptors_reserved": 0}
    server = start(shards, listeners, limits=limits, command=limited(96))
    with server.connect() as client, contextlib.ExitStack() as stack:
        assert client.ask("PING") == b"PONG"
        silent(stack, server, 100)
        # Each shard logs it once a second, so this takes more than one second.
        told = until(lambda: [*server.log_lines("cannot accept connections")][2 * shards - 1 :])
        assert client.ask("PUBLISH", "t", "x") == 0
        assert told
    until(lambda: server.metric("connections") == 0)
    # A listener retries at once, after 0.1, 0.3, 0.7, 1.5 s, and then once a second: 33 times in 30 s.
    assert 0 < server.metric("accept_errors_total") <= shards * 3 * 33
