"""Servers as processes: a real redis-server (the oracle) and a HubSub node, both as a `Server`.

Ports come from the operating system; each process is ended by its pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clients.raw import TIMEOUT_S, Connection
from hubsub.testing import Node

T = TypeVar("T")

PAUSE_S = 0.002
PAUSE_S_MAX = 0.02
"""Bounds of the pause between two checks, which is a tenth of the time waited so far. A check costs the node a
request, and often the check waits for that node's processor."""


def until(check: Callable[[], T], what: str = "", pause_s_max: float = PAUSE_S_MAX) -> T:
    """Calls `check` repeatedly until its result is true; returns the result. For changes without a
    notification; `pause_s_max=PAUSE_S` for a state that does not last."""
    began = time.monotonic()
    while not (answer := check()):
        waited_s = time.monotonic() - began
        assert waited_s < TIMEOUT_S, f"never became true: {what or check}"
        select.select([], [], [], min(pause_s_max, max(PAUSE_S, waited_s / 10)))
    return answer


@dataclass(frozen=True)
class Server:
    """A running server; `node` if it is a HubSub node."""

    host: str
    port: int
    pid: int
    node: Node | None = None

    @property
    def kind(self) -> str:
        """Kind of server: `redis` or `hubsub`."""
        return "hubsub" if self.node else "redis"

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://{self.host}:{self.port}"

    def connect(self, resp: int = 2, receive_bytes: int | None = None) -> Connection:
        return Connection(self.host, self.port, resp, receive_bytes)

    def wait_until_alone(self) -> None:
        """Waits until the server has noticed that all its clients are gone; it sends no notification of that."""
        with self.connect() as last:
            until(lambda: bytes(last.ask("CLIENT", "LIST")).count(b" addr=") == 1, "no client but this one")  # type: ignore[call-overload]

    def log_line(self, *parts: str) -> str:
        """Waits for a log line that contains all `parts`."""
        return until(lambda: next(iter(self.log_lines(*parts)), ""), f"a log line with {parts}")

    def log_lines(self, *parts: str) -> list[str]:
        """The lines so far that contain all `parts`."""
        assert self.node
        return [line for line in self.node.log.splitlines() if all(part in line for part in parts)]

    def get(self, path: str) -> bytes:
        """The body of a GET to the HTTP API."""
        assert self.node
        with urllib.request.urlopen(self.node.http_url + path, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read())

    def metric(self, name: str) -> int:
        """A metric of the data plane, summed over the shards."""
        total, seen = 0, False
        for line in self.get("/metrics").decode().splitlines():
            key, _, value = line.rpartition(" ")
            if key.partition("{")[0] == f"hubsub_shard_{name}":
                total, seen = total + int(float(value)), True
        assert seen, f"no metric {name}"
        return total

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the process has gone")

    def descriptors(self) -> int:
        """Open file descriptors of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[Server]:
    """A redis-server that stores nothing. Redis cannot report which port it got, so a free one is requested
    first; if another process takes that port, it tries again."""
    for _ in range(10):
        port = free_port()
        command = f"redis-server --bind 127.0.0.1 --port {port} --appendonly no --save".split()
        with subprocess.Popen([*command, "", *options], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            try:
                if any("Ready to accept" in line for line in process.stdout):
                    yield Server("127.0.0.1", port, process.pid)
                    return
            finally:
                process.terminate()
    raise AssertionError("redis-server found no port")


@contextlib.contextmanager
def redis_cluster(directory: Path) -> Iterator[Server]:
    """A redis-server that is a cluster by itself and has all slots; its cluster map is in the directory."""
    cluster = "--cluster-enabled yes --cluster-announce-ip 127.0.0.1 --dir".split()
    with redis_server(*cluster, str(directory), "--cluster-port", str(free_port())) as server:
        with server.connect() as connection:
            assert connection.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383) == b"OK"
            until(lambda: b"cluster_state:ok" in connection.ask("CLUSTER", "INFO"))  # type: ignore[operator]
        yield server


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def hubsub_node(shards: int = 1, config: dict[str, Any] | None = None, **options: Any) -> Iterator[Server]:
    """A node with the arguments of `hubsub.testing.Node`."""
    with Node(config={"shards": shards, **(config or {})}, **options) as node:
        yield Server(*node.redis, node.pid, node)
