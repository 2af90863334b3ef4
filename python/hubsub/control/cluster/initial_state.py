"""Initial state of a new controller: hubs, nodes and voters as stored after its election.

A watch may lag: the controller would decide about a hub that its predecessor moved, or a node that left, from
an old state. So all of it is read once, linearizably, and the controller waits until its watches have
delivered at least that.

A watch may never deliver what was read: of a node that joined and left it delivers nothing. So state that is
not delivered within `REREAD_S` is read again.

Invariant: once `InitialState.is_delivered` is true it stays true, because a watch delivers nothing older.
"""

from dataclasses import dataclass, field
from typing import Final

from hubsub.control.cluster.records import CLUSTER, HUBS, NODES, VOTERS, hub_key, node_key
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination import Coordinator

REREAD_S: Final = 1.0
"""How long the watches have to deliver the read state."""


@dataclass(slots=True)
class InitialState:
    """The part of the read state that the watches have not delivered yet."""

    read_s: float
    """When it was read."""
    there: dict[str, int] = field(default_factory=dict)
    """Existing keys, with the revisions read."""
    gone: dict[str, int] = field(default_factory=dict)
    """Keys that no longer exist, with the revisions that the watches have."""

    def is_delivered(self, known: WatchCache) -> bool:
        """Whether the watches have delivered all of it; what this version cannot read counts as delivered."""
        waited = {key: rev for key, rev in self.there.items() if key not in known.unreadable}
        self.there = {key: rev for key, rev in waited.items() if known.revision(key) < rev}
        self.gone = {key: rev for key, rev in self.gone.items() if known.revision(key) == rev}
        return not self.there and not self.gone

    def is_late(self, now: float) -> bool:
        return bool(self.there or self.gone) and now >= self.read_s + REREAD_S


async def read(coordinator: Coordinator, known: WatchCache, now: float) -> InitialState:
    """Reads all state that a controller decides from, except rooms, whose commits expect the revisions they
    are based on.

    Args:
        coordinator: Store to read.
        known: Watch cache.
        now: The time, seconds, of the clock for `InitialState.is_late`.

    Raises:
        CoordinatorError: it cannot be reached; nothing is known then.
    """
    entries = [*await coordinator.all(HUBS), *await coordinator.all(NODES)]
    found = {entry.key: entry.revision for entry in entries}
    for single in (VOTERS, CLUSTER):
        entry = await coordinator.get(single)
        found |= {} if entry is None else {single: entry.revision}
    keys = [*map(hub_key, known.hubs), *map(node_key, known.nodes), VOTERS]
    start = InitialState(now, there=found)
    for key in keys:
        revision = known.revision(key)
        if key in found or revision == 0:
            continue
        # It was removed, or created after its page was read.
        entry = await coordinator.get(key)
        if entry is None:
            start.gone[key] = revision
        else:
            start.there[key] = entry.revision
    return start
