"""`Lookups`: each lookup of the data plane is answered once."""

from __future__ import annotations

import asyncio

import pytest

from hubsub.control.cluster import lookup as module
from hubsub.control.cluster.directory import Located, Member
from hubsub.control.cluster.lookup import Lookups
from hubsub.control.cluster.plane import TopicRoute
from hubsub.errors import ClassRemovedError, NoControllerError

from .fake_data import FakeData
from .played import play, until


class Known:
    """Rooms with a hub. The lookup of any other room fails, and that of `late` waits for `gate`."""

    def __init__(self, **hubs: int) -> None:
        self.hubs = hubs
        self.gate = asyncio.Event()

    async def place(self, route: TopicRoute, create: bool = True) -> int | None:
        assert (route.room_class, route.index, create) == ("chat", 3, True)
        room = route.room
        if room == b"late":
            await self.gate.wait()
        if room == b"removed":
            raise ClassRemovedError()
        if room.decode() not in self.hubs:
            raise NoControllerError()
        return self.hubs[room.decode()]

    async def find(self, route: TopicRoute) -> int | None:
        if route.room == b"nowhere":
            raise NoControllerError()
        return self.hubs.get(route.room.decode())

    async def look_up(self, topic: bytes) -> Located | None:
        if topic == b"removed":
            raise ClassRemovedError()
        hub = await self.find(TopicRoute(topic, "chat", 3))
        if hub is None:
            return None
        members = (Member("b", {"redis": "b:1"}), Member("c", {"mqtt": "c:1"}))
        registered = {b"mute": members[-1:], b"gone": ()}.get(topic, members)
        return Located(topic, "chat", hub, 1, registered)


def rpc(data: FakeData, room: bytes, makes: bool = True) -> None:
    assert data.on_room_miss is not None
    data.on_room_miss("chat", room, makes)


def test_a_room_that_is_missed_is_told_or_refused() -> None:
    async def test() -> None:
        data = FakeData()
        data.rows = {7: None}  # type: ignore[dict-item]
        finds = Lookups(data, Known(x=7))
        rpc(data, b"x")
        rpc(data, b"nowhere")
        await until(lambda: data.refused == [b"nowhere"] and data.rooms == {("chat", b"x"): 7})
        await finds.close()
        assert data.on_room_miss is None and data.on_locate is None

    play(test)


def test_of_a_removed_class_a_client_is_told_so_and_of_what_may_pass_that_it_may_ask_again() -> None:
    async def test() -> None:
        data = FakeData()
        finds = Lookups(data, Known())
        for room, code in ((b"removed", "class_removed"), (b"nowhere", "hub_closed")):
            rpc(data, room)
            assert data.on_locate is not None
            data.on_locate(len(data.located), room)
            await until(lambda: len(data.codes) == 2)
            assert data.codes == [code, code]
            data.codes.clear()
        assert data.refused == [b"removed", b"nowhere"]
        await finds.close()

    play(test)


def test_a_room_that_wants_no_place_and_has_none_is_told_so() -> None:
    async def test() -> None:
        data = FakeData()
        data.rows = {7: None}  # type: ignore[dict-item]
        finds = Lookups(data, Known(x=7))
        for room in (b"x", b"empty", b"nowhere"):
            rpc(data, room, makes=False)
        await until(lambda: data.refused == [b"nowhere"] and data.absent == [b"empty"])
        assert data.rooms == {("chat", b"x"): 7}
        await finds.close()

    play(test)


@pytest.mark.parametrize("own", [None, ("a", "a:1")])
def test_a_client_is_told_the_members_that_it_can_reach_or_the_node_that_it_asked(
    own: tuple[str, str] | None,
) -> None:
    async def test() -> None:
        data = FakeData()
        finds = Lookups(data, Known(x=7, mute=7, gone=7), own)
        assert data.on_locate is not None
        for number, room in enumerate([b"x", b"mute", b"gone", b"nowhere", b"new"]):
            data.on_locate(number, room)
        await until(lambda: len(data.located) == 5)
        mine = own and [own]
        assert data.located == {0: [("b", "b:1")], 1: mine, 2: None, 3: None, 4: mine}
        await finds.close()

    play(test)


def test_more_than_may_wait_are_refused_and_none_is_left_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(module, "LOOKUPS_MAX", 1)
        data = FakeData()
        finds = Lookups(data, Known(late=7))
        rpc(data, b"late")
        rpc(data, b"x")
        assert data.on_locate is not None
        data.on_locate(1, b"x")
        assert data.refused == [b"x"] and data.located == {1: None}
        await finds.close()
        assert data.rooms == {}

    play(test)
