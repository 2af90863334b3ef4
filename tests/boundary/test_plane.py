"""The control plane of a cluster over a real data plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from hubsub.config import RoomClass, resolve
from hubsub.control.cluster.classes import record_of
from hubsub.control.cluster.dataplane import ClassRow, RouteRow
from hubsub.control.cluster.plane import Route
from hubsub.control.cluster.rim import CorePlane
from hubsub.node import Node

pytestmark = pytest.mark.usefixtures("core")

ME = ("a", 9)


@pytest.fixture
def core(needs: Callable[..., None]) -> None:
    needs("hubsub-core")


class Routed(Node):
    """With a broker that takes any route."""

    on_ready: Callable[[], None] | None = None

    def route_classes(self, classes: Sequence[ClassRow]) -> None: ...
    def route_hubs(self, rows: Sequence[RouteRow]) -> None: ...
    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None: ...

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        return topic, "chat", 0

    def route_ready(self) -> Sequence[tuple[str, int]]:
        return [ME]


class Face:
    def __init__(self) -> None:
        self.news = asyncio.Event()

    def changed(self) -> None:
        self.news.set()

    async def asked(self, node: str, body: bytes) -> bytes:
        return body

    async def until(self, is_it: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not is_it():
                self.news.clear()
                await self.news.wait()


async def test_a_controller_alone_grants_its_own_node_a_lead_and_ends_it() -> None:
    file = {
        "node": "a", "redis": "127.0.0.1:0", "link": "127.0.0.1:0", "shards": 2,
        "cluster_secret": "a secret of the tests",
    }  # fmt: skip
    node = Routed(resolve(file, {}, {}), incarnation=9, accepts=False)
    await node.start()
    face = Face()
    try:
        node.link_begin("c", 9)
        plane = CorePlane(node, ME)
        plane.attach(face)
        plane.classes({"chat": record_of(RoomClass(name="chat", match=("chat:*",)), 0)})
        plane.routes([Route(hub=1, room_class="chat", index=0, term=3, leader=ME, members=("a",))])
        plane.census(1, ("a",), ())
        until_s = time.monotonic() + 3_600
        await plane.grants(1, until_s, {ME: frozenset({(1, 3)})}, 1)
        await face.until(lambda: plane.peers(1)[ME].lead_until_s is not None)
        mine = plane.peers(1)[ME]
        assert mine.is_ready and not mine.is_dead and mine.heeds_s is not None and mine.heard_s is not None
        assert mine.lead_until_s is not None and mine.lead_until_s <= time.monotonic() + 1.001
        assert plane.peers(2)[ME].lead_until_s is None, "of another mandate nothing is known"
        await plane.grants(1, time.monotonic(), {}, 1)
        await face.until(lambda: plane.peers(1).get(ME) is None or plane.peers(1)[ME].heeds_s is None)
        await plane.close()
    finally:
        await node.stop()
    async with asyncio.timeout(60):
        await plane.grants(2, time.monotonic() + 3_600, {}, 1)
