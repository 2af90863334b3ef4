"""Real stores to hold the coordinators against: the embedded one, etcd and ZooKeeper with three members each, and
one in memory.

Members are processes in directories of their own, on ports that were free; each is ended by its
pid. Faults: `pause` stops them as if the machine hung, `kill` ends them, `cut` is a proxy in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from coordination.proxy import Line, Proxy, Wires
from hubsub.config import parse_duration
from hubsub.coordination import Coordinator, open_url
from hubsub.coordination.embedded import EmbeddedCoordinator
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.errors import CoordinatorError

START_S = 60.0
MEMBERS = 3


class Store(ABC):
    """What a coordinator connects to, with its faults."""

    kind: str
    ttl_s = 1.0
    """The shortest lease that it grants, or a little more."""
    has_breaks = True
    """Whether a watch breaks with its connection; one of a copy of the store stands still instead."""

    @abstractmethod
    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        """A new connection: to all members, or to one alone."""

    @abstractmethod
    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        """A new connection that can be cut."""

    @abstractmethod
    async def pause(self) -> None:
        """Nobody answers, connections stay."""

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def crash(self) -> None:
        """Everybody dies and comes back with what was on disk."""

    def stop(self) -> None:  # noqa: B027, for those that have something to stop
        """Ends it for good."""


class MemoryLine(Line):
    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.coordinator = coordinator

    def cut(self) -> None:
        self.coordinator.cut = True

    async def mend(self) -> None:
        self.coordinator.cut = False


class Memory(Store):
    kind = "memory"

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}

    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        return MemoryCoordinator(self.stores.setdefault(prefix, MemoryStore()))

    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        coordinator = MemoryCoordinator(self.stores.setdefault(prefix, MemoryStore()))
        return coordinator, MemoryLine(coordinator)

    async def pause(self) -> None:
        for store in self.stores.values():
            store.away = True

    async def resume(self) -> None:
        for store in self.stores.values():
            store.away = False

    async def crash(self) -> None:
        await self.pause()
        await self.resume()


class Members(Store):
    """Processes; `commands` are what starts each of them."""

    scheme: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands: list[list[str]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        """For clients."""

    @abstractmethod
    def is_ready(self, member: int) -> bool:
        """Whether it serves, as one of a quorum."""

    @abstractmethod
    def leads(self, member: int) -> bool:
        """Whether the others follow this one."""

    def start(self) -> None:
        for member in range(len(self.commands)):
            self.processes.append(self._run(member))
        for member in range(len(self.commands)):
            self._wait(member)

    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        ports = self.ports if member is None else [self.ports[member]]
        return await open_url(self.url(ports, prefix, timeout))

    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        proxy = await proxies.enter_async_context(Proxy(self.ports[0]))
        return await open_url(self.url([proxy.port], prefix, "1s")), proxy

    def url(self, ports: list[int], prefix: str, timeout: str = "2s", login: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"{self.scheme}://{login}{hosts}/{prefix}?timeout={timeout}"

    async def pause(self) -> None:
        for member in range(len(self.processes)):
            self.pause_one(member)

    def pause_one(self, member: int) -> None:
        """Returns when it stands still: until one of its threads had a processor, the others go on."""
        process = self.processes[member]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    async def resume(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    async def crash(self) -> None:
        for member in range(len(self.commands)):
            self.kill(member)
        for member in range(len(self.commands)):
            self.processes[member] = self._run(member)
        await asyncio.gather(*(asyncio.to_thread(self._wait, member) for member in range(len(self.commands))))

    def kill(self, member: int, sig: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes[member]
        process.send_signal(sig)
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    async def restart(self, member: int) -> None:
        self.processes[member] = self._run(member)
        await asyncio.to_thread(self._wait, member)

    def stop(self) -> None:
        for member in range(len(self.processes)):
            self.kill(member)

    def log(self, member: int) -> str:
        return (self.directory / f"{member}.log").read_text(errors="replace")[-4_000:]

    def _run(self, member: int) -> subprocess.Popen[bytes]:
        with open(self.directory / f"{member}.log", "ab") as log:
            return subprocess.Popen(self.commands[member], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _wait(self, member: int) -> None:
        deadline = time.monotonic() + START_S
        while not self.is_ready(member):
            assert self.processes[member].poll() is None, self.log(member)
            assert time.monotonic() < deadline, self.log(member)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[member].wait(0.02)


class Etcd(Members):
    kind = scheme = "etcd"
    ttl_s = 2.0

    def __init__(self, directory: Path, members: int = MEMBERS, options: str = "", tls: bool = False) -> None:
        super().__init__(directory)
        self.tls = tls
        http = "https" if tls else "http"
        self.ports, peers = free_ports(members), free_ports(members)
        everybody = ",".join(f"m{member}=http://127.0.0.1:{port}" for member, port in enumerate(peers))
        for member, (port, peer) in enumerate(zip(self.ports, peers, strict=True)):
            self.commands.append(
                f"etcd --name m{member} --data-dir {directory}/{member} --initial-cluster {everybody}"
                f" --listen-client-urls {http}://127.0.0.1:{port} --advertise-client-urls {http}://127.0.0.1:{port}"
                f" --listen-peer-urls http://127.0.0.1:{peer} --initial-advertise-peer-urls"
                f" http://127.0.0.1:{peer} --log-level warn --logger zap {options}".split()
            )

    def is_ready(self, member: int) -> bool:
        url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.ports[member]}/health"
        try:
            with urllib.request.urlopen(url, timeout=5, context=unchecked() if self.tls else None) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def leads(self, member: int) -> bool:
        url = f"http://127.0.0.1:{self.ports[member]}/v3/maintenance/status"
        with urllib.request.urlopen(url, b"{}", timeout=5) as answer:
            status = json.load(answer)
        return bool(status["leader"] == status["header"]["member_id"])


class ZooKeeper(Members):
    kind = scheme = "zookeeper"
    ttl_s = 1.5
    tick_ms = 500

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports, quorum, election = free_ports(MEMBERS), free_ports(MEMBERS), free_ports(MEMBERS)
        for member in range(MEMBERS):
            home = directory / str(member)
            home.mkdir()
            (home / "myid").write_text(str(member + 1))
            lines = [
                f"tickTime={self.tick_ms}",
                "initLimit=40",
                "syncLimit=20",
                f"dataDir={home}",
                "clientPortAddress=127.0.0.1",
                f"clientPort={self.ports[member]}",
                "admin.enableServer=false",
                "4lw.commands.whitelist=srvr",
                "maxClientCnxns=0",
                "preAllocSize=1024",
                *(
                    f"server.{other + 1}=127.0.0.1:{quorum[other]}:{election[other]}"
                    for other in range(MEMBERS)
                ),
            ]
            (home / "zoo.cfg").write_text("\n".join(lines))
            self.commands.append(
                "java -Xmx192m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
                " -Dzookeeper.forceSync=yes -cp /usr/share/java/zookeeper.jar"
                f" org.apache.zookeeper.server.quorum.QuorumPeerMain {home}/zoo.cfg".split()
            )

    def is_ready(self, member: int) -> bool:
        return self._mode(member) in ("leader", "follower")

    def leads(self, member: int) -> bool:
        return self._mode(member) == "leader"

    def _mode(self, member: int) -> str:
        """What a member says that it is; empty while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.ports[member]), 5) as connection:
                connection.sendall(b"srvr")
                answer = connection.makefile("rb").read().decode()
        except OSError:
            return ""
        return answer.partition("Mode: ")[2].partition("\n")[0]


class Learner(EmbeddedCoordinator):
    """One that is in the cluster for a test, and does not vote."""

    async def close(self) -> None:
        if not self._closed:
            with contextlib.suppress(CoordinatorError):
                await self.leave((await self.status())["node"])
        await super().close()


class Embedded(Members):
    """The members are processes; who connects is a learner in this one, as each node of a cluster is one of them."""

    kind = "embedded"
    has_breaks = False
    secret = "a secret of tests"

    def __init__(self, directory: Path, members: int = MEMBERS) -> None:
        super().__init__(directory)
        self.members = members
        self.ports = free_ports(members)
        self._numbers = count()
        self._ready: set[int] = set()
        """Processes that said so."""
        first = f"127.0.0.1:{self.ports[0]}"
        for member, port in enumerate(self.ports):
            setup = {
                "directory": str(directory / str(member)),
                "node": f"m{member}",
                "listen": f"127.0.0.1:{port}",
                "join": [first] if member else [],
                "secret": self.secret,
                "voters_max": members,
            }
            self.commands.append(
                [sys.executable, str(Path(__file__).with_name("member.py")), json.dumps(setup)]
            )

    def start(self) -> None:
        for member in range(self.members):
            self.processes.append(self._run(member))
            self._wait(member)
        deadline = time.monotonic() + START_S
        while sum(votes for _, _, votes in self.status(0)["members"].values()) < self.members:
            assert time.monotonic() < deadline, self.status(0)

    def setup(self, timeout: str = "2s", **more: Any) -> dict[str, Any]:
        """Of one more member."""
        number = next(self._numbers)
        return {
            "directory": str(self.directory / f"learner-{number}"),
            "node": f"learner-{number}",
            "listen": "127.0.0.1:0",
            "join": [f"127.0.0.1:{port}" for port in self.ports],
            "secret": self.secret.encode(),
            "request_ms": parse_duration(timeout),
            **more,
        }

    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        return await Learner.open(self.setup(timeout), prefix)

    async def open_behind(self, prefix: str, proxies: contextlib.AsyncExitStack) -> tuple[Coordinator, Line]:
        wires = [await proxies.enter_async_context(Proxy(port)) for port in self.ports]
        detours = {
            f"127.0.0.1:{port}": f"127.0.0.1:{wire.port}"
            for port, wire in zip(self.ports, wires, strict=True)
        }
        return await Learner.open(self.setup("1s", detours=detours), prefix), Wires(wires)

    def status(self, member: int) -> dict[str, Any]:
        process = self.processes[member]
        assert process.stdin and process.stdout
        process.stdin.write(b"\n")
        process.stdin.flush()
        status: dict[str, Any] = json.loads(process.stdout.readline())
        return status

    def is_ready(self, member: int) -> bool:
        process = self.processes[member]
        assert process.stdout
        if process.pid not in self._ready:
            if process.stdout.readline() != b"ready\n":
                return False
            self._ready.add(process.pid)
        return self.status(member)["leader"] is not None

    def leads(self, member: int) -> bool:
        status = self.status(member)
        return bool(status["leader"] == status["node"])

    def _run(self, member: int) -> subprocess.Popen[bytes]:
        with open(self.directory / f"{member}.log", "ab") as log:
            return subprocess.Popen(
                self.commands[member], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago; neither store can say which one it got."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


STORES: dict[str, Callable[[Path], Members]] = {"embedded": Embedded, "etcd": Etcd, "zookeeper": ZooKeeper}
