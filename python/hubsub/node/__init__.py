"""A node: the Rust core, run inside an asyncio loop.

The node owns the core. No code here runs per client message, only per request of the control plane.

- `lifecycle`: start, stop, tickets and events
- `rooms`, `logs`, `peers`, `routes`: requests by subject
- `setup`: the core's configuration
- `types`: types of requests and replies
- `status`: types of what the core reports of the node, its rooms, links and log
"""

from hubsub import _native
from hubsub.node.logs import Logs, Records
from hubsub.node.peers import Peers
from hubsub.node.rooms import Rooms, publish_own
from hubsub.node.routes import Routes
from hubsub.node.setup import Cluster, core_class, core_config, log_problem, room_of
from hubsub.node.types import (
    BusyRoom,
    ClassRow,
    Failed,
    HistoryRow,
    Item,
    LeaseEvent,
    LeasePeer,
    LeaseSnapshot,
    PeerEvent,
    Published,
    PublishedRows,
    RedisClusterNode,
    RouteRow,
)

__all__ = [
    "BUILD_PROFILE",
    "CORE_VERSION",
    "BusyRoom",
    "ClassRow",
    "Cluster",
    "CoordinatorCore",
    "Failed",
    "HistoryRow",
    "Item",
    "LeaseEvent",
    "LeasePeer",
    "LeaseSnapshot",
    "Node",
    "PeerEvent",
    "Published",
    "PublishedRows",
    "Records",
    "RedisClusterNode",
    "RouteRow",
    "core_class",
    "core_config",
    "log_manifest",
    "log_problem",
    "log_repair",
    "log_show",
    "log_verify",
    "publish_own",
    "room_of",
]

BUILD_PROFILE = _native.BUILD_PROFILE
CORE_VERSION = _native.__version__

# For hubsub.coordination.embedded.
CoordinatorCore = _native.Coordinator

# For a log that no node uses.
log_manifest = _native.log_manifest
log_verify = _native.log_verify
log_show = _native.log_show
log_repair = _native.log_repair


class Node(Rooms, Logs, Peers, Routes):
    """A node's data plane.

    Args:
        config: The resolved configuration.
        cluster: The cluster that numbers this node's hubs, which `open_hub` adds; None: the node numbers them
            itself.

    Raises:
        ConfigError: the core refuses a value.
        StartError: the data directory cannot be used.
    """
