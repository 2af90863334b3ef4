"""Watch cache of one node: merges one watch per directory, and passes the state to the data plane.
The protocol is in docs/protocol/control-plane.md.

Invariants: nothing here gets older; a broken watch changes nothing until it delivers the whole directory
again. Changes that arrive together are passed to the data plane once, a class before its hubs and a hub
before the rooms placed in it, whatever arrived first. For rooms, only those whose hub or pin has changed are
passed, with their hub at that moment. Nothing is passed before every directory was delivered whole: an
incomplete roster or routing table would end healthy links and leaderships.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog

from hubsub.control.cluster.buckets import Buckets, NotKnown
from hubsub.control.cluster.commits import CONTROLLER
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.forgotten import Forgotten
from hubsub.control.cluster.membership import LEASE_S
from hubsub.control.cluster.plane import Neighbour, Route
from hubsub.control.cluster.records import (
    CLASSES,
    CLUSTER,
    HUBS,
    META,
    NODES,
    ROOMS,
    VOTERS,
    ClassRecord,
    ClusterRecord,
    ControllerRecord,
    HubRecord,
    NodeRecord,
    Record,
    VotersRecord,
    parse,
)
from hubsub.control.cluster.view import ProcessId, Stored
from hubsub.coordination import Changes, Watch
from hubsub.coordination.tasks import end
from hubsub.errors import CoordinatorError, RecordDamagedError, RecordFormatError

REFUSED_S: Final = 5.0
"""Delay before a watch is retried that the store refuses: the cause needs an operator."""

LAPSED_S: Final = 2 * LEASE_S
"""How long a node that is heard has to register again: it learns within a third of a lease that it must."""

LOOK_S: Final = 0.1
"""Interval of the checks whether a node with an expired registration is heard."""

KINDS: Final[Mapping[str, type[Record]]] = {
    NODES: NodeRecord,
    HUBS: HubRecord,
    CLASSES: ClassRecord,
    META: Record,
    "": Record,
}
"""Directories that are always followed; those of rooms are added with their classes."""

SINGLES: Final[Mapping[str, type[Record]]] = {
    CONTROLLER: ControllerRecord,
    VOTERS: VotersRecord,
    CLUSTER: ClusterRecord,
}
"""Keys that hold a single record, not a directory of them."""

R = TypeVar("R", bound=Record)

log = structlog.get_logger("hubsub.cluster")


class WatchCache:
    """Latest state that the watches delivered to one node.

    Args:
        context: Store, data plane and clock.
        changed: Called after anything changed, in the event loop.
    """

    def __init__(
        self,
        context: Context,
        changed: Callable[[], None],
    ) -> None:
        self._ctx = context
        self.nodes: dict[str, Stored[NodeRecord]] = {}
        """By name, including nodes whose registration expired recently."""
        self.hubs: dict[int, Stored[HubRecord]] = {}
        self.classes: dict[str, Stored[ClassRecord]] = {}
        self.rooms: dict[str, Buckets] = {}
        """By class; complete once its directory is in `whole`."""
        self.whole: set[str] = set()
        """Directories that were delivered whole."""
        self.unreadable: dict[str, str] = {}
        """Keys whose values this version cannot read, with the error; the previous value stays in use."""
        self.refused: dict[str, str] = {}
        """Directories whose watch the store refuses, with the error."""
        self.forgotten = Forgotten(context.clock)
        """Rooms whose record was recently removed or changed."""
        self.acting_leaders: Mapping[int, ProcessId] = {}
        """By hub, the acting leader on this side of a network partition."""
        self.ready = asyncio.Event()
        """Set once all directories except rooms were delivered whole."""
        self.became_voter = asyncio.Event()
        """Set once this node is a voter."""
        self._changed = changed
        self._lapsed: dict[str, Stored[NodeRecord]] = {}
        """Nodes whose registration expired and that still count."""
        self._waits: set[asyncio.Task[None]] = set()
        """One task per node in `_lapsed`; some may outlast the entry."""
        self._singles: dict[str, Stored[Record]] = {}
        self._ids: dict[tuple[str, int], int] = {}
        self._news: set[str] = set()
        """Directories with changes that the plane has not received."""
        self._changed_rooms: dict[str, set[bytes]] = {}
        """By class, rooms whose change the plane has not received, e.g. because their hub is not known here yet."""
        self._publisher: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for directory in KINDS:
            self._begin(directory)

    @property
    def controller(self) -> Stored[ControllerRecord] | None:
        return self._single(ControllerRecord, CONTROLLER)

    @property
    def voters(self) -> Stored[VotersRecord] | None:
        return self._single(VotersRecord, VOTERS)

    @property
    def voters_revision(self) -> int:
        """Revision of the voters' record; 0: there is none yet."""
        return 0 if self.voters is None else self.voters.revision

    @property
    def cluster(self) -> Stored[ClusterRecord] | None:
        return self._single(ClusterRecord, CLUSTER)

    @property
    def is_blind(self) -> bool:
        """Whether a record that decisions depend on cannot be read."""
        return any(not key.startswith(f"{ROOMS}/") for key in self.unreadable)

    def revision(self, key: str) -> int:
        """Revision of a hub, a node or a single key that the watch delivered; 0: the key does not exist."""
        directory, _, name = key.rpartition("/")
        stored: Stored[Any] | None
        match directory:
            case "hubs":
                stored = self.hubs.get(int(name))
            case "nodes":
                stored = None if name in self._lapsed else self.nodes.get(name)
            case _:
                stored = self._singles.get(key)
        return 0 if stored is None else stored.revision

    def hub_of(self, room_class: str, index: int) -> int | None:
        """Returns the id of a class's hub by index; None: it does not exist yet."""
        return self._ids.get((room_class, index))

    def has_all_rooms(self, room_class: str) -> bool:
        """Whether all room records of a class are known: a room that is not found has none."""
        return f"{ROOMS}/{room_class}" in self.whole

    def add_bucket(self, room_class: str, key: str, value: bytes, revision: int) -> None:
        """Adds a bucket of room records that a commit has written, without waiting for the watch.

        Args:
            room_class: Class of the bucket.
            key: Key of the bucket.
            value: Its value.
            revision: Revision from the commit.
        """
        self._add_bucket(self.rooms[room_class], room_class, key, value, revision)

    def set_acting_leaders(self, acting: Mapping[int, ProcessId]) -> None:
        """Sets all acting leaders, which override the records in the routes passed to the plane."""
        self.acting_leaders = acting
        self._news.add(HUBS)
        self._publish_soon()

    async def close(self) -> None:
        await end(*self._tasks.values(), *self._waits, self._publisher)

    # -- watches --

    async def _run(self, directory: str) -> None:
        while True:
            watch = self._ctx.coordinator.watch(directory)
            try:
                await self._read(directory, watch)
                return
            except CoordinatorError as error:
                self.refused[directory] = str(error)
                log.error("the coordinator will not serve a watch", directory=directory, reason=error.message)
            finally:
                await watch.close()
            await asyncio.sleep(REFUSED_S)

    async def _read(self, directory: str, watch: Watch) -> None:
        async for changes in watch:
            self.refused.pop(directory, None)
            gone = [*changes.gone, *self._left_out(directory, changes)]
            for key in gone:
                self._take(directory, key, None, 0)
            for entry in changes.entries:
                self._take(directory, entry.key, entry.value, entry.revision)
            if changes.whole:
                self.whole.add(directory)
            self._news.add(directory)
            self._publish_soon()

    def _left_out(self, directory: str, changes: Changes) -> Iterator[str]:
        """Known keys that are missing when a directory is delivered whole."""
        if changes.whole:
            there = {entry.key for entry in changes.entries}
            yield from [key for key in self._known(directory) if key not in there]

    def _known(self, directory: str) -> Iterator[str]:
        match directory:
            case "nodes":
                yield from (f"{NODES}/{name}" for name in self.nodes)
            case "hubs":
                yield from (f"{HUBS}/{hub}" for hub in self.hubs)
            case "classes":
                yield from (f"{CLASSES}/{name}" for name in self.classes)
            case "meta" | "":
                yield from (key for key in self._singles if key.rpartition("/")[0] == directory)
            case _:
                yield from self.rooms[directory.removeprefix(f"{ROOMS}/")].keys()

    def _take(self, directory: str, key: str, value: bytes | None, revision: int) -> None:
        self.unreadable.pop(key, None)
        name = key.rpartition("/")[2]
        try:
            match directory:
                case "nodes":
                    if value is None and self._lapses(name):
                        return
                    self._lapsed.pop(name, None)
                    _put(self.nodes, name, NodeRecord, key, value, revision)
                case "hubs":
                    _put(self.hubs, int(name), HubRecord, key, value, revision)
                case "classes":
                    _put(self.classes, name, ClassRecord, key, value, revision)
                    self._watch_rooms(name)
                case "meta" | "":
                    if key in SINGLES:
                        _put(self._singles, key, SINGLES[key], key, value, revision)
                case _:
                    room_class = directory.removeprefix(f"{ROOMS}/")
                    self._add_bucket(self.rooms[room_class], room_class, key, value, revision)
        except (RecordFormatError, RecordDamagedError, ValueError) as error:
            self.unreadable[key] = str(error)
            log.error("a value of the coordinator cannot be read", key=key, reason=str(error))

    def _lapses(self, name: str) -> bool:
        """Whether a node whose registration expired still counts. Not for this node, which knows the state of
        its own lease."""
        stored = self.nodes.get(name)
        if (
            stored is None
            or name == self._ctx.me[0]
            or stored.record.is_draining
            or not self._is_heard(name, stored)
        ):
            return False
        if name not in self._lapsed:
            self._lapsed[name] = stored
            task = asyncio.create_task(self._wait_for(name, stored))
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)
            task.add_done_callback(self._ctx.ended)
        return True

    async def _wait_for(self, name: str, stored: Stored[NodeRecord]) -> None:
        until_s = self._ctx.clock() + LAPSED_S
        while self._lapsed.get(name) is stored:
            if self._ctx.clock() >= until_s or not self._is_heard(name, stored):
                del self._lapsed[name], self.nodes[name]
                self._news.add(NODES)
                self._publish_soon()
                return
            await asyncio.sleep(LOOK_S)

    def _is_heard(self, name: str, stored: Stored[NodeRecord]) -> bool:
        peer = self._ctx.plane.peers(0).get((name, stored.record.incarnation))
        if peer is None or peer.heard_s is None or peer.is_dead:
            return False
        return self._ctx.clock() - peer.heard_s <= self._ctx.timing.silence_s

    def _add_bucket(
        self, buckets: Buckets, room_class: str, key: str, value: bytes | None, revision: int
    ) -> None:
        changed = buckets.apply(key, value, revision)
        self.forgotten.add(room_class, {room: hub for room, hub in changed.items() if hub is not None})
        if changed:
            self._changed_rooms.setdefault(room_class, set()).update(changed)
        if self._changed_rooms:
            self._publish_soon()

    def _watch_rooms(self, room_class: str) -> None:
        directory = f"{ROOMS}/{room_class}"
        if directory not in self._tasks:
            self.rooms[room_class] = Buckets(room_class)
            self._begin(directory)

    def _begin(self, directory: str) -> None:
        self._tasks[directory] = task = asyncio.create_task(self._run(directory))
        task.add_done_callback(self._ctx.ended)

    def _single(self, cls: type[R], key: str) -> Stored[R] | None:
        stored = self._singles.get(key)
        return stored if stored is not None and isinstance(stored.record, cls) else None  # type: ignore[return-value]

    # -- the data plane --

    def _publish_soon(self) -> None:
        if self._publisher is None:
            self._publisher = asyncio.create_task(self._publish())
            self._publisher.add_done_callback(self._ctx.ended)

    async def _publish(self) -> None:
        """Passes changes to the data plane. Runs in a task, so that its errors reach `ended`."""
        self._publisher = None
        if not self.ready.is_set():
            if not self.whole.issuperset(KINDS):
                return
            self.ready.set()
            self._news = set(KINDS)
        news, self._news = self._news, set()
        if CLASSES in news:
            self._ctx.plane.classes({name: stored.record for name, stored in self.classes.items()})
        if NODES in news:
            self._ctx.plane.roster(
                [
                    _neighbour(name, stored.record)
                    for name, stored in sorted(self.nodes.items())
                    if name != self._ctx.me[0]
                ]
            )
        if news & {CLASSES, NODES, HUBS}:
            self._ids = {(k.record.room_class, k.record.index): hub for hub, k in self.hubs.items()}
            hubs = sorted(self.hubs.items())
            self._ctx.plane.routes(
                [
                    self._route(hub, stored.record, stored.revision)
                    for hub, stored in hubs
                    if self._is_publishable(hub)
                ]
            )
        if META in news and self.voters is not None:
            voters = self.voters
            if self._ctx.me[0] in voters.record.nodes:
                self.became_voter.set()
            self._ctx.plane.voters(voters.revision, voters.record.nodes, voters.record.before)
        moved, self._changed_rooms = self._changed_rooms, {}
        for room_class, rooms in moved.items():
            known = dict(self._places(room_class, rooms))
            if known:
                self._ctx.plane.pins(room_class, known)
            if left := rooms - known.keys():
                self._changed_rooms[room_class] = left
        self._changed()

    def _places(self, room_class: str, rooms: Iterable[bytes]) -> Iterator[tuple[bytes, int | None]]:
        """The hubs of rooms, without rooms that the data plane cannot receive yet."""
        for room in rooms:
            with suppress(NotKnown):
                hub = self.rooms[room_class].hub_of(room)
                if hub is None or self._is_publishable(hub):
                    yield room, hub

    def _is_publishable(self, hub: int) -> bool:
        """Whether a hub may be passed to the data plane: its class is known."""
        stored = self.hubs.get(hub)
        return stored is not None and stored.record.room_class in self.classes

    def _route(self, hub: int, record: HubRecord, revision: int) -> Route:
        registered = self.nodes.get(record.leader)
        is_past = registered is not None and registered.record.incarnation > record.incarnation
        return Route(
            hub=hub,
            room_class=record.room_class,
            index=record.index,
            term=record.term,
            leader=None if is_past else (record.leader, record.incarnation),
            members=record.members,
            acting_leader=self.acting_leaders.get(hub),
            gives_up=record.proposed is not None,
            revision=revision,
        )


K = TypeVar("K")


def _put(
    stored: dict[K, Stored[R]], name: K, cls: type[R], key: str, value: bytes | None, revision: int
) -> None:
    if value is None:
        stored.pop(name, None)
    elif name not in stored or stored[name].revision < revision:
        stored[name] = Stored(parse(cls, key, value), revision)


def _neighbour(name: str, record: NodeRecord) -> Neighbour:
    return Neighbour(
        name=name,
        incarnation=record.incarnation,
        addresses=record.addresses,
        shards=record.shards,
        may_lead=record.holds_hubs,
    )
