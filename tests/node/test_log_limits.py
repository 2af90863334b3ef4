"""Each named limit of the log is reached by a test that checks its effect."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.raw import Frame
from clients.servers import Server, until

from node.logged import DURABLE, QUIET, figure, files, history, hubs, manifest, numbers, publish

Start = Callable[..., Server]

NEVER: dict[str, Any] = {"log_checkpoint_ms": "1h", "log_checkpoint_bytes": "1GiB"}
"""No checkpoints except at start and end."""


@pytest.fixture
def begin(start: Start, data: Path) -> Start:
    """Starts a node with one shard, so that each class has one hub, on the data of the previous node, which
    it ends."""
    last: list[Server] = []

    def one(**limits: Any) -> Server:
        if last:
            node = last.pop().node
            assert node and node.stop() == 0
        last.append(start(config={"data": str(data)}, classes=[DURABLE], limits=QUIET | limits))
        return last[0]

    return one


def test_below_its_reserve_the_disk_counts_as_full_and_reads_go_on(begin: Start) -> None:
    full = Frame("-", b"ERR the disk is full or a file cannot be opened, the message was not stored")
    server = begin()
    with server.connect() as connection:
        assert {reply.kind for reply in publish(connection, "chat:a", range(50))} == {":"}

    server = begin(log_reserve_bytes=2**53)
    until(lambda: hubs(server)[0]["state"] == "full")
    with server.connect() as connection:
        assert publish(connection, "chat:a", range(50, 60)) == [full] * 10
        assert publish(connection, "plain", range(3)) == [Frame(":", b"0")] * 3
        assert numbers(connection, "chat:a") == list(range(50))
    ready = json.loads(server.get("/readyz"))
    assert (ready["status"], ready["log"]) == ("ready", "full")
    # The disk already has the previous node's 64 MiB reserve and the 1 MiB for a start.
    assert f"it has {2**33 - 64} MiB free" in ready["reasons"][0]
    assert figure(server, "hubsub_shard_publishes_refused_total") == 10

    server = begin()
    with server.connect() as connection:
        assert {reply.kind for reply in publish(connection, "chat:a", range(50, 60))} == {":"}
        assert numbers(connection, "chat:a") == list(range(60))


def test_a_segment_is_sealed_at_its_length(begin: Start, data: Path) -> None:
    server = begin(log_segment_bytes="64KiB")
    with server.connect() as connection:
        publish(connection, "chat:a", range(1000), 1000)
        until(lambda: hubs(server)[0]["bytes"] >= 1_000_000, "all of it is in segments")
        assert numbers(connection, "chat:a") == list(range(1000))
    (hub,) = hubs(server)
    assert 15 <= hub["segments"] < 25
    sizes = files(data, "hubs/1/*.segment")
    assert len(sizes) == hub["segments"] and max(sizes.values()) < 64 * 1024 + 2_000


def test_a_journal_file_has_its_size_and_the_next_one_follows(begin: Start, data: Path) -> None:
    server = begin(log_journal_bytes="256KiB", log_checkpoint_bytes="256KiB")
    first = min(files(data, "journal/*"))
    with server.connect() as connection:
        for part in range(20):
            publish(connection, "chat:a", range(part * 100, part * 100 + 100), 1000)
        until(lambda: min(files(data, "journal/*")) > first, "the first journal is needed no more")
        assert numbers(connection, "chat:a") == list(range(2000))
    assert server.node and server.node.stop() == 0
    assert set(files(data, "journal/*").values()) == {256 * 1024}


def test_so_many_bytes_make_a_checkpoint(begin: Start) -> None:
    server = begin(**NEVER | {"log_checkpoint_bytes": "64KiB"})
    with server.connect() as connection:
        publish(connection, "chat:a", range(10), 1000)
        assert figure(server, "hubsub_log_checkpoints_total") == 0
        for part in range(10):
            publish(connection, "chat:a", range(70), 1000)
            until(lambda least=part + 1: figure(server, "hubsub_log_checkpoints_total") >= least)
    assert figure(server, "hubsub_log_checkpoints_total") <= 800 * 1100 // (64 * 1024)


def test_so_much_time_makes_a_checkpoint(begin: Start, data: Path) -> None:
    server = begin(**NEVER | {"log_checkpoint_ms": 50})
    with server.connect() as connection:
        for n in range(3):
            publish(connection, "chat:a", range(1))
            until(lambda least=n + 1: figure(server, "hubsub_log_checkpoints_total") >= least)
    assert manifest(data)["hubs"][0]["next"] == 4


def test_memory_keeps_so_many_bytes_and_the_disk_has_the_rest(begin: Start) -> None:
    server = begin()
    with server.connect() as connection:
        publish(connection, "chat:a", range(1000))
        assert numbers(connection, "chat:a") == list(range(1000))
        assert figure(server, "hubsub_log_reads_total") == 0
        until(lambda: server.metric("history_records") == 1000)

    server = begin(log_tail_bytes_max=50_000)
    with server.connect() as connection:
        publish(connection, "chat:a", range(1000, 2000))
        until(lambda: 0 < server.metric("history_bytes") <= 50_000)
        assert numbers(connection, "chat:a") == list(range(2000))
    assert figure(server, "hubsub_log_reads_total") >= 1
    assert figure(server, "hubsub_log_reads_failed_total") == 0


def test_records_leave_memory_when_they_were_there_for_so_long_and_the_disk_has_them(begin: Start) -> None:
    server = begin(log_tail_idle_ms=0)
    with server.connect() as connection:
        publish(connection, "chat:a", range(1000))
        until(lambda: server.metric("history_records") == 1000)

    server = begin(log_tail_idle_ms="2s")
    with server.connect() as connection, server.connect() as subscriber:
        assert subscriber.call("SUBSCRIBE", "chat:a")
        publish(connection, "chat:a", range(1000, 2000))
        until(lambda: server.metric("history_records") == 1000)
        until(lambda: server.metric("history_records") == 0)
        assert server.metric("history_bytes") == 0
        assert numbers(connection, "chat:a") == list(range(2000))
        publish(connection, "chat:a", range(2000, 2010))
        assert numbers(connection, "chat:a") == list(range(2010))
    assert figure(server, "hubsub_log_reads_failed_total") == 0


def test_publishers_wait_while_so_much_waits_for_the_journal(begin: Start) -> None:
    patient = {"pending_per_client_max": 1_000_000}
    server = begin(**patient)
    with server.connect() as connection:
        publish(connection, "chat:a", range(5000), 1000)
    assert server.metric("pauses_total") == 0

    server = begin(log_pending_bytes_max=1_024, **patient)
    with server.connect() as connection:
        sent = 5000

        def has_paused() -> bool:
            nonlocal sent
            replies = publish(connection, "chat:a", range(sent, sent + 1000), 1000)
            assert {reply.kind for reply in replies} == {":"}
            sent += 1000
            return server.metric("pauses_total") >= 1

        until(has_paused)
        assert numbers(connection, "chat:a") == list(range(sent))
        until(lambda: figure(server, "hubsub_log_pending_bytes") == 0)


def test_the_journal_waits_while_so_much_waits_for_the_segments(begin: Start) -> None:
    server = begin(log_unwritten_bytes_max=1_024)
    with server.connect() as connection:
        sent = 0

        def has_waited() -> bool:
            nonlocal sent
            replies = publish(connection, "chat:a", range(sent, sent + 500), 1000)
            assert {reply.kind for reply in replies} == {":"}
            sent += 500
            return figure(server, "hubsub_log_journal_waits_total") >= 1

        until(has_waited)
        assert numbers(connection, "chat:a") == list(range(sent))


def test_so_many_segments_and_indexes_are_open_at_once(begin: Start) -> None:
    cold = {"log_tail_bytes_max": 1_000, "log_segment_bytes": "64KiB", "log_checkpoint_ms": 50}

    def open_files(server: Server) -> int:
        """Number of segments and indexes that the process has open."""
        names = []
        for descriptor in os.listdir(f"/proc/{server.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                names.append(os.readlink(f"/proc/{server.pid}/fd/{descriptor}"))
        own = tuple(
            f"/hubs/{hub}/" for hub in range(2, 8)
        )  # The segments of the writers of the node's own classes.
        kept = [name for name in names if not any(part in name for part in own)]
        return sum(name.endswith((".segment", ".index", ".runs")) for name in kept)

    server = begin(**cold)
    with server.connect() as connection:
        for room in range(20):
            publish(connection, f"chat:{room}", range(100), 1000)
        for room in range(20):
            assert numbers(connection, f"chat:{room}") == list(range(100))
        assert open_files(server) >= 20, "what was read stays open"
    server = begin(log_open_files_max=4, **cold)
    with server.connect() as connection:
        for room in range(20):
            assert len(history(connection, f"chat:{room}")) == 100
            # The writer has its own open: the segment, and those sealed since the last checkpoint.
            assert open_files(server) <= 4 + 2
