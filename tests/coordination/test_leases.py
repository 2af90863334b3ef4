"""Leases: the guarantees of every store, in memory, embedded, etcd and ZooKeeper."""

from __future__ import annotations

import asyncio
import time

import pytest

from coordination.conftest import Opener, only_members, only_zookeeper
from coordination.proxy import Line
from coordination.stores import Members, Store
from coordination.waiting import PATIENCE_S, becomes, eventually, gives, patiently, read_patiently
from hubsub.coordination import Coordinator, Delete, Put
from hubsub.errors import (
    CoordinatorUnreachableError,
    LeaseLostError,
)


async def test_keys_of_a_lease_live_as_long_as_it_is_renewed(store: Store, opened: Opener) -> None:
    coordinator, other = await opened(), await opened()
    asked = time.monotonic()
    lease = await coordinator.lease(store.ttl_s)
    assert asked + store.ttl_s <= lease.deadline <= time.monotonic() + lease.ttl_s
    await coordinator.commit({}, [Put("nodes/a", b"", lease)])
    watch = other.watch("nodes")
    assert (await gives(watch)).whole
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.7 * lease.ttl_s):
            await anext(watch)
    assert lease.deadline > time.monotonic() and lease.held and await other.get("nodes/a") is not None


async def test_a_lease_given_back_takes_its_keys_at_once(store: Store, opened: Opener) -> None:
    coordinator, other = await opened(), await opened()
    lease = await coordinator.lease(30)
    await coordinator.commit(
        {}, [Put("nodes/a", b"", lease), Put("nodes/b", b""), Put("nodes/c", b"", lease)]
    )
    await coordinator.commit({}, [Put("nodes/b", b"bound", lease), Put("nodes/c", b"unbound")])
    await lease.release()
    await becomes(other, "nodes/a", None)
    assert [entry.key for entry in (await other.page("nodes")).entries] == ["nodes/c"]
    assert not lease.held and not lease.lost.is_set()
    with pytest.raises(LeaseLostError):
        await coordinator.commit({}, [Put("nodes/a", b"", lease)])
    await lease.release()


async def test_a_coordinator_that_closes_gives_its_leases_back(opened: Opener) -> None:
    coordinator, other = await opened(), await opened()
    await coordinator.commit({}, [Put("nodes/a", b"", await coordinator.lease(30))])
    await coordinator.close()
    await becomes(other, "nodes/a", None)


async def test_keys_of_a_holder_that_is_cut_off_go_after_the_deadline_and_it_is_told(
    store: Store, opened: Opener, behind: tuple[Coordinator, Line]
) -> None:
    coordinator, line = behind
    other = await opened()
    lease = await coordinator.lease(store.ttl_s)
    await coordinator.commit({}, [Put("nodes/a", b"", lease)])
    watch = other.watch("nodes")
    assert (await gives(watch)).whole
    line.cut()
    assert (await gives(watch)).gone == ("nodes/a",)
    assert time.monotonic() >= lease.deadline
    await line.mend()
    async with asyncio.timeout(PATIENCE_S):
        await lease.lost.wait()
    assert not lease.held
    with pytest.raises(LeaseLostError):
        await coordinator.commit({}, [Put("nodes/a", b"", lease)])
    assert await other.get("nodes/a") is None


async def test_a_store_that_was_away_longer_than_a_lease_goes_on_with_it_or_says_that_it_is_lost(
    store: Store, opened: Opener
) -> None:
    coordinator, other = await opened(), await opened()
    lease = await coordinator.lease(store.ttl_s)
    await coordinator.commit({}, [Put("nodes/a", b"", lease)])
    impatient = await opened(timeout="1s")
    await store.pause()
    try:
        with pytest.raises(CoordinatorUnreachableError):
            await impatient.get("nodes/a")
        # The store is paused while time passes.
        await eventually(lambda: time.monotonic() > lease.deadline + 0.5)
    finally:
        await store.resume()
    await patiently(other, Put("hubs/1", b""))
    await eventually(lambda: lease.lost.is_set() or lease.deadline > time.monotonic())
    if await read_patiently(other, "nodes/a") is None:
        await eventually(lease.lost.is_set)
        return
    try:
        # The coordinator may still be reconnecting, and the outcome of a try may be unknown.
        await patiently(coordinator, Put("nodes/a", b"more", lease))
    except LeaseLostError:
        await becomes(other, "nodes/a", None)


@only_members
async def test_a_lease_outlives_the_leader_of_the_store(store: Store, opened: Opener) -> None:
    assert isinstance(store, Members)
    coordinator, other = await opened(), await opened()
    lease = await coordinator.lease(store.ttl_s)
    await coordinator.commit({}, [Put("nodes/a", b"", lease)])
    watch = other.watch("nodes")
    assert (await gives(watch)).whole
    leader = next(member for member in range(3) if store.leads(member))
    store.kill(leader)
    try:
        await patiently(other, Put("nodes/b", b""))
        seen: set[str] = set()
        while "nodes/b" not in seen:
            changes = await gives(watch)
            assert not changes.gone
            seen |= {entry.key for entry in changes.entries}
        await eventually(lambda: lease.deadline > time.monotonic() + lease.ttl_s / 2)
        assert lease.held and await other.get("nodes/a") is not None
    finally:
        await store.restart(leader)


@only_zookeeper
async def test_a_leader_whose_followers_are_gone_proves_no_lease(store: Store, opened: Opener) -> None:
    """It answers pings and syncs for a while, although the others may have elected another leader by then."""
    assert isinstance(store, Members)
    leader = next(member for member in range(3) if store.leads(member))
    coordinator = await opened(member=leader)
    lease = await coordinator.lease(4 * store.ttl_s)
    before = lease.deadline
    await eventually(lambda: lease.deadline > before)
    try:
        for member in {0, 1, 2} - {leader}:
            store.pause_one(member)
        paused = time.monotonic()
        # Renewals requested before the pause count; later ones do not.
        await eventually(lambda: time.monotonic() > paused + 2 * lease.ttl_s / 3)
        assert lease.deadline <= paused + lease.ttl_s
    finally:
        await store.resume()
    await patiently(await opened(), Put("hubs/1", b""))


async def test_a_commit_names_one_lease_and_one_write_a_key(store: Store, opened: Opener) -> None:
    coordinator = await opened()
    one, two = await coordinator.lease(30), await coordinator.lease(30)
    with pytest.raises(ValueError):
        await coordinator.commit({}, [Put("nodes/a", b"", one), Put("nodes/b", b"", two)])
    with pytest.raises(ValueError):
        await coordinator.commit({}, [Put("nodes/a", b""), Delete("nodes/a")])
