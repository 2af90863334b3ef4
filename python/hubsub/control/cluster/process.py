"""Runs a process as a node of a cluster: startup order and shutdown.
The protocol is in docs/protocol/control-plane.md.

Invariant: everything that was started is ended, in reverse, wherever starting failed; the error is one
sentence with a hint.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import structlog
from msgspec import structs

from hubsub.config import Config, is_wildcard, join_address, split_address
from hubsub.control.cluster.classes import configured
from hubsub.control.cluster.core_plane import CorePlane
from hubsub.control.cluster.lookup import Lookups
from hubsub.control.cluster.membership import Prepared, prepare
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.cluster.peer_addresses import host_port
from hubsub.control.cluster.plane import Neighbour
from hubsub.control.cluster.view import Timing
from hubsub.coordination import Coordinator, open_coordinator
from hubsub.coordination.embedded import own_host
from hubsub.coordination.tasks import end
from hubsub.errors import CoordinatorError, StartError
from hubsub.names import redis_cluster_id
from hubsub.node import Node, RedisClusterNode

WATCHES_S: Final = 60.0
"""How long a node waits until its watches have delivered the coordinator's whole state."""

VOTER_S: Final = 2.0
"""How long clients wait for this node to become a voter."""

WAIT_LOG_S: Final = 1.0
WAIT_LOG_INTERVAL_S: Final = 10.0
"""When a waiting start first logs the reason, and the interval from then on."""

log = structlog.get_logger("hubsub.cluster")


class ClusterProcess:
    """A process as a cluster node. Call `open`, `join` and `accept`, in this order, and `stop` after any of them.

    Args:
        config: Of the node.
        make: Creates the data plane for a configuration with the cluster's classes; it accepts no clients
            yet.
        open_store: Opens the coordinator.
        timing: The same in the whole cluster; default: from the configuration.
        clock: Monotonic, seconds: that of the coordinator's leases.
        wall: Seconds since 1970.
    """

    def __init__(
        self,
        config: Config,
        make: Callable[[Config, Prepared], Node],
        *,
        open_store: Callable[[Config], Awaitable[Coordinator]] = open_coordinator,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        """Has the cluster's classes once `open` has returned."""
        self.raft: str | None = None
        """Address at which other nodes join the embedded coordinator; None: not open, or not embedded."""
        self._make = make
        self._open_store = open_store
        self._timing = timing
        self._clock = clock
        self._wall = wall
        self._cleanup = AsyncExitStack()
        self._coordinator: Coordinator | None = None
        self._prepared: Prepared | None = None
        self._node: Node | None = None
        self._plane: CorePlane | None = None
        self._cluster: ClusterNode | None = None
        self._drains = True
        self._has_failed = False

    @property
    def node(self) -> Node:
        assert self._node is not None, "open() makes it"
        return self._node

    @property
    def plane(self) -> CorePlane:
        assert self._plane is not None, "open() makes it"
        return self._plane

    @property
    def cluster(self) -> ClusterNode:
        assert self._cluster is not None, "join() makes it"
        return self._cluster

    async def open(self) -> None:
        """Asks the coordinator whether this process may be a node, and starts its data plane; no client is accepted.

        Raises:
            StartError, ConfigError, DataDirectoryError: the start failed; nothing is left running.
        """
        await self._or_undo(self._open())

    async def join(self, http: str | None = None) -> None:
        """Registers, and waits until this node holds all that concerns its clients.

        Args:
            http: Address of its API; default: no API.

        Raises:
            StartError: the start failed; nothing is left running.
        """
        await self._or_undo(self._join(http))

    def accept(self) -> None:
        """Starts to accept clients; called after `join`."""
        self.node.accept()

    async def wait_failed(self) -> None:
        """Never returns; raises when the process has to stop.

        Raises:
            NodeFailedError: a shard ended.
            DuplicateNodeError: another process is the node now.
        """
        ends = [
            asyncio.ensure_future(self.node.wait_failed()),
            asyncio.ensure_future(_raised(self.cluster.failed)),
        ]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        except Exception:
            # A failed node cannot give up its hubs in order: other nodes get them after its goodbye.
            self._has_failed = True
            raise
        finally:
            await end(*ends)

    async def stop(self, drain: bool = True) -> None:
        """Ends all that was started, in reverse order.

        Args:
            drain: Whether to move this node's hubs to other nodes before it leaves; default: yes. Ignored if
                the node has failed.
        """
        self._drains = drain and not self._has_failed
        await self._cleanup.aclose()

    # -- steps --

    async def _open(self) -> None:
        coordinator = self._coordinator = await self._open_store(self.config)
        self._cleanup.push_async_callback(coordinator.close)
        prepared = self._prepared = await prepare(self.config, coordinator, wall=self._wall)
        # `ClusterNode` closes it, too; a second call does nothing.
        self._cleanup.callback(prepared.identity.close)
        self.config = structs.replace(self.config, classes=configured(prepared.classes))
        node = self._node = self._make(self.config, prepared)
        self._cleanup.push_async_callback(node.stop)
        await node.start()
        self.raft = await coordinator.listens_at()
        node.link_begin(prepared.cluster, prepared.incarnation)
        me = (self.config.node, prepared.incarnation)
        self._plane = CorePlane(node, me, self._clock, self._publish_redis_nodes)
        self._cleanup.push_async_callback(self._plane.close)

    async def _join(self, http: str | None) -> None:
        assert self._coordinator is not None and self._prepared is not None, "open() comes first"
        addresses = advertised(self.config, {**self.node.addresses, "http": http})
        cluster = self._cluster = await ClusterNode.start(
            self.config,
            self._coordinator,
            self.plane,
            self._prepared,
            addresses=addresses,
            zone=self.config.zone,
            timing=self._timing,
            clock=self._clock,
            wall=self._wall,
        )
        self._cleanup.push_async_callback(self._leave)
        redis = addresses.get("redis")
        own = None if redis is None else (self.node.name, redis)
        self._cleanup.push_async_callback(Lookups(self.node, cluster.directory, own).close)
        try:
            async with asyncio.timeout(WATCHES_S):
                await self._unless_failed(
                    cluster.ready(), "the coordinator has not told this node of all yet"
                )
        except TimeoutError:
            raise StartError(
                "the coordinator has not told this node of its cluster",
                f"after {WATCHES_S:g} s",
                "the log says which of its watches fails; start again when the coordinator is well",
            ) from None
        await self._unless_failed(
            self.plane.ready(),
            "clients wait: not all patterns and interest of the other nodes are here yet",
            self.plane.waits_for,
        )
        # Usually one round trip. Without a majority it never happens, and clients are served all the same.
        with suppress(TimeoutError):
            async with asyncio.timeout(VOTER_S):
                await self._unless_failed(
                    cluster.became_voter(), "clients wait: this node is not a voter yet"
                )

    async def _unless_failed(
        self, work: Awaitable[None], what: str, nodes: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Waits for a step, and logs the wait with the nodes that it waits for. Raises if the process has to
        stop meanwhile."""
        step, fails = asyncio.ensure_future(work), asyncio.ensure_future(self.wait_failed())
        within_s = WAIT_LOG_S
        try:
            while not (
                await asyncio.wait({step, fails}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            )[0]:
                log.warning(what, nodes=list(nodes()))
                within_s = WAIT_LOG_INTERVAL_S
            await (fails if fails.done() else step)
        finally:
            await end(step, fails)

    async def _leave(self) -> None:
        if self._drains:
            # While its links are up: the next node that serves a session takes over what this node holds of
            # it.
            await self.node.part_from_sessions()
        await self.cluster.stop(self._drains)

    def _publish_redis_nodes(self, neighbours: Sequence[Neighbour]) -> None:
        """Publishes to Redis Cluster clients all nodes that have a listener for them."""
        assert self._prepared is not None, "open() made it before the plane"
        cluster = self._prepared.cluster
        own = self.node.redis_cluster_node(cluster)
        nodes = [] if own is None else [own]
        for neighbour in neighbours:
            parts = host_port(neighbour.addresses.get("redis_cluster", ""))
            if parts is not None:
                redis_id = redis_cluster_id(cluster, neighbour.name)
                nodes.append(RedisClusterNode(neighbour.name, redis_id, *parts))
        if own is not None:
            self.node.redis_cluster_nodes(nodes)

    async def _or_undo(self, work: Awaitable[None]) -> None:
        try:
            await work
        except BaseException as error:
            with suppress(Exception):  # Report the first error.
                await self.stop(drain=False)
            if isinstance(error, CoordinatorError):
                raise _not_started(error) from error
            raise


def advertised(config: Config, bound: Mapping[str, str | None]) -> dict[str, str]:
    """Maps the protocol of each active listener to the `HOST:PORT` that is advertised to clients and peers."""
    addresses: dict[str, str] = {}
    for name, address in bound.items():
        if address is not None:
            host, port = split_address(address)
            reached = config.advertise or (own_host() if is_wildcard(address) else host)
            addresses[name] = join_address(reached, port)
    return addresses


def _not_started(error: CoordinatorError) -> StartError:
    hint = error.hint or "`coordinator` says where it is; look whether it runs there, and answers"
    return StartError(f"the node cannot join its cluster ({error.what})", error.value, hint)


async def _raised(failed: "asyncio.Future[None]") -> None:
    await asyncio.shield(failed)
