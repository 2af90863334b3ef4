"""A node joins while clients subscribe all the time: what is published by it reaches all of them, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from clients.raw import Frame

from cluster.cluster import Cluster

pytestmark = pytest.mark.needs("hubsub-core")

ROOMS = 40


@pytest.fixture
def two(needs: Callable[..., None], tmp_path: Path) -> Iterator[Cluster]:
    needs("hubsub-core")
    with Cluster(tmp_path, names=("a", "b")) as cluster:
        yield cluster


class Subscribing(threading.Thread):
    """Subscribes to room after room, and to patterns, until it is told to end; leaves every other one again."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(daemon=True)
        self.on, self.client = name, cluster.connect(name)
        self.ends = threading.Event()
        self.rooms: set[str] = set()
        self.patterns: set[str] = set()

    def run(self) -> None:
        number = 0
        while not self.ends.is_set() or len(self.rooms) < ROOMS:
            number += 1
            room = f"chat:{self.on}-{number % (4 * ROOMS)}"
            kept, verb, name = (
                (self.patterns, "PSUBSCRIBE", f"chat:?-{number % ROOMS}")
                if number % 5 == 0
                else (self.rooms, "SUBSCRIBE", room)
            )
            if name in kept:
                kept.discard(name)
                verb = verb.replace("SUB", "UNSUB")
            else:
                kept.add(name)
            answer = self.client.call(verb, name).plain()
            assert isinstance(answer, list) and answer[:2] == [verb.lower().encode(), name.encode()], answer

    def read(self, count: int) -> list[list[str]]:
        """What came next: verb and room."""
        pushes = [frame.plain() for frame in self.client.read_many(count)]
        return [[push[0].decode(), push[-2].decode()] for push in pushes if isinstance(push, list)]

    def end(self) -> None:
        self.ends.set()
        self.join(60)
        assert not self.is_alive()


def test_a_node_that_joins_knows_all_subscriptions_before_it_serves(two: Cluster) -> None:
    subscribing = [Subscribing(two, name) for name in ("a", "b", "a")]
    for thread in subscribing:
        thread.start()
    two.start("c")
    # It serves, and hubs go to it, while they go on.
    with two.connect("c") as publisher:
        for thread in subscribing:
            thread.end()
        names = [f"chat:{on}-{number}" for on in "ab" for number in range(4 * ROOMS)]
        for name in names:
            assert not isinstance(publisher.ask("PUBLISH", name, "now"), Frame)
    for thread in subscribing:
        due = sorted(
            [["message", name] for name in names if name in thread.rooms]
            + [["pmessage", name] for name in names for pattern in thread.patterns if fnmatch(name, pattern)]
        )
        assert sorted(thread.read(len(due))) == due
        thread.client.close()
