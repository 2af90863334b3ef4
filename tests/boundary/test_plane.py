"""The control plane of a cluster over a real data plane."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hubsub.config import RoomClass, resolve
from hubsub.control.cluster.classes import LAST, record_of
from hubsub.control.cluster.core_plane import CorePlane
from hubsub.control.cluster.membership import prepare
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.cluster.plane import Route
from hubsub.coordination.memory import MemoryCoordinator
from hubsub.errors import HubClosedError
from hubsub.node import Cluster, Item, Node, Published, RouteRow
from hubsub.node.types import HistoryRow

pytestmark = pytest.mark.usefixtures("core")

ME = ("a", 9)
FILE = {"node": "a", "redis": "127.0.0.1:0", "shards": 2}
LOGGED = {
    "name": "log", "match": ["log:*"], "durability": "durable", "history": {"bytes": "64MiB"}, "placement": "ring"
}  # fmt: skip
ROOMS = [b"log:%d" % room for room in range(20)]


@pytest.fixture
def core(needs: Callable[..., None]) -> None:
    needs("hubsub-core")


class Routed(Node):
    """Records the hub routes that it was given. The name of a room determines its hub."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: dict[int, RouteRow] = {}
        self.told = asyncio.Event()

    def route_hubs(self, rows: Sequence[RouteRow]) -> None:  # type: ignore[override]
        super().route_hubs(rows)
        self.rows = {row.hub: row for row in rows}
        self.told.set()

    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None: ...


class PlaneEvents:
    def __init__(self) -> None:
        self.news = asyncio.Event()

    def changed(self) -> None:
        self.news.set()

    async def on_request(self, node: str, body: bytes) -> bytes:
        return body

    async def until(self, is_it: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not is_it():
                self.news.clear()
                await self.news.wait()


async def test_a_controller_alone_grants_its_own_node_a_lead_and_ends_it() -> None:
    file = FILE | {"link": "127.0.0.1:0", "cluster_secret": "a secret of the tests"}
    node = Routed(resolve(file, {}, {}), incarnation=9, accepts=False)
    await node.start()
    face = PlaneEvents()
    try:
        node.link_begin("c", 9)
        plane = CorePlane(node, ME)
        plane.attach(face)
        plane.classes(
            {
                "chat": record_of(RoomClass(name="chat", match=("chat:*",)), 0),
                "default": record_of(RoomClass(name="default", placement="ring"), LAST),
            }
        )
        plane.routes([Route(hub=1, room_class="chat", index=0, term=3, leader=ME, members=("a",))])
        plane.voters(1, ("a",), ())
        until_s = time.monotonic() + 3_600
        await plane.grants(1, until_s, time.monotonic(), {ME: frozenset({(1, 3)})}, 1)
        await face.until(lambda: plane.peers(1)[ME].lease_until_s is not None)
        mine = plane.peers(1)[ME]
        assert not mine.is_dead and mine.acknowledged_s is not None and mine.heard_s is not None
        assert mine.lease_until_s is not None and mine.lease_until_s <= time.monotonic() + 1.001
        assert plane.peers(2)[ME].lease_until_s is None, "of another mandate nothing is known"
        await plane.grants(1, time.monotonic(), 0.0, {}, 1)
        await face.until(lambda: plane.peers(1).get(ME) is None or plane.peers(1)[ME].acknowledged_s is None)
        await plane.close()
    finally:
        await node.stop()
    async with asyncio.timeout(60):
        await plane.grants(2, time.monotonic() + 3_600, 0.0, {}, 1)


async def kept_alone(file: dict[str, Any]) -> dict[int, tuple[str, int]]:
    """Hubs of a single node that has stored one record per room, by id: class and index."""
    alone = Node(resolve(file, {}, {}))
    await alone.start()
    try:
        items = [Item(room, b"x", {}, "me") for room in ROOMS]
        assert all(isinstance(one, Published) for one in await alone.publish(items))
        return {row.id: (row.room_class, row.index) for row in alone.log().hubs}
    finally:
        await alone.stop()


async def rows_of(node: Node, room: bytes) -> list[HistoryRow]:
    """A room's history, as soon as the shards know its leader."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await node.history(room, 10))[1]
            except HubClosedError:
                await asyncio.sleep(0.01)


async def test_a_node_that_founds_a_cluster_leads_the_hubs_of_its_log_under_their_numbers(
    tmp_path: Path,
) -> None:
    file = FILE | {"data": str(tmp_path), "class": [LOGGED]}
    before = await kept_alone(file)
    gc.collect()  # A node locks its directory as long as its core exists.
    assert list(before.values()).count(("log", 1)) == 1

    config = resolve(file | {"link": "127.0.0.1:0", "cluster_secret": "a secret of the tests"}, {}, {})
    coordinator = MemoryCoordinator()
    prepared = await prepare(config, coordinator)
    made = Cluster(prepared.cluster, prepared.founded)
    node = Routed(config, made, incarnation=prepared.incarnation, accepts=False)
    me = (node.name, node.incarnation)
    await node.start()
    try:
        node.link_begin(prepared.cluster, prepared.incarnation)
        plane = CorePlane(node, me)
        cluster = await ClusterNode.start(config, coordinator, plane, prepared, addresses={})
        try:
            async with asyncio.timeout(60):
                await plane.ready()
                while {hub for hub, row in node.rows.items() if row.leader == me} < before.keys():
                    node.told.clear()
                    await node.told.wait()
            assert plane.open_errors == {}
            assert {
                hub: (row.room_class, row.index) for hub, row in node.rows.items() if hub in before
            } == before
            assert max(row.index for row in node.rows.values() if row.room_class == "log") == 1
            for room in ROOMS:
                assert len(await rows_of(node, room)) == 1
        finally:
            await cluster.stop()
            await plane.close()
    finally:
        await node.stop()
        await coordinator.close()
