"""What a new controller begins from: hubs, nodes and the census as the store had them after its election.

A watch may be behind: a hub that the controller before gave to another node, or a node that left, would be decided upon
from what was. So all of it is read once, linearizably, and the controller waits until its watches gave no less.

A watch may never give what was read: of a node that came and left it gives nothing. So what is not given after
`AGAIN_S` is read again.

Invariant: once `Start.is_given` is true it stays so, since a watch gives nothing older.
"""

from dataclasses import dataclass, field
from typing import Final

from hubsub.control.cluster.follow import Follow
from hubsub.control.cluster.records import CENSUS, CLUSTER, HUBS, NODES, hub_key, node_key
from hubsub.coordination import Coordinator

AGAIN_S: Final = 1.0
"""How long watches have to give what was read."""


@dataclass(slots=True)
class Start:
    """What was read, as far as the watches have not given it yet."""

    read_s: float
    """When it was."""
    there: dict[str, int] = field(default_factory=dict)
    """Key to the revision that it had."""
    gone: dict[str, int] = field(default_factory=dict)
    """Key that was not there to the revision that the watch gave of it before."""

    def is_given(self, known: Follow) -> bool:
        """Whether the watches gave all of it; what this version cannot read counts as given."""
        waited = {key: rev for key, rev in self.there.items() if key not in known.unread}
        self.there = {key: rev for key, rev in waited.items() if known.revision(key) < rev}
        self.gone = {key: rev for key, rev in self.gone.items() if known.revision(key) == rev}
        return not self.there and not self.gone

    def is_late(self, now: float) -> bool:
        """Whether the watches have not given all of it in time."""
        return bool(self.there or self.gone) and now >= self.read_s + AGAIN_S


async def read(coordinator: Coordinator, known: Follow, now: float) -> Start:
    """Reads all that a controller decides from but rooms, whose writes expect what was read of them.

    Args:
        coordinator: Where.
        known: What the watches gave.
        now: The time, seconds, of the clock that `Start.is_late` is asked by.

    Raises:
        CoordinatorError: it cannot be reached; nothing is known then.
    """
    found = await _page(coordinator, HUBS) | await _page(coordinator, NODES)
    for single in (CENSUS, CLUSTER):
        entry = await coordinator.get(single)
        found |= {} if entry is None else {single: entry.revision}
    keys = [*map(hub_key, known.hubs), *map(node_key, known.nodes), CENSUS]
    start = Start(now, there=found)
    for key in keys:
        revision = known.revision(key)
        if key in found or revision == 0:
            continue
        # It went, or was made behind the page that would have had it.
        entry = await coordinator.get(key)
        if entry is None:
            start.gone[key] = revision
        else:
            start.there[key] = entry.revision
    return start


async def _page(coordinator: Coordinator, directory: str) -> dict[str, int]:
    found: dict[str, int] = {}
    after, more = "", True
    while more:
        page = await coordinator.page(directory, after)
        for entry in page.entries:
            after = entry.key.rpartition("/")[2]
            found[entry.key] = entry.revision
        more = page.more and bool(page.entries)
    return found
