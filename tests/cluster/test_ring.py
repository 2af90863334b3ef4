"""Nodes join and leave while clients of the others publish and subscribe: the share of rooms that move is
bounded, and only the death of a leader loses records, with a gap notification.

The bound: a node leads at most ⌈1.25 × its share⌉ hubs of a class, so at most that many move to a joining
node, or from a leaving one. In addition only the spill moves: hubs that are not at their first point because
that node was full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from clients.raw import Connection
from clients.servers import until

from cluster.cluster import DEALT, Cluster
from cluster.test_deaths import Publishing
from hubsub.control.cluster.hub_ring import Place, load_max
from hubsub.testing.rest import hubs_away

pytestmark = pytest.mark.needs("hubsub-core")

ROOMS = [f"chat:ring-{number}" for number in range(30)]
STAY = ("a", "b")
AT_LEAST = 5
"""Minimum records of each publisher in each room, before and after each step."""

Pushes = dict[str, list[list[Any]]]


def leaders(cluster: Cluster) -> dict[str, str]:
    """Leader of each room."""
    return {room: cluster.leader_of(room, "a") for room in ROOMS}


def pushes_of(subscriber: Connection) -> Pushes:
    """All pushes up to the last record of each room, by room: messages and gaps."""
    pushes: Pushes = defaultdict(list)
    ended: set[str] = set()
    while len(ended) < len(ROOMS):
        push = subscriber.read().plain()
        assert isinstance(push, list) and push[0] in (b"message", b"gap"), push
        room = push[1].decode()
        pushes[room].append(push)
        if push[2] == b"end":
            ended.add(room)
    return pushes


def test_a_bounded_share_of_rooms_moves_and_only_a_dead_leader_loses_anything(cluster: Cluster) -> None:
    subscribers = {name: cluster.connect(name) for name in STAY}
    for subscriber in subscribers.values():
        subscriber.call("HUBSUB", "POSITIONS", "ON")
        for room in ROOMS:
            subscriber.call("SUBSCRIBE", room)
    publishing = [Publishing(cluster, name, ROOMS) for name in STAY]
    for one in publishing:
        one.start()
    led: list[dict[str, str]] = [leaders(cluster)]

    def dies() -> None:
        cluster.kill("c")

    steps: list[tuple[str, Callable[[], object]]] = [
        ("d", lambda: cluster.start("d")),
        ("d", lambda: cluster.stop("d")),
        ("c", dies),
        ("c", lambda: cluster.start("c")),
    ]
    for who, step in steps:
        for one in publishing:
            until(one.enough(AT_LEAST))
        hubs, nodes = cluster.leaders("a"), set(cluster.nodes)
        step()
        # A dead node's lease continues for a while, and the others need not wait for its end. A node that
        # left remains a voter until all have removed it: until then no other node may die.
        until(lambda: not hubs_away(cluster.status("a"), cluster.nodes, DEALT))
        if step is not dies:
            cluster.settled()
        is_bounded(hubs, cluster.leaders("a"), who, nodes | set(cluster.nodes))
        led.append(leaders(cluster))
        for one in publishing:
            until(one.enough(AT_LEAST))
    for one in publishing:
        one.end()
    with cluster.connect("b") as last:
        for room in ROOMS:
            assert last.ask("PUBLISH", room, "end") == len(STAY)
    stayed = {room for room in ROOMS if len({step[room] for step in led}) == 1}
    orphans = {room for room in ROOMS if led[2][room] == "c"}
    assert stayed and orphans and set(ROOMS) - stayed - orphans
    for subscriber in subscribers.values():
        for room, pushes in pushes_of(subscriber).items():
            nothing_is_missing(room, pushes, publishing, room in stayed, room in orphans)
        subscriber.close()


def is_bounded(before: list[str], after: list[str], who: str, nodes: set[str]) -> None:
    """Checks that hubs moved only to or from the node that joined or left, except the spill."""
    assert len(before) == len(after) == 64
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    own = [pair for pair in moved if who in pair]
    places = [Place(name) for name in nodes]
    assert 0 < len(own) <= load_max(places[0], places, len(before))
    assert len(moved) - len(own) <= len(own) / 4, moved


def nothing_is_missing(
    room: str, pushes: list[list[Any]], publishing: list[Publishing], has_stayed: bool, is_orphan: bool
) -> None:
    """Checks that acknowledged records arrived once and in order; in a room of a dead leader at least a gap
    did."""
    messages = [push for push in pushes if push[0] == b"message"]
    gaps = [push for push in pushes if push[0] == b"gap"]
    payloads = [push[2].decode() for push in messages][:-1]
    assert len(payloads) == len(set(payloads)), (room, "each once")
    lost = set[str]()
    for one in publishing:
        own = [payload for payload in payloads if payload.startswith(f"{one.on} ")]
        assert own == sorted(own, key=lambda payload: int(payload.split()[1])), (room, "in its order")
        lost |= set(one.taken[room]) - set(own)
    around = [pushes[max(0, at - 3) : at + 4] for at, push in enumerate(pushes) if push[0] == b"gap"]
    assert not lost or (is_orphan and gaps), (room, sorted(lost), around)
    seqs: dict[bytes, list[int]] = defaultdict(list)
    for push in messages:
        epoch, _, seq = push[3].partition(b"-")
        seqs[epoch].append(int(seq))
    for of_epoch in seqs.values():
        assert of_epoch == sorted(set(of_epoch))
    if has_stayed:
        assert not gaps and list(seqs.values()) == [list(range(1, len(messages) + 1))], (room, pushes)
