"""Every test with the fixture `server` runs against redis-server and against HubSub with one and three
shards: the same client behaviour is expected of both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from clients.servers import Server, hubsub_node, redis_server


@pytest.fixture(scope="session")
def oracle(needs: Callable[..., None]) -> Iterator[Server]:
    """A real redis-server, shared by the session."""
    needs("redis-server")
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session", params=[1, 3], ids=["one-shard", "three-shards"])
def hubsub(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A HubSub node with the default configuration."""
    needs("hubsub-core")
    with hubsub_node(request.param) as server:
        yield server


@pytest.fixture(scope="session", params=["redis-server", "hubsub-1", "hubsub-3"])
def running(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """Redis, or HubSub with one or three shards."""
    if request.param == "redis-server":
        yield request.getfixturevalue("oracle")
        return
    needs("hubsub-core")
    with hubsub_node(int(request.param[-1])) as node:
        yield node


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """The running server. A test ends after its clients are gone: otherwise the next test would count their
    subscriptions."""
    yield running
    running.wait_until_alone()


@pytest.fixture
async def three(needs: Callable[..., None]) -> AsyncIterator[list[Any]]:
    """Three nodes of `clients.cluster` that know of each other."""
    needs("hubsub-core")
    from clients.cluster import deal, started

    async with started("one", "two", "three") as nodes:
        deal(nodes)
        yield nodes
