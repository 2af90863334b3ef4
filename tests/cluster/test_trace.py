"""Traces over the nodes of a cluster."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from clients.servers import until

from cluster.cluster import NAMES, Cluster


def trace(cluster: Cluster, name: str, topic: str, wait_ms: int) -> list[dict[str, Any]]:
    query = urlencode({"topic": topic, "records": 1, "wait_ms": wait_ms})
    status, answer = cluster.get(name, f"/v1/trace?{query}")
    assert status == 200, answer
    records: list[dict[str, Any]] = answer["records"]
    return records


@pytest.mark.parametrize("prefix", ["chat:", "log:"])
@pytest.mark.parametrize("edge", NAMES)
def test_a_publish_is_followed_over_its_edge_its_leader_and_the_node_of_a_subscriber(
    three: Cluster, edge: str, prefix: str
) -> None:
    leader, reader = "b", "c"
    topic = three.room_led_by(leader, prefix)
    with three.connect(reader) as follower, three.connect(edge) as writer:
        follower.ask("SUBSCRIBE", topic)
        with ThreadPoolExecutor(1) as pool:
            # Any node follows the record on all of them.
            found = pool.submit(trace, three, "a", topic, 4_000)
            while not found.done():
                writer.ask("PUBLISH", topic, "x")
            (record,) = found.result()
    at = {(step["kind"], step["node"]): step for step in record["steps"]}
    assert {("received", edge), ("acknowledged", edge), ("committed", leader)} <= set(at), at
    assert at["sent_to_node", leader]["peer_node"] == reader
    assert at["from_leader", reader]["peer_node"] == leader
    assert at["delivered", reader]["count"] == 1
    if edge != leader:
        assert at["sent_to_leader", edge]["peer_node"] == leader
        assert at["from_node", leader]["peer_node"] == edge
    assert (("synced", leader) in at) == (("logged", leader) in at) == (prefix == "log:")


def test_a_name_that_is_not_utf8_reaches_the_other_nodes(three: Cluster) -> None:
    text, topic = "chat:%FF%2541", b"chat:\xff%41"
    with three.connect("b") as writer, ThreadPoolExecutor(1) as pool:
        found = pool.submit(trace, three, "a", text, 4_000)
        while not found.done():
            writer.ask("PUBLISH", topic, "x")
    assert len(found.result()) == 1


@pytest.mark.parametrize("dies", ["b", "c"])
def test_a_trace_goes_on_without_a_node_that_dies(cluster: Cluster, dies: str) -> None:
    """`b` leads the room, and `c` has a subscriber."""
    topic = cluster.room_led_by("b")
    polled = f"{cluster.nodes[dies].http_url}/metrics"

    def is_polled() -> bool:
        with urlopen(polled, timeout=10) as answer:
            return any(
                b'"/v1/traces/{id}"' in line and b'"200"' in line for line in answer.read().splitlines()
            )

    def follow() -> tuple[dict[str, Any], str | None]:
        query = urlencode({"topic": topic, "records": 1, "wait_ms": 30_000})
        with urlopen(f"{cluster.nodes['a'].http_url}/v1/trace?{query}", timeout=60) as answer:
            return json.load(answer), answer.headers["hubsub-unreachable"]

    with cluster.connect("c") as reader, cluster.connect("a") as writer, ThreadPoolExecutor(1) as pool:
        reader.ask("SUBSCRIBE", topic)
        found = pool.submit(follow)
        until(is_polled)
        cluster.kill(dies)
        while not found.done():
            writer.call("PUBLISH", topic, "x")
        answer, unreachable = found.result()
    assert unreachable == dies
    (record,) = answer["records"]
    places = {(step["kind"], step["node"]) for step in record["steps"]}
    assert {("received", "a"), ("acknowledged", "a")} <= places
    assert all(node != dies for _, node in places)
    assert "committed" in {kind for kind, _ in places}
