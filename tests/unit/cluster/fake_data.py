"""A fake data plane that strictly asserts that its caller follows the protocol of `hubsub.node.Node`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_address
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from hubsub.config import split_address
from hubsub.errors import HubClosedError, HubSubError, NotLinkedError
from hubsub.node import ClassRow, RouteRow


class News(NamedTuple):
    kind: str
    node: str = ""
    incarnation: int = 0
    code: str | None = None


class Heard(NamedTuple):
    """A peer's lease state, as `hubsub.node.LeasePeer`."""

    heard_s: float
    acknowledged_s: float | None = None
    acknowledged_until_s: float | None = None
    lease_until_s: float | None = None
    gave_up: frozenset[tuple[int, int]] = frozenset()
    suspects: frozenset[str] = frozenset()


class Snapshot(NamedTuple):
    """A snapshot of lease state, as `hubsub.node.LeaseSnapshot`."""

    controller_term: int = 0
    peers: Mapping[tuple[str, int], Heard] = MappingProxyType({})
    until_s: float | None = None
    acknowledged_term: int = 0
    confirmed_s: float = 0.0
    alone_s: float | None = None


class FakeData:
    """The fake data plane of process `me`; asserts the preconditions of `Node`."""

    def __init__(self, me: tuple[str, int] = ("a", 7)) -> None:
        self.me = me
        self.on_peer: Callable[[Any], None] | None = None
        self.on_request: Callable[[str, int, bytes], None] | None = None
        self.on_lease: Callable[[Any], None] | None = None
        self.on_ready: Callable[[], None] | None = None
        self.on_room_miss: Callable[[str, bytes, bool], None] | None = None
        self.on_locate: Callable[[int, bytes], None] | None = None
        self.refused: list[bytes] = []
        self.codes: list[str] = []
        """Error codes of refused rooms and lookups, in order."""
        self.absent: list[bytes] = []
        self.located: dict[int, Sequence[tuple[str, str]] | None] = {}
        self.roster: Sequence[tuple[str, int, Sequence[str], int]] = ()
        self.others: dict[str, FakeData] = {}
        self.answers: dict[int, bytes] = {}
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.asked = 0
        self.leads: set[tuple[int, int, bool]] = set()
        self.counted: tuple[int, Sequence[str], Sequence[str]] | None = None
        self.tables: tuple[int, float, Mapping[tuple[str, int], Collection[tuple[int, int]]], int] | None = (
            None
        )
        self.refusals: list[HubSubError] = []
        self.refusal: HubSubError | None = None
        """Error that all calls about leader leases raise; None: they succeed."""
        self.snapshot = Snapshot()
        self.logged: set[str] = set()
        self.hubs_of: dict[str, int] = {}
        self.rows: dict[int, RouteRow] = {}
        self.served: list[list[int]] = []
        """Arguments of all calls of `route_serves`."""
        self.rooms: dict[tuple[str, bytes], int | None] = {}
        self.used: set[bytes] = set()
        self.ready: list[tuple[str, int]] = []
        self.open: dict[int, tuple[str, int]] = {}
        self.said = 0
        self.latest: dict[int, int] = {}
        """Last offsets of hubs with a record."""
        self.opening: set[int] = set()
        self.closing: set[int] = set()
        self.gates: dict[int, asyncio.Event] = {}
        self.broken: dict[int, Exception] = {}
        self.shards: list[dict[str, int]] = [{}]

    # -- links --

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        for _, _, addresses, shards in peers:
            for host, port in map(split_address, addresses):
                assert shards > 0 and 0 < port < 1 << 16 and not getattr(ip_address(host), "scope_id", None)
        self.roster = list(peers)

    def link_peers(self) -> list[dict[str, Any]]:
        return [
            {"node": name, "links": [{"classes": other.said, "state": "up"}]}
            for name, other in self.others.items()
        ]

    def link_status(self, classes: int) -> None:
        self.said = classes

    async def link_ask(self, node: str, body: bytes) -> bytes:
        assert body, "a question has bytes"
        other = self.others.get(node)
        if other is None or other.on_request is None:
            raise NotLinkedError()
        other.asked += 1
        future = other.waiting[other.asked] = asyncio.get_running_loop().create_future()
        other.on_request(self.me[0], other.asked, body)
        return await future

    def link_answer(self, node: str, number: int, body: bytes) -> None:
        self.waiting.pop(number).set_result(body)

    # -- leads --

    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None:
        for hub, term, _ in routes:
            assert hub > 0 and term > 0 and self.rows[hub].room_class not in self.logged
        self.leads = set(routes)

    def lead_voters(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None:
        self.counted = revision, nodes, before

    async def lead_tables(
        self,
        controller_term: int,
        until_s: float,
        confirmed_s: float,
        tables: Mapping[tuple[str, int], Collection[tuple[int, int]]],
        voters: int,
    ) -> None:
        assert controller_term > 0 and voters >= 0
        await self.order()
        self.tables = controller_term, until_s, confirmed_s, tables, voters

    async def lead_resign(self, controller_term: int) -> None:
        await self.order()
        self.tables = None

    async def order(self) -> None:
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop(0)
        if self.refusal is not None:
            raise self.refusal

    def lead_snapshot(self) -> Snapshot:
        return self.snapshot

    # -- routes --

    def route_classes(self, classes: Sequence[ClassRow]) -> None:
        self.hubs_of = {row.definition.name: row.hubs for row in classes}
        self.logged = {row.definition.name for row in classes if row.definition.is_logged}

    def route_hubs(self, rows: Sequence[RouteRow]) -> None:
        known = {row.hub: row for row in rows}
        assert len(known) == len(rows), "a hub is told once"
        for hub, row in known.items():
            assert hub > 0 and row.index < self.hubs_of[row.room_class], "classes come first"
            assert hub not in self.rows or self.rows[hub].term <= row.term, "a route became older"
            if row.room_class in self.logged and row.leader == self.me:
                assert hub in self.open and hub not in self.closing, "its log is opened first"
        self.rows = known

    def route_serves(self, hubs: Sequence[int]) -> None:
        self.served.append(list(hubs))

    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        for room, hub in hubs.items():
            assert hub is None or hub in self.rows, "hubs come first"
            self.rooms[room_class, room] = hub

    def route_refuse(self, rooms: Sequence[bytes], code: str = HubClosedError.code) -> None:
        self.refused += rooms
        self.codes.append(code)

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        self.absent += rooms

    def route_located(
        self, number: int, members: Sequence[tuple[str, str]] | None, code: str = HubClosedError.code
    ) -> None:
        assert number not in self.located, "a question is answered once"
        assert members is None or members, "nobody is None"
        self.located[number] = members
        self.codes += [code] if members is None else []

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        return topic, "chat", 3

    async def route_unused(
        self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool = False
    ) -> Sequence[bytes]:
        assert self.rows[hub].term >= term and self.rows[hub].leader == self.me
        return [room for room in rooms if room not in self.used]

    def route_ready(self) -> Sequence[tuple[str, int]]:
        return self.ready

    # -- hubs --

    async def open_hub(self, hub: int, room_class: str, index: int) -> dict[str, Any]:
        assert hub not in self.opening | self.closing, "one thing at a time"
        self.opening.add(hub)
        try:
            if hub in self.gates:
                await self.gates[hub].wait()
            await asyncio.sleep(0)
            if hub in self.broken:
                raise self.broken[hub]
            self.open[hub] = room_class, index
        finally:
            self.opening.discard(hub)
        return {}

    async def close_hub(self, hub: int) -> int | None:
        assert hub not in self.opening | self.closing, "one thing at a time"
        row = self.rows.get(hub)
        assert row is None or row.leader != self.me, "the broker is told first"
        self.closing.add(hub)
        try:
            if hub in self.gates:
                await self.gates[hub].wait()
            await asyncio.sleep(0)
            if hub in self.broken:
                raise self.broken[hub]
        finally:
            self.closing.discard(hub)
        return None if self.open.pop(hub, None) is None else self.latest.get(hub, 0)

    def log(self) -> Any:
        hubs = [SimpleNamespace(id=hub, latest=self.latest.get(hub, 0)) for hub in self.open]
        return SimpleNamespace(hubs=hubs)

    def metrics(self) -> Mapping[str, Any]:
        return {"shards": self.shards}
