"""The context that all parts of a node's control plane share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hubsub.control.cluster.plane import Plane
from hubsub.control.cluster.view import ProcessId, Timing
from hubsub.coordination import Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Store, data plane and clock of one process of the cluster."""

    me: ProcessId
    coordinator: Coordinator
    """The cluster's store; its opener closes it."""
    plane: Plane
    """The data plane of this process."""
    timing: Timing
    """The same in the whole cluster."""
    clock: Callable[[], float]
    """Monotonic, seconds: that of the plane and of the coordinator's leases."""
    ended: Callable[[asyncio.Task[None]], None]
    """Called with each ended task of the control plane: after an error the process has to stop."""
