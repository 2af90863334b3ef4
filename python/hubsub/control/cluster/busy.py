"""Which hub a new room of a `least-busy` class goes to: one of those whose busiest member is the least busy.

A node's load is what it does beside what it can do: CPU, bytes and deliveries that go out, connections, each as a
share of what its capacity stands for, smoothed. Its *score* is the mean of the tightest share and of all four, so
that the tightest decides and the others settle between equals.

A batch of rooms does not go to one hub: each choice adds what a room costs on the average, until a sample that
was taken later shows it. Members may refuse a room, and it goes to the next hub then. Creation has a rate and a count
limit, and what they refuse is told by the same codes as on one node.

Invariants: nothing goes to a hub that has a member which drains, holds no hubs or cannot lead now. Scores only grow
within a batch.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf

from hubsub.control.cluster.view import Timing, View

SMOOTH_S = 5.0
"""A load that stays is two thirds of the smoothed one after so long."""

STALE_S = 15.0
"""What was heard of a node's load so long ago says nothing: it comes after all others."""

EGRESS_BYTES_PER_CAPACITY = 100e6
DELIVERIES_PER_CAPACITY = 500e3
CONNECTIONS_PER_CAPACITY = 50e3
"""What one unit of capacity, a core, carries a second and at a time: between chat and fan-out in docs/capacity.md.
Only their relation to each other counts, and to a core's time, which is 1."""

ROOM_COST_MIN = 1e-4
"""Of a score: what a room is reckoned with while nothing is known, so that a batch is spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a node does, a second; the names are those of load samples (docs/protocol/load-samples.md)."""

    cpu_share: float = 0.0
    """Cores."""
    bytes_out_per_second: float = 0.0
    deliveries_per_second: float = 0.0
    connections: float = 0.0
    rooms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """The smoothed load of a node, and what was given to it since."""

    load: Load
    at_s: float
    """When the last sample was heard."""
    added: float = 0.0
    """Score of rooms that it was given and that no sample shows yet."""

    def sampled(self, sample: Load, now: float) -> "NodeLoad":
        """With one more sample; what was given before it fades, as what the sample shows comes up."""
        kept = exp(-max(0.0, now - self.at_s) / SMOOTH_S)

        def smooth(before: float, seen: float) -> float:
            return kept * before + (1 - kept) * seen

        load = Load(
            cpu_share=smooth(self.load.cpu_share, sample.cpu_share),
            bytes_out_per_second=smooth(self.load.bytes_out_per_second, sample.bytes_out_per_second),
            deliveries_per_second=smooth(self.load.deliveries_per_second, sample.deliveries_per_second),
            connections=smooth(self.load.connections, sample.connections),
            rooms=smooth(self.load.rooms, sample.rooms),
        )
        return NodeLoad(load=load, at_s=now, added=kept * self.added)


def score(node: NodeLoad, capacity: float) -> float:
    """How busy a node is: 0 is idle, 1 is what its capacity stands for."""
    load = node.load
    shares = (
        load.cpu_share / capacity,
        load.bytes_out_per_second / (capacity * EGRESS_BYTES_PER_CAPACITY),
        load.deliveries_per_second / (capacity * DELIVERIES_PER_CAPACITY),
        load.connections / (capacity * CONNECTIONS_PER_CAPACITY),
    )
    return (max(shares) + sum(shares) / len(shares)) / 2 + node.added


UNKNOWN = NodeLoad(load=Load(), at_s=-inf)
"""Of a node that no sample came from."""

Rank = tuple[bool, float, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many rooms may be made: so many a second after a burst, and so many in all."""

    per_second: float
    burst: float
    rooms_max: int
    left: float
    at_s: float

    def taken(self, wanted: int, rooms: int, now: float) -> tuple["Allowance", int, str | None]:
        """After as many of the wanted rooms as may be made: how many, and the code of what refused the others."""
        left = min(self.burst, self.left + max(0.0, now - self.at_s) * self.per_second)
        by_count, by_rate = max(0, self.rooms_max - rooms), int(left)
        given = min(wanted, by_count, by_rate)
        code = "too_many_rooms" if by_count <= by_rate else "room_creation_rate"
        return replace(self, left=left - given, at_s=now), given, code if given < wanted else None


@dataclass(frozen=True, slots=True)
class Choice:
    """Where rooms go."""

    hubs: Mapping[bytes, int]
    """Room to hub; a room that is not in it has no hub that takes it now."""
    loads: Mapping[str, NodeLoad]
    """The loads, with what was added."""


def choose(
    view: View,
    now: float,
    timing: Timing,
    room_class: str,
    rooms: Sequence[bytes],
    loads: Mapping[str, NodeLoad],
    refused: Mapping[bytes, Collection[int]] | None = None,
) -> Choice:
    """Hubs for new rooms of one class.

    Args:
        view: Hubs and nodes.
        now: The time, as in `view`.
        timing: As in `leads`.
        room_class: The class of all of them.
        rooms: Names, each once.
        loads: By node. One that is missing is not known, and comes after those that are.
        refused: By room, the hubs whose members said no.
    """
    refused = refused or {}
    names = {place.name for place in view.candidates(now, timing)}
    members = {
        hub: kept.record.members
        for hub, kept in view.hubs.items()
        if kept.record.room_class == room_class
        and kept.record.proposed is None
        and names.issuperset(kept.record.members)
    }
    capacity = {name: view.nodes[name].record.capacity for name in names}
    known = {name: loads.get(name, UNKNOWN) for name in names}
    scores = {name: score(node, capacity[name]) for name, node in known.items()}
    stale = {name for name, node in known.items() if now - node.at_s > STALE_S}
    cost = _room_cost(known, capacity)
    added = dict.fromkeys(names, 0.0)
    given = dict.fromkeys(members, 0)

    def rank(hub: int) -> Rank:
        """How far from being chosen a hub is; the least first."""
        busiest = max(scores[name] + added[name] for name in members[hub])
        return not stale.isdisjoint(members[hub]), busiest, given[hub], hub

    # Hubs of the same members are equally busy, so that each set of members is looked at once, and not each hub:
    # a node has many, and all of them change their rank with each room that one gets.
    alike: dict[frozenset[str], list[tuple[int, int]]] = {}
    for hub, names_of in members.items():
        alike.setdefault(frozenset(names_of), []).append((0, hub))

    def first(row: list[tuple[int, int]]) -> Rank:
        """Rank of the least of hubs that are alike; entries that are of before are set right."""
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
    """Of the least busy hub, out of a heap whose ranks may be of before; ranks only grow."""
    while heap:
        entry, at = heap[0]
        current = rank(at)
        if current == entry:
            return entry
        heapq.heapreplace(heap, (current, at))
    return None


def _room_cost(known: Mapping[str, NodeLoad], capacity: Mapping[str, float]) -> float:
    """What a room adds to the score of a node of capacity 1, as rooms do on the average."""
    rooms = sum(node.load.rooms for node in known.values())
    work = sum((score(node, capacity[name]) - node.added) * capacity[name] for name, node in known.items())
    return max(ROOM_COST_MIN, work / rooms if rooms > 0 else 0.0)
