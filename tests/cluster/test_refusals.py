"""A process that must not become a node of a cluster ends with a one-sentence error; the other nodes are not
affected."""

from __future__ import annotations

import pytest

from cluster.cluster import CHAT, Cluster

pytestmark = pytest.mark.needs("hubsub-core")


def test_what_must_not_join_says_why(cluster: Cluster) -> None:
    def nodes() -> list[tuple[str, int]]:
        return [(row["name"], row["incarnation"]) for row in cluster.status("a")["nodes"]]

    before = nodes()
    taken = cluster.refused("elsewhere", node="b")
    assert (
        "error: another process has the name of this node: " in taken
        and "hint: give each node its own" in taken
    )
    stranger = cluster.refused("stranger", cluster_secret="another secret of the tests")
    assert "error: the cluster's secret is another one there: " in stranger
    assert "hint: cluster_secret is the same on all nodes" in stranger
    other = cluster.refused("other", hash_tags=False)
    assert (
        "the configuration of this node differs from the cluster's, in 1:\nhash_tags: False here, True"
        in other
    )
    classes, cluster.classes = cluster.classes, [{**CHAT, "history": {"messages": 7}}, *cluster.classes[1:]]
    differs = cluster.refused("differs")
    cluster.classes = classes
    assert "differs from the cluster's, in 1:\nclass chat, history" in differs
    # It first founds a cluster of its own.
    cluster.start("alone", join=[])
    cluster.stop("alone")
    del cluster.addresses["alone"]
    alone = cluster.refused("alone")
    assert "of another cluster" in alone
    assert nodes() == before
    cluster.settled()
