"""Maps hubs to nodes by consistent hashing with bounded loads (Mirrokni and others, arXiv:1608.01350).
The protocol is in docs/protocol/control-plane.md.

Invariant: the result does not depend on the order of the arguments.
"""

import functools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, fsum

LOAD_MAX = 1.25
"""A node may hold this multiple of its share of hubs, rounded up."""

POINTS = 64
"""Points of a node of the lowest capacity: arcs then differ by an eighth, and the bound evens out the rest."""

POINTS_MAX = 512
"""Maximum points of one node, however large its capacity."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A node that may hold hubs."""

    name: str
    capacity: float = 1.0
    """Relative to the other nodes. Above 0."""
    zone: str = ""


def assign(places: Iterable[Place], hubs: Iterable[str], members: int = 1) -> Mapping[str, tuple[str, ...]]:
    """Assigns members to each hub.

    Args:
        places: Nodes of different names.
        hubs: Permanent keys of the hubs, such as `chat/17`.
        members: Members that each hub should have; default: 1.

    Returns:
        Node names by hub, leader first; fewer if there are fewer nodes; empty without nodes.
    """
    return _assign(frozenset(places), frozenset(hubs), members)


def load_max(place: Place, places: Iterable[Place], hubs: int) -> int:
    """Maximum number of `hubs` hubs that a node may hold.

    Args:
        place: The node.
        places: All nodes.
        hubs: Number of all hubs.
    """
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
    """Nodes of the points from `start` on, once around the circle."""
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
