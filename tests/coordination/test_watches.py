"""Watches: the guarantees of every store, in memory, embedded, etcd and ZooKeeper."""

from __future__ import annotations

import asyncio
import signal

import pytest

from coordination.conftest import Opener, only_members
from coordination.proxy import Line, Wire
from coordination.stores import Members, Store
from coordination.waiting import PATIENCE_S, gives, patiently
from hubsub.coordination import Changes, Coordinator, Delete, Entry, Put
from hubsub.errors import (
    CoordinatorError,
)


async def test_a_watch_gives_the_whole_and_then_changes(opened: Opener) -> None:
    coordinator, other = await opened(), await opened()
    made = await coordinator.commit({}, [Put("hubs/1", b"1"), Put("hubs/2", b"2"), Put("rooms/1", b"no")])
    watch = coordinator.watch("hubs")
    assert await gives(watch) == Changes(
        True, (Entry("hubs/1", b"1", made["hubs/1"]), Entry("hubs/2", b"2", made["hubs/2"]))
    )
    made = await other.commit({}, [Put("hubs/1", b"more")])
    assert await gives(watch) == Changes(False, (Entry("hubs/1", b"more", made["hubs/1"]),))
    await other.commit({}, [Put("rooms/1", b"no"), Put("hubs/1/deeper", b"no")])
    await other.commit({}, [Delete("hubs/2")])
    assert await gives(watch) == Changes(False, (), ("hubs/2",))
    made = await other.commit({}, [Put("hubs/2", b"again")])
    assert await gives(watch) == Changes(False, (Entry("hubs/2", b"again", made["hubs/2"]),))


async def test_many_watches_hold_up_no_request_and_each_has_its_own_directory(opened: Opener) -> None:
    coordinator = await opened()
    watches = {f"rooms/class{i}": coordinator.watch(f"rooms/class{i}") for i in range(130)}
    for watch in watches.values():
        assert await gives(watch) == Changes(True, ())
    async with asyncio.timeout(PATIENCE_S):
        for directory in ("rooms/class7", "rooms/class129"):
            made = await coordinator.commit({}, [Put(f"{directory}/1", b"1")])
            entry = Entry(f"{directory}/1", b"1", made[f"{directory}/1"])
            assert await gives(watches[directory]) == Changes(False, (entry,))
        await coordinator.commit({}, [Delete("rooms/class7/1")])
    assert await gives(watches["rooms/class7"]) == Changes(False, (), ("rooms/class7/1",))


async def test_a_watch_of_nothing_gives_an_empty_whole(opened: Opener) -> None:
    coordinator = await opened()
    watch = coordinator.watch("hubs")
    assert await gives(watch) == Changes(True, ())
    made = await coordinator.commit({}, [Put("hubs/1", b"")])
    assert await gives(watch) == Changes(False, (Entry("hubs/1", b"", made["hubs/1"]),))


async def test_a_slow_reader_of_a_watch_gets_the_latest_of_each_key(opened: Opener) -> None:
    coordinator = await opened()
    watch, fast = coordinator.watch("hubs"), coordinator.watch("hubs")
    assert (await gives(watch)).whole and (await gives(fast)).whole
    for number in range(50):
        await coordinator.commit({}, [Put("hubs/1", str(number).encode()), Put("hubs/2", b"2")])
    await coordinator.commit({}, [Delete("hubs/2"), Put("hubs/last", b"")])
    seen: set[str] = set()
    while "hubs/last" not in seen:
        seen |= {entry.key for entry in (await gives(fast)).entries}
    state, times = {}, 0
    while "hubs/last" not in state:
        changes = await gives(watch)
        times += 1
        state |= {entry.key: entry.value for entry in changes.entries}
    assert state["hubs/1"] == b"49" and times <= 3  # The order of keys is unspecified.


async def test_a_closed_watch_ends_and_a_closed_coordinator_ends_its_watches(opened: Opener) -> None:
    coordinator = await opened()
    watch, other = coordinator.watch("hubs"), coordinator.watch("rooms")
    assert (await gives(watch)).whole
    await watch.close()
    assert [changes async for changes in watch] == []
    await coordinator.close()
    assert [changes async for changes in other] == []


async def test_after_a_break_a_watch_gives_the_whole_again_and_nothing_older(
    store: Store, opened: Opener
) -> None:
    coordinator, writer = await opened(), await opened()
    await coordinator.commit({}, [Put("hubs/count", b"0"), Put("hubs/other", b"")])
    watch = coordinator.watch("hubs")
    assert (await gives(watch)).whole
    crashed, stop = asyncio.Event(), False

    async def write() -> None:
        number = 0
        while not stop:
            number += 1
            try:
                await writer.commit({}, [Put("hubs/count", str(number).encode())])
            except CoordinatorError:
                continue  # Committed or not: the next number is higher in any case.
            if number == 20:
                crashed.set()

    writing = asyncio.create_task(write())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await crashed.wait()
            await store.crash()
        revision, count, wholes, at_whole = 0, 0, 0, 20
        async with asyncio.timeout(PATIENCE_S):
            async for changes in watch:
                for entry in changes.entries:
                    if entry.key == "hubs/count":
                        assert entry.revision >= revision and int(entry.value) >= count
                        revision, count = entry.revision, int(entry.value)
                if changes.whole:
                    wholes += 1
                    assert [entry.key for entry in changes.entries] == ["hubs/count", "hubs/other"]
                    at_whole = count
                if count > at_whole and (wholes or not store.has_breaks):
                    break
    finally:
        stop = True
        await writing


async def test_what_was_deleted_during_a_break_is_not_in_the_next_whole(
    store: Store, opened: Opener, behind: tuple[Coordinator, Line]
) -> None:
    coordinator, line = behind
    other = await opened()
    await other.commit({}, [Put("hubs/1", b""), Put("hubs/2", b"")])
    watch = coordinator.watch("hubs")
    assert len((await gives(watch)).entries) == 2
    line.cut()
    if not isinstance(line, Wire):
        coordinator.store.break_watches()  # type: ignore[attr-defined]
    await other.commit({}, [Delete("hubs/1")])
    await line.mend()
    changes = await gives(watch)
    if store.has_breaks:
        assert changes.whole and [entry.key for entry in changes.entries] == ["hubs/2"]
    else:
        assert changes == Changes(False, (), ("hubs/1",))


@only_members
@pytest.mark.parametrize("fault", ["hangs", "is ended", "dies"])
async def test_a_watch_goes_on_without_one_member(store: Store, opened: Opener, fault: str) -> None:
    assert isinstance(store, Members)
    coordinator, other = await opened(timeout="1s"), await opened(member=1)
    watch = coordinator.watch("hubs")
    assert (await gives(watch)).whole
    if fault == "hangs":
        store.pause_one(0)
    else:
        store.kill(0, signal.SIGTERM if fault == "is ended" else signal.SIGKILL)
    try:
        await patiently(other, Put("hubs/1", b"1"))
        seen: list[Entry] = []
        while not seen:
            seen += (await gives(watch)).entries
        assert seen[0].key == "hubs/1"
    finally:
        await (store.resume() if fault == "hangs" else store.restart(0))
