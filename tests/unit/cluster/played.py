"""Whole nodes of a cluster in one event loop with virtual time: a minute takes a moment.

`play(test)` runs a coroutine in such a loop. A `Cluster` has a coordinator in memory and nodes with a
`PlayedPlane` each: links that connect and disconnect at once, heartbeats and leader leases as in
docs/adr/0013-a-cluster.md and `view`. At every time step it checks that no two processes lead the same hub,
and that no two ever lead the same term of it.
"""

import asyncio
import contextlib
import random
import selectors
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hubsub.config import Config, resolve
from hubsub.control.cluster.bucket_values import hash_of
from hubsub.control.cluster.classes import version_of
from hubsub.control.cluster.membership import prepare
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.cluster.placement import Load
from hubsub.control.cluster.plane import Neighbour, PlaneEvents, Route, TopicRoute
from hubsub.control.cluster.records import ClassRecord, VotersRecord
from hubsub.control.cluster.view import Claims, HubTerm, Peer, ProcessId, Tables, Timing
from hubsub.control.cluster.voters import may_extend_lease
from hubsub.coordination import Write
from hubsub.coordination import lease as lease_module
from hubsub.coordination import memory as memory_module
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.errors import CoordinatorError, CoordinatorUnknownError, PeerError

BEAT_S = 0.05
TIMING = Timing()
YEAR_2030 = 1_893_456_000
CLASSES = [{"name": "chat", "match": ["chat:*"]}, {"name": "game", "match": ["game:*"], "placement": "ring"}]


class _Selector(selectors.DefaultSelector):
    """Advances the virtual time instead of waiting."""

    loop: "PlayedLoop"

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("all wait for something that will never happen")
        if not found and timeout is not None and timeout > 0:
            self.loop.now += timeout
        return found


class PlayedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1_000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def play(test: Callable[[], Awaitable[None]]) -> None:
    """Runs a test in a loop with virtual time."""
    loop = PlayedLoop()
    clock = types.SimpleNamespace(monotonic=loop.time)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
        patch.setattr(lease_module, "time", clock)
        patch.setattr(memory_module, "time", clock)
        runner.run(_bounded(test))


async def _bounded(test: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(3_600):
        await test()


async def until(check: Callable[[], object], within_s: float = 20.0) -> None:
    """Advances the time until a condition holds."""
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(BEAT_S / 5)


class DoubtfulCoordinator(MemoryCoordinator):
    """Loses responses: the outcome of some commits stays unknown, and some are applied later."""

    def __init__(self, store: MemoryStore, seed: int, doubts: float = 0.0) -> None:
        super().__init__(store)
        self.random = random.Random(seed)
        self.doubts = doubts
        """Share of commits with an unknown outcome, from 0 to 1."""
        self._late: set[asyncio.Task[None]] = set()

    async def _commit(self, expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
        if self.random.random() >= self.doubts:
            return await super()._commit(expect, writes)
        match self.random.choice(["made", "late", "never"]):
            case "made":
                await super()._commit(expect, writes)
            case "late":
                late = asyncio.create_task(self._make_late(expect, writes))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
        raise CoordinatorUnknownError()

    async def _make_late(self, expect: dict[str, int], writes: tuple[Write, ...]) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.5))
        with contextlib.suppress(CoordinatorError):
            await super()._commit(expect, writes)


class PlayedPlane:
    """A simulated data plane of one process: see `Plane`."""

    def __init__(self, cluster: "Cluster", process: ProcessId) -> None:
        self.cluster = cluster
        self.me = process
        self.is_alive = True
        self.is_ready = True
        self.is_deaf = False
        """Whether its control plane hangs, while links and leader leases work."""
        self.neighbours: dict[str, Neighbour] = {}
        self.known_classes: Mapping[str, ClassRecord] = {}
        self.rows: dict[int, Route] = {}
        self.pinned: dict[tuple[str, bytes], int] = {}
        self.given_up: list[bytes] = []
        """Rooms that it gave up, in order."""
        self.counted: tuple[int, VotersRecord] | None = None
        self.sample: Load | None = Load()
        self.open_errors: dict[int, str] = {}
        self.face: PlaneEvents
        # State as a leader of hubs.
        self.lease_until_s = -1.0
        self.lead_census = 0
        """Revision of the voters that the last grant named."""
        self.covers: frozenset[HubTerm] = frozenset()
        self.gave_up: set[HubTerm] = set()
        self.heeded: tuple[int, ProcessId] | None = None
        self.heeds_heard_s = -1.0
        self.phase = 0
        # State as the controller.
        self.controller_term: tuple[int, float, Tables] | None = None
        self.mandate_confirmed_s = self.alone_at_s = -1.0
        self.known: dict[ProcessId, Peer] = {}
        self.phases: dict[ProcessId, tuple[int | None, int, float]] = {}
        self.round_trips: dict[ProcessId, float] = {}
        self.granting = 0
        """Revision of the voters that its grants name."""

    # -- Plane --

    def attach(self, face: PlaneEvents) -> None:
        self.face = face

    def roster(self, neighbours: Sequence[Neighbour]) -> None:
        self.neighbours = {neighbour.name: neighbour for neighbour in neighbours}

    def classes(self, classes: Mapping[str, ClassRecord]) -> None:
        self.known_classes = dict(classes)

    def class_versions(self) -> Mapping[str, int]:
        return {p.me[0]: version_of(p.known_classes) for p in self.cluster.planes.values() if p.is_alive}

    def routes(self, rows: Sequence[Route]) -> None:
        assert all(row.room_class in self.known_classes for row in rows)
        before, self.rows = self.rows, {row.hub: row for row in rows}
        for hub, row in self.rows.items():
            assert hub not in before or before[hub].term <= row.term, "a route became older"
            if row.gives_up and row.leader == self.me and not self.has_log_of(row):
                self.gave_up.add((hub, row.term))
        self.covers -= self.gave_up

    async def unused(self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool) -> Sequence[bytes]:
        row = self.rows[hub]
        if row.leader != self.me or row.term != term:
            return []
        unused = [room for room in rooms if room not in self.cluster.used]
        if gives_up:
            self.given_up += unused
        return unused

    def claims(self) -> Claims:
        mine = [row for row in self.rows.values() if self.has_log_of(row)]
        asked = {row.hub: row.revision for row in mine if row.gives_up}
        blank = {row.hub for row in mine if row.hub not in self.cluster.records}
        return Claims(
            empty=frozenset(blank - asked.keys()),
            sealed={hub: by for hub, by in asked.items() if hub in blank},
            retained={hub: by for hub, by in asked.items() if hub not in blank},
        )

    def unmovable(self) -> frozenset[int]:
        return frozenset(
            row.hub for row in self.rows.values() if self.has_log_of(row) and row.hub in self.cluster.records
        )

    def has_log_of(self, row: Route) -> bool:
        return row.leader == self.me and self.known_classes[row.room_class].durability != "ephemeral"

    def record(self, hub: int) -> bool:
        """Simulates a publish in a logged hub that this node leads; returns whether the record was
        accepted."""
        row = self.rows.get(hub)
        if not self.is_alive or row is None or not self.has_log_of(row):
            return False
        has_one = hub in self.cluster.records
        if row.gives_up and not has_one:
            return False
        assert self.cluster.records.setdefault(hub, self.me[0]) == self.me[0], f"hub {hub} went on elsewhere"
        return True

    def pins(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        for room, hub in hubs.items():
            self.pinned.pop((room_class, room), None)
            if hub is not None:
                self.pinned[room_class, room] = hub

    def voters(self, revision: int, nodes: tuple[str, ...], before: tuple[str, ...]) -> None:
        self.counted = revision, VotersRecord(nodes=nodes, before=before)

    async def grants(
        self, controller_term: int, until_s: float, confirmed_s: float, tables: Tables, voters: int
    ) -> None:
        await asyncio.sleep(0.001)
        if self.controller_term is None or self.controller_term[0] != controller_term:
            self.mandate_confirmed_s = -1.0
        self.controller_term, self.granting = (controller_term, until_s, tables), voters
        self.mandate_confirmed_s = max(self.mandate_confirmed_s, confirmed_s)

    def confirmed_s(self, controller_term: int) -> float:
        return (
            self.mandate_confirmed_s
            if self.controller_term is not None and self.controller_term[0] == controller_term
            else 0.0
        )

    def alone_s(self) -> float | None:
        return self.alone_at_s if self.heeded is None and self.alone_at_s > 0 else None

    def runs(self) -> bool:
        """Whether its controller term runs: its coordinator lease is valid, and the term was confirmed less
        than one leader lease ago."""
        ends_s = self.mandate_confirmed_s + TIMING.lease_s
        return self.controller_term is not None and self.cluster.now < min(self.controller_term[1], ends_s)

    def is_cut_off(self) -> bool:
        return self.cluster.now >= self.lease_until_s and self.heeded is None

    def peers(self, controller_term: int) -> Mapping[ProcessId, Peer]:
        found = {}
        for process, peer in self.known.items():
            heeds, _, since = self.phases.get(process, (None, 0, 0.0))
            found[process] = replace(peer)
            if heeds == controller_term:
                until_s = self.round_trips[process]
                found[process] = replace(peer, acknowledged_s=since, acknowledged_until_s=until_s)
        return found

    async def ask(self, node: str, body: bytes) -> bytes:
        await asyncio.sleep(0.001)
        other = self.cluster.planes.get(node)
        if other is None or not self.cluster.are_linked(self, other):
            raise PeerError(value=node)
        if other.is_deaf:
            await asyncio.Event().wait()
        answer = await other.face.on_request(self.me[0], body)
        await asyncio.sleep(0.001)
        if not self.cluster.are_linked(self, other):
            raise PeerError(value=node)
        return answer

    def topic_route(self, topic: bytes) -> TopicRoute:
        room_class = next((name for name in ("chat", "game") if topic.startswith(name.encode())), "default")
        return TopicRoute(topic, room_class, hash_of(topic) % self.known_classes[room_class].hubs)

    async def load(self) -> Load | None:
        return self.sample

    # -- time --

    def leads(self) -> frozenset[HubTerm]:
        return self.covers if self.is_alive and self.cluster.now < self.lease_until_s else frozenset()

    def beat(self) -> None:
        """Simulates the heartbeats and lease requests of one interval."""
        now, before = self.cluster.now, {id_: (p.is_dead, p.gave_up) for id_, p in self.known.items()}
        linked = [p for p in self.cluster.planes.values() if self.cluster.are_linked(self, p)]
        mandates = [
            (p.controller_term[0], p.me) for p in linked if p.controller_term is not None and p.runs()
        ]
        # A controller term is acknowledged until its holder reports its end, or has been silent for the
        # silence timeout.
        if self.heeded is not None and self.heeded[1] in {p.me for p in linked if not p.runs()}:
            self.heeds_heard_s = -1.0
        heeded = self.heeded if now - self.heeds_heard_s <= TIMING.silence_s else None
        if mandates and max(mandates) >= (heeded or (0, self.me)):
            heeded, self.heeds_heard_s = max(mandates), now
        is_news = heeded != self.heeded
        self.phase += is_news
        self.heeded = heeded
        for other in linked:
            heeds = None if other.heeded is None else other.heeded[0]
            if self.phases.get(other.me, (0, -1, 0.0))[:2] != (heeds, other.phase):
                self.phases[other.me] = heeds, other.phase, now
                is_news = True
            self.round_trips[other.me] = now
            known = self.known.get(other.me, Peer())
            self.known[other.me] = replace(
                known, heard_s=now, is_ready=other.is_ready, gave_up=frozenset(other.gave_up)
            )
        for process, peer in self.known.items():
            is_reached = process[0] not in self.cluster.cut_of(self.me[0])
            if process in self.cluster.ended and is_reached and not peer.is_dead:
                self.known[process] = replace(peer, dead_s=now)
        self._confirm(now, linked)
        self._lead(now, linked)
        if is_news or before != {id_: (p.is_dead, p.gave_up) for id_, p in self.known.items()}:
            self.face.changed()

    def _confirm(self, now: float, linked: "list[PlayedPlane]") -> None:
        _, counted = self.counted or (-1, VotersRecord(nodes=()))
        heeded = {p.me[0]: None if p.heeded is None else p.heeded[0] for p in linked}
        number = self.controller_term[0] if self.controller_term is not None and self.runs() else -1
        if may_extend_lease(counted, {name for name, it in heeded.items() if it == number}):
            self.mandate_confirmed_s = now
        if self.heeded is None and may_extend_lease(
            counted, {name for name, it in heeded.items() if it is None}
        ):
            self.alone_at_s = now

    def _lead(self, now: float, linked: "list[PlayedPlane]") -> None:
        self.gave_up |= {term for term in self.covers if self._has_ended(term)}
        self.covers -= self.gave_up
        if self.heeded is None:
            names = {p.me[0] for p in linked if p.heeded is None}
            revision, counted = self.counted or (-1, VotersRecord(nodes=()))
            is_fresh = now < self.lease_until_s and revision >= self.lead_census
            if is_fresh and may_extend_lease(counted, names):
                self.lease_until_s = now + TIMING.lease_s
            return
        controller = next((plane for plane in linked if plane.me == self.heeded[1]), None)
        if controller is None or controller.controller_term is None or not controller.runs():
            return
        table = controller.controller_term[2].get(self.me)
        if table is None:
            return
        claim = {
            (row.hub, row.term) for row in self.rows.values() if row.leader == self.me and not row.gives_up
        }
        granted = frozenset(claim - self.gave_up) & table
        self.gave_up |= self.covers - granted
        self.covers, self.lease_until_s = granted, controller.mandate_confirmed_s + TIMING.lease_s
        self.lead_census = controller.granting
        peer = controller.known.get(self.me, Peer())
        controller.known[self.me] = replace(peer, lease_until_s=self.lease_until_s)

    def _has_ended(self, term: HubTerm) -> bool:
        row = self.rows.get(term[0])
        return row is not None and row.term > term[1]


class Cluster:
    """Nodes, a coordinator, and the links between them."""

    def __init__(self, classes: Sequence[Mapping[str, Any]] = CLASSES, **limits: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = MemoryStore(self.loop.time)
        self.classes = classes
        self.limits = limits
        self.nodes: dict[str, ClusterNode] = {}
        self.planes: dict[str, PlayedPlane] = {}
        self.coordinators: dict[str, DoubtfulCoordinator] = {}
        self.seed = 0
        self.doubts = 0.0
        """Doubts of the coordinators of new nodes: see `DoubtfulCoordinator`."""
        self._started = 0
        self.ended: set[ProcessId] = set()
        self.cut: set[frozenset[str]] = set()
        self.used: set[bytes] = set()
        """Rooms in use: not reported as unused."""
        self.records: dict[int, str] = {}
        """Logged hubs that have a record, and the node that has it."""
        self.led_by: dict[HubTerm, ProcessId] = {}
        self._beating = asyncio.create_task(self._beat())

    @property
    def now(self) -> float:
        return self.loop.time()

    def wall(self) -> float:
        return YEAR_2030 + self.now

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beating.done():
            await self._beating
        self._beating.cancel()
        for name in list(self.nodes):
            await self.kill(name)

    def config(self, name: str, **file: Any) -> Config:
        whole = {"node": name, "class": self.classes, "limits": self.limits, "shards": 1} | file
        return resolve(whole, {}, {})

    async def start(self, *names: str, **file: Any) -> None:
        """Starts nodes, one after the other."""
        for name in names:
            self._started += 1
            coordinator = DoubtfulCoordinator(self.store, self._started + 1_000 * self.seed, self.doubts)
            try:
                config = self.config(name, **file)
                prepared = await prepare(config, coordinator, wall=self.wall)
                plane = PlayedPlane(self, (name, prepared.incarnation))
                addresses = {"redis": f"{name}:3221", "link": f"{name}:3222"}
                node = await ClusterNode.start(
                    config, coordinator, plane, prepared,
                    addresses=addresses, timing=TIMING, clock=self.loop.time, wall=self.wall,
                )  # fmt: skip
            except BaseException:
                await coordinator.close()
                raise
            self.nodes[name], self.planes[name], self.coordinators[name] = node, plane, coordinator

    async def kill(self, *names: str) -> None:
        """Ends processes like `kill -9`: no goodbye is sent, and leases expire."""
        for name in names:
            self.planes[name].is_alive = False
            self.part(name)
            self.ended.add(self.planes[name].me)
        for name in names:
            await self.nodes.pop(name).stop(drain=False)
            await self.coordinators.pop(name).close()

    async def stop(self, name: str) -> None:
        """Ends a process gracefully."""
        node = self.nodes[name]
        await node.stop()
        self.planes[name].is_alive = False
        self.ended.add(self.planes[name].me)
        del self.nodes[name]
        await self.coordinators.pop(name).close()

    def split(self, *sides: str) -> None:
        """Cuts links between groups of nodes; a node's name is one letter."""
        self.cut = {frozenset((a, b)) for s in sides for t in sides if s != t for a in s for b in t}

    def part(self, names: str, is_away: bool = True) -> None:
        """Cuts some nodes off from the coordinator, or reconnects them."""
        for name in names:
            self.coordinators[name].cut = is_away
        self.store.break_watches()

    def cut_of(self, name: str) -> set[str]:
        return {other for pair in self.cut if name in pair for other in pair}

    def are_linked(self, a: PlayedPlane, b: PlayedPlane) -> bool:
        if a is b:
            return a.is_alive
        is_known = a.me[0] in b.neighbours and b.me[0] in a.neighbours
        return a.is_alive and b.is_alive and is_known and frozenset((a.me[0], b.me[0])) not in self.cut

    # -- what can be seen --

    def controller(self) -> str | None:
        return next((name for name, node in self.nodes.items() if node.is_controller), None)

    def led(self) -> dict[int, str]:
        return {hub: plane.me[0] for plane in self.planes.values() for hub, _ in plane.leads()}

    def status(self, name: str | None = None) -> dict[str, Any]:
        return self.nodes[name or next(iter(self.nodes))].status()

    def leaders(self) -> dict[int, str]:
        return {hub["hub"]: hub["leader"] for hub in self.status()["hubs"]}

    def is_well(self) -> bool:
        """Whether every hub is led by its intended leader, and nothing moves or changes."""
        if self.controller() is None:
            return False
        if any(p.counted is None or p.counted[1].before for p in self.planes.values() if p.is_alive):
            return False
        status = self.status()
        is_moving = any(hub["proposed"] for hub in status["hubs"])
        expected = sum(node["hubs"] for node in self._classes().values())
        return not is_moving and len(status["hubs"]) == expected and self.led() == self.leaders()

    async def settle(self, within_s: float = 60.0) -> None:
        """Advances the time until the cluster has been well for a second."""
        since: float | None = None
        async with asyncio.timeout(within_s):
            while since is None or self.now - since < 1.0:
                assert not self._beating.done(), self._beating.exception()
                since = (since or self.now) if self.is_well() else None
                await asyncio.sleep(BEAT_S)

    def _classes(self) -> dict[str, dict[str, int]]:
        plane = self.planes[next(iter(self.nodes))]
        return {name: {"hubs": record.hubs} for name, record in plane.known_classes.items()}

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for plane in list(self.planes.values()):
                if plane.is_alive and hasattr(plane, "face"):
                    plane.beat()
            self._check()

    def _check(self) -> None:
        seen: dict[int, ProcessId] = {}
        for plane in self.planes.values():
            for hub, term in plane.leads():
                assert hub not in seen, f"{self.now:.2f}: hub {hub}: {seen[hub]} and {plane.me} lead"
                assert self.led_by.setdefault((hub, term), plane.me) == plane.me, (
                    f"{self.now:.2f}: term {term} of {hub}"
                )
                seen[hub] = plane.me
