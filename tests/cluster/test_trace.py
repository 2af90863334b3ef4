"""Traces over the nodes of a cluster."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest

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
                time.sleep(0.05)
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
