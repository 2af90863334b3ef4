"""Removes the records of unused rooms, while its node is the controller.
The protocol is in docs/protocol/control-plane.md.

Invariants: per turn at most `FORGOTTEN_PER_TURN` records are removed, and leaders are asked for at most
`LOOKED_PER_TURN` rooms. At most `IDLE_MAX` rooms are tracked as unused, each until it is used, removed, or
absent from a whole round, for example because it was pinned.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from hubsub.control.cluster import rpc
from hubsub.control.cluster.bucket_values import Room
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.records import EPHEMERAL
from hubsub.control.cluster.room_writer import RoomWriter
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination.tasks import end
from hubsub.errors import HubSubError

TURN_S: Final = 0.5

LOOKED_PER_TURN: Final = 2_000
"""Maximum number of rooms per turn that leaders are asked for."""

FORGOTTEN_PER_TURN: Final = 250
"""Maximum number of records removed per turn: a new room waits for at most one such batch."""

ASKED_ROOMS: Final = 250
ASKED_BYTES: Final = 64 << 10
"""Limits of one request to a leader: rooms, and bytes of their names."""

IDLE_MAX: Final = 200_000
"""Maximum number of rooms tracked as unused."""

Key = tuple[str, bytes]
"""Class and name of a room."""

BEGINNING: Final = ("", None)
"""Position before the first class and room."""

Ask = Callable[[str, rpc.Forget], Awaitable[rpc.Response]]
"""Sends a request to a node; fails with `PeerError`."""

log = structlog.get_logger("hubsub.cluster")


class Idle:
    """Tracks since when rooms have been unused, as observed by periodic checks.

    Args:
        idle_s: How long a room must be unused, seconds.
        rooms_max: How many rooms are tracked.
    """

    def __init__(self, idle_s: float, rooms_max: int = IDLE_MAX) -> None:
        self._idle_s = idle_s
        self._rooms_max = rooms_max
        self._since: dict[Key, float] = {}
        """Unused rooms that were checked in this round, with the time since when."""
        self._before: dict[Key, float] = {}
        """Unused rooms that were checked in the previous round, but not in this one yet."""

    def __len__(self) -> int:
        return len(self._since) + len(self._before)

    def look(self, asked: Iterable[Key], unused: Collection[Key], now: float) -> list[Key]:
        """Records the result of a check.

        Args:
            asked: Rooms that were checked.
            unused: Those of them that are unused.
            now: Time, seconds, monotonic.

        Returns:
            Rooms that have been unused for at least `idle_s`, in the order of `asked`.
        """
        due: list[Key] = []
        for key in asked:
            since = self._before.pop(key, None)
            since = self._since.pop(key, None) if since is None else since
            if key not in unused:
                continue
            if since is not None and now - since >= self._idle_s:
                due.append(key)
            if since is not None or len(self) < self._rooms_max:
                self._since[key] = now if since is None else since
        return due

    def end_round(self) -> None:
        """Ends a round, after all rooms that may be forgotten were checked. Rooms not among them are dropped."""
        self._before, self._since = self._since, {}

    def drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._since.pop(key, None)
            self._before.pop(key, None)

    def clear(self) -> None:
        self._since.clear()
        self._before.clear()


class Forgetter:
    """Removes records of unused rooms until it is closed.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache of the cluster.
        controller: Knows whether this node is the controller.
        writer: Writes room records.
        ask: Sends a request to the leader of a hub.
        idle_s: How long a room must be unused, seconds; 0: no room is forgotten.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        controller: Controller,
        writer: RoomWriter,
        ask: Ask,
        *,
        idle_s: float,
    ) -> None:
        self._ctx = context
        self._cache = cache
        self._controller = controller
        self._writer = writer
        self._ask = ask
        self._idle = Idle(idle_s)
        self._at: tuple[str, bytes | None] = BEGINNING
        """Class and room that were checked last."""
        self._task: asyncio.Task[None] | None = None
        if idle_s > 0:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(context.ended)

    async def close(self) -> None:
        await end(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            if self._controller.revision is None:
                self._idle.clear()
                continue
            try:
                await self._turn()
            except HubSubError as error:
                log.debug("no rooms are forgotten now", reason=error.message)

    async def _turn(self) -> None:
        rooms = self._next()
        unused = await self._unused(rooms)
        due = self._idle.look(rooms, unused, self._ctx.clock())[:FORGOTTEN_PER_TURN]
        if self._at == BEGINNING:
            self._idle.end_round()
        forgotten = 0
        for (room_class, hub), names in _by_hub({key: rooms[key] for key in due}).items():
            forgotten += await self._forget(room_class, hub, names)
        if forgotten:
            log.info("rooms that nobody used are forgotten", rooms=forgotten)

    def _next(self) -> dict[Key, int]:
        """The next rooms that may be forgotten, with their hubs; starts over after the last one."""
        rooms: dict[Key, int] = {}
        classes = sorted(name for name in self._cache.classes if self._is_meant(name))
        room_class, after = self._at
        for name in (name for name in classes if name >= room_class):
            left = LOOKED_PER_TURN - len(rooms)
            page = self._cache.rooms[name].page(after if name == room_class else None, left)
            rooms |= {(name, room): at.hub for room, at in page if at == Room(at.hub)}
            if len(page) == left:
                self._at = name, page[-1][0]
                return rooms
        self._at = BEGINNING
        return rooms

    def _is_meant(self, room_class: str) -> bool:
        record = self._cache.classes[room_class].record
        is_whole = self._cache.has_all_rooms(room_class)
        return is_whole and record.durability == EPHEMERAL and record.placement != "ring"

    async def _unused(self, rooms: Mapping[Key, int]) -> set[Key]:
        """The unused rooms, as the leaders of their hubs report. If a leader does not answer, its rooms count
        as used."""
        found: set[Key] = set()
        for (room_class, hub), names in _by_hub(rooms).items():
            for part in _parts(names):
                unused = await self._asked(room_class, hub, part, gives_up=False)
                found |= {(room_class, name) for name in unused}
        return found

    async def _forget(self, room_class: str, hub: int, names: list[bytes]) -> int:
        forgotten = 0
        for part in _parts(names):

            async def give_up(part: list[bytes] = part) -> Collection[bytes]:
                given_up = await self._asked(room_class, hub, part, gives_up=True)
                # A leader that could not give a room up now is asked again in the next round.
                self._idle.drop((room_class, name) for name in given_up)
                return given_up

            forgotten += await self._writer.forget(room_class, hub, part, give_up)
        return forgotten

    async def _asked(self, room_class: str, hub: int, names: list[bytes], *, gives_up: bool) -> list[bytes]:
        stored = self._cache.hubs.get(hub)
        if stored is None or stored.record.proposed is not None:
            return []
        request = rpc.Forget(room_class, hub, stored.record.term, tuple(names), gives_up)
        try:
            answer = await self._ask(stored.record.leader, request)
        except HubSubError:
            return []
        return list(answer.rooms) if isinstance(answer, rpc.Unused) else []


def _by_hub(rooms: Mapping[Key, int]) -> dict[tuple[str, int], list[bytes]]:
    hubs: dict[tuple[str, int], list[bytes]] = {}
    for (room_class, name), hub in rooms.items():
        hubs.setdefault((room_class, hub), []).append(name)
    return hubs


def _parts(names: list[bytes]) -> Iterable[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for name in names:
        if part and (len(part) == ASKED_ROOMS or size + len(name) > ASKED_BYTES):
            yield part
            part, size = [], 0
        part.append(name)
        size += len(name)
    if part:
        yield part
