"""One node of a cluster: its membership, watch cache, controller, directory, and reports.

First `prepare` (`membership`) issues the incarnation that the process's data plane starts with. Then
`ClusterNode.start` registers the process. `stop` drains, hands over and leaves.

Invariant: everything that was started is stopped, also when starting fails halfway.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import structlog

from hubsub.config import Config, RoomClass
from hubsub.control.cluster import classes, rpc
from hubsub.control.cluster.assigner import Assigner
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.directory import WAIT_S, Directory, Located
from hubsub.control.cluster.failover import MOVES_MAX
from hubsub.control.cluster.forget import Forgetter
from hubsub.control.cluster.hub_member import HubMember
from hubsub.control.cluster.log_owners import LogOwners
from hubsub.control.cluster.membership import Membership, Prepared, prepare
from hubsub.control.cluster.partition import PartitionMode
from hubsub.control.cluster.placement import NodeLoad
from hubsub.control.cluster.plane import Plane
from hubsub.control.cluster.records import CLASSES, ClassRecord, NodeRecord
from hubsub.control.cluster.reports import Reports
from hubsub.control.cluster.room_limits import RoomRecords, record_limits
from hubsub.control.cluster.room_writer import RoomWriter
from hubsub.control.cluster.status import status_of
from hubsub.control.cluster.view import Timing
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination import Coordinator, Put
from hubsub.coordination.tasks import end, wait_set
from hubsub.errors import (
    ClassChangeError,
    HubSubError,
    NoControllerError,
    PeerError,
)
from hubsub.version import VERSION

CONFIRM_S: Final = 1.0
"""How long to wait for a member to confirm rooms: other rooms wait for the same batch."""

DRAIN_S: Final = 10.0
"""How long a stopping node waits for other nodes to lead its hubs."""

log = structlog.get_logger("hubsub.cluster")


class ClusterNode:
    """A running node of a cluster; created by `start`."""

    def __init__(
        self,
        config: Config,
        coordinator: Coordinator,
        plane: Plane,
        membership: Membership,
        prepared: Prepared,
        *,
        timing: Timing,
        clock: Callable[[], float],
        moves_max: int,
    ) -> None:
        self.name = config.node
        self.incarnation = prepared.incarnation
        self.cluster = prepared.cluster
        self.warnings = prepared.warnings
        self._config = config
        self._ctx = context = Context(
            me=(config.node, prepared.incarnation),
            coordinator=coordinator,
            plane=plane,
            timing=timing,
            clock=clock,
            ended=membership.task_ended,
        )
        self._membership = membership
        self._loads: dict[str, NodeLoad] = {}
        """Load by node; only the controller has those of other nodes."""
        self._news = asyncio.Event()
        self._claim_news = asyncio.Event()
        plane.attach(self)
        self._cache = cache = WatchCache(context, self.changed)
        self._partition_mode = PartitionMode(context, cache)
        self._controller = Controller(
            context, cache, membership, is_candidate="hub" in config.role, moves_max=moves_max
        )
        limits = config.limits
        self.room_records = RoomRecords(cache, record_limits(limits, coordinator.store_bytes_max))
        writer = RoomWriter(context, cache, self._controller, self.room_records)
        self._assigner = Assigner(
            context,
            writer,
            cache,
            self._controller,
            self._confirm,
            self._loads,
            rooms_per_second=limits["room_creations_per_second_max"],
            rooms_max=limits["rooms_max"],
            records=self.room_records,
        )
        self.directory = Directory(context, cache, self._ask_controller)
        self._forgetter = Forgetter(
            context,
            cache,
            self._controller,
            writer,
            self._ask_for_unused,
            idle_s=limits["room_record_idle_ms"] / 1_000,
        )
        self.log_owners = LogOwners(cache, prepared.cluster)
        self._reports = Reports(
            context, cache, self._controller, self._loads, self._ask_controller, self._claim_news
        )
        self._member = HubMember(
            context, cache, self.directory, membership, self._reports, rooms_max=limits["rooms_max"]
        )
        self._reporter = asyncio.create_task(self._reports.report())
        self._claimer = asyncio.create_task(self._reports.claim())
        self._claimer.add_done_callback(context.ended)

    @classmethod
    async def start(
        cls,
        config: Config,
        coordinator: Coordinator,
        plane: Plane,
        prepared: Prepared | None = None,
        *,
        addresses: Mapping[str, str] | None = None,
        capacity: float | None = None,
        zone: str = "",
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        moves_max: int = MOVES_MAX,
    ) -> Self:
        """Registers this process as a node, and runs the node's control plane.

        Args:
            config: Of the node.
            coordinator: The cluster's; the caller closes it.
            plane: The node's data plane, started with `prepared.incarnation`.
            prepared: Result of `membership.prepare`; default: it is called now.
            addresses: Protocol to `HOST:PORT`, as clients and peers reach it; `link` for peers.
            capacity: Relative to the other nodes, above 0; default: its shards.
            zone: Members of a hub are in different zones where there are several.
            timing: The same in the whole cluster; default: from the configuration.
            clock: Monotonic, seconds: that of the coordinator's leases.
            wall: Seconds since 1970.
            moves_max: Hubs that are moved at a time; default: `MOVES_MAX`.

        Returns:
            The running node; end it with `stop`.

        Raises:
            DuplicateNodeError: another process has the name.
            CoordinatorError: it cannot be reached.
            HubSubError: as `membership.prepare`.
        """
        prepared = prepared or await prepare(config, coordinator, wall=wall)
        record = NodeRecord(
            incarnation=prepared.incarnation,
            addresses=dict(addresses or {}),
            roles=config.role,
            zone=zone,
            capacity=capacity or float(config.shards),
            shards=config.shards,
            version=VERSION,
            keeps_log=config.data is not None,
        )
        membership = Membership(coordinator, prepared, config.node, record, wall=wall)
        try:
            await membership.register()
        except BaseException:
            prepared.identity.close()
            raise
        try:
            return cls(
                config,
                coordinator,
                plane,
                membership,
                prepared,
                timing=timing or Timing.of(config.limits),
                clock=clock,
                moves_max=moves_max,
            )
        except BaseException:
            await membership.leave()
            raise

    @property
    def failed(self) -> "asyncio.Future[None]":
        """Fails when this process has to stop; see `Membership.failed`."""
        return self._membership.failed

    @property
    def is_controller(self) -> bool:
        return self._controller.revision is not None

    @property
    def classes(self) -> list[RoomClass]:
        """The known classes of the cluster in order of precedence."""
        return classes.ordered({name: stored.record for name, stored in self._cache.classes.items()})

    @property
    def coordinator_failed(self) -> str | None:
        """Error that made the coordinator's part in this process fail for good; None: it works."""
        return self._ctx.coordinator.failed

    @property
    def nodes(self) -> list[str]:
        """Names of all registered nodes, sorted."""
        return sorted(self._cache.nodes)

    @property
    def processes(self) -> Mapping[str, int]:
        return {name: stored.record.incarnation for name, stored in self._cache.nodes.items()}

    @property
    def hubs_led(self) -> int:
        """Number of hubs that name this node as leader in their records."""
        return sum(stored.record.leader == self.name for stored in self._cache.hubs.values())

    @property
    def is_draining(self) -> bool:
        return self._membership.is_draining

    async def ready(self) -> None:
        """Waits until the plane has received all nodes and hubs."""
        await self._cache.ready.wait()

    async def became_voter(self) -> None:
        """Waits until this node is a voter: from then on the cluster can lose one more node."""
        await self._cache.became_voter.wait()

    async def locate(self, topic: bytes, create: bool = True) -> Located | None:
        """Returns the hub and members of a topic's room, placing it if needed; see `Directory.locate`."""
        return await self.directory.locate(topic, create)

    async def move(self, topic: bytes, to: str | None) -> int | None:
        """Moves the room of a topic to a node; see `Directory.move`."""
        return await self.directory.move(topic, to)

    async def moves(self) -> tuple[rpc.MoveRow, ...]:
        """Returns the controller's recent moves; see `Directory.moves`."""
        return await self.directory.moves()

    async def apply(self, given: Sequence[RoomClass]) -> list[str]:
        """Adds or changes the given classes in the cluster; other classes stay.

        Returns:
            Names of the classes that are new or changed.

        Raises:
            ClassChangeError: one would change a fixed setting.
            NoControllerError: the classes are not known here yet.
            ExpectationError: another client changed one of them just now.
            CoordinatorError: the coordinator failed.
        """
        if not self._cache.whole.issuperset({CLASSES}):
            raise NoControllerError("the classes are not known here yet")
        stored = {name: stored.record for name, stored in self._cache.classes.items()}
        puts = classes.applied(stored, given)
        if len(puts) > classes.APPLIED_MAX:
            raise ClassChangeError("too many classes at once", f"{len(puts)}, at most {classes.APPLIED_MAX}")
        names = {put.key: put.key.partition("/")[2] for put in puts}
        logged = [cls.name for cls in given if cls.is_logged and cls.name in names.values()]
        without = [
            name for name, stored_node in sorted(self._cache.nodes.items()) if _lacks_log(stored_node.record)
        ]
        if logged and without:
            raise ClassChangeError(
                f"class {logged[0]} keeps a log, and a node has no data directory",
                without[0],
                "start it with --data, or with --role edge",
            )
        await self._write_classes(puts)
        return list(names.values())

    async def remove_class(self, name: str) -> None:
        """Removes a class: it gets no new rooms, and its existing rooms stay.

        Raises:
            NoSuchClassError: there is none.
            ClassChangeError: it cannot be removed.
            ExpectationError: another client changed it just now.
            CoordinatorError: the coordinator failed.
        """
        put = classes.removed({name: stored.record for name, stored in self._cache.classes.items()}, name)
        if put is not None:
            await self._write_classes([put])

    async def _write_classes(self, puts: Sequence[Put]) -> None:
        known = {classes.class_key(name): stored.revision for name, stored in self._cache.classes.items()}
        expect = {put.key: known.get(put.key, 0) for put in puts}
        await self._ctx.coordinator.commit(expect, [Put(put.key, put.value) for put in puts])

    @property
    def class_records(self) -> Mapping[str, ClassRecord]:
        return {name: stored.record for name, stored in self._cache.classes.items()}

    def class_versions(self) -> Mapping[str, int]:
        """Version of the classes that each registered node uses; 0: not announced yet."""
        known = self._ctx.plane.class_versions()
        return {name: known.get(name, 0) for name in self.nodes}

    async def drain(self) -> bool:
        """Moves this node's hubs to other nodes, as far as they take them within `DRAIN_S`. Returns whether
        all were moved.

        Hubs of logged classes with records stay: no other node has the records, so their rooms wait for this
        node.
        """
        await self._membership.drain()
        clock, plane = self._ctx.clock, self._ctx.plane
        until_s = clock() + DRAIN_S
        while self._led_hubs() - plane.unmovable() and self._has_successors() and clock() < until_s:
            self._news.clear()
            await wait_set(self._news, until_s - clock())
        left = self._led_hubs()
        if left:
            classes = Counter(self._cache.hubs[hub].record.room_class for hub in left)
            log.info(
                "hubs stay with this node: they have records, or nobody has taken them",
                hubs=len(left),
                classes=", ".join(f"{name} ({count})" for name, count in sorted(classes.items())),
            )
        return not left

    async def stop(self, drain: bool = True) -> None:
        """Leaves the cluster.

        Args:
            drain: Whether to move its hubs to other nodes first; default: yes.
        """
        try:
            if drain and self._membership.lease is not None:
                await self.drain()
        except HubSubError as error:
            log.info("the node leaves without draining", reason=error.message)
        finally:
            await end(self._reporter, self._claimer)
            await self._forgetter.close()
            await self.directory.close()
            await self._assigner.close()
            await self._controller.stop()
            await self._partition_mode.close()
            await self._cache.close()
            await self._membership.leave()

    def status(self) -> dict[str, Any]:
        """The cluster as this node sees it, for REST and the command line; see `status`."""
        return status_of(
            self._ctx,
            self._cache,
            self._membership,
            self._controller,
            cluster=self.cluster,
            warnings=self.warnings,
            kind=self._config.coordinator.partition("://")[0],
            waiting=self.directory.waiting,
            room_records=self.room_records,
        )

    # -- callbacks of the plane --

    def changed(self) -> None:
        """Wakes everything that depends on the plane or the watch cache."""
        self._news.set()
        self._claim_news.set()
        self._partition_mode.wake()
        self._controller.wake()
        self.directory.wake()

    async def on_request(self, node: str, body: bytes) -> bytes:
        """Answers a request from the control plane of another node."""
        return rpc.encode(await self._answer(node, rpc.decode_request(body)))

    async def _answer(self, node: str, request: rpc.Request | rpc.ErrorResponse) -> rpc.Response:
        try:
            match request:
                case rpc.Assign():
                    return await self._assigner.assign(request)
                case rpc.Find():
                    return await self._assigner.find(request)
                case rpc.Move():
                    return await self._assigner.moves.move(request)
                case rpc.Moves():
                    return self._assigner.moves.recent()
                case rpc.Confirm():
                    return self._member.confirm(request)
                case rpc.Forget():
                    return await self._member.unused(request)
                case rpc.Report():
                    self._reports.note_load(node, request.load)
                    return rpc.Acknowledged()
                case rpc.Claim():
                    self._reports.note_claim(node, request)
                    return rpc.Acknowledged()
                case rpc.ErrorResponse():
                    return request
        except HubSubError as error:
            return rpc.ErrorResponse(error.code, error.message, error.hint)

    async def _ask_controller(self, request: rpc.Request) -> rpc.Response:
        held = self._cache.controller
        if held is None:
            raise NoControllerError("no controller is elected")
        return await self._ask(held.record.node, request, WAIT_S)

    async def _ask(self, node: str, request: rpc.Request, within_s: float) -> rpc.Response:
        if node == self.name:
            return await self._answer(node, request)
        try:
            async with asyncio.timeout(within_s):
                return rpc.decode_response(await self._ctx.plane.ask(node, rpc.encode(request)))
        except TimeoutError:
            raise PeerError("the other node gave no answer in time", node) from None

    async def _confirm(self, node: str, request: rpc.Confirm) -> rpc.Confirmation:
        answer = await self._ask(node, request, CONFIRM_S)
        if not isinstance(answer, rpc.Confirmation):
            raise PeerError(value=node)
        return answer

    async def _ask_for_unused(self, node: str, request: rpc.Forget) -> rpc.Response:
        return await self._ask(node, request, CONFIRM_S)

    def _led_hubs(self) -> set[int]:
        return {hub for hub, stored in self._cache.hubs.items() if stored.record.leader == self.name}

    def _has_successors(self) -> bool:
        return any(
            stored.record.holds_hubs and not stored.record.is_draining and name != self.name
            for name, stored in self._cache.nodes.items()
        )


def _lacks_log(node: NodeRecord) -> bool:
    return node.holds_hubs and not node.keeps_log
