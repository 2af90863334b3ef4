"""Hubs onto nodes by consistent hashing with bounded loads.

A node has points on a circle, as many as its capacity asks for; a hub goes to the node of the first point at or
behind its own where there is space. A node has space for ⌈1.25 × its share⌉ hubs. Hubs come in the order of
their hashes, so the result follows from nodes and hubs alone: who computes it, when, and what was before do not
matter. (V. Mirrokni, M. Thorup, M. Zadimoghaddam: Consistent Hashing with Bounded Loads, SODA 2018,
arXiv:1608.01350; points by capacity: D. Karger et al., STOC 1997.)

What moves when a node comes or goes is its own hubs and the *spill*: hubs that stand elsewhere than at their
first point because that node was full, or was full before. The paper bounds it by a constant for each hub of the
node that came or went, whatever the number of nodes.

Leaders are placed first and never above the bound. Further members of a hub are other nodes in other zones,
within the bound on all members as long as that is possible: zones first, then the bound, since a hub whose members
fall together has no use of them.

Invariant: the result does not depend on the order in which anything is given.
"""

import functools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, fsum

LOAD_MAX = 1.25
"""Times its share, rounded up: what a node may hold."""

POINTS = 64
"""Of a node of the least capacity: arcs differ by an eighth then, and the bound takes the rest."""

POINTS_MAX = 512
"""Of one node, however much more than the others it can carry."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A node that hubs may go to."""

    name: str
    capacity: float = 1.0
    """Relative to the others. Above 0."""
    zone: str = ""


def assign(places: Iterable[Place], hubs: Iterable[str], members: int = 1) -> Mapping[str, tuple[str, ...]]:
    """The members of each hub, its leader first; fewer where there are fewer nodes; nothing without nodes.

    Args:
        places: Nodes of different names.
        hubs: What names them for good, such as `chat/17`.
        members: How many nodes each should have.
    """
    return _assign(frozenset(places), frozenset(hubs), members)


def load_max(place: Place, places: Iterable[Place], hubs: int) -> int:
    """How many of so many hubs a node may hold."""
    # Not sum(), whose result may depend on the order.
    return ceil(LOAD_MAX * hubs * place.capacity / fsum(p.capacity for p in places))


@functools.lru_cache(maxsize=64)
def _assign(places: frozenset[Place], hubs: frozenset[str], members: int) -> Mapping[str, tuple[str, ...]]:
    if not places:
        return {}
    circle = _circle(places)
    positions = [position for position, _ in circle]
    starts = sorted((_hash(hub), hub) for hub in hubs)
    nodes_max = min(members, len(places))
    zones = len({place.zone for place in places})
    chosen: dict[str, list[Place]] = {hub: [] for _, hub in starts}
    loads = dict.fromkeys(places, 0)
    for rank in range(nodes_max):
        bounds = {place: load_max(place, places, len(starts) * (rank + 1)) for place in places}
        for position, hub in starts:
            held = chosen[hub]
            zones_taken = {place.zone for place in held} if rank < zones else set()
            free = [place for place in places if place not in held and place.zone not in zones_taken]
            with_space = (
                p
                for p in _around(circle, bisect_left(positions, position))
                if loads[p] < bounds[p] and p in free
            )
            place = next(with_space, None) or min(free, key=lambda p: (loads[p] / p.capacity, p.name))
            held.append(place)
            loads[place] += 1
    return {hub: tuple(place.name for place in held) for hub, held in chosen.items()}


def _around(circle: tuple[tuple[int, Place], ...], start: int) -> Iterator[Place]:
    """The nodes of the points from one on, once around."""
    for i in range(len(circle)):
        yield circle[(start + i) % len(circle)][1]


@functools.lru_cache(maxsize=8)
def _circle(places: frozenset[Place]) -> tuple[tuple[int, Place], ...]:
    least = min(place.capacity for place in places)
    return tuple(
        sorted(
            (_hash(f"{place.name}#{point}"), place)
            for place in places
            for point in range(min(POINTS_MAX, round(POINTS * place.capacity / least)))
        )
    )


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"hubsub-ring").digest())
