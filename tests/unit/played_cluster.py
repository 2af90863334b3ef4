"""Three fake nodes, and the API of one of them, which combines those of all."""

from collections.abc import Mapping, Sequence
from typing import Any

from hubsub.api.others import call_of, encode
from hubsub.control.cluster.log_owners import LogOwner
from hubsub.errors import NodesUnreachableError

from .played_node import Answer, Api, hub_row, played_log


class PlayedHomes:
    """The nodes of the hubs, as set by the test."""

    log = "c1"

    def __init__(self) -> None:
        self.rows: list[LogOwner] = []

    def all(self) -> list[LogOwner]:
        return self.rows

    def keeps_log(self, room_class: str) -> bool:
        return any(home.room_class == room_class for home in self.rows)

    def find(self, wanted: str) -> LogOwner | None:
        return next((home for home in self.rows if wanted in (home.name, str(home.id))), None)

    def of(self, room_class: str, index: int) -> LogOwner | None:
        return next((h for h in self.rows if (h.room_class, h.index) == (room_class, index)), None)


class Joined:
    """The other nodes, as one node calls them."""

    def __init__(self, cluster: "Cluster", own: str) -> None:
        self._cluster = cluster
        self._own = own

    @property
    def log_owners(self) -> PlayedHomes:
        return self._cluster.log_owners

    def names(self) -> Sequence[str]:
        return [name for name in self._cluster.apis if name != self._own]

    async def ask(self, node: str, body: bytes) -> bytes:
        self._cluster.asked.append(node)
        if node in self._cluster.away:
            raise NodesUnreachableError(value=node)
        return encode(await self._cluster.apis[node].app.called(call_of(body)))

    async def holder(self, room: bytes, create: bool) -> str | None:
        holder = self._cluster.holders.get(room, "one")
        return None if holder == self._own else holder

    async def hub_of(self, room: bytes) -> int | None:
        return self._cluster.hubs.get(room)

    def index_of(self, room: bytes) -> int:
        return self._cluster.indexes.get(room, 0)


class Cluster:
    """Nodes `one`, `two` and `three`; requests go to `one`."""

    def __init__(self) -> None:
        self.apis = {name: Api() for name in ("one", "two", "three")}
        self.log_owners = PlayedHomes()
        self.away: set[str] = set()
        self.asked: list[str] = []
        self.holders: dict[bytes, str] = {}
        self.hubs: dict[bytes, int] = {}
        self.indexes: dict[bytes, int] = {}
        for name, api in self.apis.items():
            api.node.name = name
            api.node.known = {}
            api.node.listed = []
            others: Any = Joined(self, name)
            api.state.others = others

    async def ask(self, method: str, target: str, body: object = None) -> Answer:
        return await self.apis["one"].ask(method, target, body)

    def have(self, hubs: Mapping[int, str]) -> None:
        """Sets the node of each hub of the class `chat`. A node that is not one of the three counts as not
        registered."""
        self.log_owners.rows = [
            LogOwner(hub, "chat", hub - 1, node, f"{node}:3220" if node in self.apis else None)
            for hub, node in sorted(hubs.items())
        ]
        for name, api in self.apis.items():
            rows = [hub_row(hub) for hub, node in hubs.items() if node == name]
            api.node.played_log = {**played_log(*rows), "identity": f"of {name}"}
