"""Unmodified Redis Cluster clients on three real nodes: the slot map is independent of room placement, and
slots are reassigned as nodes join and leave."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from clients.cluster import SLOTS, slots_of
from clients.raw import TIMEOUT_S, Connection
from clients.servers import until
from clients.test_redis_cluster_clients import smessages
from redis.crc import key_slot

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

SCRIPTS = Path(__file__).parents[1] / "clients"
CHANNELS = [f"chat:slot-{number}" for number in range(24)]


@pytest.fixture(scope="module")
def doors(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; each test restores their state."""
    needs("hubsub-core")
    with Cluster(tmp_path_factory.mktemp("doors")) as cluster:
        yield cluster


def address(cluster: Cluster, name: str) -> tuple[str, int]:
    return cluster.nodes[name].redis_cluster


def owners(cluster: Cluster, name: str) -> list[str]:
    """The node of each slot, as one node reports it."""
    names = {int(cluster.addresses[other]["redis_cluster"].rpartition(":")[2]): other for other in NAMES}
    with Connection(*address(cluster, name)) as connection:
        return [names[port] for port in slots_of(connection)]


def dealt(cluster: Cluster) -> list[str]:
    """The same, once all running nodes report it and own all slots."""

    def agreed() -> list[str]:
        maps = [owners(cluster, name) for name in cluster.nodes]
        return maps[0] if maps.count(maps[0]) == len(maps) and set(maps[0]) == set(cluster.nodes) else []

    return until(agreed, "all tell the same slots")


def modules(needs: Callable[..., None]) -> None:
    needs("node")
    if not (SCRIPTS / "node_modules").is_dir():
        pytest.skip("needs tests/clients/node_modules")


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_s_cluster_client_reaches_rooms_wherever_they_are(doors: Cluster, protocol: int) -> None:
    slots = dealt(doors)
    host, port = address(doors, "b")
    with redis.RedisCluster(host=host, port=port, protocol=protocol, decode_responses=True) as client:
        assert len(client.get_nodes()) == 3 and client.cluster_info()["cluster_state"] == "ok"
        pubsub = client.pubsub()
        pubsub.ssubscribe(*CHANNELS)
        leaders = {name: doors.leader_of(name) for name in CHANNELS}
        ways = {(slots[key_slot(name.encode())], leader) for name, leader in leaders.items()}
        assert len(ways) > 6, "slots and rooms are on nodes of their own"

        def counted(name: str) -> bool:
            with doors.connect("c") as plain:
                return plain.ask("PUBSUB", "SHARDNUMSUB", name) == [name.encode(), 1]

        until(lambda: all(counted(name) for name in CHANNELS))
        assert [client.spublish(name, "by its slot") for name in CHANNELS] == [1] * len(CHANNELS)
        for on in NAMES:
            with doors.connect(on) as plain:
                assert [plain.ask("SPUBLISH", name, on) for name in CHANNELS] == [1] * len(CHANNELS)
        due = [(name, said) for said in ("by its slot", *NAMES) for name in CHANNELS]
        assert sorted(smessages(pubsub, len(due))) == sorted(due)
        pubsub.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_cluster_clients_add_up_what_nodes_count_of_their_own_subscribers(
    doors: Cluster, protocol: int
) -> None:
    dealt(doors)
    topics, pattern = ("chat:counted-1", "chat:counted-2"), "irc:counted-*"
    host, port = address(doors, "a")
    with ExitStack() as ends:
        client = redis.RedisCluster(host=host, port=port, protocol=protocol, decode_responses=True)
        ends.enter_context(client)
        shard = client.pubsub()
        ends.callback(shard.close)
        shard.ssubscribe(*topics)
        for name in NAMES:
            plain = ends.enter_context(doors.connect(name))
            for topic in topics[: 1 + (name == "a")]:
                assert plain.ask("SUBSCRIBE", topic) == [
                    b"subscribe",
                    topic.encode(),
                    1 + (topic == topics[1]),
                ]
            if name != "c":
                assert plain.ask("PSUBSCRIBE", pattern)[:2] == [b"psubscribe", pattern.encode()]
        counted = [(topics[0], 3), (topics[1], 1), ("chat:nobody", 0)]
        by_slot = [(topic, 1) for topic in topics]

        def whole(ask: Any) -> bool:
            flat = [item for topic, count in counted for item in (topic.encode(), count)]
            by_slot_flat = [item for topic in topics for item in (topic.encode(), 1)]
            return (
                ask("PUBSUB", "NUMSUB", *topics, "chat:nobody") == flat
                and ask("PUBSUB", "SHARDNUMSUB", *topics) == by_slot_flat
                and ask("PUBSUB", "NUMPAT") == 1
            )

        for name in NAMES:
            plain = ends.enter_context(doors.connect(name))
            until(lambda plain=plain: whole(plain.ask), f"{name} knows of all")
            of_node = ends.enter_context(Connection(*address(doors, name)))
            assert of_node.ask("PUBSUB", "NUMSUB", *topics) == [
                topics[0].encode(),
                1,
                topics[1].encode(),
                int(name == "a"),
            ]
            assert of_node.ask("PUBSUB", "NUMPAT") == int(name != "c")
            # Publishers get the receiver count of the whole room, through either listener.
            assert of_node.ask("PUBLISH", topics[0], "x") == 3
        assert client.pubsub_numsub(*topics, "chat:nobody", target_nodes="all") == counted
        assert client.pubsub_shardnumsub(*topics, target_nodes="all") == by_slot
        assert client.pubsub_numpat(target_nodes="all") == 2
        assert set(client.pubsub_channels("chat:counted-*", target_nodes="all")) == set(topics)
        assert set(client.pubsub_shardchannels("chat:counted-*", target_nodes="all")) == set(topics)


@pytest.mark.parametrize("adapter", ["classic", "sharded"])
@pytest.mark.parametrize("library", ["ioredis-cluster", "node-redis-cluster"])
def test_socket_io_s_adapter_counts_its_servers_through_a_cluster_client(
    doors: Cluster, needs: Callable[..., None], library: str, adapter: str
) -> None:
    modules(needs)
    dealt(doors)
    host, port = address(doors, "b")
    script = ["node", str(SCRIPTS / "socketio.mjs"), host, str(port), library, adapter]
    done = subprocess.run(script, capture_output=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    seen = json.loads(done.stdout)
    assert (seen["servers"], seen["sockets"], seen["acked"], seen["wrong"]) == (2, 2, [2], False)
    assert (seen["serverSide"], seen["socketsInRoom"]) == (["b heard a"], [True])


@pytest.mark.parametrize("protocol", [2, 3])
def test_ioredis_s_cluster_client_does_too(doors: Cluster, needs: Callable[..., None], protocol: int) -> None:
    modules(needs)
    dealt(doors)
    host, port = address(doors, "c")
    script = ["node", str(SCRIPTS / "ioredis_cluster.mjs"), host, str(port), str(protocol), *CHANNELS]
    done = subprocess.run(script, capture_output=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert json.loads(done.stdout) == {
        "nodes": 3,
        "state": True,
        "heard": sorted([name, f"to {name}"] for name in CHANNELS),
        "receivers": [1] * len(CHANNELS),
        "classic": ["c0", "hello"],
        "crossed": "CROSSSLOT Keys in request don't hash to the same slot",
    }


def test_slots_are_even_and_those_of_a_node_that_dies_go_to_the_others_and_back(doors: Cluster) -> None:
    before = dealt(doors)
    assert sorted(Counter(before).values()) == [5_461, 5_461, 5_462]
    host, port = address(doors, "a")
    # It refreshes one slot at a time: see test_redis_cluster_clients.
    with redis.RedisCluster(host=host, port=port, decode_responses=True, reinitialize_steps=0) as client:
        doors.kill("c")
        without = dealt(doors)
        assert sorted(Counter(without).values()) == [SLOTS // 2] * 2
        stayed = sum(a == b for a, b in zip(before, without, strict=True))
        assert stayed > 0.95 * sum(name != "c" for name in before), "who stays keeps its own"
        orphan = next(name for name in CHANNELS if before[key_slot(name.encode())] == "c")
        with redis.RedisCluster(host=host, port=port, decode_responses=True) as other:
            pubsub = other.pubsub()
            pubsub.ssubscribe(orphan)
            until(lambda: takes(client, orphan, "without it"))
            assert smessages(pubsub, 1) == [(orphan, "without it")]
            pubsub.close()
        doors.start("c")
        assert dealt(doors) == before
        doors.settled()
        # A publish gets MOVED with the slot's current node.
        until(lambda: takes(client, orphan, "again", receivers=0))


def takes(client: Any, channel: str, payload: str, receivers: int = 1) -> bool:
    """Whether a publish reached `receivers` clients; it may fail while the client learns the new slot map."""
    try:
        return bool(client.spublish(channel, payload) == receivers)
    except (redis.exceptions.RedisError, OSError):
        return False


def test_javascript_s_cluster_clients_follow_channels_to_a_node_that_comes(
    doors: Cluster, needs: Callable[..., None]
) -> None:
    modules(needs)
    doors.stop("c")
    before = dealt(doors)
    host, port = address(doors, "a")
    with ExitStack() as ends:
        clients = []
        for library in ("ioredis", "node-redis"):
            names = [f"{name}-{library}" for name in CHANNELS]
            script = ["node", str(SCRIPTS / "cluster_moves.mjs"), library, host, str(port), "3", *names]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            client = ends.enter_context(subprocess.Popen(script, text=True, **pipes))
            ends.callback(client.kill)
            clients.append((names, client))
        for _, client in clients:
            assert client.stdout and client.stdout.readline() == "subscribed\n"
        doors.start("c")
        after = dealt(doors)
        for names, client in clients:
            assert any(before[at] != after[at] for at in (key_slot(name.encode()) for name in names))
            told, complaints = client.communicate("moved\n", timeout=2 * TIMEOUT_S)
            assert told.split() == sorted(names), complaints[-4000:]
    doors.settled()
