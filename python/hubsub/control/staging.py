"""Stages on a node: takes rows in, holds them until their batch has ended, and bounds their space.

Owns the rooms `$stage/{query}/{attempt}`, and how much of their log must be retained.
`hubsub.control.batches` decides which stages a batch has, and tracks its progress. Names given by writers are
translated to the stored names on entry (`stored_names`).

Invariants: staged rows are not delivered. A stage is complete if its last record and its first chunk exist.
No chunk of a batch in flight is removed: writes that would push it out are refused.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hubsub.control.internal_rooms import (
    STAGES,
    RingPlacement,
    attempt_name,
    has_remote_stages,
    other_owner,
    stage_room,
    stored_name,
)
from hubsub.control.stages import Attempt, Position, RetainedSpace
from hubsub.errors import (
    BadRowsError,
    HubSubError,
    NoStagesError,
    StageExistsError,
    StagesFullError,
    StagesMissingError,
    StageTooLargeError,
    TooManyStagesError,
    refusal,
)
from hubsub.node import HistoryRow, Item, Node, publish_own

RECORD_BYTES = 256
"""Upper bound for a record's bytes in a log besides its payload and its room's name."""


@dataclass
class _Open:
    begins: int
    made_at: float
    bytes: int = 0
    """Its bytes in the log."""


class Staging:
    """The stages of one node.

    Args:
        node: The node; must be started.
        limits: Returns `stage_bytes_max`, `stage_ms`, `http_stage_bytes_max`, `http_stages_max`; called at
            each use.
        cluster: Returns the cluster's placement, if the node is in one; called at each use.
    """

    def __init__(
        self,
        node: Node,
        limits: Callable[[], Mapping[str, int]],
        cluster: Callable[[], RingPlacement | None] = lambda: None,
    ) -> None:
        self._node = node
        self._limits = limits
        self._cluster = cluster
        self._open: dict[tuple[str, str], _Open] = {}
        """Uncommitted stages of this run, oldest first."""
        self._space: RetainedSpace | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waiting_bytes(self) -> int:
        return sum(stage.bytes for stage in self._open.values())

    def space(self) -> RetainedSpace:
        """The part of the stages' log that must be retained.

        Raises:
            NoStagesError: the node has no data directory.
        """
        if self._node.config.data is None:
            hint = 'data = "DIR", or --data DIR, gives it a directory'
            raise NoStagesError(hint=hint)
        if self._space is None:
            log = self._node.log()
            hubs = () if log is None else log.hubs
            written = sum(hub.bytes for hub in hubs if hub.room_class == STAGES)
            cluster = self._cluster()
            if cluster is not None and has_remote_stages(cluster, self._node.name):
                # Bytes that this node wrote into hubs of others in earlier runs are unknown: assume the
                # maximum.
                written += self._limits()["stage_bytes_max"]
            self._space = RetainedSpace(written)
        return self._space

    def stored_names(self, query: str, attempts: Sequence[str]) -> list[str]:
        """The names under which these stages are stored; see `internal_rooms`.

        Raises:
            NoStagesError: there is no place for them.
        """
        return [stored_name(query, attempt, self._cluster()) for attempt in attempts]

    def owns(self, query: str) -> bool:
        """Whether this node handles a query's batches.

        Raises:
            NoStagesError: no node has stages.
            HubClosedError: the node is not known yet.
        """
        return other_owner(query, self._cluster(), self._node.name) is None

    # -- taking in --

    async def stage(self, query: str, attempt: str, topic: bytes | None, pieces: AsyncIterator[bytes]) -> int:
        """Stores the rows of an Arrow stream without delivering them.

        Args:
            query: Name of the query.
            attempt: A name that was never used before.
            topic: Topic of all rows, which then have no column for it.
            pieces: The stream's bytes.

        Returns:
            The number of rows.

        Raises:
            BadRowsError, or the error for an invalid row: nothing is stored.
            StageExistsError, TooManyStagesError, StagesFullError, StageTooLargeError, NoStagesError.
        """
        space, (name,) = self.space(), self.stored_names(query, [attempt])
        key, room = (query, name), stage_room(query, name)
        self._forget()
        if key in self._open:
            raise StageExistsError(value=attempt, hint="take a new name for each attempt")
        if len(self._open) >= self._limits()["http_stages_max"]:
            raise TooManyStagesError(hint="limits.http_stages_max bounds them")
        stage = self._open[key] = _Open(space.written, time.monotonic())
        try:
            # The hub may be another node's, which can be asked for records but not for a room.
            _, rows = await self._node.history(room, 1, as_node=True)
            if rows:
                raise StageExistsError(value=attempt, hint="take a new name for each attempt")
            # Space for the records of its end and of its deletion.
            self._take_space(stage, 2 * (2 * len(room) + RECORD_BYTES))
        except BaseException:
            self._open.pop(key, None)
            raise
        try:
            return await self._take(room, stage, self._node.row_reader(topic, query), pieces)
        except BaseException:
            self._open.pop(key, None)
            with suppress(HubSubError):
                await self._node.room_delete(room, as_node=True)
            raise

    async def _take(self, room: bytes, stage: _Open, reader: Any, pieces: AsyncIterator[bytes]) -> int:
        size, rows, places = 0, 0, list[Position]()
        async for piece in pieces:
            size += len(piece)
            if size > self._limits()["http_stage_bytes_max"]:
                raise StageTooLargeError(value=f"more than {size}", hint="send several stages")
            if chunks := _read(reader.feed, piece):
                rows += sum(count for count, _ in chunks)
                places += await self._keep(room, stage, chunks)
        last = _read(reader.finish)
        if last is not None:
            rows += last[0]
            places += await self._keep(room, stage, [last])
        first = places[0] if places else (0, 0)
        if places != [(first[0], first[1] + n) for n in range(len(places))]:
            raise StagesMissingError("the stage was broken by another one of its name", value=room.decode())
        end = {"rows": rows, "chunks": len(places), "first": first, "at_ms": int(time.time() * 1_000)}
        await publish_own(self._node, [Item(room, json.dumps(end).encode(), {"end": "1"}, "")])
        return rows

    async def _keep(self, room: bytes, stage: _Open, chunks: Sequence[tuple[int, bytes]]) -> list[Position]:
        """Writes chunks one after the other, with one sync."""
        self._take_space(stage, sum(len(chunk) + 2 * len(room) + RECORD_BYTES for _, chunk in chunks))
        items = [Item(room, chunk, {"rows": str(rows)}, "") for rows, chunk in chunks]
        return [(result.epoch, result.seq) for result in await publish_own(self._node, items)]

    def _take_space(self, stage: _Open, size: int) -> None:
        """Counts bytes that are about to be written for a stage."""
        space = self.space()
        if not space.has_room(size, self._limits()["stage_bytes_max"]):
            hint = "limits.stage_bytes_max bounds it; a batch may be held, `hubsub query ls` says why"
            raise StagesFullError(hint=hint)
        space.written += size
        stage.bytes += size

    def _forget(self) -> None:
        """Drops stages that were not committed in time; they are oldest first."""
        until = time.monotonic() - self._limits()["stage_ms"] / 1_000
        for key, stage in list(self._open.items()):
            if stage.made_at >= until:
                return
            del self._open[key]

    # -- used by batches --

    def hold(self, query: str, names: Sequence[str]) -> None:
        """Retains these stages from now on."""
        begins = [self._open[query, name].begins for name in names if (query, name) in self._open]
        self.space().hold(query, begins if len(begins) == len(names) else ())

    async def find(self, query: str, names: Sequence[str]) -> list[Attempt]:
        """The stages of these names.

        Raises:
            StagesMissingError: not all are complete.
        """
        found = [(name, await self._whole(query, name)) for name in names]
        missing = [name for name, attempt in found if attempt is None]
        if missing:
            shown = ", ".join(map(attempt_name, missing[:10])) + (
                f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            )
            hint = "nothing of the batch was published; write its rows again, under new names"
            raise StagesMissingError(value=shown, hint=hint)
        return [attempt for _, attempt in found if attempt is not None]

    async def _whole(self, query: str, name: str) -> Attempt | None:
        _, rows = await self._node.history(stage_room(query, name), 1, as_node=True)
        if not rows or "end" not in rows[-1].headers:
            return None
        end = rows[-1]
        end_record = json.loads(end.payload)
        # By the clock of the node that took it in, usually this one; the clock of the hub's leader may be
        # another.
        at_ms = end_record.get("at_ms", end.timestamp_us // 1_000)
        if time.time() * 1_000 - at_ms > self._limits()["stage_ms"]:
            return None
        attempt = Attempt(name, end_record["rows"], end_record["chunks"], tuple(end_record["first"]))
        # A log removes its oldest records first: if the first chunk exists, all do.
        return attempt if not attempt.chunks or await self.chunk(query, attempt, 0) else None

    def taken(self, query: str, names: Sequence[str]) -> None:
        """A batch has these stages: they do not wait for their commit any more."""
        for name in names:
            self._open.pop((query, name), None)

    async def chunk(self, query: str, attempt: Attempt, number: int) -> HistoryRow | None:
        """A chunk of rows, with the number of rows in its header `rows`; None: it is lost.

        Args:
            query: Name of the query.
            attempt: The attempt.
            number: Index of the chunk, from 0.
        """
        epoch, seq = attempt.first[0], attempt.first[1] + number
        room = stage_room(query, attempt.name)
        recovered, rows = await self._node.history(room, 1, (epoch, seq - 1), as_node=True)
        is_it = recovered and rows and (rows[0].epoch, rows[0].seq) == (epoch, seq)
        return rows[0] if is_it else None

    async def drop(self, query: str, names: Sequence[str]) -> None:
        """Deletes stages. One that cannot be deleted is removed later by retention."""
        self.taken(query, names)
        for name in names:
            with suppress(HubSubError):
                await self._node.room_delete(stage_room(query, name), as_node=True)


def _read(call: Callable[..., Any], *args: Any) -> Any:
    """Calls the reader and converts its errors."""
    try:
        return call(*args)
    except ValueError as error:
        code, text = error.args
        if code == BadRowsError.code:
            raise BadRowsError(text) from None
        raise refusal(code, text, text) from None
