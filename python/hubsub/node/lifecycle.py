"""Start and stop of a node, and the transport of requests and replies.

A request takes a ticket, goes into a shard's mailbox and becomes a future. Replies come back as events,
drained in batches when the core's descriptor is readable.

Invariants: every ticket is answered, or dropped at its time-out, so at most `control_requests_max` futures
wait. Only the loop's thread uses a node.
"""

import asyncio
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog

from hubsub import _native
from hubsub.config import Config, is_wildcard, split_address
from hubsub.errors import (
    ConfigError,
    HubClosedError,
    NodeFailedError,
    Problem,
    StartError,
    TimedOutError,
    TooBusyError,
    refusal,
)
from hubsub.names import redis_cluster_id
from hubsub.node.incarnation import INCARNATION_MAX, stored_incarnation
from hubsub.node.setup import Cluster, core_config, log_problem, write_synced
from hubsub.node.status import Metrics
from hubsub.node.types import LeaseEvent, PeerEvent, RedisClusterNode, Ticket

DRAIN_EVENTS_MAX = 1_024
"""Events handled before other work of the loop has its turn."""

STOP_MARGIN_MS = 5_000
"""How much longer than its grace period a shard may take to stop."""

SLOW_STOP_S = 5.0
"""After this time, and each time it has doubled, a stop logs that it waits for the log's disk."""


log = structlog.get_logger()

T = TypeVar("T")
P = ParamSpec("P")

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Lifecycle:
    """A node's data plane; see `Node`.

    Args:
        config: The resolved configuration.
        cluster: The cluster that numbers this node's hubs, which `open_hub` adds; None: the node numbers them
            itself.
        incarnation: As issued by the cluster; None: the node picks a number above its earlier ones.
        accepts: Whether clients are accepted from the start; else from `accept`.

    Raises:
        ConfigError: the core refuses a value.
        StartError: the data directory cannot be used.
    """

    def __init__(
        self,
        config: Config,
        cluster: Cluster | None = None,
        *,
        incarnation: int | None = None,
        accepts: bool = True,
    ) -> None:
        self.config = config
        self.name = config.node
        self._lock_fd = -1
        try:
            self.incarnation = self._new_incarnation(config.data, incarnation)
            self._core = _native.Core(core_config(config, self.incarnation, cluster, accepts))
        except StartError:
            self._unlock()
            raise
        except ValueError as error:
            self._unlock()
            raise ConfigError([Problem("core", None, str(error))]) from None
        self._limits = dict(config.limits)
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shards_running = 0
        self._stopped = asyncio.Event()
        self._shards_served: set[int] = set()
        """Shards whose sessions are not recorded yet, during `part_from_sessions`."""
        self._parted = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None
        self._started_at = time.monotonic()
        self.addresses: dict[str, str | None] = {}
        self.refused_requests = 0
        """Requests refused because of `control_requests_max`."""
        self.on_peer: Callable[[PeerEvent], None] | None = None
        """Called on state changes of peers, in order."""
        self.on_lease: Callable[[LeaseEvent], None] | None = None
        """Called on changes of leader leases, in order."""
        self.on_ready: Callable[[], None] | None = None
        """Called when `route_ready` has changed."""
        self.on_room_miss: Callable[[str, bytes, bool], None] | None = None
        """Called with class and name of a room whose hub is unknown, and whether a room without a place is to
        get one. The reply is `route_rooms`, `route_refuse` or, if none is to be created, `route_absent`,
        within 5 s. It is called once until then, however many requests wait; again if a later request needs a
        place.
        """
        self.on_locate: Callable[[int, bytes], None] | None = None
        """Called when a client asks for the location of a room; `route_located` replies to the number."""
        self.on_request: Callable[[str, int, bytes], None] | None = None
        """Called with a request of a peer's control plane: peer name, number for `link_answer`, and body."""

    # -- start and stop --

    async def start(self) -> dict[str, str | None]:
        """Binds the listeners and starts the shards.

        Returns:
            Listener to its bound `HOST:PORT`, None if off.

        Raises:
            StartError: an address cannot be bound, or the log cannot be opened.
        """
        loop = asyncio.get_running_loop()
        try:
            self.addresses = self._core.start()
        except OSError as error:
            if not error.errno:
                raise StartError(*log_problem(error, self.config.data)) from None
            raise StartError(
                f"cannot listen ({error.strerror or error})",
                error.filename or self.config.redis,
                "another server may have this port; `:0` picks a free one",
            ) from None
        self._loop = loop
        self._failed = loop.create_future()
        self._shards_running = self.config.shards
        self._started_at = time.monotonic()
        loop.add_reader(self._core.wake_fd(), self._on_wake)
        own = self.redis_cluster_node("")
        if own is not None:
            self.redis_cluster_nodes([own])
        return self.addresses

    def accept(self) -> None:
        """Accepts clients from now on; connections made before have waited."""
        self._core.accept()

    async def part_from_sessions(self) -> None:
        """Closes the connections of MQTT clients and records their sessions before the node leaves its
        cluster, within `drain_ms`. New clients are refused.
        """
        self._shards_served = set(range(self._shards_running))
        self._core.part_from_sessions()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits["drain_ms"] / 1_000):
                await self._parted.wait()

    async def stop(self) -> None:
        """Stops accepting, drains output for `drain_ms`, closes connections, and ends the log cleanly."""
        if self._loop is None:
            self._unlock()
            return
        grace_ms = self._limits["drain_ms"]
        self._core.stop(grace_ms)
        try:
            if self._shards_running:
                async with asyncio.timeout((grace_ms + STOP_MARGIN_MS) / 1_000):
                    await self._stopped.wait()
        except TimeoutError:
            log.error("shards did not stop in time", shards=self._shards_running)
        else:
            # Records that are safe in the journal go into segments, and the log ends cleanly.
            await self._end_log()
            self._on_wake()
        self._loop.remove_reader(self._core.wake_fd())
        self._loop = None
        self._forget_all()
        self._unlock()

    async def _end_log(self) -> None:
        """Waits for the log, however long its disk takes: records that it has not synced would be lost."""
        ended = asyncio.create_task(asyncio.to_thread(self._core.join))
        wait_s, waited_s = SLOW_STOP_S, 0.0
        while not (await asyncio.wait({ended}, timeout=wait_s))[0]:
            waited_s += wait_s
            wait_s = waited_s
            log.warning("still waits for the disk of the log", data=self.config.data, waited_s=waited_s)
        await ended

    async def wait_failed(self) -> None:
        """Never returns; raises when a shard ends unexpectedly.

        Raises:
            NodeFailedError: the shard and its reason.
        """
        assert self._failed is not None, "start() makes it"
        await asyncio.shield(self._failed)

    @property
    def running(self) -> bool:
        return self._loop is not None and self._shards_running == self.config.shards

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def shards(self) -> int:
        return self.config.shards

    def reload(self, limits: Mapping[str, int]) -> None:
        """Applies new limits while running.

        Args:
            limits: All limits of the resolved configuration by name.
        """
        core = self.config.core_limits()
        self._core.reload({name: limits[name] for name in core})
        self._limits = dict(limits)

    def redis_cluster_node(self, cluster: str) -> RedisClusterNode | None:
        """This node as Redis cluster clients reach it; None without a listener for them.

        Args:
            cluster: Id of the cluster; empty for a single node.
        """
        address = self.addresses.get("redis_cluster")
        if address is None:
            return None
        host, port = split_address(address)
        reached = self.config.advertise or ("" if is_wildcard(address) else host)
        return RedisClusterNode(self.name, redis_cluster_id(cluster, self.name), reached, port)

    def redis_cluster_nodes(self, nodes: Sequence[RedisClusterNode]) -> None:
        """Distributes the slots of Redis cluster clients over these nodes; each of the nodes must get the same list.

        If this node is not among them, it serves no slot and redirects clients to the others.

        Raises:
            ValueError: two nodes have the same name, an id is invalid, or there are more than 16,384 nodes.
        """
        self._core.redis_cluster_nodes(list(nodes))

    def metrics(self) -> Metrics:
        return self._core.metrics()

    # -- tickets and events --

    async def _ask_in_time(
        self, call: Callable[Concatenate[Ticket[T], P], None], *args: P.args, **named: P.kwargs
    ) -> T:
        try:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that coincides with the result.
            async with asyncio.timeout(self._limits["request_timeout_ms"] / 1_000):
                return await self._ask(call, *args, **named)
        except TimeoutError:
            raise TimedOutError(hint="limits.request_timeout_ms is the time it had") from None

    async def _ask(
        self, call: Callable[Concatenate[Ticket[T], P], None], *args: P.args, **named: P.kwargs
    ) -> T:
        if self._loop is None:
            raise refusal("stopping", "server is stopping")
        if len(self._waiting) >= self._limits["control_requests_max"]:
            self.refused_requests += 1
            raise TooBusyError(hint="limits.control_requests_max is reached")
        ticket: Ticket[T] = Ticket(next(self._tickets))
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting[ticket] = future
        try:
            call(ticket, *args, **named)
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def _on_wake(self) -> None:
        for event in self._core.drain(DRAIN_EVENTS_MAX):
            match event:
                case ("answer", ticket, value):
                    self._settle(ticket, value, None)
                case ("refused", ticket, code, message, *details):
                    self._settle(ticket, None, refusal(code, message, *details))
                case ("log", level, message, fields):
                    log.log(LEVELS.get(level, LEVELS["error"]), message, **fields)
                case ("link", kind, peer, incarnation, code, text):
                    if self.on_peer is not None:
                        self.on_peer(PeerEvent(kind, peer, incarnation, code, text))
                case ("lead", kind, hub, term, controller_term):
                    if self.on_lease is not None:
                        self.on_lease(LeaseEvent(kind, hub, term, controller_term))
                case ("room_miss", room_class, room, creates):
                    if self.on_room_miss is not None:
                        self.on_room_miss(room_class, room, creates)
                    else:
                        self._core.route_refuse([room], HubClosedError.code)
                case ("locate", number, room):
                    if self.on_locate is not None:
                        self.on_locate(number, room)
                    else:
                        self._core.route_located(number, None, HubClosedError.code)
                case ("ready",):
                    if self.on_ready is not None:
                        self.on_ready()
                case ("asked", peer, number, body):
                    if self.on_request is not None:
                        self.on_request(peer, number, body)
                    else:
                        log.warning("nobody here answers a peer", node=peer)
                case ("parted", shard):
                    self._shards_served.discard(shard)
                    if not self._shards_served:
                        self._parted.set()
                case ("stopped", shard, reason):
                    self._on_stopped(shard, reason)

    def _settle(self, ticket: int, value: Any, error: Exception | None) -> None:
        future = self._waiting.get(ticket)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def _on_stopped(self, shard: int, reason: str | None) -> None:
        self._shards_running -= 1
        if reason is not None:
            log.error("shard failed", shard=shard, reason=reason)
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(NodeFailedError(value=f"shard {shard}, {reason}"))
        if self._shards_running == 0:
            self._stopped.set()
            self._forget_all()

    def _forget_all(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(refusal("stopping", "server is stopping"))
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            self._failed.exception()

    def _unlock(self) -> None:
        """Releases the data directory for another node."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _new_incarnation(self, data: str | None, issued: int | None) -> int:
        """A number above that of every earlier start of this node: half of each room epoch."""
        now = int(time.time()) if issued is None else issued
        if data is None:
            return min(now, INCARNATION_MAX)
        directory = Path(data)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file = directory / "incarnation"
            stored = stored_incarnation(directory)
            incarnation = max(now, stored + 1)
            if issued is not None and incarnation != issued:
                raise StartError(
                    "the data directory has seen a later incarnation than the cluster has issued",
                    f"{stored}, issued {issued}",
                    f"the clock of this machine may have been ahead; wait until it says so again, or mend {file}",
                )
            write_synced(file, f"{incarnation}\n")
        except BlockingIOError:
            raise StartError(
                "another node uses this data directory", data, "give each node its own --data"
            ) from None
        except OSError as error:
            raise StartError(f"the data directory cannot be used ({error.strerror})", data) from None
        except ValueError:
            hint = f"`hubsub log repair {data} --accept-loss` puts it aside and writes a new one"
            raise StartError("the incarnation file is damaged", file, hint) from None
        if incarnation > INCARNATION_MAX:
            raise StartError("the incarnation does not fit 32 bits", incarnation, f"mend {file}")
        return incarnation
