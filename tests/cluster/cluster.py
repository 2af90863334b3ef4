"""Several nodes of one cluster, as processes on loopback: starts, queries and kills them, and restarts them
on the same addresses.

The founder is started alone, the others together. Data, and the logs of all runs of a node, are in a
directory of the test; each process is ended by its pid.
"""

from __future__ import annotations

import json
import select
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from clients.raw import TIMEOUT_S, Connection
from clients.servers import until

from hubsub.errors import StartError
from hubsub.testing import Node
from hubsub.testing.rest import hubs_away

SECRET = "a secret of the tests"
NAMES = ("a", "b", "c")

CHAT = {
    "name": "chat",
    "match": ["chat:*", "irc:*"],
    "placement": "ring",
    "history": {"messages": 100_000},
}
LOGGED = {
    "name": "logged",
    "match": ["log:*"],
    "placement": "ring",
    "durability": "durable",
    "history": {"bytes": "64MiB"},
}
BUSY = {"name": "busy", "match": ["busy:*"], "history": {"messages": 100}}
"""A class whose rooms are placed individually."""
DEFAULT = {"name": "default", "placement": "ring"}
CLASSES = (CHAT, LOGGED, BUSY, DEFAULT)

DEALT = {row["name"] for row in (CHAT, BUSY, DEFAULT)}
"""Classes without a log: their hubs move as nodes join and leave."""

SMALL_LOG = {"log_journal_bytes": "4MiB", "log_reserve_bytes": "4MiB"}
"""Reduces the disk space of a log besides its records: tens of nodes run at once."""

SETTLING_S = 0.05
"""Pause between two looks at a cluster that settles: a node renders all its hubs for each."""

LISTENERS = ("redis", "redis_cluster", "http", "link", "raft")


class Cluster:
    """The nodes of a cluster, by name.

    Args:
        directory: For data.
        coordinator: URL; None: the embedded one, whose founder is the first node.
        names: Node names, founder first.
        classes, limits, config: Of all nodes. Load samples are off unless `limits` sets them: the first
            sample, after some seconds, would pin its hub to its current leader for good, also when that node
            leaves.
        each: Additional config per node, by name.
    """

    def __init__(
        self,
        directory: Path,
        coordinator: str | None = None,
        names: Sequence[str] = NAMES,
        classes: Sequence[Mapping[str, Any]] = CLASSES,
        limits: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        each: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.directory, self.coordinator, self.names = directory, coordinator, tuple(names)
        self.classes, self.config = classes, dict(config or {})
        self.limits: Mapping[str, Any] = {"load_sample_ms": 0} | SMALL_LOG | dict(limits or {})
        self.each = each or {}
        self.nodes: dict[str, Node] = {}
        """The running nodes, by name."""
        self.addresses: dict[str, dict[str, str]] = {}
        """Addresses of all nodes that ever ran: a restarted node reuses its own."""
        self._logs: list[tuple[str, str]] = []
        """Names and logs of runs that have ended."""

    def within(self, name: str) -> AbstractContextManager[None]:
        """Context in which a node is started and queried: here, this process's own network."""
        return nullcontext()

    # -- life --

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Kill all at once: without a majority no node could take over.
        for node in self.nodes.values():
            with suppress(ProcessLookupError):
                node.process.send_signal(signal.SIGKILL)
        for name in list(self.nodes):
            self.kill(name)

    def start_all(self) -> None:
        """Starts the founder, then the others together; returns when all serve and the cluster has
        settled."""
        self.start(self.names[0])
        with ThreadPoolExecutor() as threads:
            list(threads.map(self.start, self.names[1:]))
        self.settled()

    def start(self, name: str, **config: Any) -> Node:
        """Starts a node, on its previous addresses if it had some; returns when it serves.

        Raises:
            StartError: with its log.
        """
        with self.within(name):
            node = Node(classes=self.classes, limits=self.limits, config=self.config_of(name) | config)
        self.nodes[name] = node
        self.addresses[name] = {key: node.ready[key] for key in LISTENERS if node.ready.get(key)}
        return node

    def refused(self, name: str, **config: Any) -> str:
        """The error of a node that must not start."""
        try:
            with Node(classes=self.classes, limits=self.limits, config=self.config_of(name) | config):
                raise AssertionError("it started")
        except StartError as error:
            return str(error)

    def config_of(self, name: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "node": name,
            "shards": 2,
            "data": str(self.directory / name),
            "cluster_secret": SECRET,
            "log_level": "debug",
            **dict.fromkeys(("redis", "redis_cluster", "http", "link"), "127.0.0.1:0"),
        }
        if self.coordinator is not None:
            config["coordinator"] = self.coordinator
        else:
            config["raft"] = "127.0.0.1:0"
            others = [row["raft"] for other, row in self.addresses.items() if other != name]
            if others:
                config["join"] = others
        return config | self.addresses.get(name, {}) | self.config | self.each.get(name, {})

    def kill(self, name: str) -> None:
        """Sends SIGKILL, and waits until the process has ended."""
        self._end(name, signal.SIGKILL)

    def stop(self, name: str) -> int:
        """Stops a node with SIGTERM, as a service manager does; returns the exit code."""
        return self._end(name, signal.SIGTERM)

    def _end(self, name: str, sig: int) -> int:
        node = self.nodes.pop(name)
        code = node.stop(sig)
        self._logs.append((name, node.log))
        return code

    def report(self) -> str:
        """The logs of all runs, for diagnosing a failed test."""
        lives = [*self._logs, *((name, node.log) for name, node in self.nodes.items())]
        return "\n".join(f"-- {name} --\n{log[-12_000:]}" for name, log in lives)

    # -- questions --

    def get(self, name: str, path: str) -> tuple[int, dict[str, Any]]:
        """Sends a GET to a node's API; returns status and JSON."""
        return self._ask("GET", name, path)

    def post(self, name: str, path: str) -> tuple[int, dict[str, Any]]:
        """Sends a POST to a node's API; returns status and JSON."""
        return self._ask("POST", name, path)

    def _ask(self, method: str, name: str, path: str) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(self.nodes[name].http_url + path, method=method)
        try:
            with self.within(name), urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def status(self, name: str) -> dict[str, Any]:
        """The cluster status, as a node sees it."""
        code, status = self.get(name, "/v1/cluster")
        assert code == 200, status
        return status

    def connect(self, name: str, resp: int = 3) -> Connection:
        """Connects a Redis client to a node."""
        with self.within(name):
            return Connection(*self.nodes[name].redis, resp)

    def settled(self) -> None:
        """Waits until all running nodes see a settled cluster: all of them up, a controller, each hub at its
        final place and led by one of them, and no problem reported. Hubs move a few at a time: each one that
        arrives restarts the timeout."""
        least, deadline = inf, time.monotonic() + TIMEOUT_S
        while troubles := {name: trouble for name in self.nodes if (trouble := self._trouble(name))}:
            left = sum(count for count, _ in troubles.values())
            if left < least:
                least, deadline = left, time.monotonic() + TIMEOUT_S
            assert time.monotonic() < deadline, f"the cluster is not settled: {troubles}"
            select.select([], [], [], SETTLING_S)

    def _trouble(self, name: str) -> tuple[float, object] | None:
        """Why a node does not see a settled cluster, and for how many hubs; None: it does."""
        running = set(self.nodes)
        code, seen = self.get(name, "/v1/cluster")
        if code != 200:
            return inf, seen
        up = {node["name"] for node in seen["nodes"] if node["state"] == "up"}
        holders = {node["name"] for node in seen["nodes"] if "hub" in node["roles"]}
        if up != running or seen["controller"] not in holders or seen["wrong"]:
            return inf, [sorted(up), seen["controller"], seen["wrong"]]
        bad = [hub for hub in seen["hubs"] if hub["leader"] not in holders or hub["proposed"]]
        # During a change of the voters a majority of the previous ones is needed, too.
        counted = seen["voters"]
        is_counted = set(counted["nodes"]) == running and not counted["before"]
        away = [*bad, *hubs_away(seen, running, DEALT)]
        if away:
            return len(away), away[:3]
        return None if is_counted else (0, counted)

    def leaders(self, name: str | None = None, room_class: str = "chat") -> list[str]:
        """Leaders of the hubs of a class, by index, as a node sees them."""
        rows = [
            row for row in self.status(name or next(iter(self.nodes)))["hubs"] if row["class"] == room_class
        ]
        return [row["leader"] for row in sorted(rows, key=lambda row: row["index"])]

    def leader_of(self, room: str, by: str | None = None) -> str:
        """The leader of a room, as a node sees it; creates the room if needed. Waits, because a log may have
        to open first."""
        path = f"/v1/rooms/{quote(room, safe='')}"

        def answer() -> Any:
            code, found = self.post(by or next(iter(self.nodes)), path)
            if code != 200:
                assert found["code"] == "hub_closed", found
            return found if code == 200 else None

        return str(until(answer)["nodes"][0]["name"])

    def room_led_by(self, leader: str, prefix: str = "chat:") -> str:
        """A room whose hub this node leads."""
        rooms = (f"{prefix}{leader}{number}" for number in range(1_000))
        return next(room for room in rooms if self.leader_of(room) == leader)
