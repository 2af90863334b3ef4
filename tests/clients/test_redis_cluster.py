"""The listener for Redis cluster clients: its replies are those of a redis-server in cluster mode, and
several nodes assign the slots identically and redirect clients to each other."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from clients.cluster import SLOTS, Nodes, address, connect, deal, map_of, split, started
from clients.raw import Connection, Frame
from clients.script import Script, load, run
from clients.servers import Server, hubsub_node, redis_cluster, until
from hubsub.config import split_address

HERE = Path(__file__).parent
SCRIPTS = [
    pytest.param(script, resp, id=f"{script.name}-resp{resp}")
    for path in sorted((HERE / "scripts" / "cluster").glob("*.txt"))
    for script in load(path)
    for resp in script.protocols
]
MOVED = b"MOVED %d %b"


@pytest.fixture(scope="module")
def oracle(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real redis-server that is a one-node cluster."""
    needs("redis-server")
    with redis_cluster(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def hubsub(needs: Callable[..., None]) -> Iterator[Server]:
    """The cluster listener of a single HubSub node."""
    needs("hubsub-core")
    with hubsub_node(2, {"redis_cluster": "127.0.0.1:0"}) as server:
        assert server.node
        yield Server(*server.node.redis_cluster, server.pid, server.node)


def anonymous(frame: Frame, port: int) -> Frame:
    """A frame without the server's own values: its id, its port, and its cluster bus port."""
    if isinstance(frame.value, tuple):
        return Frame(frame.kind, tuple(anonymous(item, port) for item in frame.value))
    text = re.sub(rb"\b[0-9a-f]{40}\b", b"ID", frame.value or b"")
    text = re.sub(rb"(?<![0-9])%d(@[0-9]+)?(?![0-9])" % port, b"PORT", text)
    return Frame(frame.kind, text if frame.value is not None else None)


@pytest.mark.parametrize(("script", "resp"), SCRIPTS)
def test_one_node_answers_as_redis_does(script: Script, resp: int, oracle: Server, hubsub: Server) -> None:
    def answers(server: Server) -> list[tuple[str, list[Frame]]]:
        transcript = run(script, resp, server.host, server.port)
        return [(line, [anonymous(frame, server.port) for frame in frames]) for line, frames in transcript]

    assert answers(hubsub) == answers(oracle)


def test_info_says_that_this_is_a_cluster_and_at_which_port(hubsub: Server) -> None:
    with hubsub.connect() as connection:
        info = connection.ask("INFO", "server")
        assert isinstance(info, bytes)
        assert b"\r\nredis_mode:cluster\r\n" in info and b"\r\ntcp_port:%d\r\n" % hubsub.port in info
        assert connection.ask("CONFIG", "GET", "port") == [b"port", b"%d" % hubsub.port]


def test_the_plain_listener_of_the_same_node_is_no_cluster(hubsub: Server) -> None:
    assert hubsub.node
    disabled = Frame("-", b"ERR This instance has cluster support disabled")
    with Connection(*hubsub.node.redis) as plain, hubsub.connect(3) as of_cluster:
        for command in (
            ("CLUSTER", "SLOTS"),
            ("CLUSTER", "MYID"),
            ("CLUSTER", "HELP"),
            ("ASKING",),
            ("READONLY",),
        ):
            assert plain.call(*command) == disabled
        info = plain.ask("INFO")
        assert isinstance(info, bytes) and b"redis_mode:standalone" in info and b"cluster_enabled:0" in info
        assert plain.ask("CONFIG", "GET", "cluster-enabled") == [b"cluster-enabled", b"no"]
        assert plain.call("SELECT", 1) == Frame("+", b"OK")
        plain.command("SSUBSCRIBE", "a", "b")
        assert [frame.plain() for frame in plain.read_many(2)] == [
            [b"ssubscribe", b"a", 1],
            [b"ssubscribe", b"b", 2],
        ]
        # Both listeners serve the same rooms.
        assert of_cluster.ask("SPUBLISH", "a", "x") == 1
        assert plain.read().plain() == [b"smessage", b"a", b"x"]


def test_the_listener_is_named_where_the_others_are(hubsub: Server) -> None:
    assert hubsub.node
    address = f"{hubsub.host}:{hubsub.port}"
    assert hubsub.node.ready["redis_cluster"] == address
    assert json.loads(hubsub.get("/v1/nodes"))["nodes"][0]["redis_cluster"] == address
    assert json.loads(hubsub.get("/nodes"))[0]["redis_cluster"] == address


async def test_three_nodes_deal_the_slots_evenly_and_tell_the_same(three: Nodes) -> None:
    maps = [map_of(node) for node in three]
    assert maps[0] == maps[1] == maps[2]
    assert sorted(Counter(maps[0]).values()) == [5_461, 5_461, 5_462]
    seen: list[set[tuple[str, ...]]] = []
    for node in three:
        with connect(node) as connection:
            own = connection.ask("CLUSTER", "MYID")
            lines = connection.ask("CLUSTER", "NODES")
            shards = connection.ask("CLUSTER", "SHARDS")
            info = connection.ask("CLUSTER", "INFO")
        assert isinstance(own, bytes) and isinstance(lines, bytes) and isinstance(shards, list)
        assert isinstance(info, bytes) and b"cluster_known_nodes:3\r\ncluster_size:3" in info
        rows = [line.split() for line in lines.decode().splitlines()]
        (myself,) = [row for row in rows if row[2] == "myself,master"]
        assert (myself[0], myself[1].split("@")[0]) == (own.decode(), node.addresses["redis_cluster"])
        seen.append({(row[0], row[1], *row[8:]) for row in rows})
        ranges = {shard[3][0][1]: shard[1] for shard in shards}
        for row in rows:
            bounds = [int(bound) for words in row[8:] for bound in (words.split("-") * 2)[:2]]
            assert ranges[row[0].encode()] == bounds
    assert seen[0] == seen[1] == seen[2]


async def test_a_fourth_node_moves_a_quarter_of_the_slots_and_its_leaving_moves_them_back() -> None:
    async with started("one", "two", "three", "four") as nodes:
        deal(nodes[:3])
        before = map_of(nodes[0])
        deal(nodes)
        after = map_of(nodes[0])
        assert sorted(Counter(after).values()) == [SLOTS // 4] * 4
        moved = sum(old != new for old, new in zip(before, after, strict=True))
        assert SLOTS // 4 <= moved <= SLOTS * 0.29
        deal(nodes[:3])
        assert map_of(nodes[0]) == before


@pytest.mark.parametrize("resp", [2, 3])
async def test_a_shard_channel_is_served_by_its_owner_alone_and_the_others_name_it(
    three: Nodes, resp: int
) -> None:
    for owner, channels in zip(three, split(three), strict=True):
        name, other = channels[0], channels[1]
        moved = Frame(
            "-", MOVED % (key_slot(name.encode()), (owner.addresses["redis_cluster"] or "").encode())
        )
        for node in three:
            with connect(node, resp) as connection:
                if node is owner:
                    assert connection.ask("SSUBSCRIBE", name) == [b"ssubscribe", name.encode(), 1]
                    continue
                assert connection.call("SPUBLISH", name, "x") == moved
                assert connection.call("SSUBSCRIBE", name) == moved
                assert connection.call("WATCH", name) == moved
                assert connection.call("SSUBSCRIBE", name, other).value == (
                    b"CROSSSLOT Keys in request don't hash to the same slot"
                )
                # An unsubscribe is not redirected.
                assert connection.ask("SUNSUBSCRIBE", name) == [b"sunsubscribe", name.encode(), 0]


async def test_a_transaction_is_sent_to_the_owner_as_a_whole(three: Nodes) -> None:
    (own, *_), (foreign, *_), _ = split(three)
    with connect(three[0]) as connection:
        assert connection.call("MULTI").value == b"OK"
        assert connection.call("SPUBLISH", foreign, "x").value.startswith(b"MOVED ")
        assert connection.call("SPUBLISH", own, "x").value == b"QUEUED"
        assert connection.call("EXEC").value == b"EXECABORT Transaction discarded because of previous errors."
        # The slot moves while the command is queued.
        assert connection.call("MULTI").value == b"OK"
        assert connection.call("SPUBLISH", own, "x").value == b"QUEUED"
        deal(three[1:], to=three)
        assert connection.call("EXEC").value.startswith(b"MOVED ")
        assert connection.call("EXEC").value == b"ERR EXEC without MULTI"


async def test_classic_channels_are_served_by_every_node(three: Nodes) -> None:
    for node in three:
        with connect(node, 3) as subscriber, connect(node) as publisher:
            subscriber.command("SUBSCRIBE", "a", "b", "c")
            subscriber.read_many(3)
            assert subscriber.ask("PSUBSCRIBE", "d*") == [b"psubscribe", b"d*", 4]
            for channel in ("a", "b", "c", "d1"):
                assert publisher.ask("PUBLISH", channel, "x") == 1
            assert [frame.plain()[-1] for frame in subscriber.read_many(4)] == [b"x"] * 4


@pytest.mark.parametrize("resp", [2, 3])
async def test_a_subscriber_is_told_which_of_its_shard_channels_have_moved(resp: int) -> None:
    async with started("one", "two") as nodes:
        one = nodes[0]
        names = [f"c{number}" for number in range(40)]
        with (
            connect(one, resp) as subscriber,
            Connection(*split_address(one.addresses["redis"] or "")) as plain,
        ):
            for name in names:
                subscriber.call("SSUBSCRIBE", name)
            subscriber.call("SUBSCRIBE", names[0])
            plain.command("SSUBSCRIBE", *names)
            plain.read_many(len(names))
            deal(nodes)
            owners = map_of(one)
            moved = [name for name in names if owners[key_slot(name.encode())] == address(nodes[1])[1]]
            assert 5 < len(moved) < 35
            told = subscriber.read_many(len(moved))
            assert {frame.kind for frame in told} == {">" if resp == 3 else "*"}
            rows: list[Any] = [frame.plain() for frame in told]
            assert sorted(name.decode() for _, name, _ in rows) == sorted(moved)
            assert [(kind, count) for kind, _, count in rows] == [
                (b"sunsubscribe", len(names) - number - 1) for number in range(len(moved))
            ]
            stays = next(name for name in names if name not in moved)
            with connect(one) as publisher:
                # The channel that stays has both listeners' subscribers; the subscriber on the plain listener
                # keeps all its channels.
                assert publisher.ask("SPUBLISH", stays, "x") == 2
                assert publisher.ask("PUBSUB", "SHARDNUMSUB", moved[0]) == [moved[0].encode(), 1]
                assert publisher.ask("PUBLISH", names[0], "y") == 1
            assert subscriber.read().plain() == [b"smessage", stays.encode(), b"x"]
            assert subscriber.read().plain() == [b"message", names[0].encode(), b"y"]


async def test_a_node_that_is_left_out_sends_its_clients_to_the_others() -> None:
    async with started("one", "two") as nodes:
        deal(nodes[1:], to=nodes)
        with connect(nodes[0]) as connection:
            to = (nodes[1].addresses["redis_cluster"] or "").encode()
            assert connection.call("SPUBLISH", "a", "x") == Frame("-", MOVED % (key_slot(b"a"), to))
            assert set(map_of(nodes[0])) == {address(nodes[1])[1]}
            own, lines = connection.ask("CLUSTER", "MYID"), connection.ask("CLUSTER", "NODES")
            assert isinstance(own, bytes) and isinstance(lines, bytes)
            assert len(own) == 40 and b"myself" not in lines
        deal([], to=nodes[:1])
        with connect(nodes[0]) as connection:
            down = Frame("-", b"CLUSTERDOWN Hash slot not served")
            until(lambda: connection.call("SPUBLISH", "a", "x") == down)
            info = connection.ask("CLUSTER", "INFO")
            assert isinstance(info, bytes) and info.startswith(
                b"cluster_state:fail\r\ncluster_slots_assigned:0\r\n"
            )


async def test_a_host_that_nobody_set_is_the_one_that_the_client_came_to() -> None:
    async with started("one", "two", redis_cluster="0.0.0.0:0", insecure_open=True) as nodes:
        deal(nodes)
        (_, foreign) = [names[0] for names in split(nodes)]
        with Connection("127.0.0.2", address(nodes[0])[1]) as connection:
            rows = connection.ask("CLUSTER", "SLOTS")
            assert isinstance(rows, list) and {row[2][0] for row in rows} == {b"127.0.0.2"}
            moved = connection.call("SPUBLISH", foreign, "x").value
            assert isinstance(moved, bytes) and moved.endswith(b" 127.0.0.2:%d" % address(nodes[1])[1])
    async with started("one", redis_cluster="0.0.0.0:0", insecure_open=True, advertise="pub.example") as (
        node,
    ):
        with Connection("127.0.0.1", address(node)[1]) as connection:
            rows = connection.ask("CLUSTER", "SLOTS")
            assert isinstance(rows, list) and [row[2][0] for row in rows] == [b"pub.example"]


async def test_a_list_of_nodes_that_is_ambiguous_is_refused_and_the_old_one_stays(three: Nodes) -> None:
    before = map_of(three[0])
    row = three[0].redis_cluster_node("test")
    assert row
    for rows, why in (
        ([row, row], "two nodes have one name: one"),
        ([row._replace(id="x")], "has not 40 hexadecimal digits: x"),
    ):
        with pytest.raises(ValueError, match=why):
            three[0].redis_cluster_nodes(rows)
    assert map_of(three[0]) == before
