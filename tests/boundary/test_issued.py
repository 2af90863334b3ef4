"""A cluster node: its incarnation is issued, and it serves clients only after `accept`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hubsub.config import resolve
from hubsub.errors import StartError
from hubsub.node import Node

pytestmark = pytest.mark.usefixtures("core")


@pytest.fixture
def core(needs: Callable[..., None]) -> None:
    needs("hubsub-core")


async def test_a_client_that_comes_before_the_node_accepts_is_served_then() -> None:
    node = Node(resolve({"redis": "127.0.0.1:0", "shards": 1}, {}, {}), incarnation=9, accepts=False)
    addresses = await node.start()
    try:
        assert node.incarnation == 9 and addresses["redis"] is not None
        host, port = addresses["redis"].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PING\r\n")
        answer = asyncio.ensure_future(reader.readline())
        for _ in range(3):
            assert await node.clients("id", 10) == []
        assert not answer.done()
        node.accept()
        async with asyncio.timeout(30):
            assert await answer == b"+PONG\r\n"
        writer.close()
    finally:
        await node.stop()


def test_an_incarnation_that_is_not_above_the_last_one_is_refused_and_the_directory_let_go(
    tmp_path: Path,
) -> None:
    config = resolve({"data": str(tmp_path), "redis": "127.0.0.1:0", "shards": 1}, {}, {})
    asyncio.run(Node(config, incarnation=9).stop())
    with pytest.raises(StartError, match="a later incarnation than the cluster has issued: 9, issued 9"):
        Node(config, incarnation=9)
    later = Node(config, incarnation=10)
    assert later.incarnation == 10
    asyncio.run(later.stop())
