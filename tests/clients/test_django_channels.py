"""Django's channels_redis over pub/sub, unmodified: `RedisPubSubChannelLayer`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from channels_redis.pubsub import RedisPubSubChannelLayer  # type: ignore[import-untyped]

from clients.raw import TIMEOUT_S
from clients.servers import Server

ROOM = "asgi__group__room"
"""Redis channel of the group `room`."""


@contextlib.asynccontextmanager
async def layer(server: Server, **options: Any) -> AsyncIterator[Any]:
    """A channel layer, as one Django process has it."""
    one = RedisPubSubChannelLayer(hosts=[server.url], **options)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield one
    finally:
        await one.flush()


async def subscribed(server: Server, *names: str, count: int = 1) -> None:
    """Waits until the server has the layer's subscriptions. The layer sends SUBSCRIBE on one connection,
    PUBLISH on another and does not wait, so several shards may see them in any order."""
    with server.connect() as connection:
        while connection.ask("PUBSUB", "NUMSUB", *names) != [i for n in names for i in (n.encode(), count)]:
            await asyncio.sleep(0)


async def test_send_and_receive(server: Server) -> None:
    async with layer(server) as here, layer(server) as there:
        channel = await here.new_channel()
        await subscribed(server, channel)
        await there.send(channel, {"type": "test", "text": "hello", "bytes": b"\x00\xff", "n": [1, None]})
        message = await here.receive(channel)
        assert message == {"type": "test", "text": "hello", "bytes": b"\x00\xff", "n": [1, None]}


async def test_a_group_reaches_its_members_in_both_processes(server: Server) -> None:
    async with layer(server) as here, layer(server) as there:
        first, second = await here.new_channel(), await there.new_channel()
        outsider = await there.new_channel()
        await here.group_add("room", first)
        await there.group_add("room", second)
        await subscribed(server, ROOM, count=2)
        await subscribed(server, first, second, outsider)
        await here.group_send("room", {"type": "chat", "text": "to all"})
        assert await here.receive(first) == {"type": "chat", "text": "to all"}
        assert await there.receive(second) == {"type": "chat", "text": "to all"}
        await there.send(outsider, {"type": "only"})
        assert await there.receive(outsider) == {"type": "only"}, "and nothing came before it"


async def test_a_discarded_channel_gets_nothing_more(server: Server) -> None:
    async with layer(server) as here, layer(server) as there:
        stays, leaves = await here.new_channel(), await here.new_channel()
        await here.group_add("room", stays)
        await here.group_add("room", leaves)
        await here.group_discard("room", leaves)
        await subscribed(server, ROOM, stays, leaves)
        await there.group_send("room", {"type": "chat", "n": 1})
        assert await here.receive(stays) == {"type": "chat", "n": 1}
        await there.send(leaves, {"type": "direct"})
        assert await here.receive(leaves) == {"type": "direct"}


async def test_messages_of_a_group_keep_their_order(server: Server) -> None:
    async with layer(server) as here, layer(server) as there:
        channel = await here.new_channel()
        await here.group_add("room", channel)
        await subscribed(server, ROOM)
        for n in range(90):
            await there.group_send("room", {"type": "chat", "n": n})
        assert [(await here.receive(channel))["n"] for _ in range(90)] == list(range(90))


async def test_flush_forgets_everything(server: Server) -> None:
    async with layer(server) as here, layer(server) as there:
        channel = await here.new_channel()
        await here.group_add("room", channel)
        await here.flush()
        fresh = await here.new_channel()
        await subscribed(server, fresh)
        await subscribed(server, ROOM, count=0)
        await there.group_send("room", {"type": "lost"})
        await there.send(fresh, {"type": "kept"})
        assert await here.receive(fresh) == {"type": "kept"}


async def test_two_prefixes_do_not_meet(server: Server) -> None:
    async with layer(server, prefix="one") as here, layer(server, prefix="two") as there:
        mine, yours = await here.new_channel(), await there.new_channel()
        await here.group_add("room", mine)
        await there.group_add("room", yours)
        await subscribed(server, "one__group__room", "two__group__room")
        await here.group_send("room", {"type": "mine"})
        await there.group_send("room", {"type": "yours"})
        assert await here.receive(mine) == {"type": "mine"}
        assert await there.receive(yours) == {"type": "yours"}
