"""Keys, commits and pages: the guarantees of every store, in memory, embedded, etcd and ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from coordination.conftest import Opener, only_members
from coordination.stores import Members, Store
from coordination.waiting import gives
from hubsub.coordination import Delete, Entry, Put
from hubsub.coordination.base import COMMIT_BYTES_MAX, KEY_BYTES_MAX, OPERATIONS_MAX, VALUE_BYTES_MAX
from hubsub.errors import (
    CoordinatorTooLargeError,
    ExpectationError,
)

RACES = 200


# -- keys --


async def test_a_key_that_is_not_there_is_none(opened: Opener) -> None:
    coordinator = await opened()
    assert await coordinator.get("hubs/17") is None
    assert await coordinator.get("controller") is None


async def test_an_answered_commit_is_seen_through_every_other_member(opened: Opener) -> None:
    members = [await opened(member=member) for member in range(3)]
    for turn in range(30):
        value = str(turn).encode()
        made = await members[turn % 3].commit({}, [Put("hubs/17", value)])
        for other in members:
            assert await other.get("hubs/17") == Entry("hubs/17", value, made["hubs/17"])


async def test_a_revision_is_held_until_the_key_is_written_or_deleted(opened: Opener) -> None:
    one, other = await opened(member=0), await opened(member=1)
    assert not await one.holds("controller", 0) and not await one.holds("controller", 7)
    first = (await one.commit({}, [Put("controller", b"a")]))["controller"]
    assert await one.holds("controller", first) and await other.holds("controller", first)
    second = (await other.commit({"controller": first}, [Put("controller", b"a")]))["controller"]
    assert not await one.holds("controller", first) and await one.holds("controller", second)
    await other.commit({}, [Delete("controller")])
    assert not await one.holds("controller", second) and not await one.holds("controller", 0)


@only_members
async def test_a_member_that_lags_answers_with_what_was_committed_meanwhile(
    store: Store, opened: Opener
) -> None:
    assert isinstance(store, Members)
    lagging = next(member for member in range(3) if not store.leads(member))
    slow, quick = await opened(member=lagging), await opened(member=(lagging + 1) % 3)
    heap = [Put(f"rooms/{number}", b"x" * VALUE_BYTES_MAX) for number in range(12)]
    for turn in range(5):
        value = str(turn).encode()
        store.pause_one(lagging)
        try:
            for _ in range(5):  # Enough that catching up takes longer than reading a request.
                await quick.commit({}, heap)
            await quick.commit({}, [Put("hubs/17", value)])
            reading = asyncio.create_task(slow.get("hubs/17"))
            # The request is in flight, and waits with the commit until the member resumes.
            await asyncio.sleep(0)
        finally:
            await store.resume()
        entry = await reading
        assert entry is not None and entry.value == value


async def test_revisions_grow_and_are_never_used_again(opened: Opener) -> None:
    coordinator = await opened()
    seen = []
    for _ in range(3):
        seen.append((await coordinator.commit({}, [Put("hubs/1", b"made")]))["hubs/1"])
        seen.append((await coordinator.commit({}, [Put("hubs/1", b"changed")]))["hubs/1"])
        assert await coordinator.commit({}, [Delete("hubs/1")]) == {"hubs/1": 0}
    assert seen == sorted(set(seen)) and seen[0] > 0


async def test_a_revision_from_before_a_deletion_is_not_taken_for_the_new_key(opened: Opener) -> None:
    coordinator = await opened()
    old = await coordinator.commit({"hubs/1": 0}, [Put("hubs/1", b"same")])
    await coordinator.commit({}, [Delete("hubs/1")])
    await coordinator.commit({"hubs/1": 0}, [Put("hubs/1", b"same")])
    with pytest.raises(ExpectationError):
        await coordinator.commit(old, [Put("hubs/1", b"other")])


async def test_a_commit_tells_the_revision_of_each_write(opened: Opener) -> None:
    coordinator = await opened()
    await coordinator.commit({}, [Put("a/old", b""), Put("a/gone", b"")])
    made = await coordinator.commit({}, [Put("a/old", b"1"), Put("b/new", b"2"), Delete("a/gone")])
    for key in ("a/old", "b/new"):
        entry = await coordinator.get(key)
        assert entry is not None and entry.revision == made[key]
    assert made["a/gone"] == 0 and await coordinator.get("a/gone") is None


@pytest.mark.parametrize(
    "name", [".", "..", "a.b", "50%", "%2F", "zwölf", "=", "zookeeper", "a b", "日本", "x" * 500]
)
async def test_names_may_be_strange(opened: Opener, name: str) -> None:
    coordinator = await opened()
    made = await coordinator.commit(
        {f"{name[:200]}/dir/x": 0}, [Put(name, b"1"), Put(f"{name[:200]}/dir/x", b"2")]
    )
    assert await coordinator.get(name) == Entry(name, b"1", made[name])
    page = await coordinator.page(f"{name[:200]}/dir")
    assert [entry.key for entry in page.entries] == [f"{name[:200]}/dir/x"]


@pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a//b", "a\0b", "x" * (KEY_BYTES_MAX + 1)])
async def test_what_is_no_key_is_a_mistake(opened: Opener, key: str) -> None:
    with pytest.raises(ValueError):
        await (await opened()).get(key)


# -- commits --


async def test_a_failed_expectation_names_its_key_and_nothing_is_written(opened: Opener) -> None:
    coordinator = await opened()
    made = await coordinator.commit({}, [Put("a/1", b"1"), Put("b/2", b"2")])
    for wrong in ({"b/2": made["b/2"] + 1}, {"b/2": 0}, {"b/3": 7}):
        (key,) = wrong
        with pytest.raises(ExpectationError) as caught:
            await coordinator.commit(
                {"a/1": made["a/1"], **wrong}, [Put("a/1", b"x"), Delete("b/2"), Put("c", b"")]
            )
        assert caught.value.key == key and caught.value.expected == wrong[key]
        assert caught.value.found == made.get(key, 0)
    assert [await coordinator.get(key) for key in ("a/1", "b/2", "c")] == [
        Entry("a/1", b"1", made["a/1"]),
        Entry("b/2", b"2", made["b/2"]),
        None,
    ]


async def test_expectations_alone_are_a_commit(opened: Opener) -> None:
    coordinator = await opened()
    made = await coordinator.commit({}, [Put("a/1", b"")])
    assert await coordinator.commit({**made, "a/2": 0}, []) == {}
    with pytest.raises(ExpectationError):
        await coordinator.commit({"a/1": 0}, [])


async def test_a_hundred_operations_are_one_commit(opened: Opener) -> None:
    coordinator = await opened()
    keys = [f"hubs/{number}" for number in range(OPERATIONS_MAX)]
    made = await coordinator.commit({}, [Put(key, b"1") for key in keys])
    half = keys[: OPERATIONS_MAX // 2]
    await coordinator.commit({key: made[key] for key in half}, [Delete(key) for key in half])
    assert len((await coordinator.page("hubs")).entries) == OPERATIONS_MAX // 2
    with pytest.raises(CoordinatorTooLargeError):
        await coordinator.commit({"x": 0}, [Put(key, b"") for key in keys])
    assert len((await coordinator.page("hubs")).entries) == OPERATIONS_MAX // 2


async def test_all_writes_are_made_or_none(opened: Opener) -> None:
    """Readers that see one half of a pair see the other half of the same commit, or of a later one."""
    coordinator, other = await opened(), await opened()
    await coordinator.commit({}, [Put("a/left", b"0"), Put("b/right", b"0")])

    async def write() -> None:
        for number in range(1, 60):
            value = str(number).encode()
            await coordinator.commit({}, [Put("a/left", value), Put("b/right", value)])

    writing = asyncio.create_task(write())
    while not writing.done():
        left, right = await other.get("a/left"), await other.get("b/right")
        assert left is not None and right is not None and int(left.value) <= int(right.value)
    await writing


async def test_values_have_a_limit_that_is_told(opened: Opener) -> None:
    coordinator = await opened()
    largest = bytes(range(256)) * (VALUE_BYTES_MAX // 256)
    await coordinator.commit({}, [Put("a/1", largest)])
    entry = await coordinator.get("a/1")
    assert entry is not None and entry.value == largest
    with pytest.raises(CoordinatorTooLargeError):
        await coordinator.commit({}, [Put("a/1", largest + b"x")])


async def test_the_largest_commit_that_is_allowed_is_taken(opened: Opener) -> None:
    coordinator = await opened()
    writes, left = [], COMMIT_BYTES_MAX
    for number in range(OPERATIONS_MAX):
        key = f"rooms/chat/{number:03}"
        size = min(VALUE_BYTES_MAX, left - 3 * len(key) - 128)
        if size < 0:
            break
        writes.append(Put(key, b"\xff" * size))
        left -= size + 3 * len(key) + 128
    await coordinator.commit({}, writes)
    page = await coordinator.page("rooms/chat")
    assert sum(len(entry.value) for entry in page.entries) > 0.99 * COMMIT_BYTES_MAX
    with pytest.raises(CoordinatorTooLargeError):
        await coordinator.commit({}, [*writes, Put("rooms/more", b"\xff" * 500)])


async def test_of_two_that_race_for_a_key_exactly_one_wins(opened: Opener) -> None:
    one, two = await opened(), await opened()
    revision = 0
    for race in range(RACES):
        results = await asyncio.gather(
            one.commit({"controller": revision}, [Put("controller", b"one")]),
            two.commit({"controller": revision}, [Put("controller", b"two")]),
            return_exceptions=True,
        )
        won = [number for number, result in enumerate(results) if isinstance(result, dict)]
        assert len(won) == 1, (race, results)
        loser = results[1 - won[0]]
        assert isinstance(loser, ExpectationError), (race, loser)
        entry = await two.get("controller")
        assert entry is not None and entry.value == (b"one", b"two")[won[0]]
        revision = entry.revision
        if race % 4 == 3:
            await one.commit({"controller": revision}, [Delete("controller")])
            revision = 0


# -- pages --


async def test_five_thousand_entries_come_in_pages_in_order(opened: Opener) -> None:
    coordinator = await opened()
    keys = sorted(f"rooms/chat/{number}" for number in range(5_000))
    for start in range(0, 5_000, OPERATIONS_MAX):
        await coordinator.commit({}, [Put(key, key.encode()) for key in keys[start : start + OPERATIONS_MAX]])
    await coordinator.commit({}, [Put("rooms/chat", b"not in it"), Put("rooms/chat/1/deeper", b"nor this")])
    found: list[Entry] = []
    more = True
    while more:
        page = await coordinator.page("rooms/chat", found[-1].key.rpartition("/")[2] if found else "")
        assert page.entries or not page.more
        found += page.entries
        more = page.more
    assert [entry.key for entry in found] == keys
    assert all(entry.value == entry.key.encode() and entry.revision for entry in found)
    few = await coordinator.page("rooms/chat", "4999", limit=3)
    assert [entry.key for entry in few.entries] == [
        "rooms/chat/5",
        "rooms/chat/50",
        "rooms/chat/500",
    ] and few.more
    watch = coordinator.watch("rooms/chat")
    assert [entry.key for entry in (await gives(watch)).entries] == keys


async def test_a_page_of_large_entries_comes_all_the_same(opened: Opener) -> None:
    coordinator = await opened()
    for start in range(0, 120, 12):
        await coordinator.commit(
            {}, [Put(f"big/{n:03}", b"x" * VALUE_BYTES_MAX) for n in range(start, start + 12)]
        )
    names: list[str] = []
    more = True
    while more:
        page = await coordinator.page("big", names[-1] if names else "")
        names += [entry.key.removeprefix("big/") for entry in page.entries]
        more = page.more
    assert names == [f"{number:03}" for number in range(120)]


async def test_keys_without_a_directory_are_a_directory(opened: Opener) -> None:
    coordinator = await opened()
    await coordinator.commit({}, [Put("controller", b"1"), Put("hubs/1", b"2")])
    assert [entry.key for entry in (await coordinator.page("")).entries] == ["controller"]
    assert (await coordinator.page("nobody")).entries == ()
