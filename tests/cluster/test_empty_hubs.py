"""Empty logged hubs are spread over all nodes, not only the founder, and the moves lose no record."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest
from clients.servers import until

from cluster.cluster import NAMES, Cluster
from hubsub.control.cluster.classes import LOGGED_HUBS
from hubsub.control.cluster.hub_ring import LOAD_MAX

pytestmark = pytest.mark.needs("hubsub-core")

ROOMS = [f"log:{number}" for number in range(100)]


def shares(cluster: Cluster) -> dict[str, int]:
    leaders = cluster.leaders(room_class="logged")
    return {name: leaders.count(name) for name in leaders}


def share_max(nodes: int) -> int:
    return ceil(LOAD_MAX * LOGGED_HUBS / nodes)


def is_going(cluster: Cluster) -> bool:
    return any(hub["class"] == "logged" and hub["proposed"] for hub in cluster.status("a")["hubs"])


def test_hubs_are_dealt_kept_by_who_starts_again_and_leave_no_record_behind(tmp_path: Path) -> None:
    with Cluster(tmp_path, names=("a",)) as cluster:
        assert shares(cluster) == {"a": LOGGED_HUBS}
        cluster.start("b")
        until(lambda: len(shares(cluster)) == 2 and max(shares(cluster).values()) <= share_max(2))
        cluster.settled()
        given = cluster.leaders("a", "logged")
        cluster.kill("b")
        cluster.start("b")
        cluster.settled()
        # More hubs without a record may have been moving to it.
        again = zip(given, cluster.leaders("a", "logged"), strict=True)
        assert all(now == "b" for was, now in again if was == "b"), "who was given a hub has it again"

        cluster.start("c")
        until(lambda: is_going(cluster) or "c" in shares(cluster))
        taken: dict[str, list[bytes]] = {room: [] for room in ROOMS}
        for publisher in NAMES:
            with cluster.connect(publisher) as client:
                for turn in range(2):
                    # All at once, so that some are in hubs that are moving.
                    sent = [(room, f"{publisher}{turn}".encode()) for room in ROOMS]
                    for room, payload in sent:
                        client.command("PUBLISH", room, payload)
                    for room, payload in sent:
                        if client.read().plain() == 0:
                            taken[room].append(payload)
        until(lambda: not is_going(cluster))
        cluster.settled()
        assert sum(map(len, taken.values())) == len(NAMES) * 2 * len(ROOMS), "who waited was answered"
        held = cluster.leaders("a", "logged")
        for name in NAMES:
            with cluster.connect(name) as client:
                for room in ROOMS:
                    history = client.ask("HUBSUB", "HISTORY", room, "COUNT", 100)
                    assert isinstance(history, list) and [row[4] for row in history] == taken[room]
        cluster.kill("c")
        cluster.start("c")
        cluster.settled()
        assert cluster.leaders("a", "logged") == held, "hubs with records stay"
