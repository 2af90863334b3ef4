"""Notifications to the service manager, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import HUBSUB, environment

from hubsub.cli.sdnotify import Notifier


@pytest.fixture(params=["path", "abstract"] if sys.platform == "linux" else ["path"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket like systemd's, and its name for NOTIFY_SOCKET."""
    if request.param == "path":
        bound, name = str(tmp_path / "notify"), str(tmp_path / "notify")
    else:
        name = f"@hubsub-test-{os.getpid()}-{id(request)}"
        bound = "\0" + name[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(bound)
        listening.settimeout(60)
        yield listening, name


def lines(listening: socket.socket) -> dict[str, str]:
    """The next message as a mapping."""
    return dict(line.split("=", 1) for line in listening.recv(65_536).decode().split("\n"))


def test_each_message_comes_whole_and_in_one_datagram(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    assert notifier.ready("serves\nit all") and lines(listening) == {"READY": "1", "STATUS": "serves it all"}
    assert notifier.status("waits") and lines(listening) == {"STATUS": "waits"}
    assert notifier.watchdog() and lines(listening) == {"WATCHDOG": "1"}
    assert notifier.stopping("drains") and lines(listening) == {"STOPPING": "1", "STATUS": "drains"}
    assert notifier.reloading()
    told = lines(listening)
    assert told["RELOADING"] == "1" and abs(int(told["MONOTONIC_USEC"]) / 1e6 - time.monotonic()) < 60


def test_without_a_service_manager_nothing_is_sent() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000000"})
    assert not notifier.ready("serves") and notifier.watchdog_s is None


@pytest.mark.parametrize("name", ["/nowhere/notify", "relative", "vsock:2:1"])
def test_a_service_manager_that_is_not_there_stops_nobody_and_is_told_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": name})
    assert not notifier.ready("serves") and not notifier.watchdog()
    out = capsys.readouterr()
    assert (out.out + out.err).count("service manager") == 1


def test_a_full_queue_of_the_service_manager_holds_nobody_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        sent = 0
        while sent < 100_000 and notifier.watchdog():
            sent += 1
        assert sent < 100_000, "the queue of a socket has an end"
        listening.recv(64)
        assert notifier.watchdog(), "the next message passes when there is room"


@pytest.mark.parametrize(
    ("variables", "watches_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_only_where_it_watches_this_process(
    variables: dict[str, str], watches_s: float | None
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/n", **variables}).watchdog_s == watches_s


@pytest.mark.needs("hubsub-core")
def test_a_node_tells_when_it_is_ready_reloads_and_stops(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    command = [*HUBSUB, "serve", "--redis", ":0", "--http", ":0", "--shards", "1"]
    env = environment(NOTIFY_SOCKET=name, WATCHDOG_USEC="3000")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        try:
            assert process.stdout
            assert lines(listening) == {"STATUS": "opens what it keeps"}
            assert process.stdout.readline().startswith(b'{"event":"ready"')
            told = lines(listening)
            assert told["READY"] == "1" and told["STATUS"].startswith("serves redis 127.0.0.1:")
            assert lines(listening) == lines(listening) == {"WATCHDOG": "1"}
            process.send_signal(signal.SIGHUP)
            assert next_but_the_watchdog(listening)["RELOADING"] == "1"
            assert next_but_the_watchdog(listening) == told
            process.send_signal(signal.SIGTERM)
            assert next_but_the_watchdog(listening)["STOPPING"] == "1"
            assert process.wait(60) == 0
        finally:
            process.kill()


def next_but_the_watchdog(listening: socket.socket) -> dict[str, str]:
    for _ in range(100_000):
        if "WATCHDOG" not in (told := lines(listening)):
            return told
    raise AssertionError("nothing but the watchdog")
