"""What the data plane is told of what the watches gave: directories come in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hubsub.config import RoomClass
from hubsub.control.cluster import rooms
from hubsub.control.cluster.classes import class_key, record_of
from hubsub.control.cluster.follow import Follow
from hubsub.control.cluster.records import HubRecord, Record, format_of, hub_key
from hubsub.control.cluster.rim import CorePlane
from hubsub.coordination import Put
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore

from .fake_data import FakeData
from .played import play, until

CHAT = record_of(RoomClass(name="chat", match=("chat:*",)), 0)
HUB = HubRecord(room_class="chat", index=0, term=1, leader="b", incarnation=4, members=("b",))


class World:
    """A data plane that follows a store."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.data = FakeData()
        self.errors: list[BaseException] = []
        store = MemoryStore(loop.time)
        self.writer = MemoryCoordinator(store)
        self.coordinator = MemoryCoordinator(store)
        plane = CorePlane(self.data, self.data.me, loop.time)
        self.follow = Follow(self.coordinator, plane, "a", lambda: None, self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.errors.append(error)

    async def put(self, key: str, value: Record | bytes) -> None:
        """Written, and seen."""
        await self.writer.commit({}, [Put(key, value if isinstance(value, bytes) else format_of(value))])
        await asyncio.sleep(0.5)

    async def close(self) -> None:
        await self.follow.close()
        await self.coordinator.close()
        await self.writer.close()


def pinned(room: bytes, hub: int) -> bytes:
    return rooms._encoder.encode(rooms._Value(rooms.FORMAT, 0, {room: rooms.Room(hub, True)}))


def test_a_hub_is_told_when_its_class_is_known() -> None:
    async def test() -> None:
        world = World()
        await world.follow.ready.wait()
        await world.put(hub_key(7), HUB)
        assert world.data.rows == {} and world.errors == []
        await world.put(class_key("chat"), CHAT)
        assert list(world.data.rows) == [7] and world.errors == []
        await world.close()

    play(test)


def test_a_pinned_room_is_told_when_its_hub_is_known() -> None:
    async def test() -> None:
        world = World()
        await world.follow.ready.wait()
        await world.put(class_key("chat"), CHAT)
        await world.put("rooms/chat/00000000", pinned(b"chat:x", 7))
        assert world.data.rooms == {} and world.errors == []
        await world.put(hub_key(7), HUB)
        assert world.data.rooms == {("chat", b"chat:x"): 7} and world.errors == []
        await world.close()

    play(test)


def test_a_data_plane_that_cannot_take_what_it_is_told_is_an_end_that_is_told() -> None:
    async def test() -> None:
        world = World()
        await world.follow.ready.wait()

        def refuses(room_class: str, hubs: Mapping[bytes, int | None]) -> None:
            raise ValueError("no such class")

        world.data.route_rooms = refuses  # type: ignore[method-assign]
        await world.put(class_key("chat"), CHAT)
        await world.put(hub_key(7), HUB)
        await world.put("rooms/chat/00000000", pinned(b"chat:x", 7))
        await until(lambda: [str(error) for error in world.errors] == ["no such class"])
        await world.close()

    play(test)
