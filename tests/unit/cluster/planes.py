"""`CorePlane` of the process `me` over a fake data plane that enforces the protocol, for tests."""

from __future__ import annotations

import asyncio
from typing import Any

from hubsub.config import RoomClass
from hubsub.control.cluster.classes import LAST, record_of
from hubsub.control.cluster.core_plane import CorePlane
from hubsub.control.cluster.plane import Route

from .fake_data import FakeData

ME, OTHER = ("a", 7), ("b", 4)
CLASSES = {
    "default": record_of(RoomClass(name="default", placement="ring"), LAST),
    "log": record_of(RoomClass(name="log", match=("log:*",), durability="durable"), 1),
    "chat": record_of(RoomClass(name="chat", match=("chat:*",)), 0),
}


class PlaneEvents:
    def __init__(self) -> None:
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    async def on_request(self, node: str, body: bytes) -> bytes:
        return b"control of " + node.encode() + b": " + body


def plane(data: FakeData) -> tuple[CorePlane, PlaneEvents]:
    made, face = CorePlane(data, data.me, asyncio.get_running_loop().time), PlaneEvents()
    made.attach(face)
    made.classes(CLASSES)
    return made, face


def row(hub: int, room_class: str, leader: tuple[str, int] | None = ME, term: int = 1, **more: Any) -> Route:
    members = () if leader is None else (leader[0],)
    return Route(
        hub=hub, room_class=room_class, index=hub % 16, term=term, leader=leader, members=members, **more
    )
