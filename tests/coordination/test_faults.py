"""The guarantees of every store when servers die and connections break."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from coordination.conftest import Opener, only_members
from coordination.proxy import Line, Wire
from coordination.stores import Members, Store
from coordination.waiting import becomes, patiently
from hubsub.coordination import Coordinator, Put
from hubsub.errors import (
    CoordinatorError,
    CoordinatorUnknownError,
    CoordinatorUnreachableError,
)


@only_members
async def test_one_member_less_is_not_noticed(store: Store, opened: Opener) -> None:
    assert isinstance(store, Members)
    coordinator = await opened()
    for member in range(3):
        store.kill(member)
        try:
            await patiently(coordinator, Put("hubs/1", str(member).encode()))
            entry = await coordinator.get("hubs/1")
            assert entry is not None and entry.value == str(member).encode()
        finally:
            await store.restart(member)


@pytest.mark.parametrize("passes_on", [True, False])
@only_members
async def test_a_connection_cut_amid_a_commit_leaves_its_outcome_unknown(
    opened: Opener, behind: tuple[Coordinator, Line], passes_on: bool
) -> None:
    coordinator, line = behind
    assert isinstance(line, Wire)
    other = await opened()
    await coordinator.commit({}, [Put("hubs/1", b"before")])
    for turn in range(5):
        value = f"cut-here-{turn}-{passes_on}".encode()
        line.cut_at(value, passes_on=passes_on)
        committing = asyncio.create_task(coordinator.commit({}, [Put("hubs/1", value)]))
        await line.met.wait()
        if passes_on:
            await becomes(other, "hubs/1", value)
            line.drop()
        with pytest.raises(CoordinatorUnknownError):
            await committing
        entry = await other.get("hubs/1")
        assert entry is not None and (entry.value == value) == passes_on


async def test_who_cannot_be_reached_wrote_nothing_and_says_so_in_time(
    opened: Opener, behind: tuple[Coordinator, Line]
) -> None:
    coordinator, line = behind
    other = await opened()
    made = await coordinator.commit({}, [Put("hubs/1", b"before")])
    line.cut()
    with contextlib.suppress(CoordinatorUnreachableError):
        await coordinator.get("hubs/1")
    start = time.monotonic()
    with pytest.raises(CoordinatorUnreachableError):
        await coordinator.commit({}, [Put("hubs/1", b"after")])
    with pytest.raises(CoordinatorUnreachableError):
        await coordinator.page("hubs")
    with pytest.raises(CoordinatorError):
        await coordinator.holds("hubs/1", made["hubs/1"])
    assert time.monotonic() - start < 15
    await line.mend()
    await patiently(coordinator, Put("hubs/2", b""))
    entry = await other.get("hubs/1")
    assert entry is not None and entry.value == b"before"
