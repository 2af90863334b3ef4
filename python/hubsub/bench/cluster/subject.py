"""What can be measured as a cluster, whatever it is: a small interface, with which every row works."""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

READY_S = 120.0
"""How long nodes may take until all of them know each other."""


def room_name(number: int) -> str:
    """Name of a room as the generator makes it; 0 to 99,999,999."""
    return f"room:{number:08}"


@dataclass(frozen=True, slots=True)
class Member:
    """A node that runs."""

    name: str
    address: str
    """For Redis clients, `HOST:PORT`."""
    pid: int
    node_ports: Sequence[int]
    """On which it listens for other nodes."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames with messages of rooms, of one node to and from all others, since its start."""

    sent: int
    received: int


class Cluster(Protocol):
    """Nodes that run."""

    @property
    def version(self) -> str:
        """As a result names it."""

    @property
    def build_profile(self) -> str:
        """`release`, `dist`, `debug`, or empty where a server does not say."""

    def members(self) -> Sequence[Member]:
        """Those that run, in the order of their names."""

    def places(self, numbers: Collection[int]) -> dict[int, str]:
        """The node where each room lives: its leader, or the owner of its slot."""

    def frames(self, name: str) -> Frames:
        """What a node's links have carried of messages, once nothing more comes."""

    def controller(self) -> str | None:
        """The node that decides for all; None where no node does."""

    def kill(self, name: str) -> float:
        """Ends a node with SIGKILL; when, on the monotonic clock in seconds, as it was sent."""

    def evidence(self, room: str) -> Mapping[str, Any]:
        """What there is to find out why a room is silent since the last kill; some 100 kB at most."""

    def start(self, name: str) -> None:
        """Starts a node that was killed, and waits until all nodes know each other again."""


class ClusterTarget(Protocol):
    """Something that can be started as a cluster."""

    @property
    def name(self) -> str:
        """What to call it in tables."""

    @property
    def verb(self) -> str:
        """How the generator publishes."""

    @property
    def is_forwarding(self) -> bool:
        """Whether every node takes publishes of every room."""

    @property
    def has_failover(self) -> bool:
        """Whether a room that loses its node gets another."""

    def running(self, nodes: int, directory: Path) -> AbstractContextManager[Cluster]:
        """The cluster until the end of the block; all nodes know each other. Each node routes on one core.

        Raises:
            BenchError: it cannot be started, or is a debug build.
        """


class Pidfd:
    """A process that may be signalled later: never another one that has got its number."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._fd)
