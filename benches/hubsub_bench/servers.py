"""Servers to measure: a HubSub node, a Redis server, or one that already runs.

A target is started again for every run, so that no run inherits another's memory.
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
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from hubsub.errors import without_secrets
from hubsub_bench import BenchError
from hubsub_bench.machine import Cores
from hubsub_bench.pinning import pinned

LISTENERS = ("http", "mqtt", "ws")
START_S = 30.0
STOP_S = 30.0
STORE_START_S = 600.0
"""A server first reads its log again."""
STORE_STOP_S = 120.0


@dataclass(frozen=True, slots=True)
class Store:
    """Persistence of a server.

    Args:
        directory: Created for this run; data of an earlier server of the run is reused.
        history_bytes: History of HubSub's class of all rooms.
        durability: Durability of that class.
        classes: Number of HubSub's classes instead of that one; each has a hub on each shard.
        rooms: The generator's rooms, distributed over the classes, if there are several.
    """

    directory: Path
    history_bytes: int = 64 << 30
    durability: str = "durable"
    classes: int = 1
    rooms: int = 0

    def write_config(self) -> Path:
        path = self.directory / "hubsub.toml"
        classes = [f'name = "all"\n{self._policy}']
        if self.classes > 1:
            dealt = [range(first, self.rooms, self.classes) for first in range(self.classes)]
            classes = [
                f'name = "part-{number}"\nmatch = {[f"room:{room:08}" for room in rooms]}\n{self._policy}'
                for number, rooms in enumerate(dealt)
            ]
        path.write_text("\n".join(f"[[class]]\n{text}" for text in classes), encoding="utf-8")
        return path

    @property
    def _policy(self) -> str:
        return f'durability = "{self.durability}"\nhistory = {{ bytes = {self.history_bytes} }}\n'


@dataclass(frozen=True, slots=True)
class Running:
    address: str
    pid: int | None
    version: str
    build_profile: str
    """`release`, `dist`, `debug`, or empty if unknown."""
    http: str | None = None
    """Address of its metrics."""
    start_s: float | None = None
    """Seconds from its start until it served."""
    mqtt: str | None = None
    """Address for MQTT clients."""
    ws: str | None = None
    """Address for WebSocket clients."""

    @property
    def verb(self) -> str:
        """The generator's command for its log: Redis has no durable PUBLISH."""
        return "xadd" if self.version.startswith("Redis") else "publish"


class Target(Protocol):
    """A server that can be started, measured and stopped."""

    @property
    def name(self) -> str:
        """Name shown in tables."""

    @property
    def protocols(self) -> frozenset[str]:
        """Protocols that the generator may use: `redis`, `mqtt`, `phoenix`."""

    def running(
        self, cores: Cores, shards: int, store: Store | None = None
    ) -> AbstractContextManager[Running]:
        """Runs the server on its cores until the end of the block; with a store it logs records.

        Args:
            cores: Cores of server and generator.
            shards: Shards of the server.
            store: Its persistence; None: none.
        """


@dataclass(frozen=True, slots=True)
class HubSubServer:
    """A HubSub node as a target.

    Args:
        command: A program that serves and prints the ready line; default: this Python's `hubsub serve`.
    """

    command: str | None = None
    name: str = "HubSub"
    protocols: frozenset[str] = frozenset({"redis", "mqtt", "phoenix"})

    @contextmanager
    def running(self, cores: Cores, shards: int, store: Store | None = None) -> Iterator[Running]:
        """Runs the node on its cores until the end of the block; see `Target.running`."""
        own = [sys.executable, "-m", "hubsub", "serve"]
        own += ["--redis", "127.0.0.1:0", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"]
        own += ["--ws", "127.0.0.1:0"]
        command = shlex.split(self.command) if self.command else own
        if store is not None:
            command += ["--config", str(store.write_config()), "--data", str(store.directory / "data")]
        started = time.monotonic()
        with pinned(cores.server):
            process = subprocess.Popen(
                [*command, "--shards", str(shards)],
                stdin=subprocess.PIPE,  # a program that ends with its input stays
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        try:
            ready = _ready(process, shlex.join(command), START_S if store is None else STORE_START_S)
            start_s = time.monotonic() - started
            running = _inspect(str(ready["redis"]), process.pid)
            if running.build_profile == "debug":
                raise BenchError("the server is a debug build", None, "make build builds a release")
            note_build(running.build_profile)
            http, mqtt, ws = (str(where) if (where := ready.get(name)) else None for name in LISTENERS)
            yield replace(running, http=http, start_s=start_s, mqtt=mqtt, ws=ws)
        finally:
            end_process(process, STOP_S if store is None else STORE_STOP_S)


@cache
def note_build(profile: str) -> None:
    """Prints a note on standard error, once, if a server is not the build of the wheels."""
    if profile != "dist":
        print(
            f"note: the server is a `{profile}` build, as `make build` installs it: without link-time optimisation; "
            "`make bench` measures the build of the wheels",
            file=sys.stderr,
        )


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A `redis-server` with its defaults, without persistence, or with a log synced before each reply."""

    name: str = "Redis"
    protocols: frozenset[str] = frozenset({"redis"})

    @contextmanager
    def running(self, cores: Cores, shards: int, store: Store | None = None) -> Iterator[Running]:
        """Runs the server until the end of the block; see `Target.running`. It routes on one thread."""
        program = shutil.which("redis-server")
        if program is None:
            raise BenchError("redis-server is not installed", None, "apt-get install redis-server")
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        options += ["--appendonly", "no"] if store is None else _synced_options(store)
        with listening([program, *options, "--maxclients", "100000"], port, cores) as pid:
            yield _inspect(f"127.0.0.1:{port}", pid)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that already runs and is not stopped; its cores are not changed.

    Args:
        url: `redis://HOST:PORT`.
        pid: Its process; default: from its INFO, if that is a process of this machine.
        name: Name in tables.
    """

    url: str
    pid: int | None = None
    name: str = "peer"
    protocols: frozenset[str] = frozenset({"redis"})

    @contextmanager
    def running(self, cores: Cores, shards: int, store: Store | None = None) -> Iterator[Running]:
        yield _inspect(self.address(), self.pid)

    def check(self) -> None:
        """Raises BenchError if it does not answer; called before the other server's first run."""
        info(self.address())

    def address(self) -> str:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port or 6379
        except ValueError:
            parts, host, port = None, None, 0
        if parts is None or parts.scheme != "redis" or host is None:
            shown = without_secrets(self.url)
            hint = "redis://HOST:PORT, mqtt://HOST:PORT, redis-server, or mosquitto"
            raise BenchError("this server cannot be measured", shown, hint)
        return f"{host}:{port}"


def info(address: str) -> dict[str, str]:
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


def _synced_options(store: Store) -> list[str]:
    # A rewrite of its log in the measured window would only make it slower.
    synced = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
    return [*synced, "--dir", str(store.directory)]


def _ready(process: subprocess.Popen[bytes], command: str, limit_s: float) -> Mapping[str, object]:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], limit_s)
    line = process.stdout.readline() if readable else b""
    try:
        ready: dict[str, object] = json.loads(line)
        ready["redis"]
        return ready
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError("the server printed no ready line", f"{command} ({line!r})") from error


@contextmanager
def listening(command: list[str], port: int, cores: Cores) -> Iterator[int]:
    """Runs a server on its cores until the end of the block; yields its process id when it listens on the port."""
    with pinned(cores.server):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_listening(process, port)
        yield process.pid
    finally:
        end_process(process)


def wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.01)
    raise BenchError("the server does not listen", port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_process(process: subprocess.Popen[bytes], limit_s: float = STOP_S) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
