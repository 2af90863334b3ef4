"""Removes the records of rooms that nobody uses, while its node is the controller.

A record is all that keeps a room of a least-busy class in its place. It goes when the room has been unused for the
time of the setting: as often as it was looked at in that time, its hub's leader had neither a subscriber nor a
record of it in memory. Who publishes where nobody subscribes and nothing is kept does not use a room: nothing of it
is anywhere.

1. The controller goes round all records, a bounded number a second, and asks leaders which rooms nobody uses.
2. Of rooms that were unused for long enough it asks the leader to *give them up*: in one turn of the shard that is the
   room's home the leader looks again and forgets where the room is. What comes from then on is asked for anew, and the
   controller alone may say where that is (`directory.give_up`); it says nothing before step 3 is done.
3. It removes the record, in a commit that expects the bucket as it is known, and the record of the hub as it was when
   the leader was asked: another leader, or another term, keeps the room. What an operator pinned meanwhile stays.
4. Nodes hear of that by their watches. A room that comes back meanwhile goes on in the same hub (`forgotten`): whoever
   has not heard is right, and no two hubs have one room. It begins another life there, as after a failover.

A subscriber that comes before step 2 stops it; one that comes later waits until step 3 is done, some milliseconds.
Classes with a log, pinned rooms, and rooms of ring classes are left alone.

Invariants: at most `FORGOTTEN_PER_TURN` records go in a turn, at most `LOOKED_PER_TURN` rooms are asked for; at most
`IDLE_MAX` rooms are remembered as unused, each until it is used, removed, or not met in a whole round: pinned, say.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from hubsub.control.cluster import asks
from hubsub.control.cluster.assign import Assigner
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.follow import Follow
from hubsub.control.cluster.records import EPHEMERAL
from hubsub.control.cluster.rooms import Room
from hubsub.errors import HubSubError

TURN_S: Final = 0.5

LOOKED_PER_TURN: Final = 2_000
"""Rooms that leaders are asked for in a turn."""

FORGOTTEN_PER_TURN: Final = 250
"""Records that go in a turn at most: a new room waits behind one batch of them at most."""

ASKED_ROOMS: Final = 250
ASKED_BYTES: Final = 64 << 10
"""Rooms of one question to a leader, and bytes of their names."""

IDLE_MAX: Final = 200_000
"""Rooms that are remembered as unused."""

Key = tuple[str, bytes]
"""Class and name of a room."""

BEGINNING: Final = ("", None)
"""Class and room that are before all."""

Ask = Callable[[str, asks.Forget], Awaitable[asks.Answer]]
"""Asks a node; fails with `PeerError`."""

log = structlog.get_logger("hubsub.cluster")


class Idle:
    """Since when rooms have been unused, as far as it was looked.

    Args:
        idle_s: For how long they are to be.
        rooms_max: How many it remembers.
    """

    def __init__(self, idle_s: float, rooms_max: int = IDLE_MAX) -> None:
        self._idle_s = idle_s
        self._rooms_max = rooms_max
        self._since: dict[Key, float] = {}
        """Of rooms that were looked at in this round."""
        self._before: dict[Key, float] = {}
        """Of others, that were in the round before."""

    def __len__(self) -> int:
        return len(self._since) + len(self._before)

    def look(self, asked: Iterable[Key], unused: Collection[Key], now: float) -> list[Key]:
        """Takes what was found out of rooms: those that have been unused for long enough."""
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
        """All rooms that may be forgotten were looked at: what was not among them is none of them any more."""
        self._before, self._since = self._since, {}

    def drop(self, keys: Iterable[Key]) -> None:
        """Forgets what it knows of rooms."""
        for key in keys:
            self._since.pop(key, None)
            self._before.pop(key, None)

    def clear(self) -> None:
        self._since.clear()
        self._before.clear()


class Forgetter:
    """Takes turns until it is closed.

    Args:
        follow: What is known of the cluster.
        controller: Whether this node is it.
        assigner: What writes records.
        ask: Asks the leader of a hub.
        idle_s: How long a room is to be unused; 0: none is forgotten.
        clock: Monotonic, seconds.
        ended: Called with its task when that ended.
    """

    def __init__(
        self,
        follow: Follow,
        controller: Controller,
        assigner: Assigner,
        ask: Ask,
        *,
        idle_s: float,
        clock: Callable[[], float],
        ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._follow = follow
        self._controller = controller
        self._assigner = assigner
        self._ask = ask
        self._clock = clock
        self._idle = Idle(idle_s)
        self._at: tuple[str, bytes | None] = BEGINNING
        """Class and room that were looked at last."""
        self._task: asyncio.Task[None] | None = None
        if idle_s > 0:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(ended)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
        due = self._idle.look(rooms, unused, self._clock())[:FORGOTTEN_PER_TURN]
        if self._at == BEGINNING:
            self._idle.end_round()
        forgotten = 0
        for (room_class, hub), names in _by_hub({key: rooms[key] for key in due}).items():
            self._idle.drop((room_class, name) for name in names)
            forgotten += await self._forget(room_class, hub, names)
        if forgotten:
            log.info("rooms that nobody used are forgotten", rooms=forgotten)

    def _next(self) -> dict[Key, int]:
        """The next rooms that may be forgotten, and their hubs; from the beginning when all were looked at."""
        rooms: dict[Key, int] = {}
        classes = sorted(name for name in self._follow.classes if self._is_meant(name))
        room_class, after = self._at
        for name in (name for name in classes if name >= room_class):
            left = LOOKED_PER_TURN - len(rooms)
            page = self._follow.rooms[name].page(after if name == room_class else None, left)
            rooms |= {(name, room): at.hub for room, at in page if at == Room(at.hub)}
            if len(page) == left:
                self._at = name, page[-1][0]
                return rooms
        self._at = BEGINNING
        return rooms

    def _is_meant(self, room_class: str) -> bool:
        record = self._follow.classes[room_class].record
        is_whole = self._follow.are_rooms_whole(room_class)
        return is_whole and record.durability == EPHEMERAL and record.placement != "ring"

    async def _unused(self, rooms: Mapping[Key, int]) -> set[Key]:
        """Those that nobody uses, as the leaders of their hubs say; of one that does not answer all are used."""
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
                return await self._asked(room_class, hub, part, gives_up=True)

            forgotten += await self._assigner.forget(room_class, hub, part, give_up)
        return forgotten

    async def _asked(self, room_class: str, hub: int, names: list[bytes], *, gives_up: bool) -> list[bytes]:
        kept = self._follow.hubs.get(hub)
        if kept is None or kept.record.proposed is not None:
            return []
        question = asks.Forget(room_class, hub, kept.record.term, tuple(names), gives_up)
        try:
            answer = await self._ask(kept.record.leader, question)
        except HubSubError:
            return []
        return list(answer.rooms) if isinstance(answer, asks.Unused) else []


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
