"""The interface of a measured cluster, with which every row works."""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

READY_S = 120.0
"""Time limit for all nodes to know each other, in seconds."""


def room_name(number: int) -> str:
    """Name of a room as the generator builds it; 0 to 99,999,999."""
    return f"room:{number:08}"


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    address: str
    """For Redis clients, `HOST:PORT`."""
    pid: int
    node_ports: Sequence[int]
    """Ports on which it listens for other nodes."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Message frames of one node to and from all others, since its start."""

    sent: int
    received: int


class Cluster(Protocol):
    @property
    def version(self) -> str:
        """Version, as stored in results."""

    @property
    def build_profile(self) -> str:
        """`release`, `dist`, `debug`, or empty if unknown."""

    def members(self) -> Sequence[Member]:
        """Running nodes, in the order of their names."""

    def places(self, numbers: Collection[int]) -> dict[int, str]:
        """The node where each room lives: its leader, or the owner of its slot."""

    def frames(self, name: str) -> Frames:
        """Message frames of a node's links, once the count no longer changes."""

    def controller(self) -> str | None:
        """The node that acts as controller; None if there is none."""

    def kill(self, name: str) -> float:
        """Ends a node with SIGKILL; returns the time of the signal, in monotonic seconds."""

    def evidence(self, room: str) -> Mapping[str, Any]:
        """Data to diagnose why a room is silent since the last kill; at most some 100 kB."""

    def start(self, name: str) -> None:
        """Restarts a killed node, and waits until all nodes know each other again."""


class ClusterTarget(Protocol):
    @property
    def name(self) -> str:
        """Name shown in tables."""

    @property
    def verb(self) -> str:
        """The generator's command for publishing."""

    @property
    def is_forwarding(self) -> bool:
        """Whether every node accepts publishes of every room."""

    @property
    def has_failover(self) -> bool:
        """Whether a room that loses its node gets another."""

    def running(self, nodes: int, directory: Path) -> AbstractContextManager[Cluster]:
        """Runs the cluster until the end of the block; all nodes know each other. Each node routes on one core.

        Args:
            nodes: Number of nodes.
            directory: For the nodes' data.

        Raises:
            BenchError: it cannot be started, or is a debug build.
        """


class Pidfd:
    """A process to signal later; never another one that has reused its pid."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._fd)
