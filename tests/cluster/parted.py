"""Three nodes of one cluster, each in a network namespace of its own, so that the network between them can be
cut.

They listen for each other on the network, on fixed ports per listener kind, and for clients on loopback:
clients stay connected to their node whatever is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cluster.cluster import CLASSES, NAMES, Cluster
from cluster.network import Network

LINK, RAFT = 3223, 3224
"""Ports are fixed because each namespace has only one node."""


class Parted(Cluster):
    """A cluster over the embedded coordinator, with one namespace per node.

    Args:
        network: With a namespace for each node.
    """

    def __init__(
        self,
        network: Network,
        directory: Path,
        names: Sequence[str] = NAMES,
        classes: Sequence[Mapping[str, Any]] = CLASSES,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(directory, names=names, classes=classes, limits=limits)
        self.network = network

    def within(self, name: str) -> AbstractContextManager[None]:
        return self.network.within(name)

    def config_of(self, name: str) -> dict[str, Any]:
        address = self.network.addresses[name]
        return super().config_of(name) | {"link": f"{address}:{LINK}", "raft": f"{address}:{RAFT}"}
