"""A node dies as soon as all serve, while the first nodes are still becoming voters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients.raw import Connection
from clients.servers import until

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

ROOMS = [f"chat:{number}" for number in range(32)]


class Fresh(Cluster):
    """A cluster whose nodes serve, but have not settled."""

    def start_all(self) -> None:
        self.start(self.names[0])
        with ThreadPoolExecutor() as threads:
            list(threads.map(self.start, self.names[1:]))


@pytest.fixture
def fresh(needs: Callable[..., None], tmp_path: Path) -> Iterator[Cluster]:
    needs("hubsub-core")
    with Fresh(tmp_path) as cluster:
        yield cluster


def is_taken(client: Connection, room: str) -> bool:
    """Whether a publish is acknowledged; otherwise its outcome must be unknown, and it must not have timed
    out."""
    answer = client.ask("PUBLISH", room, "x")
    assert answer == 0 or "link_lost" in str(answer), answer
    return answer == 0


@pytest.mark.parametrize("dies", ["a", "c"], ids=["founder", "last"])
def test_rooms_are_answered_when_a_node_dies_right_after_all_are_ready(fresh: Cluster, dies: str) -> None:
    lives = [name for name in NAMES if name != dies]
    with fresh.connect(lives[0]) as publisher:
        fresh.kill(dies)
        for room in ROOMS:
            until(lambda room=room: is_taken(publisher, room))
    until(lambda: fresh.status(lives[0])["voters"] == {"nodes": lives, "before": []})
