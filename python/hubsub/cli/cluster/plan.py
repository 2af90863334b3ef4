"""Which nodes a cluster on one machine has: names, ports, directories, and how each is started.

Pure: nothing is started or opened here. `cluster_flags` alone knows what makes nodes a cluster.

Ports, where nobody says otherwise: the first node has those of a single node, each further one 10 more. A base
port P gives the first node HTTP at P, Redis at P + 1, links at P + 2, Redis cluster at P + 3, MQTT at P + 4, its
part of the coordinator at P + 5, WebSockets at P + 6; base port 0 lets the system choose. What a node was bound to
once it is bound to when it starts again, in a later run too.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hubsub.config import KEYS, cpus, join_address
from hubsub.errors import OptionError, StartError

PORTS: Mapping[str, tuple[int, int]] = {
    "redis": (3221, 1),
    "http": (3220, 0),
    "link": (3222, 2),
    "redis_cluster": (3223, 3),
    "mqtt": (1883, 4),
    "raft": (3224, 5),
    "ws": (4000, 6),
}
"""Listener to its port on the first node, and its place behind a base port."""

LISTENERS = tuple(key.name for key in KEYS if key.name in PORTS)
"""Those that a node opens."""

PORT_STEP = 10
"""From one node's ports to the next one's."""

NODES_MAX = 100

INHERITED = ("hash_tags", "log_level", "log_format")
"""Keys that the environment may still give; all others are the plan's, or no cluster would come of them."""

Known = Mapping[str, Mapping[str, str | None]]
"""Node to the addresses that it was bound to: the listeners of its ready line."""


class Command(NamedTuple):
    """What starts one node."""

    args: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A cluster on this machine.

    Args:
        nodes: How many.
        directory: Each node's data is in a directory of its name here.
        secret: What nodes prove to each other; handed on in the environment, where other users do not see it.
        base_port: None for the documented ports, 0 for the system's choice.
        shards: Of each node; default: the CPUs, shared among the nodes.
        config: A file with classes and limits for all.
        coordinator: None for the embedded one.
        run: What runs `hubsub`.

    Raises:
        OptionError: more nodes than ports.
    """

    nodes: int
    directory: Path
    secret: str
    base_port: int | None = None
    shards: str | None = None
    config: Path | None = None
    coordinator: str | None = None
    # With it a node ends when this process does, however that ended.
    run: Sequence[str] = field(default=(sys.executable, "-m", "hubsub.testing"))

    def __post_init__(self) -> None:
        last = max(port for port in map(self._port, [self.nodes - 1] * len(PORTS), PORTS))
        if last > 65_535:
            raise OptionError("there are not so many ports", f"{self.nodes} nodes from {self.base_port}")

    @property
    def names(self) -> list[str]:
        return [f"n{index + 1}" for index in range(self.nodes)]

    def command_for(self, name: str, known: Known) -> Command:
        """How a node is started.

        Args:
            name: Which one.
            known: Those that have served, in this run or one before; the others join where they listen. None: the
                first node founds the cluster.

        Raises:
            StartError: the coordinator of theirs has no listener.
        """
        mine = known.get(name, {})
        index = self.names.index(name)
        args = [*self.run, "serve", "--node", name, "--data", str(self.directory / name)]
        args += ["--shards", self.shards or str(max(1, cpus() // self.nodes))]
        if self.config is not None:
            args += ["--config", str(self.config)]
        for listener in LISTENERS:
            if listener != "raft" or self.coordinator is None:
                address = mine.get(listener) or join_address("127.0.0.1", self._port(index, listener))
                args += [f"--{listener.replace('_', '-')}", address]
        flags, env = self.cluster_flags(name, known)
        return Command([*args, *flags], self._environment() | env)

    def cluster_flags(self, name: str, known: Known) -> tuple[list[str], dict[str, str]]:
        """What makes the node one of the cluster: flags, and variables for what is secret."""
        flags: list[str] = []
        if self.coordinator is not None:
            flags += ["--coordinator", self.coordinator]
        elif others := [other for other in known if other != name]:
            listeners = [raft for other in others if (raft := known[other].get("raft"))]
            if not listeners and name not in known:
                raise StartError("the coordinator of the other nodes has no listener", ", ".join(others))
            if listeners:
                flags += ["--join", ",".join(listeners)]
        return flags, {"HUBSUB_CLUSTER_SECRET": self.secret}

    def _port(self, index: int, listener: str) -> int:
        first, place = PORTS[listener]
        if self.base_port == 0:
            return 0
        return (first if self.base_port is None else self.base_port + place) + PORT_STEP * index

    def _environment(self) -> dict[str, str]:
        """This process's, without what the plan decides; lines for people unless somebody wants others."""
        decided = {key.env for key in KEYS if key.name not in INHERITED}
        kept = {name: value for name, value in os.environ.items() if name not in decided | {"HUBSUB_CONFIG"}}
        return {"HUBSUB_LOG_FORMAT": "text"} | kept
