"""Polls the cluster about once a second while someone listens, and sends each result to all listeners.

Owns the latest version of each part and the polling tasks. A part is the response of one route. Parts are
polled independently, so that a slow one does not delay the others. Polling stops when the last listener
leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hubsub.api.console.board import Board
from hubsub.api.hubs import hub_list
from hubsub.api.others import ONLY, Call, Reply, encode, reply_of
from hubsub.api.state import State
from hubsub.errors import HubSubError, TooBusyError

LOOK_S = 1.0
"""Seconds between two polls of the nodes."""

ANSWER_S: Final = 1.0
"""Time limit for a node's reply, in seconds. The page reports a lost connection after 3 s without events."""

NOW: Final = "/v1/console/now"


@dataclass(frozen=True)
class Part:
    """A part that is polled besides the nodes' figures.

    Args:
        name: Name of the event.
        path: Path of the route.
        every_s: Seconds between two polls.
    """

    name: str
    path: str
    every_s: float


PARTS: Final = (
    Part("cluster", "/v1/cluster", 1.0),
    Part("moves", "/v1/moves", 3.0),
    Part("queries", "/v1/queries", 3.0),
)

Ask = Callable[[Call], Awaitable[Reply]]
"""Calls this node's API, which calls other nodes where the route requires it."""


class Looks(msgspec.Struct):
    """The nodes that answered, as bodies of `NodesNow`."""

    nodes: list[msgspec.Raw]


class NodesPart(msgspec.Struct):
    """Data of the event `nodes`."""

    node: str
    """Name of the node that polled."""
    at_ms: int
    """Milliseconds since 1970, by that node's clock."""
    nodes: list[msgspec.Raw]
    missing: list[str]
    """Nodes that are registered and did not answer in time."""


class Watch:
    """Polling state of one node.

    Args:
        state: State of this node.
        ask: Calls its API.
        clock_ms: Returns milliseconds since 1970.
    """

    def __init__(self, state: State, ask: Ask, clock_ms: Callable[[], int]) -> None:
        self._state, self._ask, self._clock_ms = state, ask, clock_ms
        self._latest: dict[str, bytes] = {}
        self._boards: set[Board] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.refused = 0
        """Listeners refused because of `console_listeners_max`."""
        self.slow_closed = 0
        """Listeners disconnected because they exceeded `console_slow_ms`; `events` increments it."""

    def __len__(self) -> int:
        return len(self._boards)

    def admit(self) -> None:
        """Checks the limit; call it before `listener`.

        Raises:
            TooBusyError: there are `console_listeners_max`.
        """
        limit = self._state.limits["console_listeners_max"]
        if len(self._boards) >= limit:
            self.refused += 1
            hint = "close pages of the console, or raise limits.console_listeners_max"
            raise TooBusyError("too many listen to the console's events", limit, hint)

    @contextmanager
    def listener(self) -> Iterator[Board]:
        """Registers a board that receives events, starting with the latest version of each part."""
        board = Board()
        self._boards.add(board)
        for part, body in self._latest.items():
            board.put(part, body)
        if len(self._boards) == 1:
            self._tasks = [asyncio.create_task(self._look())]
            self._tasks += [asyncio.create_task(self._follow(part)) for part in PARTS]
        try:
            yield board
        finally:
            self._boards.discard(board)
            if not self._boards:
                for task in self._tasks:
                    task.cancel()
                self._latest.clear()

    async def _look(self) -> None:
        """Polls the figures of all nodes until this node stops."""
        while not self._state.stopping:
            nodes, missing = await self._nodes()
            part = NodesPart(self._state.node.name, self._clock_ms(), nodes, missing)
            self._put("nodes", msgspec.json.encode(part))
            await asyncio.sleep(LOOK_S)
        for board in self._boards:
            board.close()

    async def _nodes(self) -> tuple[list[msgspec.Raw], list[str]]:
        others = self._state.others
        names = [] if others is None else sorted(others.names())
        call = encode(Call("GET", NOW, ONLY))

        async def of(name: str) -> Reply | None:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return None if others is None else reply_of(await others.ask(name, call))
            except (TimeoutError, HubSubError, msgspec.MsgspecError):
                return None

        own, *replies = await asyncio.gather(self._ask(Call("GET", NOW, ONLY)), *map(of, names))
        missing = [
            name for name, reply in zip(names, replies, strict=True) if reply is None or reply.status >= 400
        ]
        bodies = [reply.body for reply in (own, *replies) if reply is not None and reply.status < 400]
        return [node for body in bodies for node in msgspec.json.decode(body, type=Looks).nodes], missing

    async def _follow(self, part: Part) -> None:
        """Polls one route; publishes its response, also an error."""
        while True:
            reply = await self._ask(Call("GET", part.path, ""))
            if part.name == "cluster" and reply.status < 400:
                # Hubs are by far the largest part and seldom change.
                cluster = msgspec.json.decode(reply.body)
                self._put("hubs", msgspec.json.encode({"hubs": cluster.pop("hubs")}))
                self._put(part.name, msgspec.json.encode(cluster))
            else:
                self._put(part.name, reply.body)
                if part.name == "cluster" and self._state.cluster is None:
                    self._put("hubs", msgspec.json.encode({"hubs": self._own_hubs()}))
            await asyncio.sleep(part.every_s)

    def _own_hubs(self) -> list[dict[str, Any]]:
        """Logged hubs of a single node, in the form that a cluster reports."""
        node = self._state.node.name
        alone = {"term": None, "leader": node, "members": [node], "proposed": None}
        return [
            {"hub": hub.id, "class": hub.room_class, "index": hub.index, **alone}
            for hub in hub_list(self._state)
        ]

    def _put(self, part: str, body: bytes) -> None:
        if self._latest.get(part) == body:
            return
        self._latest[part] = body
        for board in self._boards:
            board.put(part, body)
