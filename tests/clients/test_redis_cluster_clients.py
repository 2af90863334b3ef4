"""Cluster clients, unmodified, with one node and with three: redis-py's, ioredis's, node-redis's, redis-cli."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

from clients.cluster import Nodes, address, deal, map_of, split
from clients.raw import TIMEOUT_S
from clients.servers import until

HERE = Path(__file__).parent


def smessages(pubsub: Any, count: int) -> list[tuple[str, str]]:
    """The next `count` records of shard channels: channel and payload."""
    rows: list[tuple[str, str]] = []

    def more() -> bool:
        message = pubsub.get_sharded_message(ignore_subscribe_messages=True, timeout=0.05)
        rows.extend([(message["channel"], message["data"])] if message else [])
        return len(rows) >= count

    until(more, f"{count} records")
    return rows


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("alone", [True, False], ids=["one-node", "three-nodes"])
async def test_redis_py_s_cluster_client(three: Nodes, alone: bool, protocol: int) -> None:
    nodes = three[:1] if alone else three
    deal(nodes)
    host, port = address(nodes[0])
    with redis.RedisCluster(host=host, port=port, protocol=protocol, decode_responses=True) as client:
        assert {node.port for node in client.get_nodes()} == {address(node)[1] for node in nodes}
        assert client.cluster_info()["cluster_state"] == "ok"
        assert len(client.cluster_nodes()) == len(nodes)
        assert len(client.cluster_shards()) == len(nodes)
        assert client.cluster_keyslot("{a}b") == key_slot(b"a")
        channels = [name for names in split(nodes) for name in names[:3]]
        pubsub = client.pubsub()
        pubsub.ssubscribe(*channels)
        until(lambda: all(client.pubsub_shardnumsub(name, target_nodes="all")[0][1] for name in channels))
        assert [client.spublish(name, f"to {name}") for name in channels] == [1] * len(channels)
        assert sorted(smessages(pubsub, len(channels))) == sorted((name, f"to {name}") for name in channels)
        pubsub.sunsubscribe()
        until(lambda: pubsub.get_sharded_message(timeout=0.01) is None and not pubsub.node_pubsub_mapping)
        assert [client.spublish(name, "x") for name in channels] == [0] * len(channels)
        pubsub.close()
        classic = client.pubsub()
        classic.subscribe("c0")
        until(lambda: (classic.get_message(timeout=0.05) or {}).get("type") == "subscribe")
        node = classic.get_pubsub_node()
        assert client.execute_command("PUBLISH", "c0", "y", target_nodes=node) == 1
        until(lambda: (classic.get_message(timeout=0.05) or {}).get("data") == "y")
        classic.close()


async def test_redis_py_s_cluster_client_follows_channels_that_move(three: Nodes) -> None:
    deal(three[:1])
    host, port = address(three[0])
    names = [f"c{number}" for number in range(12)]
    # Query one slot at a time: with all at once, two of the client's threads connect the same socket again,
    # and one may take the other's replies.
    with redis.RedisCluster(host=host, port=port, decode_responses=True, reinitialize_steps=0) as client:
        pubsub = client.pubsub()
        pubsub.ssubscribe(*names)
        until(lambda: all(client.pubsub_shardnumsub(name, target_nodes="all")[0][1] for name in names))
        deal(three)
        owners = map_of(three[0])
        moved = [name for name in names if owners[key_slot(name.encode())] != port]
        assert moved

        # A publish gets MOVED, which makes the client look up the slot and subscribe again.
        def heard(name: str) -> bool:
            client.spublish(name, "again")
            message = pubsub.get_sharded_message(ignore_subscribe_messages=True, timeout=0.05)
            return bool(message) and (message["channel"], message["data"]) == (name, "again")

        for name in moved:
            until(lambda name=name: heard(name), name)
        pubsub.close()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("alone", [True, False], ids=["one-node", "three-nodes"])
async def test_redis_py_s_cluster_client_on_asyncio(three: Nodes, alone: bool, protocol: int) -> None:
    nodes = three[:1] if alone else three
    deal(nodes)
    host, port = address(nodes[0])
    channels = [name for names in split(nodes) for name in names[:3]]
    async with asyncio.timeout(TIMEOUT_S):
        async with redis.asyncio.RedisCluster(
            host=host, port=port, protocol=protocol, decode_responses=True
        ) as client:
            assert len(client.get_nodes()) == len(nodes)
            pubsub = client.pubsub()
            await pubsub.ssubscribe(*channels)
            confirmed = rows = 0
            while confirmed < len(channels):
                message = await pubsub.get_sharded_message(timeout=0.05)
                confirmed += bool(message) and message["type"] == "ssubscribe"
            assert [await client.spublish(name, name) for name in channels] == [1] * len(channels)
            while rows < len(channels):
                message = await pubsub.get_sharded_message(timeout=0.05)
                if message:
                    assert message["channel"] == message["data"]
                    rows += 1
            await pubsub.aclose()


@pytest.mark.needs("redis-cli")
async def test_redis_cli_follows_redirections_and_finds_the_cluster_sound(three: Nodes) -> None:
    host, port = address(three[0])

    def cli(*words: str) -> str:
        command = ["redis-cli", "-h", host, "-p", str(port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout

    assert [cli("-c", "SPUBLISH", names[0], "x") for names in split(three)] == ["0\n"] * 3
    told = cli("--cluster", "check", f"{host}:{port}")
    assert "[OK] All nodes agree about slots configuration." in told
    assert "[OK] All 16384 slots covered." in told


@pytest.mark.needs("node")
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("alone", [True, False], ids=["one-node", "three-nodes"])
async def test_ioredis_s_cluster_client(three: Nodes, alone: bool, protocol: int) -> None:
    nodes = three[:1] if alone else three
    deal(nodes)
    channels = [name for names in split(nodes) for name in names[:3]]
    host, port = address(nodes[-1])
    if not (HERE / "node_modules").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    script = ["node", str(HERE / "ioredis_cluster.mjs"), host, str(port), str(protocol), *channels]
    done = subprocess.run(script, capture_output=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert json.loads(done.stdout) == {
        "nodes": len(nodes),
        "state": True,
        "heard": sorted([name, f"to {name}"] for name in channels),
        "receivers": [1] * len(channels),
        "classic": ["c0", "hello"],
        "crossed": "CROSSSLOT Keys in request don't hash to the same slot",
    }


@pytest.mark.needs("node")
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("library", ["ioredis", "node-redis"])
async def test_javascript_s_cluster_clients_follow_channels_that_move(
    three: Nodes, library: str, protocol: int
) -> None:
    if not (HERE / "node_modules").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    deal(three[:1])
    host, port = address(three[0])
    names = [f"c{number}" for number in range(12)]
    script = ["node", str(HERE / "cluster_moves.mjs"), library, host, str(port), str(protocol), *names]
    client = await asyncio.create_subprocess_exec(
        *script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert client.stdin and client.stdout
    try:
        async with asyncio.timeout(2 * TIMEOUT_S):
            assert await client.stdout.readline() == b"subscribed\n"
            deal(three)
            client.stdin.write(b"moved\n")
            told, complaints = await client.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()
    assert told.decode().split() == sorted(names), complaints.decode()[-4000:]
