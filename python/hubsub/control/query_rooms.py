"""Persisted state of each query's batches: one record per step; the latest one is the whole state.

Owns the rooms `$queries/{query}`. `hubsub.control.stages` defines the records.

Invariant: the record of a blocked batch is not removed by retention: `old` lists it in time, and it is
written again.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from hubsub.control.internal_rooms import QUERIES, query_room
from hubsub.control.stages import BatchState, Position, committed, ended, in_flight, moved, progress_record
from hubsub.control.staging import RECORD_BYTES
from hubsub.node import Item, Node, publish_own

REMIND_BYTES = 16 << 20
"""Bytes of queries' records after that of a blocked batch before it is written again: a quarter of their log. """

PAGE = 1_000
"""Queries per page at a start."""


class QueryRooms:
    """The rooms of one node's queries.

    Args:
        node: The node; must be started.
        on_old: Called when `old` is not empty.
    """

    def __init__(self, node: Node, on_old: Callable[[], None]) -> None:
        self._node = node
        self._on_old = on_old
        self._noted = 0
        """Bytes of queries' records since the start."""
        self._noted_at: dict[str, int] = {}
        """For each watched query, the value of `_noted` at its last record."""

    async def names(self) -> AsyncIterator[str]:
        """All queries that have a record."""
        after: bytes | None = None
        while rooms := await self._node.rooms(f"{QUERIES}/*".encode(), after, PAGE):
            after = rooms[-1]["name"]
            for room in rooms:
                yield unquote(room["name"].decode().partition("/")[2])

    async def latest(self, query: str) -> BatchState | None:
        room = query_room(query)
        _, rows = await self._node.history(room, 1, as_node=True)
        if not rows:
            return None
        record = json.loads(rows[-1].payload)
        if (end := ended(record)) is not None:
            return end
        if "commit" not in record:
            return in_flight(committed(record, (rows[-1].epoch, rows[-1].seq)))
        epoch, seq = record["commit"]
        if "attempts" in record:
            return in_flight(moved(record, committed(record, (epoch, seq))))
        recovered, rows = await self._node.history(room, 1, (epoch, seq - 1), as_node=True)
        if not recovered or not rows or (rows[0].epoch, rows[0].seq) != (epoch, seq):
            batch, count, published = record["batch"], record["rows"], record["published"]
            return BatchState(batch=batch, rows=count, published=published, end=None, move=None)
        return in_flight(moved(record, committed(json.loads(rows[0].payload), (epoch, seq))))

    async def note(self, query: str, record: Mapping[str, Any]) -> Position:
        text, room = json.dumps(record, separators=(",", ":")).encode(), query_room(query)
        (result,) = await publish_own(self._node, [Item(room, text, {}, "")])
        self._noted += len(text) + 2 * len(room) + RECORD_BYTES
        if query in self._noted_at:
            self._noted_at[query] = self._noted
        if self.old():
            self._on_old()
        return result.epoch, result.seq

    def watch(self, query: str) -> None:
        """Protects the query's last record from retention."""
        # Its age is unknown after a start: the next record of any query triggers a rewrite.
        self._noted_at.setdefault(query, self._noted - REMIND_BYTES)

    def unwatch(self, query: str) -> None:
        self._noted_at.pop(query, None)

    def old(self) -> list[str]:
        """Watched queries whose last record retention may soon remove, by the bytes after it."""
        return [query for query, at in self._noted_at.items() if self._noted - at > REMIND_BYTES]

    async def remind(self, query: str) -> None:
        """Rewrites the state of a query's batch."""
        latest = await self.latest(query)
        if latest is None or latest.end is not None:
            self.unwatch(query)
        elif latest.move is not None:
            await self.note(query, progress_record(replace(latest.move, is_whole=True)))
        else:  # Its commit record is lost; only the progress is left.
            _, rows = await self._node.history(query_room(query), 1, as_node=True)
            await self.note(query, json.loads(rows[-1].payload))
