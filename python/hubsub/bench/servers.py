"""What is measured: a HubSub node, a Redis server, or one that runs already.

A target is started anew for every run, so that no run inherits another's memory.
"""

import json
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from hubsub.bench import BenchError
from hubsub.bench.machine import Cores
from hubsub.bench.pinning import pinned
from hubsub.errors import without_secrets

START_S = 30.0
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """A server that can be measured."""

    address: str
    pid: int | None
    version: str
    build_profile: str
    """`release`, `dist`, `debug`, or empty where a server does not say."""


class Target(Protocol):
    """Something that can be started, measured and stopped."""

    @property
    def name(self) -> str:
        """What to call it in tables."""

    def running(self, cores: Cores, shards: int) -> AbstractContextManager[Running]:
        """The server, on its cores, until the end of the block."""


@dataclass(frozen=True, slots=True)
class HubSubServer:
    """A HubSub node.

    Args:
        command: A program that serves and prints the ready line; default: this Python's `hubsub serve`.
    """

    command: str | None = None
    name: str = "HubSub"

    @contextmanager
    def running(self, cores: Cores, shards: int) -> Iterator[Running]:
        """The node, on its cores, until the end of the block."""
        own = [sys.executable, "-m", "hubsub", "serve", "--redis", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command = shlex.split(self.command) if self.command else own
        with pinned(cores.server):
            process = subprocess.Popen(
                [*command, "--shards", str(shards)],
                stdin=subprocess.PIPE,  # a program that ends with its input stays
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        try:
            address = _ready_address(process, shlex.join(command))
            running = _inspect(address, process.pid)
            if running.build_profile == "debug":
                raise BenchError("the server is a debug build", None, "make build builds a release")
            yield running
        finally:
            _end(process)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A `redis-server` with its defaults, but for persistence, which is off."""

    name: str = "Redis"

    @contextmanager
    def running(self, cores: Cores, shards: int) -> Iterator[Running]:
        """The server, on its cores, until the end of the block; it routes on one thread, whatever `shards` says."""
        program = shutil.which("redis-server")
        if program is None:
            raise BenchError("redis-server is not installed", None, "apt-get install redis-server")
        port = _free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with pinned(cores.server):
            process = subprocess.Popen(
                [program, *options, "--maxclients", "100000"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            _wait_listening(process, port)
            yield _inspect(f"127.0.0.1:{port}", process.pid)
        finally:
            _end(process)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs already and is not stopped; where it runs is not touched.

    Args:
        url: `redis://HOST:PORT`.
        pid: Its process; default: what its INFO says, where that is a process of this machine.
        name: What to call it.
    """

    url: str
    pid: int | None = None
    name: str = "peer"

    @contextmanager
    def running(self, cores: Cores, shards: int) -> Iterator[Running]:
        """The server as it is."""
        yield _inspect(self.address(), self.pid)

    def check(self) -> None:
        """Raises BenchError if it does not answer: better now than after the first run of the other server."""
        info(self.address())

    def address(self) -> str:
        """Its `HOST:PORT`."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port or 6379
        except ValueError:
            parts, host, port = None, None, 0
        if parts is None or parts.scheme != "redis" or host is None:
            shown = without_secrets(self.url)
            raise BenchError("this server cannot be measured", shown, "redis://HOST:PORT, or redis-server")
        return f"{host}:{port}"


def parse_peer(text: str) -> Target:
    """The peer that `--against` names."""
    return RedisServer() if text == "redis-server" else RunningServer(text)


def info(address: str) -> dict[str, str]:
    """What a Redis server says about itself."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), START_S) as connection:
            connection.sendall(b"*1\r\n$4\r\nINFO\r\n")
            stream = connection.makefile("rb")
            head = stream.readline()
            if not head.startswith(b"$"):
                raise BenchError("the server gives no INFO", head.decode(errors="replace").strip())
            text = stream.read(int(head[1:])).decode(errors="replace")
    except OSError as error:
        reason = error.strerror or error
        raise BenchError("the server cannot be reached", f"{address} ({reason})") from error
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _inspect(address: str, pid: int | None) -> Running:
    about = info(address)
    if pid is None and about.get("process_id", "").isdigit() and address.startswith(("127.", "localhost")):
        pid = int(about["process_id"])
    own = about.get("hubsub_version")
    version = f"HubSub {own}" if own else f"Redis {about.get('redis_version', '')}"
    return Running(address, pid, version.strip(), about.get("hubsub_build_profile", ""))


def _ready_address(process: subprocess.Popen[bytes], command: str) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if readable else b""
    try:
        return str(json.loads(line)["redis"])
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError("the server printed no ready line", f"{command} ({line!r})") from error


def _wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.01)
    raise BenchError("the server does not listen", port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
