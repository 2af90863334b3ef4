"""redis-py and valkey-py on asyncio, in RESP2 and RESP3, with each of redis-py's parsers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import redis._parsers
import redis.asyncio
import valkey.asyncio

from clients.raw import TIMEOUT_S
from clients.servers import Server


def _redis_py(protocol: int, parser: type) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        pool = redis.asyncio.ConnectionPool(protocol=protocol, parser_class=parser, **options)
        return redis.asyncio.Redis.from_pool(pool)

    return make


LIBRARIES: dict[str, Callable[..., Any]] = {
    "redis-py-resp2-pure": _redis_py(2, redis._parsers._AsyncRESP2Parser),
    "redis-py-resp3-pure": _redis_py(3, redis._parsers._AsyncRESP3Parser),
    "redis-py-resp2-hiredis": _redis_py(2, redis._parsers._AsyncHiredisParser),
    "redis-py-resp3-hiredis": _redis_py(3, redis._parsers._AsyncHiredisParser),
    "valkey-py-resp2": lambda **options: valkey.asyncio.Valkey(protocol=2, **options),
    "valkey-py-resp3": lambda **options: valkey.asyncio.Valkey(protocol=3, **options),
}

Opened = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=LIBRARIES)
def open_client(request: pytest.FixtureRequest, server: Server) -> Opened:
    """Opens clients of each library, protocol and parser, with a time-out for their use."""

    @contextlib.asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Any]:
        client = LIBRARIES[request.param](host=server.host, port=server.port, **options)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield client
        finally:
            await client.aclose()

    return opened


async def receive(pubsub: Any, count: int) -> list[dict[str, Any]]:
    """The next `count` messages of a pubsub object."""
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        message = await pubsub.get_message(timeout=TIMEOUT_S)
        if message is not None:
            messages.append(message)
    return messages


async def test_channels_and_patterns_deliver_in_order(open_client: Opened) -> None:
    async with open_client() as client, client.pubsub() as pubsub:
        await pubsub.subscribe("a.one")
        await pubsub.psubscribe("a.*")
        await receive(pubsub, 2)
        for i in range(50):
            assert await client.publish("a.one", i) == 2
        messages = await receive(pubsub, 100)
        assert [m["type"] for m in messages] == ["message", "pmessage"] * 50
        assert [m["data"] for m in messages[::2]] == [b"%d" % i for i in range(50)]
        await pubsub.unsubscribe()
        await pubsub.punsubscribe()
        assert [m["type"] for m in await receive(pubsub, 2)] == ["unsubscribe", "punsubscribe"]


async def test_the_default_pipeline_is_a_transaction(open_client: Opened) -> None:
    async with open_client() as client, client.pubsub() as pubsub:
        await pubsub.subscribe("c")
        await receive(pubsub, 1)
        async with client.pipeline() as pipeline:
            for i in range(50):
                pipeline.publish("c", i)
            assert await pipeline.execute() == [1] * 50
        assert [m["data"] for m in await receive(pubsub, 50)] == [b"%d" % i for i in range(50)]


@pytest.mark.filterwarnings("ignore:.*lib_name:DeprecationWarning", "ignore:.*lib_version:DeprecationWarning")
async def test_health_checks_while_subscribed(open_client: Opened) -> None:
    options = {"health_check_interval": 1e-9, "lib_name": None, "lib_version": None}
    async with open_client(**options) as client, client.pubsub() as pubsub:
        await pubsub.subscribe("c")
        await receive(pubsub, 1)
        for i in range(3):
            assert await client.publish("c", i) == 1
            assert (await receive(pubsub, 1))[0]["data"] == b"%d" % i


async def test_twenty_listeners_and_twenty_publishers_at_once(open_client: Opened) -> None:
    async with open_client() as client:

        async def listen(subscribed: asyncio.Event) -> list[bytes]:
            async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe("crowd")
                await pubsub.get_message(timeout=TIMEOUT_S)
                subscribed.set()
                return [m["data"] for m in await receive(pubsub, 200)]

        async def publish(me: int) -> None:
            for i in range(10):
                assert await client.publish("crowd", f"{me}-{i}") == 20

        ready = [asyncio.Event() for _ in range(20)]
        listeners = [asyncio.create_task(listen(event)) for event in ready]
        await asyncio.gather(*(event.wait() for event in ready))
        await asyncio.gather(*(publish(me) for me in range(20)))
        heard = await asyncio.gather(*listeners)
        assert all(each == heard[0] for each in heard), "all subscribers agree on one order"
        assert sorted(heard[0]) == sorted(f"{me}-{i}".encode() for me in range(20) for i in range(10))
        for me in range(20):
            own = [data for data in heard[0] if data.startswith(b"%d-" % me)]
            assert own == [f"{me}-{i}".encode() for i in range(10)], "each publisher's order is kept"


async def test_a_cancelled_reader_leaves_the_subscription_usable(open_client: Opened) -> None:
    async with open_client() as client, client.pubsub() as pubsub:
        await pubsub.subscribe("c")
        await receive(pubsub, 1)
        reader = asyncio.create_task(pubsub.get_message(timeout=None))
        await client.ping()
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        await client.publish("c", "x")
        assert (await receive(pubsub, 1))[0]["data"] == b"x"
