"""Which node has the log of which hub, and which log the cluster's is.

A hub of a logged class stays with its node also while that is away: who reads all hubs of the cluster must know that
one is missing, and who is sent to it must be told where that is.

The log of a cluster has one identity, whatever directories its hubs are in: a hub's number and its offsets mean the
same wherever it is. It is the identity of the log that the founder brought, so that what was read of that goes on, else
the cluster's own id.
"""

from dataclasses import dataclass

from hubsub.control.cluster.follow import Follow
from hubsub.control.cluster.records import EPHEMERAL, Founder, HubRecord


@dataclass(frozen=True, slots=True)
class Home:
    """A hub of a logged class, and who has it."""

    id: int
    room_class: str
    index: int
    node: str
    """Its leader, also while that is not registered."""
    http: str | None
    """`HOST:PORT` where that node's API is reached; None: it is not registered now, or has none."""

    @property
    def name(self) -> str:
        return f"{self.room_class}-{self.index}"


class Homes:
    """Reads what a node follows.

    Args:
        follow: What is known of the cluster.
        cluster: Its id.
    """

    def __init__(self, follow: Follow, cluster: str) -> None:
        self._follow = follow
        self._cluster = cluster

    @property
    def log(self) -> str:
        """Identity of the cluster's log, in hexadecimal."""
        return self._cluster if self._founder is None else self._founder.log

    def all(self) -> list[Home]:
        """All hubs of logged classes, by id; those that the founder brought also before they are recorded."""
        homes = {hub: self._home(hub, kept.record) for hub, kept in self._follow.hubs.items()}
        if (founder := self._founder) is not None:
            for room_class, hubs in founder.hubs.items():
                for index, hub in enumerate(hubs):
                    homes.setdefault(hub, self._at(hub, room_class, index, founder.node))
        return [home for _, home in sorted(homes.items()) if self.keeps_log(home.room_class)]

    def find(self, wanted: str) -> Home | None:
        """A hub by its name or its id, as a person writes it."""
        return next((home for home in self.all() if wanted in (home.name, str(home.id))), None)

    def of(self, room_class: str, index: int) -> Home | None:
        """The hub of a class with this index."""
        hub = self._follow.hub_of(room_class, index)
        if hub is None or not self.keeps_log(room_class):
            return None
        return self._home(hub, self._follow.hubs[hub].record)

    def keeps_log(self, room_class: str) -> bool:
        """Whether the cluster has a class, and a log for it."""
        kept = self._follow.classes.get(room_class)
        return kept is not None and kept.record.durability != EPHEMERAL

    def is_ring(self, room_class: str) -> bool:
        """Whether rooms of a class are where the ring has them, but for those that are pinned."""
        kept = self._follow.classes.get(room_class)
        return kept is not None and kept.record.placement == "ring"

    @property
    def _founder(self) -> Founder | None:
        kept = self._follow.cluster
        return None if kept is None else kept.record.founder

    def _home(self, hub: int, record: HubRecord) -> Home:
        return self._at(hub, record.room_class, record.index, record.leader)

    def _at(self, hub: int, room_class: str, index: int, name: str) -> Home:
        node = self._follow.nodes.get(name)
        http = None if node is None else node.record.addresses.get("http")
        return Home(hub, room_class, index, name, http)
