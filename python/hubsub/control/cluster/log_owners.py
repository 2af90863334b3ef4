"""Log owners: which node has the log of which hub, and the identity of the cluster's log.

A hub of a logged class stays with its node while the node is away. So a reader of all hubs of the cluster
learns that one is missing, and a client that is redirected to a hub learns which node that is.

The log of a cluster has one identity, whatever directories its hubs are in: a hub's number and its offsets
mean the same on every node. It is the identity of the founder's log, so that readers of that log can
continue, or else the id of the cluster.
"""

from dataclasses import dataclass

from hubsub.control.cluster.records import EPHEMERAL, Founder, HubRecord
from hubsub.control.cluster.watch_cache import WatchCache


@dataclass(frozen=True, slots=True)
class LogOwner:
    """A hub of a logged class, and the node that has its log."""

    id: int
    room_class: str
    index: int
    node: str
    """Its leader, even while not registered."""
    http: str | None
    """`HOST:PORT` of that node's API; None: the node is not registered now, or has no API listener."""

    @property
    def name(self) -> str:
        return f"{self.room_class}-{self.index}"


class LogOwners:
    """Log owners, read from a node's watch cache.

    Args:
        cache: Watch cache of the cluster.
        cluster: Id of the cluster.
    """

    def __init__(self, cache: WatchCache, cluster: str) -> None:
        self._cache = cache
        self._cluster = cluster

    @property
    def log(self) -> str:
        """Identity of the cluster's log, in hexadecimal."""
        return self._cluster if self._founder is None else self._founder.log

    def all(self) -> list[LogOwner]:
        """All hubs of logged classes, ordered by id, including those of the founder that have no hub record yet."""
        owners = {hub: self._owner(hub, stored.record) for hub, stored in self._cache.hubs.items()}
        if (founder := self._founder) is not None:
            for room_class, hubs in founder.hubs.items():
                for index, hub in enumerate(hubs):
                    owners.setdefault(hub, self._owner_at(hub, room_class, index, founder.node))
        return [owner for _, owner in sorted(owners.items()) if self.keeps_log(owner.room_class)]

    def find(self, wanted: str) -> LogOwner | None:
        """Finds a hub by its name or id; None: there is none."""
        return next((owner for owner in self.all() if wanted in (owner.name, str(owner.id))), None)

    def of(self, room_class: str, index: int) -> LogOwner | None:
        """Returns the hub of a logged class by index; None: there is none."""
        hub = self._cache.hub_of(room_class, index)
        if hub is None or not self.keeps_log(room_class):
            return None
        return self._owner(hub, self._cache.hubs[hub].record)

    def keeps_log(self, room_class: str) -> bool:
        stored = self._cache.classes.get(room_class)
        return stored is not None and stored.record.durability != EPHEMERAL

    def is_ring(self, room_class: str) -> bool:
        """Whether the ring selects the hubs of a class's rooms, except pinned ones."""
        stored = self._cache.classes.get(room_class)
        return stored is not None and stored.record.placement == "ring"

    @property
    def _founder(self) -> Founder | None:
        stored = self._cache.cluster
        return None if stored is None else stored.record.founder

    def _owner(self, hub: int, record: HubRecord) -> LogOwner:
        return self._owner_at(hub, record.room_class, record.index, record.leader)

    def _owner_at(self, hub: int, room_class: str, index: int, name: str) -> LogOwner:
        node = self._cache.nodes.get(name)
        http = None if node is None else node.record.addresses.get("http")
        return LogOwner(hub, room_class, index, name, http)
