"""Coordinator servers as processes for tests and benchmarks: members of the embedded one, etcd and ZooKeeper,
three of each.

Each has a directory of its own and free ports, and is ended by its own pid. Etcd and ZooKeeper are Debian's
packages.
"""

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
from pathlib import Path
from typing import Any, Self

from hubsub.config import parse_duration
from hubsub.coordination import Coordinator, open_url
from hubsub.coordination.embedded import EmbeddedCoordinator
from hubsub.errors import CoordinatorError, StartError

START_S = 60.0
MEMBERS = 3


class Members(ABC):
    """Processes of a store; `commands` starts each of them."""

    kind: str
    scheme: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands: list[list[str]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        """Client port of each process."""

    @abstractmethod
    def is_ready(self, member: int) -> bool:
        """Whether it serves, as one of a quorum."""

    @abstractmethod
    def leads(self, member: int) -> bool:
        """Whether it is the leader."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts all, and waits until they serve.

        Raises:
            StartError: one ends, or is not ready in time; with its log.
        """
        for member in range(len(self.commands)):
            self.processes.append(self._run(member))
        for member in range(len(self.commands)):
            self._wait(member)

    async def open(self, prefix: str, *, member: int | None = None, timeout: str = "2s") -> Coordinator:
        """Connects to the store.

        Args:
            prefix: Directory in front of all keys.
            member: Only this server; None: all.
            timeout: Time limit of a request.
        """
        ports = self.ports if member is None else [self.ports[member]]
        return await open_url(self.url(ports, prefix, timeout))

    def url(self, ports: list[int], prefix: str, timeout: str = "2s", login: str = "") -> str:
        """URL of the store for these ports, with the options of `hubsub.coordination.location`.

        Args:
            ports: Ports of the servers.
            prefix: Directory in front of all keys.
            timeout: Time limit of a request.
            login: Empty, or `USER:PASSWORD@`.
        """
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"{self.scheme}://{login}{hosts}/{prefix}?timeout={timeout}"

    def pause_one(self, member: int) -> None:
        """Returns once the process has stopped: its threads run until each has had a processor."""
        process = self.processes[member]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self, member: int, sig: signal.Signals = signal.SIGKILL) -> None:
        self.processes[member].send_signal(sig)
        self.processes[member].wait()

    async def restart(self, member: int) -> None:
        self.processes[member] = self._run(member)
        await asyncio.to_thread(self._wait, member)

    def stop(self) -> None:
        """Ends all processes for good."""
        for process in self.processes:
            process.kill()
            process.wait()

    def log(self, member: int) -> str:
        return (self.directory / f"{member}.log").read_text(errors="replace")[-4_000:]

    def _run(self, member: int) -> subprocess.Popen[bytes]:
        with open(self.directory / f"{member}.log", "ab") as log:
            try:
                return subprocess.Popen(
                    self.commands[member], stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            except OSError as error:
                raise StartError(
                    f"the program of {self.kind} cannot be run ({error.strerror})", self.commands[member][0]
                ) from None

    def _wait(self, member: int) -> None:
        deadline = time.monotonic() + START_S
        while not self.is_ready(member):
            if self.processes[member].poll() is not None or time.monotonic() > deadline:
                raise StartError(f"a member of {self.kind} does not serve", self.log(member))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[member].wait(0.02)


class Etcd(Members):
    kind = scheme = "etcd"

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
    tick_ms = 500

    def __init__(self, directory: Path, heap: str = "192m") -> None:
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
                f"java -Xmx{heap} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
                " -Dzookeeper.forceSync=yes -cp /usr/share/java/zookeeper.jar"
                f" org.apache.zookeeper.server.quorum.QuorumPeerMain {home}/zoo.cfg".split()
            )

    def is_ready(self, member: int) -> bool:
        return self._mode(member) in ("leader", "follower")

    def leads(self, member: int) -> bool:
        return self._mode(member) == "leader"

    def _mode(self, member: int) -> str:
        """The mode that a member reports; empty while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.ports[member]), 5) as connection:
                connection.sendall(b"srvr")
                answer = connection.makefile("rb").read().decode()
        except OSError:
            return ""
        return answer.partition("Mode: ")[2].partition("\n")[0]


class Learner(EmbeddedCoordinator):
    """A learner that joins the cluster for one test."""

    async def close(self) -> None:
        if not self._closed:
            with contextlib.suppress(CoordinatorError):
                await self.leave((await self.status())["node"])
        await super().close()


class Embedded(Members):
    """The members are processes; each connection is a learner in this process, as nodes of a cluster are members."""

    kind = scheme = "embedded"
    secret = "a secret of tests"

    def __init__(self, directory: Path, members: int = MEMBERS) -> None:
        super().__init__(directory)
        self.members = members
        self.ports = free_ports(members)
        self._numbers = 0
        self._ready: set[int] = set()
        """Processes that have printed `ready`."""
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
            self.commands.append([sys.executable, "-m", "hubsub.testing.member", json.dumps(setup)])

    def start(self) -> None:
        for member in range(self.members):
            self.processes.append(self._run(member))
            self._wait(member)
        deadline = time.monotonic() + START_S
        while sum(votes for _, _, votes in self.status(0)["members"].values()) < self.members:
            if time.monotonic() > deadline:
                raise StartError("the members do not all vote", json.dumps(self.status(0)))
            time.sleep(0.02)

    def setup(self, timeout: str = "2s", **more: Any) -> dict[str, Any]:
        """Setup of one more learner."""
        number, self._numbers = self._numbers, self._numbers + 1
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
        """Starts a learner.

        Args:
            prefix: Directory in front of all keys.
            member: Ignored.
            timeout: Time limit of a request.
        """
        return await Learner.open(self.setup(timeout), prefix)

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
    """Ports that were free a moment ago; neither store can report which one it got."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


STORES: dict[str, Callable[[Path], Members]] = {"embedded": Embedded, "etcd": Etcd, "zookeeper": ZooKeeper}
