"""Chooses the hub of a new room of a `least-busy` class: a hub whose busiest member has the lowest score.

A node's load has four shares, each relative to its capacity and smoothed: CPU, outgoing bytes, outgoing
deliveries, connections. Its *score* is the mean of the largest share and the average of all four: the largest
decides, the others break ties.

A batch of rooms does not go to one hub: each choice adds the average cost of a room, until a later sample
includes it. Members may refuse a room, which then goes to another hub. Creation has a rate limit and a count
limit, with the same error codes as on a single node.

Invariants: a hub gets no room if one of its members drains, holds no hubs or cannot lead now. Scores only
grow within a batch.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf

from hubsub.control.cluster.view import View

SMOOTH_S = 5.0
"""Time constant of the smoothing, seconds: after it, a constant load makes up about two thirds of the smoothed one."""

STALE_S = 15.0
"""Age, seconds, after which a node's load counts as unknown: the node ranks after all others."""

EGRESS_BYTES_PER_CAPACITY = 100e6
DELIVERIES_PER_CAPACITY = 500e3
CONNECTIONS_PER_CAPACITY = 50e3
"""Throughput per second, and connections, of one unit of capacity (a core): between chat and fan-out in
docs/capacity.md. Only their ratios to each other and to a core's CPU time, which is 1, matter."""

ROOM_COST_MIN = 1e-4
"""Minimum cost of a room, as a score: spreads a batch while no load is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A node's load per second, measured by `CorePlane.load`; not by `$stats/load`, which has the same names."""

    cpu_share: float = 0.0
    """CPU seconds per second, so 1.0 is one core."""
    bytes_out_per_second: float = 0.0
    deliveries_per_second: float = 0.0
    connections: float = 0.0
    rooms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """The smoothed load of a node, and the estimated load of rooms placed on it since."""

    load: Load
    at_s: float
    """When the last sample arrived."""
    added: float = 0.0
    """Score of rooms that were placed on it and that no sample includes yet."""

    def sampled(self, sample: Load, now: float) -> "NodeLoad":
        """Adds a sample. `added` decays at the rate at which the sample gains weight."""
        weight = exp(-max(0.0, now - self.at_s) / SMOOTH_S)

        def smooth(before: float, seen: float) -> float:
            return weight * before + (1 - weight) * seen

        load = Load(
            cpu_share=smooth(self.load.cpu_share, sample.cpu_share),
            bytes_out_per_second=smooth(self.load.bytes_out_per_second, sample.bytes_out_per_second),
            deliveries_per_second=smooth(self.load.deliveries_per_second, sample.deliveries_per_second),
            connections=smooth(self.load.connections, sample.connections),
            rooms=smooth(self.load.rooms, sample.rooms),
        )
        return NodeLoad(load=load, at_s=now, added=weight * self.added)


def score(node: NodeLoad, capacity: float) -> float:
    """How busy a node is: 0 is idle, 1 is its full capacity."""
    load = node.load
    shares = (
        load.cpu_share / capacity,
        load.bytes_out_per_second / (capacity * EGRESS_BYTES_PER_CAPACITY),
        load.deliveries_per_second / (capacity * DELIVERIES_PER_CAPACITY),
        load.connections / (capacity * CONNECTIONS_PER_CAPACITY),
    )
    return (max(shares) + sum(shares) / len(shares)) / 2 + node.added


UNKNOWN = NodeLoad(load=Load(), at_s=-inf)
"""Load of a node that has sent no sample."""

Rank = tuple[bool, float, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Limits of room creation: a token bucket (rate and burst), and a maximum count of rooms."""

    per_second: float
    burst: float
    rooms_max: int
    left: float
    at_s: float

    def taken(self, wanted: int, rooms: int, now: float) -> tuple["Allowance", int, str | None]:
        """Takes up to `wanted` rooms from the allowance.

        Args:
            wanted: New rooms.
            rooms: Rooms that exist.
            now: Time, seconds, of the same clock as `at_s`.

        Returns:
            The allowance afterwards, the number of rooms granted, and the error code for the others (None if
            all were granted).
        """
        left = min(self.burst, self.left + max(0.0, now - self.at_s) * self.per_second)
        by_count, by_rate = max(0, self.rooms_max - rooms), int(left)
        given = min(wanted, by_count, by_rate)
        code = "too_many_rooms" if by_count <= by_rate else "room_creation_rate"
        return replace(self, left=left - given, at_s=now), given, code if given < wanted else None


@dataclass(frozen=True, slots=True)
class Choice:
    hubs: Mapping[bytes, int]
    """Room to hub. A room that is missing found no hub that accepts it now."""
    loads: Mapping[str, NodeLoad]
    """The loads, including the added cost."""


def choose(
    view: View,
    room_class: str,
    rooms: Sequence[bytes],
    loads: Mapping[str, NodeLoad],
    refused: Mapping[bytes, Collection[int]] | None = None,
) -> Choice:
    """Chooses hubs for new rooms of one class.

    Args:
        view: Hubs and nodes.
        room_class: Class of all the rooms.
        rooms: Names, each once.
        loads: By node. A node without an entry ranks after those with one.
        refused: By room, the hubs whose members refused it; default: none.

    Returns:
        A hub for each room that found one, and the loads including these rooms.
    """
    refused = refused or {}
    names = {place.name for place in view.candidates()}
    members = {
        hub: stored.record.members
        for hub, stored in view.hubs.items()
        if stored.record.room_class == room_class
        and stored.record.proposed is None
        and names.issuperset(stored.record.members)
    }
    capacity = {name: view.nodes[name].record.capacity for name in names}
    known = {name: loads.get(name, UNKNOWN) for name in names}
    scores = {name: score(node, capacity[name]) for name, node in known.items()}
    stale = {name for name, node in known.items() if view.now - node.at_s > STALE_S}
    cost = _room_cost(known, capacity)
    added = dict.fromkeys(names, 0.0)
    given = dict.fromkeys(members, 0)

    def rank(hub: int) -> Rank:
        """Sort key of a hub; the lowest is chosen first."""
        busiest = max(scores[name] + added[name] for name in members[hub])
        return not stale.isdisjoint(members[hub]), busiest, given[hub], hub

    # Hubs with the same members are equally busy. So compare sets of members, not hubs: a node has many hubs,
    # and each new room changes the rank of all of them.
    alike: dict[frozenset[str], list[tuple[int, int]]] = {}
    for hub, names_of in members.items():
        alike.setdefault(frozenset(names_of), []).append((0, hub))

    def first(row: list[tuple[int, int]]) -> Rank:
        """Lowest rank among hubs with the same members; updates outdated heap entries."""
        while row[0][0] != given[row[0][1]]:
            heapq.heapreplace(row, (given[row[0][1]], row[0][1]))
        return rank(row[0][1])

    rows = list(alike.values())
    for row in rows:
        heapq.heapify(row)
    heap = [(first(row), at) for at, row in enumerate(rows)]
    heapq.heapify(heap)
    hubs: dict[bytes, int] = {}
    for room in rooms:
        no = refused.get(room)
        if no:
            least = min((rank(hub) for hub in members if hub not in no), default=None)
        else:
            least = _least(heap, lambda at: first(rows[at]))
        if least is None:
            continue
        hub = hubs[room] = least[-1]
        given[hub] += 1
        for name in members[hub]:
            added[name] += cost / capacity[name]
    after = {name: replace(node, added=node.added + added[name]) for name, node in known.items()}
    return Choice(hubs, {**loads, **after})


def _least(heap: list[tuple[Rank, int]], rank: Callable[[int], Rank]) -> Rank | None:
    """Lowest rank in a heap whose entries may be outdated; ranks only grow."""
    while heap:
        entry, at = heap[0]
        current = rank(at)
        if current == entry:
            return entry
        heapq.heapreplace(heap, (current, at))
    return None


def _room_cost(known: Mapping[str, NodeLoad], capacity: Mapping[str, float]) -> float:
    """Estimated score that a room adds to a node of capacity 1: the average over all rooms."""
    rooms = sum(node.load.rooms for node in known.values())
    work = sum((score(node, capacity[name]) - node.added) * capacity[name] for name, node in known.items())
    return max(ROOM_COST_MIN, work / rooms if rooms > 0 else 0.0)
