"""Updates of a node about the cluster's rooms: classes, hubs and their leaders; and the ready nodes."""

from collections.abc import Mapping, Sequence

from hubsub.errors import HubClosedError
from hubsub.node.lifecycle import Lifecycle
from hubsub.node.setup import core_class
from hubsub.node.types import ClassRow, RouteRow


class Routes(Lifecycle):
    """The routing part of `Node`."""

    def route_classes(self, classes: Sequence[ClassRow]) -> None:
        """Sets all classes in order of precedence, before their hubs; the last one matches all. Once rooms
        have hubs, changes take effect at once, but a new class only when all its hubs are set. Rooms whose
        class changes begin a new epoch in it.

        Raises:
            ValueError: a class has no hub, or another number of hubs or another placement than before, or the
                last one does not match all.
        """
        rows = [
            (core_class(row.definition, row.is_removed), row.version, row.hubs, row.placement)
            for row in classes
        ]
        self._core.route_classes(rows)

    def route_hubs(self, rows: Sequence[RouteRow]) -> None:
        """Sets all hubs and their leaders. Hubs of logged classes that this process leads must be open. Rooms
        can be used once all hubs of the classes are set; earlier publishes are refused (`hub_closed`).

        Raises:
            ValueError: an id or a term is 0.
        """
        self._core.route_hubs([(row.hub, row.room_class, row.index, row.term, row.leader) for row in rows])

    def route_serves(self, hubs: Sequence[int]) -> None:
        """Sets all hubs of ephemeral classes that this process serves without a leader lease, as acting
        leader on its side of a netsplit. `route_hubs` must name it as their leader. Rooms of a hub that is
        added or removed begin new epochs.
        """
        self._core.route_serves(list(hubs))

    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        """Sets the hubs of some rooms of a class, which `route_hubs` has set before. Waiting requests
        continue, and subscribers of a room that was elsewhere move with it. None: the ring decides, or the
        hub is to be looked up again.

        Raises:
            ValueError: the node does not know the class.
        """
        self._core.route_rooms(room_class, list(hubs.items()))

    def route_refuse(self, rooms: Sequence[bytes], code: str = HubClosedError.code) -> None:
        """Replies to `on_room_miss` that rooms get no place: their waiting requests are refused at once with
        this error code. Without a reply they are refused after 5 s (`hub_closed`).
        """
        self._core.route_refuse(list(rooms), code)

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        """Replies to `on_room_miss` that rooms have no place, when none was to be created: their waiting
        requests are answered as for rooms without records.
        """
        self._core.route_absent(list(rooms))

    async def route_unused(
        self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool = False
    ) -> list[bytes]:
        """The unused ones of these rooms, which have no subscribers and no records in memory. The hub's class
        has no log, and this process leads it in that term.

        Args:
            hub: Id of their hub.
            term: Term of the hub's record.
            rooms: Their names.
            gives_up: Whether this node also forgets the hub of the unused rooms: it no longer serves them,
                and looks the hub up when they are used.

        Returns:
            Names of the unused rooms.

        Raises:
            TimedOutError: no reply within `request_timeout_ms`.
        """
        return await self._ask_in_time(self._core.route_unused, hub, term, list(rooms), gives_up)

    def route_located(
        self, number: int, members: Sequence[tuple[str, str]] | None, code: str = HubClosedError.code
    ) -> None:
        """Replies to `on_locate`.

        Args:
            number: Number of the request.
            members: Names and Redis addresses of the room's nodes, leader first; None: they are not known.
            code: Error code for the client in that case.
        """
        self._core.route_located(number, None if members is None else list(members), code)

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        """Room and class of a topic, and the index of its hub in the ring of the class."""
        return self._core.route_of(topic)

    def route_ready(self) -> Sequence[tuple[str, int]]:
        """Nodes and incarnations of the processes that have all patterns, this one too. Changes call `on_ready`."""
        return self._core.route_ready()
