"""A Redis Cluster: processes with evenly distributed slots, no replicas, nothing on disk.

Its classic PUBLISH goes to every node (a broadcast); SPUBLISH goes only to the node of the room's slot, and
only that node accepts it. Without replicas no node takes over a slot, so the failover row has no figures for
it.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hubsub_bench import BenchError
from hubsub_bench.cluster.resp import Connection
from hubsub_bench.cluster.subject import READY_S, Frames, Member, room_name
from hubsub_bench.servers import end_process, free_port, info, wait_listening

SLOTS = 16_384
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RedisCluster:
    """Redis Cluster as a target.

    Args:
        sharded: Uses SPUBLISH and SSUBSCRIBE.
    """

    sharded: bool = False
    is_forwarding: bool = True
    has_failover: bool = False

    @property
    def name(self) -> str:
        return "Redis Cluster, sharded" if self.sharded else "Redis Cluster"

    @property
    def verb(self) -> str:
        return "spublish" if self.sharded else "publish"

    @contextmanager
    def running(self, nodes: int, directory: Path) -> Iterator["RunningRedis"]:
        program = shutil.which("redis-server")
        if program is None:
            raise BenchError("redis-server is not installed", None, "apt-get install redis-server")
        cluster = RunningRedis(program, directory)
        try:
            for index in range(nodes):
                cluster.spawn(f"n{index + 1}")
            cluster.join()
            yield cluster
        finally:
            cluster.stop()


class RunningRedis:
    build_profile = ""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._members: dict[str, Member] = {}

    @property
    def version(self) -> str:
        return f"Redis {info(next(iter(self._members.values())).address).get('redis_version', '')}".strip()

    def members(self) -> Sequence[Member]:
        return [self._members[name] for name in sorted(self._members, key=_number)]

    def places(self, numbers: Collection[int]) -> dict[int, str]:
        members = self.members()
        with Connection(members[0].address) as connection:
            for number in numbers:
                connection.send("CLUSTER", "KEYSLOT", room_name(number))
            slots = {number: connection.read() for number in numbers}
        found = {}
        for number, slot in slots.items():
            assert isinstance(slot, int), "KEYSLOT answers with an integer"
            found[number] = next(
                member.name
                for member, (first, last) in zip(members, _dealt(len(members)), strict=True)
                if first <= slot <= last
            )
        return found

    def frames(self, name: str) -> Frames:
        about = self._cluster_info(name)

        def count(way: str) -> int:
            return sum(
                int(about.get(f"cluster_stats_messages_{kind}_{way}", 0))
                for kind in ("publish", "publishshard")
            )

        return Frames(count("sent"), count("received"))

    def controller(self) -> str | None:
        return None

    def kill(self, name: str) -> float:
        process = self._processes.pop(name)
        del self._members[name]
        at_s = time.monotonic()
        process.kill()
        process.wait()
        return at_s

    def evidence(self, room: str) -> Mapping[str, Any]:
        return {}

    def start(self, name: str) -> None:
        raise BenchError("a Redis Cluster without replicas loses what a node had", name)

    def spawn(self, name: str) -> None:
        """Starts a node that knows no other."""
        home = self._directory / name
        home.mkdir()
        port, bus = free_port(), free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--maxclients", "10000"]
        with open(os.devnull, "wb") as nowhere:
            process = subprocess.Popen([self._program, *options], cwd=home, stdout=nowhere, stderr=nowhere)
        self._processes[name] = process
        wait_listening(process, port)
        self._members[name] = Member(name, f"127.0.0.1:{port}", process.pid, [bus])

    def join(self) -> None:
        """Distributes the slots, introduces the nodes to each other, and waits until all agree.

        Raises:
            BenchError: they do not within `READY_S`.
        """
        members = self.members()
        for index, (member, (first, last)) in enumerate(zip(members, _dealt(len(members)), strict=True)):
            with Connection(member.address) as connection:
                connection.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
                # Nodes that all begin with epoch 0 resolve the conflict among themselves, one after another.
                connection.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
                for other in members[:index]:
                    host, _, port = other.address.rpartition(":")
                    connection.ask("CLUSTER", "MEET", host, port, *other.node_ports)
        until = time.monotonic() + READY_S
        while not all(self._is_whole(member.name) for member in members):
            if time.monotonic() > until:
                raise BenchError("the nodes of a Redis Cluster do not find each other", len(members))
            time.sleep(POLL_S)

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            end_process(process)

    def _is_whole(self, name: str) -> bool:
        """Whether a node knows all others, with links both ways, and all slots have an owner."""
        about = self._cluster_info(name)
        count = len(self._members)
        if (about.get("cluster_state"), about.get("cluster_known_nodes")) != ("ok", str(count)):
            return False
        if about.get("cluster_size") != str(count):
            return False
        with Connection(self._members[name].address) as connection:
            links = connection.ask("CLUSTER", "LINKS")
        return isinstance(links, list) and len(links) >= 2 * (count - 1)

    def _cluster_info(self, name: str) -> dict[str, str]:
        with Connection(self._members[name].address) as connection:
            text = connection.ask("CLUSTER", "INFO")
        assert isinstance(text, bytes), "CLUSTER INFO answers with text"
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


def _dealt(nodes: int) -> list[tuple[int, int]]:
    """First and last slot of each node."""
    bounds = [SLOTS * index // nodes for index in range(nodes + 1)]
    return [(first, behind - 1) for first, behind in pairwise(bounds)]


def _number(name: str) -> int:
    return int(name[1:])
