"""Nodes of a cluster on one machine: names, ports, directories, and the command that starts each.

Pure: nothing is started or opened here. Only `cluster_flags` knows which flags make nodes a cluster.

Default ports: the first node has those of a single node, each further one 10 more. A base port P gives the
first node HTTP at P, Redis at P + 1, links at P + 2, Redis cluster at P + 3, MQTT at P + 4, its member of the
coordinator at P + 5, WebSockets at P + 6; with base port 0 the system chooses. A node that starts again, in a
later run too, is bound to its earlier addresses.
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
"""Listener to its default port on the first node, and its offset from a base port."""

LISTENERS = tuple(key.name for key in KEYS if key.name in PORTS)
"""Listeners that a node opens."""

PORT_STEP = 10
"""Difference between the ports of two successive nodes."""

NODES_MAX = 100

INHERITED = ("hash_tags", "log_level", "log_format")
"""Keys that may still come from the environment; the plan sets the others, or the cluster would not form."""

Known = Mapping[str, Mapping[str, str | None]]
"""Node to its bound addresses: the listeners of its ready line."""


class Command(NamedTuple):
    args: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A cluster on this machine.

    Args:
        nodes: Number of nodes.
        directory: Each node's data is in a directory of its name here.
        secret: Cluster secret; passed in the environment, where other users do not see it.
        base_port: None for the documented ports, 0 for ports chosen by the system.
        shards: Shards per node; default: the CPUs, shared among the nodes.
        config: A file with classes and limits for all nodes.
        coordinator: URL; None for the embedded one.
        run: Command that runs `hubsub`.

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
    # With this module a node ends when this process ends, for whatever reason.
    run: Sequence[str] = field(default=(sys.executable, "-m", "hubsub.testing"))

    def __post_init__(self) -> None:
        last = max(port for port in map(self._port, [self.nodes - 1] * len(PORTS), PORTS))
        if last > 65_535:
            raise OptionError("there are not so many ports", f"{self.nodes} nodes from {self.base_port}")

    @property
    def names(self) -> list[str]:
        return [f"n{index + 1}" for index in range(self.nodes)]

    def command_for(self, name: str, known: Known) -> Command:
        """Command that starts a node.

        Args:
            name: Name of the node.
            known: Nodes that have served, in this run or an earlier one; the node joins them at their
                addresses. If empty, the node bootstraps the cluster.

        Raises:
            StartError: the other nodes have no listener for the coordinator.
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
        """Flags that make the node a member of the cluster, and environment variables for secrets."""
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
        """This process's environment without the plan's own keys. Logs default to text."""
        decided = {key.env for key in KEYS if key.name not in INHERITED}
        kept = {name: value for name, value in os.environ.items() if name not in decided | {"HUBSUB_CONFIG"}}
        return {"HUBSUB_LOG_FORMAT": "text"} | kept
