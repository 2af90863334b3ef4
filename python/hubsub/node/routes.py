"""What a node is told of the cluster's rooms: classes, hubs and who leads them; and who is ready."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from hubsub.config import RoomClass
from hubsub.errors import HubClosedError
from hubsub.node.life import Life
from hubsub.node.setup import core_class


class ClassRow(Protocol):
    """A class of the cluster."""

    @property
    def definition(self) -> RoomClass: ...
    @property
    def hubs(self) -> int:
        """How many it has, for good."""

    @property
    def placement(self) -> str: ...
    @property
    def version(self) -> int:
        """One more with each change of it, from 1."""

    @property
    def is_removed(self) -> bool:
        """Whether it gets no new rooms."""


class HubRow(Protocol):
    """A hub of the cluster."""

    @property
    def hub(self) -> int: ...
    @property
    def room_class(self) -> str: ...
    @property
    def index(self) -> int:
        """Which of the class's hubs it is, from 0."""

    @property
    def term(self) -> int: ...
    @property
    def leader(self) -> tuple[str, int] | None:
        """Node and incarnation; None: nobody leads it."""


class Routes(Life):
    """The part of a node that knows where rooms are."""

    def route_classes(self, classes: Sequence[ClassRow]) -> None:
        """Sets all classes in order of precedence, before hubs of them; the last one matches all. Once rooms have homes
        changes count at once, and a class that is new from when all its hubs are told. Rooms that are another class's
        by then begin another life in it.

        Raises:
            ValueError: one has no hub, another number of them or another placement than before, or the last one does
                not match all.
        """
        rows = [
            (core_class(row.definition, row.is_removed), row.version, row.hubs, row.placement)
            for row in classes
        ]
        self._core.route_classes(rows)

    def route_hubs(self, rows: Sequence[HubRow]) -> None:
        """Sets all hubs and who leads them. Those of logged classes that this process leads are open. Rooms have
        homes once all hubs of the classes are told; what is published before is refused (`hub_closed`).

        Raises:
            ValueError: an id or a term is 0.
        """
        self._core.route_hubs([(row.hub, row.room_class, row.index, row.term, row.leader) for row in rows])

    def route_serves(self, hubs: Sequence[int]) -> None:
        """Sets the hubs of ephemeral classes that this process serves without a lead, where `route_hubs` names it as
        their leader: for its side of a network that is split. All of them; rooms of a hub that comes or goes begin
        other lives."""
        self._core.route_serves(list(hubs))

    def route_rooms(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None:
        """Says where some rooms of a class are, after their hubs: what waits for them goes on, and who subscribes to
        one that was elsewhere follows it. None: where the ring has them, or it is to be asked again.

        Raises:
            ValueError: the node does not know the class.
        """
        self._core.route_rooms(room_class, list(hubs.items()))

    def route_refuse(self, rooms: Sequence[bytes], code: str = HubClosedError.code) -> None:
        """Says that rooms which `on_room_miss` asked for get no place: what waits for them is refused at once with the
        code of an error, else after 5 s (`hub_closed`)."""
        self._core.route_refuse(list(rooms), code)

    def route_absent(self, rooms: Sequence[bytes]) -> None:
        """Says that rooms which `on_room_miss` asked for, without wanting a place, have none: questions about them are
        answered as those about rooms in which nothing was said."""
        self._core.route_absent(list(rooms))

    async def route_unused(
        self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool = False
    ) -> list[bytes]:
        """Those of these rooms that nobody uses, of a hub of a class without a log that this process leads in that
        term: they have no subscribers, and no records in memory.

        Args:
            hub: Theirs.
            term: As its record has it.
            rooms: Their names.
            gives_up: Whether this node has no place for them from then on: it serves them no more, and asks where they
                are when somebody uses one.
        """
        unused: list[bytes] = await self._ask_in_time(
            self._core.route_unused, hub, term, list(rooms), gives_up
        )
        return unused

    def route_located(
        self, number: int, members: Sequence[tuple[str, str]] | None, code: str = HubClosedError.code
    ) -> None:
        """Answers `on_locate`.

        Args:
            number: Of the question.
            members: Names and Redis addresses of the room's members, its leader first; None: that is not known.
            code: Of the error that is told then.
        """
        self._core.route_located(number, None if members is None else list(members), code)

    def route_of(self, topic: bytes) -> tuple[bytes, str, int]:
        """Room and class of a topic, and the index of the hub that the ring of its class has for it."""
        return self._core.route_of(topic)

    def route_ready(self) -> Sequence[tuple[str, int]]:
        """Nodes and incarnations of the processes that hold all patterns, as they said; this one too.
        `on_ready` is called when it has changed."""
        return self._core.route_ready()
