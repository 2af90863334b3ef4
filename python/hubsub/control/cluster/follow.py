"""Watch cache of one node: merges one watch per directory, and passes the state to the data plane.

Every node follows all of it, including room records. So a room is found without a request, even while the
coordinator is away, and a newly elected controller has the state that it needs. A million rooms take about 30
MB (see `rooms`).

Invariants: nothing here gets older; a broken watch changes nothing until it delivers the whole directory
again. Changes that arrive together are passed to the data plane once, a class before its hubs and a hub
before the rooms placed in it, whatever arrived first. For rooms, only those whose hub or pin has changed are
passed, with their hub at that moment. Nothing is passed before every directory was delivered whole: an
incomplete roster or routing table would end healthy links and leaderships.

**An expired registration** counts for at most `LAPSED_S` more, while its process is heard and was not
draining. When the coordinator comes back after an outage that was longer than its leases, it drops all
registrations, and each node registers again in its own time.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog

from hubsub.control.cluster.commits import CONTROLLER
from hubsub.control.cluster.forgotten import Forgotten
from hubsub.control.cluster.membership import LEASE_S
from hubsub.control.cluster.plane import Neighbour, Plane, Route
from hubsub.control.cluster.records import (
    CENSUS,
    CLASSES,
    CLUSTER,
    HUBS,
    META,
    NODES,
    ROOMS,
    CensusRecord,
    ClassRecord,
    ClusterRecord,
    ControllerRecord,
    HubRecord,
    NodeRecord,
    Record,
    parse,
)
from hubsub.control.cluster.rooms import Buckets, NotKnown
from hubsub.control.cluster.view import Kept, ProcessId, Timing
from hubsub.coordination import Changes, Coordinator, Watch
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
    CENSUS: CensusRecord,
    CLUSTER: ClusterRecord,
}
"""Keys that hold a single record, not a directory of them."""

R = TypeVar("R", bound=Record)

log = structlog.get_logger("hubsub.cluster")


class Follow:
    """Latest state that the watches delivered to one node.

    Args:
        coordinator: Store that is watched.
        plane: Receives rosters, classes, routes, pins and voters.
        me: This node's name.
        changed: Called after anything changed, in the event loop.
        ended: Called with each of its tasks that ended.
        timing: Defines how long a silent process counts as heard.
        clock: Monotonic, seconds: that of the plane.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        plane: Plane,
        me: str,
        changed: Callable[[], None],
        ended: Callable[[asyncio.Task[None]], None],
        *,
        timing: Timing,
        clock: Callable[[], float],
    ) -> None:
        self.nodes: dict[str, Kept[NodeRecord]] = {}
        """By name, including nodes whose registration expired recently."""
        self.hubs: dict[int, Kept[HubRecord]] = {}
        self.classes: dict[str, Kept[ClassRecord]] = {}
        self.rooms: dict[str, Buckets] = {}
        """By class; complete once its directory is in `whole`."""
        self.whole: set[str] = set()
        """Directories that were delivered whole."""
        self.unread: dict[str, str] = {}
        """Keys whose values this version cannot read, with the error; the previous value stays in use."""
        self.refused: dict[str, str] = {}
        """Directories whose watch the store refuses, with the error."""
        self.forgotten = Forgotten(clock)
        """Rooms whose record was recently removed or changed."""
        self.acting: Mapping[int, ProcessId] = {}
        """By hub, the acting leader on this side of a network partition."""
        self.ready = asyncio.Event()
        """Set once all directories except rooms were delivered whole."""
        self.counted = asyncio.Event()
        """Set once this node is a voter."""
        self._coordinator = coordinator
        self._plane = plane
        self._me = me
        self._changed = changed
        self._ended = ended
        self._timing = timing
        self._clock = clock
        self._lapsed: dict[str, Kept[NodeRecord]] = {}
        """Nodes whose registration expired and that still count."""
        self._waits: set[asyncio.Task[None]] = set()
        """One task per node in `_lapsed`; some may outlast the entry."""
        self._singles: dict[str, Kept[Record]] = {}
        self._ids: dict[tuple[str, int], int] = {}
        self._news: set[str] = set()
        """Directories with changes that the plane has not received."""
        self._moved: dict[str, set[bytes]] = {}
        """By class, rooms whose change the plane has not received, for example because their hub is not known
        here yet."""
        self._teller: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for directory in KINDS:
            self._begin(directory)

    @property
    def controller(self) -> Kept[ControllerRecord] | None:
        return self._single(ControllerRecord, CONTROLLER)

    @property
    def census(self) -> Kept[CensusRecord] | None:
        return self._single(CensusRecord, CENSUS)

    @property
    def census_revision(self) -> int:
        """Revision of the voters' record; 0: there is none yet."""
        return 0 if self.census is None else self.census.revision

    @property
    def cluster(self) -> Kept[ClusterRecord] | None:
        return self._single(ClusterRecord, CLUSTER)

    @property
    def is_blind(self) -> bool:
        """Whether a record that decisions depend on cannot be read."""
        return any(not key.startswith(f"{ROOMS}/") for key in self.unread)

    def revision(self, key: str) -> int:
        """Revision of a hub, a node or a single key that the watch delivered; 0: the key does not exist."""
        directory, _, name = key.rpartition("/")
        kept: Kept[Any] | None
        match directory:
            case "hubs":
                kept = self.hubs.get(int(name))
            case "nodes":
                kept = None if name in self._lapsed else self.nodes.get(name)
            case _:
                kept = self._singles.get(key)
        return 0 if kept is None else kept.revision

    def hub_of(self, room_class: str, index: int) -> int | None:
        """Returns the id of a class's hub by index; None: it does not exist yet."""
        return self._ids.get((room_class, index))

    def are_rooms_whole(self, room_class: str) -> bool:
        """Whether all room records of a class are known: a room that is not found has none."""
        return f"{ROOMS}/{room_class}" in self.whole

    def give_room(self, room_class: str, key: str, value: bytes, revision: int) -> None:
        """Adds a bucket of room records that a commit has written, without waiting for the watch.

        Args:
            room_class: Class of the bucket.
            key: Key of the bucket.
            value: Its value.
            revision: Revision from the commit.
        """
        self._give_rooms(self.rooms[room_class], room_class, key, value, revision)

    def act(self, acting: Mapping[int, ProcessId]) -> None:
        """Sets all acting leaders, which override the records in the routes passed to the plane."""
        self.acting = acting
        self._news.add(HUBS)
        self._tell_soon()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._waits, *([] if self._teller is None else [self._teller])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- watches --

    async def _run(self, directory: str) -> None:
        while True:
            watch = self._coordinator.watch(directory)
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
            self._tell_soon()

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
        self.unread.pop(key, None)
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
                    self._follow_rooms(name)
                case "meta" | "":
                    if key in SINGLES:
                        _put(self._singles, key, SINGLES[key], key, value, revision)
                case _:
                    room_class = directory.removeprefix(f"{ROOMS}/")
                    self._give_rooms(self.rooms[room_class], room_class, key, value, revision)
        except (RecordFormatError, RecordDamagedError, ValueError) as error:
            self.unread[key] = str(error)
            log.error("a value of the coordinator cannot be read", key=key, reason=str(error))

    def _lapses(self, name: str) -> bool:
        """Whether a node whose registration expired still counts. Not for this node, which knows the state of
        its own lease."""
        kept = self.nodes.get(name)
        if kept is None or name == self._me or kept.record.is_draining or not self._is_heard(name, kept):
            return False
        if name not in self._lapsed:
            self._lapsed[name] = kept
            task = asyncio.create_task(self._wait_for(name, kept))
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)
            task.add_done_callback(self._ended)
        return True

    async def _wait_for(self, name: str, kept: Kept[NodeRecord]) -> None:
        until_s = self._clock() + LAPSED_S
        while self._lapsed.get(name) is kept:
            if self._clock() >= until_s or not self._is_heard(name, kept):
                del self._lapsed[name], self.nodes[name]
                self._news.add(NODES)
                self._tell_soon()
                return
            await asyncio.sleep(LOOK_S)

    def _is_heard(self, name: str, kept: Kept[NodeRecord]) -> bool:
        peer = self._plane.peers(0).get((name, kept.record.incarnation))
        if peer is None or peer.heard_s is None or peer.is_dead:
            return False
        return self._clock() - peer.heard_s <= self._timing.silence_s

    def _give_rooms(
        self, buckets: Buckets, room_class: str, key: str, value: bytes | None, revision: int
    ) -> None:
        changed = buckets.give(key, value, revision)
        self.forgotten.add(room_class, {room: hub for room, hub in changed.items() if hub is not None})
        if changed:
            self._moved.setdefault(room_class, set()).update(changed)
        if self._moved:
            self._tell_soon()

    def _follow_rooms(self, room_class: str) -> None:
        directory = f"{ROOMS}/{room_class}"
        if directory not in self._tasks:
            self.rooms[room_class] = Buckets(room_class)
            self._begin(directory)

    def _begin(self, directory: str) -> None:
        self._tasks[directory] = task = asyncio.create_task(self._run(directory))
        task.add_done_callback(self._ended)

    def _single(self, cls: type[R], key: str) -> Kept[R] | None:
        kept = self._singles.get(key)
        return kept if kept is not None and isinstance(kept.record, cls) else None  # type: ignore[return-value]

    # -- the data plane --

    def _tell_soon(self) -> None:
        if self._teller is None:
            self._teller = asyncio.create_task(self._tell())
            self._teller.add_done_callback(self._ended)

    async def _tell(self) -> None:
        """Passes changes to the data plane. Runs in a task, so that its errors reach `ended`."""
        self._teller = None
        if not self.ready.is_set():
            if not self.whole.issuperset(KINDS):
                return
            self.ready.set()
            self._news = set(KINDS)
        news, self._news = self._news, set()
        if CLASSES in news:
            self._plane.classes({name: kept.record for name, kept in self.classes.items()})
        if NODES in news:
            self._plane.roster(
                [
                    _neighbour(name, kept.record)
                    for name, kept in sorted(self.nodes.items())
                    if name != self._me
                ]
            )
        if news & {CLASSES, NODES, HUBS}:
            self._ids = {(k.record.room_class, k.record.index): hub for hub, k in self.hubs.items()}
            hubs = sorted(self.hubs.items())
            self._plane.routes(
                [self._route(hub, kept.record, kept.revision) for hub, kept in hubs if self._is_told(hub)]
            )
        if META in news and self.census is not None:
            census = self.census
            if self._me in census.record.nodes:
                self.counted.set()
            self._plane.census(census.revision, census.record.nodes, census.record.before)
        moved, self._moved = self._moved, {}
        for room_class, rooms in moved.items():
            known = dict(self._places(room_class, rooms))
            if known:
                self._plane.pins(room_class, known)
            if left := rooms - known.keys():
                self._moved[room_class] = left
        self._changed()

    def _places(self, room_class: str, rooms: Iterable[bytes]) -> Iterator[tuple[bytes, int | None]]:
        """The hubs of rooms, without rooms that the data plane cannot receive yet."""
        for room in rooms:
            with suppress(NotKnown):
                hub = self.rooms[room_class].hub_of(room)
                if hub is None or self._is_told(hub):
                    yield room, hub

    def _is_told(self, hub: int) -> bool:
        """Whether a hub may be passed to the data plane: its class is known."""
        kept = self.hubs.get(hub)
        return kept is not None and kept.record.room_class in self.classes

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
            acts=self.acting.get(hub),
            gives_up=record.proposed is not None,
            revision=revision,
        )


K = TypeVar("K")


def _put(kept: dict[K, Kept[R]], name: K, cls: type[R], key: str, value: bytes | None, revision: int) -> None:
    if value is None:
        kept.pop(name, None)
    elif name not in kept or kept[name].revision < revision:
        kept[name] = Kept(parse(cls, key, value), revision)


def _neighbour(name: str, record: NodeRecord) -> Neighbour:
    return Neighbour(
        name=name,
        incarnation=record.incarnation,
        addresses=record.addresses,
        shards=record.shards,
        may_lead=record.holds_hubs,
    )
