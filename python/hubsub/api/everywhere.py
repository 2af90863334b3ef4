"""Queries of all nodes for endpoints whose response combines several routes: rooms, connections, records of a room.

Owns the set of nodes that did not answer. Other nodes are asked for their own part only (`scope=node`), by
routes of the table that any client could use.
"""

import asyncio
import base64
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from hubsub.api.others import ONLY, Call, Reply, encode, reply_of
from hubsub.api.params import position
from hubsub.api.reach import UNREACHABLE
from hubsub.api.retained import Retained, retained_here
from hubsub.api.schema import ClientList, HistoryPage, Record, RoomPage
from hubsub.api.state import State
from hubsub.errors import HubSubError, NodesUnreachableError
from hubsub.names import bytes_of, text_of
from hubsub.node import HistoryRow
from hubsub.node.status import Client


class Named(NamedTuple):
    """A room, and the position of its last record."""

    name: bytes
    position: str


class Everywhere:
    """Queries this node and the others.

    Args:
        state: State of this node.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.missing: set[str] = set()
        """Nodes that did not answer."""

    @property
    def headers(self) -> dict[str, str] | None:
        """Response header that lists unreachable nodes: it marks a partial response."""
        return {UNREACHABLE: ", ".join(sorted(self.missing))} if self.missing else None

    async def rooms(self, match: bytes, after: bytes | None, limit: int) -> tuple[list[Named], bool]:
        """The first rooms after a name, in order.

        Args:
            match: Pattern of room names.
            after: Name to start after; None starts at the first room.
            limit: Most rooms to return.

        Returns:
            Rooms sorted by name, each once, and whether there may be more.
        """
        query = {"match": text_of(match), "limit": str(limit)}
        if after is not None:
            query["after"] = text_of(after)
        own, replies = await asyncio.gather(
            self._state.node.rooms(match, after, limit), self._get("/v1/rooms", urlencode(query))
        )
        found = {room["name"]: f"{room['epoch']}-{room['seq']}" for room in own}
        ends = [own[-1]["name"]] if len(own) == limit else []
        for reply in replies:
            page = _decoded(reply, RoomPage)
            found |= {bytes_of(room.name): room.position for room in page.rooms}
            if page.next is not None:
                ends.append(bytes_of(page.next))
        # Names after the end of the shortest truncated page are not completely known yet.
        names = sorted(name for name in found if not ends or name <= min(ends))
        return [Named(name, found[name]) for name in names[:limit]], bool(ends) or len(names) > limit

    async def clients(self, client_ids: Sequence[str]) -> dict[str, Client]:
        """MQTT clients by client id; during a session takeover, the youngest connection."""
        if not client_ids:
            return {}
        limit = min(len(client_ids), self._state.limits["http_page_max"])
        query = urlencode(
            [*(("client_id", wanted) for wanted in client_ids), ("limit", limit), ("sort", "age_s")]
        )
        own, replies = await asyncio.gather(
            self._state.node.clients("age_s", limit, client_ids=client_ids), self._get("/v1/clients", query)
        )
        rows = list(own)
        for reply in replies:
            rows += _decoded(reply, ClientList).clients
        return {row.name: row for row in sorted(rows, key=lambda row: -row.age_s)}

    async def history(
        self, room: bytes, count: int, topic: bytes | None = None, after: tuple[int, int] | None = None
    ) -> list[HistoryRow]:
        """Records of a room, oldest first.

        Args:
            room: Name of the room.
            count: Most records to return.
            topic: Only records of this topic.
            after: Position (epoch, seq); returns the first retained records after it. Without it, the last
                records.

        Returns:
            Records, oldest first; empty for an unknown room.

        Raises:
            NodesUnreachableError: this node does not know where the room is, and others do not answer.
        """
        others = self._state.others
        if others is None or await others.hub_of(room) is not None:
            _, rows = await self._state.node.history(room, count, after, topic)
            return rows
        # The room may just have been created elsewhere. A room that no node knows has no history.
        query = {"count": str(count)}
        if topic is not None:
            query["topic"] = text_of(topic)
        if after is not None:
            query["after"] = f"{after[0]}-{after[1]}"
        path = f"/v1/rooms/{quote(room, safe='')}/history"
        for reply in await self._get(path, urlencode(query)):
            if reply.status != 404:
                return [_row(record) for record in _decoded(reply, HistoryPage).records]
        if self.missing:
            raise NodesUnreachableError(value=", ".join(sorted(self.missing)))
        return []

    async def retained(self, topic: bytes) -> Record | None:
        """The retained message of a topic."""
        own = await retained_here(self._state, topic)
        if own is not None:
            return own.record()
        for reply in await self._get(f"/v1/retained/{quote(topic, safe='')}", ""):
            if reply.status != 404:
                kept: Retained = _decoded(reply, Retained)
                return kept.record()
        return None

    async def ask(
        self, method: str, path: str, query: str = "", skip: Collection[str] = ()
    ) -> dict[str, Reply]:
        """Asks all other nodes for their own part of a route.

        Args:
            method: HTTP method.
            path: Percent-encoded path.
            query: Encoded query, without `scope`.
            skip: Nodes that are not asked.

        Returns:
            Their replies by name, sorted; without the nodes that do not answer, which `headers` names then.
        """
        others = self._state.others
        if others is None:
            return {}
        call = encode(Call(method, path, f"{query}&{ONLY}" if query else ONLY))
        names = sorted(set(others.names()).difference(skip))
        answers = await asyncio.gather(*(others.ask(name, call) for name in names), return_exceptions=True)
        replies = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, bytes):
                replies[name] = reply_of(answer)
            elif isinstance(answer, HubSubError):
                self.missing.add(name)
            else:
                raise answer
        return replies

    async def _get(self, path: str, query: str) -> list[Reply]:
        return list((await self.ask("GET", path, query)).values())


def _decoded(reply: Reply, kind: Any) -> Any:
    if reply.status >= 400:
        raise NodesUnreachableError("a node of the cluster refuses its part", reply.body.decode()[:200])
    return msgspec.json.decode(reply.body, type=kind)


def _row(record: Record) -> HistoryRow:
    payload = record.payload
    data = base64.b64decode(record.payload_base64 or "") if payload is None else payload.encode()
    epoch, seq = position(record.position)
    topic = bytes_of(record.topic)
    return HistoryRow(epoch, seq, record.timestamp_us, topic, record.publisher, data, record.headers)
