"""Nodes that start with an invalid or different setup: with an older data directory, with none, bound to
other addresses than they advertise."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster

pytestmark = pytest.mark.needs("hubsub-core")


@pytest.fixture
def two(needs: Callable[..., None], tmp_path: Path) -> Iterator[Cluster]:
    needs("hubsub-core")
    with Cluster(tmp_path, names=("a", "b")) as cluster:
        yield cluster


def test_a_node_is_found_where_it_is_advertised_and_not_where_it_is_bound(two: Cluster) -> None:
    everywhere = dict.fromkeys(("redis", "http", "link"), "0.0.0.0:0")
    node = two.start("c", advertise="localhost", insecure_open=True, **everywhere)
    two.settled()
    told = {row["name"]: row["addresses"] for row in two.status("a")["nodes"]}["c"]
    for key in everywhere:
        assert told[key] == f"localhost:{node.ready[key].rpartition(':')[2]}"
    room = two.room_led_by("c")
    with two.connect("a") as publisher, two.connect("c") as subscriber:
        assert publisher.ask("HUBSUB", "LOCATE", room) == [[b"c", told["redis"].encode()]]
        subscriber.call("SUBSCRIBE", room)
        assert publisher.ask("PUBLISH", room, "over links to that address") == 1


def test_a_node_whose_data_directory_is_an_older_copy_or_gone_does_not_start(cluster: Cluster) -> None:
    home, copy = cluster.directory / "b", cluster.directory / "copy"
    cluster.kill("b")
    shutil.copytree(home, copy)
    cluster.start("b")
    cluster.settled()
    cluster.kill("b")
    shutil.rmtree(home)
    said = cluster.refused("b")
    assert "another process has the name of this node: " in said
    assert "does not admit this node: another node has the name: b" in said
    assert "hint: give each node its own; one that is gone for good frees its name in 15s" in said
    shutil.rmtree(home, ignore_errors=True)
    shutil.move(copy, home)
    said = cluster.refused("b")
    assert "error: the node cannot join its cluster" in said
    assert "gets no more: it has lost entries, as in a data directory that was restored from a copy" in said
    names = {row["name"] for row in cluster.status("a")["nodes"]}
    assert {"a", "c"} <= names
    with cluster.connect("a") as client:
        assert client.ask("PUBLISH", cluster.room_led_by("a"), "the others go on") == 0
