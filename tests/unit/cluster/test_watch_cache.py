"""Updates that the data plane gets from the watches, whose directories come in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from hubsub.config import RoomClass
from hubsub.control.cluster.bucket_values import Room, encode_value, hash_of
from hubsub.control.cluster.classes import class_key, record_of
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.core_plane import CorePlane
from hubsub.control.cluster.records import HubRecord, NodeRecord, Record, format_of, hub_key, node_key
from hubsub.control.cluster.view import Timing
from hubsub.control.cluster.watch_cache import LAPSED_S, LOOK_S, WatchCache
from hubsub.coordination import Delete, Put
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore

from .fake_data import FakeData, Heard, Snapshot
from .played import play, until

CHAT = record_of(RoomClass(name="chat", match=("chat:*",)), 0)
HUB = HubRecord(room_class="chat", index=0, term=1, leader="b", incarnation=4, members=("b",))


class World:
    """A data plane that follows a store."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.data = FakeData()
        self.errors: list[BaseException] = []
        self.store = MemoryStore(loop.time)
        self.writer = MemoryCoordinator(self.store)
        self.coordinator = MemoryCoordinator(self.store)
        plane = CorePlane(self.data, self.data.me, loop.time)
        context = Context(
            me=("a", 7),
            coordinator=self.coordinator,
            plane=plane,
            timing=Timing(),
            clock=loop.time,
            ended=self._ended,
        )
        self.cache = WatchCache(context, lambda: None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.errors.append(error)

    async def put(self, key: str, value: Record | bytes) -> None:
        """Writes an entry and waits until it is seen."""
        await self.writer.commit({}, [Put(key, value if isinstance(value, bytes) else format_of(value))])
        await asyncio.sleep(0.5)

    async def let_go(self, name: str) -> None:
        """Deletes a registration, as at the end of a lease, and waits until that is seen."""
        await self.writer.commit({}, [Delete(node_key(name))])
        await asyncio.sleep(0.5)

    def hears(self, *processes: tuple[str, int]) -> None:
        """The node hears exactly these processes for the next 100 s."""
        heard = Heard(asyncio.get_running_loop().time() + 100)
        self.data.snapshot = Snapshot(peers=dict.fromkeys(processes, heard))

    @property
    def roster(self) -> list[tuple[str, int]]:
        return [(name, incarnation) for name, incarnation, _, _ in self.data.roster]

    async def close(self) -> None:
        await self.cache.close()
        await self.coordinator.close()
        await self.writer.close()


def bucket(depth: int, at: Mapping[bytes, Room]) -> bytes:
    plain = {room: where.hub if where == Room(where.hub) else where for room, where in at.items()}
    return encode_value(depth, plain)


def pinned(room: bytes, hub: int) -> bytes:
    return bucket(0, {room: Room(hub, True)})


def test_a_hub_is_told_when_its_class_is_known() -> None:
    async def test() -> None:
        world = World()
        await world.cache.ready.wait()
        await world.put(hub_key(7), HUB)
        assert world.data.rows == {} and world.errors == []
        await world.put(class_key("chat"), CHAT)
        assert list(world.data.rows) == [7] and world.errors == []
        await world.close()

    play(test)


def test_a_pinned_room_is_told_when_its_hub_is_known() -> None:
    async def test() -> None:
        world = World()
        await world.cache.ready.wait()
        await world.put(class_key("chat"), CHAT)
        await world.put("rooms/chat/00000000", pinned(b"chat:x", 7))
        assert world.data.rooms == {} and world.errors == []
        await world.put(hub_key(7), HUB)
        assert world.data.rooms == {("chat", b"chat:x"): 7} and world.errors == []
        await world.close()

    play(test)


UPPER = next(room for room in (b"chat:%d" % number for number in range(100)) if hash_of(room) >> 31)
"""In the second bucket of two."""

WHOLE, LOWER_HALF, UPPER_HALF = (
    ("rooms/chat/00000000", 0),
    ("rooms/chat/00000000", 1),
    ("rooms/chat/80000000", 1),
)
"""Key and depth of buckets."""


async def with_rooms() -> World:
    """A world with a class and its two hubs."""
    world = World()
    await world.cache.ready.wait()
    await world.put(class_key("chat"), CHAT)
    for hub in (7, 8):
        await world.put(hub_key(hub), msgspec.structs.replace(HUB, index=hub - 7))
    return world


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Room(7), Room(8), 8),
        (Room(7), Room(8, True), 8),
        (Room(7, True), Room(8), 8),
        (Room(7), None, None),
        (Room(7, True), None, None),
    ],
)
@pytest.mark.parametrize("order", [[WHOLE], [LOWER_HALF, UPPER_HALF], [UPPER_HALF, LOWER_HALF]])
def test_a_room_that_is_elsewhere_at_once_is_told_to_the_data_plane(
    before: Room, after: Room | None, told: int | None, order: list[tuple[str, int]]
) -> None:
    """The watch left out what was between: a removal, and a new record; and a split perhaps."""

    async def test() -> None:
        world = await with_rooms()
        await world.put(WHOLE[0], bucket(0, {UPPER: before}))
        world.data.rooms["chat", UPPER] = 7  # It was asked for.
        for key, depth in order:
            is_its = (key, depth) != LOWER_HALF
            await world.put(key, bucket(depth, {UPPER: after} if is_its and after is not None else {}))
        assert world.data.rooms == {("chat", UPPER): told} and world.errors == []
        await world.close()

    play(test)


@pytest.mark.parametrize("order", [[LOWER_HALF, UPPER_HALF], [UPPER_HALF, LOWER_HALF]])
def test_a_room_that_a_split_takes_elsewhere_is_told_to_nobody(order: list[tuple[str, int]]) -> None:
    async def test() -> None:
        world = await with_rooms()
        await world.put(WHOLE[0], bucket(0, {UPPER: Room(7)}))
        for key, depth in order:
            await world.put(key, bucket(depth, {UPPER: Room(7)} if (key, depth) == UPPER_HALF else {}))
        assert world.data.rooms == {} and world.errors == []
        await world.close()

    play(test)


def test_a_room_whose_place_was_answered_stays_there_though_the_watch_gives_later_that_it_went() -> None:
    async def test() -> None:
        world = await with_rooms()
        await world.put(WHOLE[0], bucket(0, {UPPER: Room(7)}))
        # This node gave it up; its record was removed and written again, and the controller answered with that.
        world.cache.rooms["chat"].add_answer(UPPER, 7, world.store.revision + 2)
        told: list[int | None] = []
        world.data.route_rooms = lambda _, hubs: told.extend(hubs.values())  # type: ignore[method-assign]
        await world.put(WHOLE[0], bucket(0, {}))
        await world.put(WHOLE[0], bucket(0, {UPPER: Room(7)}))
        assert set(told) <= {7}
        await world.put(WHOLE[0], bucket(0, {}))
        assert told[-1] is None and world.errors == []
        await world.close()

    play(test)


def test_a_room_whose_record_came_after_another_answer_is_told() -> None:
    async def test() -> None:
        world = await with_rooms()
        world.cache.rooms["chat"].add_answer(UPPER, 7, world.store.revision + 1)
        await world.put(WHOLE[0], bucket(0, {UPPER: Room(8)}))
        assert world.data.rooms == {("chat", UPPER): 8} and world.errors == []
        await world.close()

    play(test)


def test_a_node_that_is_heard_counts_on_until_it_has_registered_again() -> None:
    async def test() -> None:
        world = World()
        await world.cache.ready.wait()
        await world.put(node_key("b"), NodeRecord(incarnation=4))
        world.hears(("b", 4))
        for _ in range(2):
            await world.let_go("b")
            assert world.roster == [("b", 4)] and "b" in world.cache.nodes
            assert world.cache.revision(node_key("b")) == 0, "the watch has given that it went"
            await world.put(node_key("b"), NodeRecord(incarnation=4))
            assert world.cache.revision(node_key("b")) > 0
            await asyncio.sleep(2 * LAPSED_S)
            assert world.roster == [("b", 4)] and world.errors == []
        await world.close()

    play(test)


def test_a_node_that_has_not_registered_again_in_its_time_counts_no_more() -> None:
    async def test() -> None:
        world = World()
        await world.cache.ready.wait()
        await world.put(node_key("b"), NodeRecord(incarnation=4))
        world.hears(("b", 4))
        await world.let_go("b")
        await asyncio.sleep(LAPSED_S)
        assert world.roster == [] and world.cache.nodes == {} and world.errors == []
        await world.close()

    play(test)


@pytest.mark.parametrize("why", ["silent", "drains", "later"])
def test_a_node_that_is_no_more_what_it_was_counts_no_more_at_once(why: str) -> None:
    async def test() -> None:
        world = World()
        await world.cache.ready.wait()
        await world.put(node_key("b"), NodeRecord(incarnation=4, is_draining=why == "drains"))
        world.hears(("b", 4))
        if why == "later":
            await world.let_go("b")
            assert world.roster == [("b", 4)]
            world.hears()
            await asyncio.sleep(2 * LOOK_S)
        else:
            if why == "silent":
                world.hears()
            await world.let_go("b")
        assert world.roster == [] and world.cache.nodes == {} and world.errors == []
        await world.close()

    play(test)


def test_a_data_plane_that_cannot_take_what_it_is_told_is_an_end_that_is_told() -> None:
    async def test() -> None:
        world = World()
        await world.cache.ready.wait()

        def refuses(room_class: str, hubs: Mapping[bytes, int | None]) -> None:
            raise ValueError("no such class")

        world.data.route_rooms = refuses  # type: ignore[method-assign]
        await world.put(class_key("chat"), CHAT)
        await world.put(hub_key(7), HUB)
        await world.put("rooms/chat/00000000", pinned(b"chat:x", 7))
        await until(lambda: [str(error) for error in world.errors] == ["no such class"])
        await world.close()

    play(test)
