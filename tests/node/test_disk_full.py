"""A really full disk: durable publishes are refused with an error code, reads continue, and the node recovers
by itself.

The disk is a tmpfs of 16 MiB in the node's own mount namespace.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.raw import TIMEOUT_S, Connection
from clients.servers import Server, hubsub_node, until

from node.home import CHAT, home
from node.logged import numbers

FULL = b"ERR the disk is full or a file cannot be opened, the message was not stored"
PAYLOAD = b"." * 1000
LIMITS = {
    "log_reserve_bytes": "2MiB",
    "log_journal_bytes": "1MiB",
    "log_segment_bytes": "1MiB",
    "log_checkpoint_bytes": "1MiB",
    "log_tail_bytes_max": "256KiB",
}
MOUNT = 'mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"'


def namespace() -> list[str]:
    """A command that gives a process its own mount namespace."""
    for command in (["unshare", "-Urm"], ["unshare", "-m"]):
        with contextlib.suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
    pytest.skip("needs mount namespaces")


class Disk:
    """The node's disk, accessed from the test."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._filler = Path(f"/proc/{server.pid}/root{directory}/filler")

    def fill(self, leave: int = 0) -> None:
        """Fills the disk up to `leave` free bytes."""
        with open(self._filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 4096):
                pass
        size = max(0, self._filler.stat().st_size - leave)
        with open(self._filler, "r+b") as file:
            file.truncate(size)

    def free(self) -> None:
        """Frees the space that `fill` took."""
        self._filler.unlink()


@pytest.fixture
def server(needs: Callable[..., None], tmp_path: Path) -> Iterator[Server]:
    needs("hubsub-core")
    command = [*namespace(), "sh", "-c", MOUNT, str(tmp_path), sys.executable, "-m", "hubsub.testing"]
    with hubsub_node(
        2, {"data": str(tmp_path / "data")}, classes=[CHAT], limits=LIMITS, command=command
    ) as server:
        yield server


def publish_until_full(connection: Connection, sent: list[int], rooms: int = 8) -> None:
    """Publishes until a refusal. `sent` receives the acknowledged numbers; no other error occurred in
    between."""
    for _ in range(200):
        batch = range(len(sent), len(sent) + 100)
        for n in batch:
            connection.command("PUBLISH", f"chat:{n % rooms}", b"%d " % n + PAYLOAD)
        frames = connection.read_many(100)
        taken = [n for n, frame in zip(batch, frames, strict=True) if frame.kind == ":"]
        assert {frame.value for frame in frames if frame.kind != ":"} <= {FULL}
        sent += taken
        if len(taken) < 100:
            return
    raise AssertionError("20 MB fit into 16 MiB")


def rest(server: Server, room: str) -> tuple[int, str]:
    """Publishes over REST; returns status and code."""
    assert server.node
    body = json.dumps({"topic": room, "payload": "x"}).encode()
    request = urllib.request.Request(
        f"{server.node.http_url}/v1/publish", body, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["code"]


def recovers(connection: Connection) -> None:
    """The node accepts publishes again without intervention."""
    until(lambda: connection.call("PUBLISH", "chat:later", "x").kind == ":", "the log takes records again")


def test_durable_publishes_are_refused_reads_go_on_and_room_mends_it(server: Server, tmp_path: Path) -> None:
    disk = Disk(server, tmp_path)
    with server.connect() as connection, server.connect(3) as subscriber:
        for n in range(2_000):
            connection.command("PUBLISH", f"chat:{n % 8}", b"%d " % n + PAYLOAD)
        assert all(frame.kind == ":" for frame in connection.read_many(2_000))
        subscriber.ask("SUBSCRIBE", "chat:later")
        for _ in range(2):
            disk.fill()
            until(lambda: connection.call("PUBLISH", "chat:0", "-1").value == FULL, "a refusal")
            assert rest(server, "chat:0") == (507, "disk_full")
            assert connection.call("PUBLISH", "plain", "x").kind == ":", "other classes need no disk"
            for room in range(1, 8):
                assert numbers(connection, f"chat:{room}") == list(range(room, 2_000, 8))
            disk.free()
            recovers(connection)
            assert subscriber.read().plain()[:2] == [b"message", b"chat:later"]  # type: ignore[index]
        assert rest(server, "chat:later")[0] == 200
    # The last line may come after its answer.
    until(lambda: len(server.log_lines("log takes records again")) >= 2, "two lines")
    assert len(server.log_lines("log takes records again")) == 2
    assert len(server.log_lines("log refuses records: disk is full")) == 2


def test_a_disk_that_fills_within_a_moment_loses_nothing_and_serves_what_it_has(
    server: Server, tmp_path: Path
) -> None:
    disk = Disk(server, tmp_path)
    disk.fill(leave=8 << 20)
    with server.connect() as connection:
        sent: list[int] = []
        publish_until_full(connection, sent)
        disk.fill()
        assert connection.call("PUBLISH", "chat:0", "-1").value == FULL
        for room in range(8):
            assert numbers(connection, f"chat:{room}") == [n for n in sent if n % 8 == room]
        disk.free()
        recovers(connection)
        for room in range(8):
            assert numbers(connection, f"chat:{room}") == [n for n in sent if n % 8 == room]
    assert not server.log_lines("log has failed")


def test_a_reserve_that_the_disk_does_not_have_refuses_publishes_and_serves_what_is_there(
    needs: Callable[..., None], data: Path
) -> None:
    needs("hubsub-core")
    limits: dict[str, Any] = {}
    with home(data, limits=limits) as one:
        with one.server.connect() as connection:
            assert [connection.call("PUBLISH", "chat:a", n).kind for n in range(10)] == [":"] * 10
        one.stop()
        limits["log_reserve_bytes"] = 1 << 50
        server = one.start()
        with server.connect() as connection:
            until(lambda: connection.call("PUBLISH", "chat:b", "x").value == FULL, "a refusal")
            assert numbers(connection, "chat:a") == list(range(10))
        one.kill()
        limits.clear()
        server = one.start()
        with server.connect() as connection:
            assert connection.call("PUBLISH", "chat:a", 10).kind == ":"
            assert numbers(connection, "chat:a") == list(range(11))
