"""One API over linked nodes, and each node's report of the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from hubsub.api.linked import Linked
from hubsub.control.cluster.core_plane import CorePlane
from hubsub.control.cluster.plane import RPC_BYTES_MAX

from .cluster.fake_data import FakeData
from .cluster.played import Cluster, play
from .played_node import Api, fits, room_row


def join(cluster: Cluster, names: str) -> dict[str, Api]:
    """The APIs of a cluster's nodes, linked."""
    data = {name: FakeData((name, cluster.nodes[name].incarnation)) for name in names}
    apis: dict[str, Api] = {}
    for name, plane in data.items():
        plane.others = {other: data[other] for other in names if other != name}
        api = apis[name] = Api()
        api.node.name = name
        api.node.known, api.node.listed = {}, []
        api.state.cluster = cluster.nodes[name]
        core = CorePlane(plane, plane.me, cluster.loop.time)
        api.state.others = Linked(cluster.nodes[name], core, api.app)
    return apis


def test_lists_have_the_parts_of_all_linked_nodes_and_name_those_that_do_not_answer() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            apis = join(cluster, "abc")
            apis["b"].node.listed = [b"of b"]
            answer = await apis["a"].get("/v1/rooms")
            assert [room["name"] for room in answer.json["rooms"]] == ["of b"]
            nodes = await apis["a"].get("/v1/nodes")
            fits(nodes, "/v1/nodes")
            rows = {node["name"]: node for node in nodes.json["nodes"]}
            assert list(rows) == ["a", "b", "c"]
            assert sum(row["hubs_led"] for row in rows.values()) == 3 * 64
            assert {row["state"] for row in rows.values()} == {"up"}
            # The request waits for a node that hangs, and then names it.
            apis["c"].node.gate.clear()
            data: Any = apis["a"].state.others
            data._plane._data.others.pop("c")
            answer = await apis["a"].get("/v1/rooms")
            assert answer.headers["hubsub-unreachable"] == "c"

    play(test)


def test_a_room_is_answered_by_the_node_that_leads_its_hub() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            apis = join(cluster, "abc")
            for api in apis.values():
                api.node.known = {}
            found = await cluster.nodes["a"].locate(b"game:x")
            assert found is not None
            leader = found.members[0].node
            apis[leader].node.known[b"game:x"] = room_row(b"game:x")
            for name in "abc":
                answer = await apis[name].get("/v1/rooms/game%3Ax")
                assert (answer.status, answer.json["name"]) == (200, "game:x"), name
            assert (await apis["a"].get("/v1/rooms/chat%3Anew")).status == 404
            made = await apis["a"].ask("PUT", "/v1/rooms/chat%3Anew")
            placed = await cluster.nodes["a"].locate(b"chat:new", create=False)
            assert made.status == 201 or made.status == 200
            assert placed is not None and b"chat:new" in apis[placed.members[0].node].node.known

    play(test)


def test_an_answer_that_is_too_long_for_a_link_is_refused_with_what_to_do() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"ab")
            await cluster.settle()
            apis = join(cluster, "ab")
            apis["b"].node.listed = [b"%06d" % i + bytes(1_000) for i in range(RPC_BYTES_MAX // 1_000)]
            answer = await apis["a"].get("/v1/rooms?limit=1000")
            assert answer.status == 503 and "limit" in answer.json["hint"]

    play(test)


def test_a_node_that_hangs_is_not_waited_for_without_end() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"ab")
            await cluster.settle()
            apis = join(cluster, "ab")
            others: Any = apis["b"].state.others

            async def hangs(node: str, body: bytes) -> bytes:
                await asyncio.Event().wait()
                return b""

            others._plane.serve(b"\x01", hangs)
            answer = await apis["a"].get("/v1/nodes")
            assert answer.headers["hubsub-unreachable"] == "b"

    play(test)


def test_the_cluster_is_told_as_a_node_sees_it() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc", zone="east")
            await cluster.settle()
            apis = join(cluster, "abc")
            answer = await apis["a"].get("/v1/cluster")
            fits(answer, "/v1/cluster")
            told = answer.json
            assert told["controller"] == cluster.controller() and told["wrong"] == []
            assert told["voters"] == {"nodes": ["a", "b", "c"], "before": []}
            assert told["coordinator"]["kind"] == "embedded" and told["coordinator"]["failed"] is None
            assert 0 <= told["coordinator"]["heard_ago_s"] < 2
            assert [node["name"] for node in told["nodes"]] == ["a", "b", "c"] and len(told["hubs"]) == 3 * 64
            assert (await apis["a"].get("/v1/cluster?node=b")).json["node"] == "b"
            cluster.store.away = True
            await asyncio.sleep(20)
            aged = (await apis["a"].get("/v1/cluster")).json
            assert aged["coordinator"]["heard_ago_s"] >= 19 and "coordinator is away" in str(aged["wrong"])

    play(test)


def test_a_node_alone_has_no_cluster_and_one_whose_coordinator_failed_is_not_ready() -> None:
    async def test() -> None:
        alone = await Api().get("/v1/cluster")
        assert (alone.status, alone.json["code"]) == (404, "no_cluster")
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.settle()
            api = join(cluster, "a")["a"]
            assert (await api.get("/readyz")).status == 200
            cluster.coordinators["a"].failed = "its disk is full"
            answer = await api.get("/readyz")
            assert (answer.status, answer.json["code"]) == (503, "coordinator_failed")
            assert "its disk is full" in answer.json["message"] and answer.json["hint"]

    play(test)
