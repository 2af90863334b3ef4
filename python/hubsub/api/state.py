"""State shared by the handlers: the node, the current limits, the idempotency window, counters."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request

from hubsub.api.others import Others
from hubsub.api.schema import NodeRef
from hubsub.config import Config, RoomClass, is_wildcard, join_address, split_address
from hubsub.control.archive_offsets import ArchiveOffsets
from hubsub.control.batches import Batches
from hubsub.control.cluster.classes import configured
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.idempotency import Window
from hubsub.control.memory import Memory
from hubsub.control.query_progress import Queries
from hubsub.control.staging import Staging
from hubsub.coordination.embedded import own_host
from hubsub.errors import TooBusyError
from hubsub.node import Node

if TYPE_CHECKING:
    from hubsub.api.console.watch import Watch


class State:
    """One per process; handlers get it with each request.

    Args:
        config: The resolved configuration; `reload` replaces it.
        node: The running node.
    """

    def __init__(self, config: Config, node: Node) -> None:
        self.config = config
        self.node = node
        self.http_address: str | None = None
        self.stopping = False
        self.others: Others | None = None
        """The other nodes of the cluster; None on a single node."""
        self.cluster: ClusterNode | None = None
        """This node's membership in the cluster; None on a single node."""
        self.window = Window(lambda: self.limits, time.monotonic)
        self.memory = Memory(node, lambda: self.config.memory)
        self.queries = Queries(lambda: self.limits, time.monotonic)
        self.archived = ArchiveOffsets(node, lambda: self.all_classes, lambda: self.log)
        self.staging = Staging(node, lambda: self.limits, lambda: self.others)
        self.batches = Batches(node, self.staging, lambda: self.limits)
        self.console: Watch | None = None
        """Polls the cluster for the console; None before the first listener."""
        self.requests: Counter[tuple[str, int]] = Counter()
        """HTTP requests by route and status: bounded by the table of routes."""
        self.bodies_refused = 0
        """Bodies refused because of `http_body_bytes_max`."""
        self.request_bytes = 0
        """Bytes of all bodies and long heads that are being received or processed."""
        self.requests_turned_away = 0
        """Requests refused because of `http_bodies_bytes_max`."""

    @property
    def limits(self) -> Mapping[str, int]:
        return self.config.limits

    def hold(self, more: int) -> None:
        """Adds to `request_bytes`. The caller holds `-more` once the bytes are no longer in memory.

        Raises:
            TooBusyError: all requests together would exceed `http_bodies_bytes_max`; nothing is added.
        """
        if more > 0 and self.request_bytes + more > self.limits["http_bodies_bytes_max"]:
            self.requests_turned_away += 1
            raise TooBusyError(hint="limits.http_bodies_bytes_max of requests are here already")
        self.request_bytes += more

    def limit(self, name: str) -> Callable[[], int]:
        """Returns a function that reads the limit's current value."""
        return lambda: self.limits[name]

    @property
    def log(self) -> str | None:
        """Identity of the log that offsets refer to: the cluster's or this node's; None without a log."""
        if self.others is not None:
            return self.others.log_owners.log
        log = self.node.log()
        return None if log is None else log.identity

    @property
    def classes(self) -> tuple[RoomClass, ...]:
        """All room classes in order of precedence; the last one is the default class."""
        classes = self.config.classes if self.cluster is None else configured(self.cluster.class_records)
        is_closed = bool(classes) and not classes[-1].match and classes[-1].room == "topic"
        return classes if is_closed else (*classes, RoomClass(name="default"))

    @property
    def all_classes(self) -> tuple[RoomClass, ...]:
        """As `classes`, preceded by the internal classes, if the node stores anything."""
        own = [cls for cls in self.config.all_classes if cls not in self.config.classes]
        return (*own, *self.classes)

    def node_ref(self, request: Request) -> NodeRef:
        """This node with addresses that the requesting client can reach."""
        return NodeRef(
            name=self.node.name,
            redis=self.reachable(self.node.addresses.get("redis"), request),
            redis_cluster=self.reachable(self.node.addresses.get("redis_cluster"), request),
            http=self.reachable(self.http_address, request),
        )

    def reachable(self, address: str | None, request: Request) -> str | None:
        """The address to advertise: the advertised host's; for a wildcard that of the host that the request used."""
        if address is None:
            return None
        _, port = split_address(address)
        if self.config.advertise:
            return join_address(self.config.advertise, port)
        if is_wildcard(address):
            # Requests of other nodes arrive over a link and have no server address.
            server = request.scope.get("server") or (own_host(), port)
            return join_address(server[0], port)
        return address
