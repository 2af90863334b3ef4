"""A single node with rooms founds a cluster: earlier records and batches remain usable, through any node."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.cluster import CLASSES, Cluster
from cluster.reading import asker, body, payloads, read_all
from hubsub.pipeline.options import Access
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.wire import Wire
from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core")


def test_offsets_and_batches_of_a_node_that_was_alone_are_the_clusters(tmp_path: Path) -> None:
    rows = [(f"log:{n % 5}", f"row {n}") for n in range(50)]
    with Node(classes=CLASSES, config={"data": str(tmp_path / "a"), "node": "a"}) as alone:
        with Wire(Access(servers=(str(alone.ready["http"]),))) as wire:
            names = [wire.stage("q", body(rows), None)]
            assert wire.commit("q", 3, names) == {"published": 50, "duplicate": False}
            before = wire.listing(pattern="log:*")
            read = read_all(wire, before, Selection())
    with Cluster(tmp_path, names=("a", "b")) as cluster, asker(cluster, "b") as wire:
        after = wire.listing(pattern="log:*")
        assert after.log == before.log, "a checkpoint stays good"
        assert {hub.id: hub.end for hub in after.hubs.values()} == {
            hub.id: hub.end for hub in before.hubs.values()
        }
        assert read_all(wire, after, Selection()).equals(read)
        assert wire.commit("q", 3, names) == {"published": 50, "duplicate": True}
        more = [wire.stage("q", body(rows), None)]
        assert wire.commit("q", 4, more) == {"published": 50, "duplicate": False}
        assert payloads(cluster, "b", "log:1") == [f"row {n}" for n in range(1, 50, 5)] * 2
