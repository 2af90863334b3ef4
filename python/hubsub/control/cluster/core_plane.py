"""`CorePlane` implements the `Plane` interface of the control plane over a node's data plane.

It translates records to the rows of the data plane. It also resolves peers' host names (`peer_addresses`),
opens the hubs of logged classes that this process leads (`logged_hubs`), and lets several parts of the process
send requests to their counterparts on other nodes over one link: the first byte of a request names the part.

Invariants: only `ask` waits for another node. A process that was reported dead stays dead. `grants` returns
at the latest when everything that it granted before has ended, whatever the data plane answers.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Final

import structlog

from hubsub.control.cluster import rpc
from hubsub.control.cluster.classes import class_of, version_of
from hubsub.control.cluster.logged_hubs import LoggedHubs
from hubsub.control.cluster.peer_addresses import PeerAddresses
from hubsub.control.cluster.placement import Load
from hubsub.control.cluster.plane import RPC_BYTES_MAX, Neighbour, PlaneEvents, Route, TopicRoute
from hubsub.control.cluster.records import ClassRecord
from hubsub.control.cluster.view import Claims, Peer, ProcessId, Tables
from hubsub.control.resource_usage import cpu_s
from hubsub.errors import HubSubError, PeerError, StoppingError
from hubsub.node import ClassRow, LeaseEvent, Node, PeerEvent, RouteRow

CONTROL: Final = b"\x00"
API: Final = b"\x01"
"""Parts of a process, as the first byte of a request. An empty response means that no part serves the
request, that too many are in flight, or that it failed."""

REQUESTS_MAX: Final = 256
"""Maximum number of requests of other nodes that are served at a time."""

DEAD_MAX: Final = 1_024
"""Maximum number of dead processes that are retained, the latest."""

GRANT_RETRY_S: Final = 0.05
"""Delay before tables that the data plane refused are passed again."""

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Serves a request: node and body to response."""

log = structlog.get_logger("hubsub.cluster")


class CorePlane:
    """`Plane` over a running data plane whose links have begun.

    Args:
        data: The data plane.
        me: This process.
        clock: Monotonic, seconds: that of the coordinator's leases.
        on_roster: Called with all other nodes, after the links were updated; default: none.
    """

    def __init__(
        self,
        data: Node,
        me: ProcessId,
        clock: Callable[[], float] = time.monotonic,
        on_roster: Callable[[Sequence[Neighbour]], None] | None = None,
    ) -> None:
        self._data = data
        self._me = me
        self._clock = clock
        self._on_roster = on_roster
        self._events: PlaneEvents | None = None
        self._handlers: dict[bytes, Handler] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._dead: dict[ProcessId, float] = {}
        """Dead processes, with the time when that became known."""
        self._logged_classes: frozenset[str] = frozenset()
        self._roster = PeerAddresses(data.link_roster)
        self._neighbours: Sequence[str] = ()
        self._hubs = LoggedHubs(data, data.route_hubs, me[0], self._changed)
        self._serves: set[int] = set()
        """Hubs that are served without a leader lease."""
        self._ready = asyncio.Event()
        self._hubs_of: Mapping[str, int] = {}
        """Number of hubs by class."""
        self._hubs_received: Counter[str] = Counter()
        """Number of hubs by class that the data plane has received."""
        self._version = self._announced_version = 0
        """Version of the classes that were received, and the version that this process uses and announces."""
        self._is_whole = False
        """Whether the data plane has received all hubs: from then on every room can be routed."""
        self._granted_until_s = -inf
        """When all grants that were passed to the data plane have ended."""
        self._last_load: tuple[float, float, Sequence[Mapping[str, int]]] | None = None
        """Clock, CPU seconds and shard metrics at the last call of `load`."""
        data.on_peer, data.on_request, data.on_lease = self._on_peer, self._on_request, self._on_lease
        data.on_ready = self._on_ready

    @property
    def open_errors(self) -> Mapping[int, str]:
        """Hubs of this process that could not be opened, with the error."""
        return self._hubs.open_errors

    def claims(self) -> Claims:
        return self._hubs.claims()

    def unmovable(self) -> frozenset[int]:
        return self._hubs.unmovable()

    async def ready(self) -> None:
        """Waits until this process holds all patterns and interest that concern it, and every room can be routed."""
        self._check_ready()
        await self._ready.wait()

    def waits_for(self) -> list[str]:
        """Registered nodes whose patterns may be missing here: no link with them is up, or they are not ready."""
        linked = {
            peer["node"]
            for peer in self._data.link_peers()
            if any(link["state"] == "up" for link in peer["links"])
        }
        ready = {name for name, _ in self._data.route_ready()}
        return [
            f"{name} ({'not ready' if name in linked else 'no link: it has died, or cannot be reached'})"
            for name in self._neighbours
            if name not in linked & ready
        ]

    async def close(self) -> None:
        """Stops serving requests and opening hubs; the owner of the data plane stops it."""
        self._data.on_peer = self._data.on_request = self._data.on_lease = self._data.on_ready = None
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, self._roster.close(), self._hubs.close(), return_exceptions=True)

    def serve(self, part: bytes, answer: Handler) -> None:
        """Sets the handler of a part of the process; before, requests for it get an empty response."""
        self._handlers[part] = answer

    # -- Plane --

    def attach(self, events: PlaneEvents) -> None:
        self._events = events
        self.serve(CONTROL, events.on_request)

    def roster(self, neighbours: Sequence[Neighbour]) -> None:
        self._neighbours = [neighbour.name for neighbour in neighbours]
        self._roster.set(neighbours)
        if self._on_roster is not None:
            self._on_roster(neighbours)

    def classes(self, classes: Mapping[str, ClassRecord]) -> None:
        logged = {name for name, record in classes.items() if class_of(record).is_logged}
        self._logged_classes = frozenset(logged)
        self._hubs_of = {name: record.hubs for name, record in classes.items()}
        names = sorted(classes, key=lambda name: (classes[name].order, name))
        self._data.route_classes(
            [
                ClassRow(
                    definition=class_of(classes[name]),
                    hubs=classes[name].hubs,
                    placement=classes[name].placement,
                    version=classes[name].version,
                    is_removed=classes[name].is_removed,
                )
                for name in names
            ]
        )
        self._version = version_of(classes)
        self._announce_version()

    def class_versions(self) -> Mapping[str, int]:
        versions = {self._me[0]: self._announced_version}
        for peer in self._data.link_peers():
            versions[peer["node"]] = max((link["classes"] for link in peer["links"]), default=0)
        return versions

    def routes(self, rows: Sequence[Route]) -> None:
        mine = [row for row in rows if row.leader == self._me]
        leads = [
            (row.hub, row.term, row.gives_up) for row in mine if row.room_class not in self._logged_classes
        ]
        route_rows = [
            RouteRow(row.hub, row.room_class, row.index, row.term, row.acting_leader or row.leader)
            for row in rows
        ]
        serves = {row.hub for row in rows if row.acting_leader == self._me}
        logged = {row.hub: row for row in mine if row.room_class in self._logged_classes}
        # A served hub must never lack both its leader and the right to serve: widen the set first, shrink it
        # last.
        self._data.route_serves(sorted(self._serves | serves))
        self._hubs.set(
            route_rows,
            {row.hub: row for row in route_rows if row.hub in logged},
            {hub: row.revision for hub, row in logged.items() if row.gives_up},
        )
        self._data.route_serves(sorted(serves))
        self._serves = serves
        self._data.lead_routes(leads)
        there = Counter(row.room_class for row in rows)
        self._hubs_received = there
        self._is_whole = all(there[name] >= hubs for name, hubs in self._hubs_of.items())
        self._announce_version()
        self._check_ready()

    def pins(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        self._data.route_rooms(room_class, hubs)

    def voters(self, revision: int, nodes: tuple[str, ...], before: tuple[str, ...]) -> None:
        self._data.lead_voters(revision, nodes, before)

    async def grants(
        self, controller_term: int, until_s: float, confirmed_s: float, tables: Tables, voters: int
    ) -> None:
        while True:
            try:
                if self._clock() >= until_s:
                    await self._data.lead_resign(controller_term)
                else:
                    self._granted_until_s = max(self._granted_until_s, until_s)
                    await self._data.lead_tables(
                        controller_term, until_s, confirmed_s, tables, max(0, voters)
                    )
                return
            except StoppingError:
                return  # All its shards have ended: it grants nothing.
            except HubSubError as error:
                if self._clock() >= max(until_s, self._granted_until_s):
                    # A shard that does not answer grants nothing after that time.
                    log.warning("the data plane takes no tables", reason=error.message)
                    return
                await asyncio.sleep(GRANT_RETRY_S)

    def is_cut_off(self) -> bool:
        snapshot = self._data.lead_snapshot()
        has_lead = snapshot.until_s is not None and self._clock() < snapshot.until_s
        return not has_lead and snapshot.acknowledged_term == 0

    def confirmed_s(self, controller_term: int) -> float:
        snapshot = self._data.lead_snapshot()
        return snapshot.confirmed_s if snapshot.controller_term == controller_term else -inf

    def alone_s(self) -> float | None:
        return self._data.lead_snapshot().alone_s

    def peers(self, controller_term: int) -> Mapping[ProcessId, Peer]:
        snapshot = self._data.lead_snapshot()
        is_of_it = controller_term != 0 and snapshot.controller_term == controller_term
        suspects: dict[str, set[str]] = {}
        for (name, _), row in snapshot.peers.items():
            for suspect in row.suspects:
                suspects.setdefault(suspect, set()).add(name)
        ready = set(self._data.route_ready())
        peers = {
            process: Peer(
                heard_s=row.heard_s,
                acknowledged_s=row.acknowledged_s if is_of_it else None,
                acknowledged_until_s=row.acknowledged_until_s if is_of_it else None,
                suspected_by=frozenset(suspects.get(process[0], ())),
                lease_until_s=row.lease_until_s if is_of_it else None,
                is_ready=process in ready,
                dead_s=self._dead.get(process),
                gave_up=row.gave_up,
            )
            for process, row in snapshot.peers.items()
        }
        return {process: Peer(dead_s=dead_s) for process, dead_s in self._dead.items()} | peers

    async def ask(self, node: str, body: bytes) -> bytes:
        return await self.ask_part(CONTROL, node, body)

    async def ask_part(self, part: bytes, node: str, body: bytes) -> bytes:
        """Sends a request to a part of another node's process and returns the response.

        Args:
            part: `CONTROL` or `API`.
            node: Name of the node.
            body: At most `RPC_BYTES_MAX` bytes.

        Raises:
            PeerError: it did not answer, cannot be asked now, or the request is too long.
        """
        if len(body) > RPC_BYTES_MAX:
            raise PeerError(
                "a question to another node is too long", f"{len(body)} bytes, at most {RPC_BYTES_MAX}"
            )
        try:
            answer = await self._data.link_ask(node, part + body)
        except HubSubError as error:
            raise PeerError(f"the other node gave no answer ({error.what})", node) from error
        if not answer:
            raise PeerError("the other node cannot answer now", node)
        return answer

    def topic_route(self, topic: bytes) -> TopicRoute:
        return TopicRoute(*self._data.route_of(topic))

    async def unused(self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool) -> Sequence[bytes]:
        return await self._data.route_unused(hub, term, rooms, gives_up=gives_up)

    async def load(self) -> Load | None:
        now_s, used_s, shards = self._clock(), cpu_s(), self._data.metrics()["shards"]
        before, self._last_load = self._last_load, (now_s, used_s, shards)
        if before is None or now_s <= before[0]:
            return None

        def sum_of(rows: Sequence[Mapping[str, int]], name: str) -> int:
            return sum(row.get(name, 0) for row in rows)

        def rate(name: str) -> float:
            return max(0.0, (sum_of(shards, name) - sum_of(before[2], name)) / (now_s - before[0]))

        return Load(
            cpu_share=max(0.0, (used_s - before[1]) / (now_s - before[0])),
            bytes_out_per_second=rate("bytes_out_total"),
            deliveries_per_second=rate("delivered_total"),
            connections=sum_of(shards, "connections"),
            rooms=sum_of(shards, "rooms"),
        )

    # -- what the data plane calls --

    def _on_peer(self, event: PeerEvent) -> None:
        # A goodbye of a stopping process proves its death, too.
        if event.kind == "dead" or (event.kind == "down" and event.code == "stopping"):
            self._dead.setdefault((event.node, event.incarnation), self._clock())
            while len(self._dead) > DEAD_MAX:
                del self._dead[next(iter(self._dead))]
        self._changed()

    def _on_lease(self, event: LeaseEvent) -> None:
        self._changed()

    def _on_ready(self) -> None:
        self._check_ready()
        self._changed()

    def _check_ready(self) -> None:
        if self._is_whole and self._me in self._data.route_ready():
            self._ready.set()

    def _announce_version(self) -> None:
        """Announces the version of the classes once the data plane has received all their hubs."""
        if self._announced_version != self._version and all(
            self._hubs_received[name] >= hubs for name, hubs in self._hubs_of.items()
        ):
            self._announced_version = self._version
            self._data.link_status(self._version)

    def _changed(self) -> None:
        if self._events is not None:
            self._events.changed()

    def _on_request(self, node: str, number: int, body: bytes) -> None:
        if len(self._serving) >= REQUESTS_MAX:
            self._data.link_answer(node, number, b"")
            return
        task = asyncio.create_task(self._answer(node, number, body))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _answer(self, node: str, number: int, body: bytes) -> None:
        part, answer = body[:1], b""
        try:
            if part in self._handlers:
                answer = await self._handlers[part](node, body[1:])
            if len(answer) > RPC_BYTES_MAX:
                log.warning("an answer to another node is too long", node=node, bytes=len(answer))
                answer = (
                    rpc.encode(rpc.ErrorResponse("peer", "the answer is too long"))
                    if part == CONTROL
                    else b""
                )
        except Exception:
            log.exception("a question of another node could not be answered", node=node)
        self._data.link_answer(node, number, answer)
