"""Fixture `store`: each store in turn, one start a session; `prefix`: keys of this test alone.

Most tests of the embedded store with one member run in `make soak`: with three it has the same code, and more to do.
`make test` compares one member with the model (`test_model.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from coordination.proxy import Line
from coordination.stores import STORES, Embedded, Memory, Store
from hubsub.coordination import Coordinator

Opener = Callable[..., Awaitable[Coordinator]]

KINDS = ["memory", "embedded-one", *STORES]
only_members = pytest.mark.parametrize("store", list(STORES), indirect=True)
"""For what has no meaning in memory."""
only_servers = pytest.mark.parametrize("store", ["etcd", "zookeeper"], indirect=True)
"""For what clients of a server do."""
only_zookeeper = pytest.mark.parametrize("store", ["zookeeper"], indirect=True)

_numbers = count(1)


@pytest.fixture(
    scope="session", params=["memory", pytest.param("embedded-one", marks=pytest.mark.soak), *STORES]
)
def store(
    request: pytest.FixtureRequest, needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    if request.param == "memory":
        yield Memory()
        return
    is_embedded = request.param.startswith("embedded")
    needs("hubsub-core" if is_embedded else request.param)
    directory = tmp_path_factory.mktemp(request.param)
    members = Embedded(directory, 1) if request.param == "embedded-one" else STORES[request.param](directory)
    try:
        members.start()
        yield members
    finally:
        members.stop()


@pytest.fixture
def prefix() -> str:
    """In front of all keys of this test."""
    return f"test/{next(_numbers)}"


@pytest.fixture
async def opened(store: Store, prefix: str) -> AsyncIterator[Opener]:
    """Opens connections, `member=1` to that member alone; they end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(**options: Any) -> Coordinator:
            return await stack.enter_async_context(await store.open(prefix, **options))

        yield open_one


@pytest.fixture
async def behind(store: Store, prefix: str) -> AsyncIterator[tuple[Coordinator, Line]]:
    """A connection and what cuts it."""
    async with contextlib.AsyncExitStack() as stack:
        coordinator, line = await store.open_behind(prefix, stack)
        await stack.enter_async_context(coordinator)
        yield coordinator, line
