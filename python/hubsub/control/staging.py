"""Stages and batches on a node: takes rows in, commits a batch, moves it into its rooms, goes on after a start.

Owned here: the rooms `$stage/{query}/{attempt}` and `$queries/{query}`. What is decided stands in
`hubsub.control.stages`; here it is carried out.

Invariants: what a query knows is in its room in the log and not in this process, but for locks,
bounds, and what came of the last rows until it is written down, before which no others are sent;
one batch of a query is moved at a time; nothing of a batch is published before the record that
commits it is on disk, and Spark is answered after the one that says done.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import structlog

from hubsub.control.held import HeldBatches
from hubsub.control.stages import (
    Attempt,
    Latest,
    Move,
    Position,
    Space,
    commit_record,
    committed,
    moved,
    plan,
    progress_record,
)
from hubsub.errors import (
    BadRowsError,
    BatchMovingError,
    HubSubError,
    NoStagesError,
    StageCommittedError,
    StageExistsError,
    StageLostError,
    StagesFullError,
    StagesMissingError,
    StageTooLargeError,
    TooManyStagesError,
    refusal,
)
from hubsub.node import Failed, HistoryRow, Item, Node

RECORD_BYTES = 256
"""What a record takes in a log beside its payload and its room's name, at most."""

LATE = ("sequence_passed", "sequence_too_old")
"""What a row meets that was refused before a later one was stored; it goes again, under another number."""

PAGE = 1_000
"""Queries that a start looks at together."""

log = structlog.get_logger()


class Committed(NamedTuple):
    """A batch that is published."""

    published: int
    duplicate: bool
    """It was before this commit."""


@dataclass
class _Open:
    begins: int
    made_at: float
    bytes: int = 0
    """That it takes in the log."""


class Staging:
    """The stages of one node.

    Args:
        node: The node; started before anything is asked.
        limits: `stage_bytes_max`, `stage_ms`, `http_stage_bytes_max`, `http_stages_max`, `request_timeout_ms`;
            read at each use.
    """

    def __init__(self, node: Node, limits: Callable[[], Mapping[str, int]]) -> None:
        self._node = node
        self._limits = limits
        self._open: dict[tuple[str, str], _Open] = {}
        """Stages that are not committed, oldest first; those of before this start are not among them."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        self._commits: dict[tuple[str, int, tuple[str, ...]], asyncio.Task[Committed]] = {}
        """Those that run; one that is repeated waits for the same."""
        self._space: Space | None = None
        self._ahead: dict[str, Move] = {}
        """How far a move is whose record could not be written: a full disk refuses that, too."""
        self.held = HeldBatches(time.monotonic)
        self._news = asyncio.Event()
        """A batch is held that was not, or not so long."""
        self.counts = Counter[str]()
        """Since the start: `batches_published`, `rows_published`, and commits of such, `batches_repeated`."""

    def __len__(self) -> int:
        """Stages that wait for their commit."""
        return len(self._open)

    @property
    def waiting_bytes(self) -> int:
        """What these take in the log."""
        return sum(stage.bytes for stage in self._open.values())

    # -- stage --

    async def stage(self, query: str, attempt: str, topic: bytes | None, pieces: AsyncIterator[bytes]) -> int:
        """Keeps the rows of an Arrow stream. Nobody hears of them.

        Args:
            query: Name of the query.
            attempt: A name that was never used before.
            topic: That of all rows, which then have no column for it.
            pieces: The stream's bytes.

        Returns:
            How many rows there are.

        Raises:
            BadRowsError, or what a row would be refused with: nothing is kept.
            StageExistsError, TooManyStagesError, StagesFullError, StageTooLargeError, NoStagesError.
        """
        space, key, room = self._ready(), (query, attempt), stage_room(query, attempt)
        self._forget()
        if key in self._open:
            raise StageExistsError(value=attempt, hint="take a new name for each attempt")
        if len(self._open) >= self._limits()["http_stages_max"]:
            raise TooManyStagesError(hint="limits.http_stages_max bounds them")
        self._open[key] = _Open(space.written, time.monotonic())
        try:
            if await self._node.room(room) is not None:
                raise StageExistsError(value=attempt, hint="take a new name for each attempt")
            # The records of its end and of its deletion.
            self._take_space(self._open[key], 2 * (2 * len(room) + RECORD_BYTES))
        except BaseException:
            self._open.pop(key, None)
            raise
        try:
            return await self._take(room, self._open[key], self._node.row_reader(topic, query), pieces)
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
        end = {"rows": rows, "chunks": len(places), "first": first}
        await self._write([Item(room, json.dumps(end).encode(), {"end": "1"}, "")])
        return rows

    async def _keep(self, room: bytes, stage: _Open, chunks: Sequence[tuple[int, bytes]]) -> list[Position]:
        """Writes chunks behind each other, with one sync."""
        self._take_space(stage, sum(len(chunk) + 2 * len(room) + RECORD_BYTES for _, chunk in chunks))
        return await self._write([Item(room, chunk, {"rows": str(rows)}, "") for rows, chunk in chunks])

    def _take_space(self, stage: _Open, size: int) -> None:
        """Counts bytes that are about to be written for a stage."""
        space = self._ready()
        if not space.has_room(size, self._limits()["stage_bytes_max"]):
            raise StagesFullError(hint="limits.stage_bytes_max bounds it; a batch may be held by a full disk")
        space.written += size
        stage.bytes += size

    async def abort(self, query: str, attempt: str) -> None:
        """Drops a stage, if it is there.

        Raises:
            StageCommittedError: its batch is being moved.
        """
        self._ready()
        async with self._locked(query):
            latest = await self._latest(query)
            if latest and latest.move and any(a.name == attempt for a in latest.move.attempts):
                raise StageCommittedError(value=attempt)
            await self._drop(query, [attempt])

    # -- commit --

    async def commit(self, query: str, batch: int, attempts: Sequence[str]) -> Committed:
        """Publishes the rows of these attempts, once, in this order; returns when all are.

        Raises:
            StagesMissingError: nothing of the batch is published, nor will be.
            BatchPassedError: a later batch is committed.
            BatchMovingError: it takes longer than a request may.
            HubSubError: a room does not take its rows now. The same commit goes on where this one was.
        """
        self._ready()
        key = (query, batch, tuple(attempts))
        task = self._commits.get(key)
        if task is None:
            task = self._commits[key] = asyncio.ensure_future(self._commit(query, batch, attempts))
            task.add_done_callback(lambda done: self._committed(key, done))
        # Who waits may go; what was begun is done.
        try:
            async with asyncio.timeout(self._limits()["request_timeout_ms"] / 1_000):
                return await asyncio.shield(task)
        except TimeoutError:
            raise BatchMovingError(value=batch) from None

    def _committed(self, key: tuple[str, int, tuple[str, ...]], task: "asyncio.Task[Committed]") -> None:
        del self._commits[key]
        if not task.cancelled() and task.exception() is not None:
            log.warning("batch is not published", query=key[0], batch=key[1], reason=str(task.exception()))

    async def _commit(self, query: str, batch: int, attempts: Sequence[str]) -> Committed:
        async with self._locked(query):
            latest = await self._latest(query)
            what = plan(latest, batch)
            if latest is not None and latest.move is not None:
                await self._move(query, latest.move)
            if latest is not None and what in ("finish", "repeated"):
                await self._drop(query, attempts)
                self.counts["batches_repeated"] += what == "repeated"
                return Committed(latest.rows, what == "repeated")
            found = await self._find(query, attempts)
            begins = [self._open[query, a].begins for a in attempts if (query, a) in self._open]
            record = commit_record(batch, found)
            # Held from before the record is there: what it names is not let go of.
            self._ready().hold(query, begins if len(begins) == len(attempts) else ())
            try:
                position = await self._note(query, record)
            except HubSubError:
                self._ready().free(query)
                raise
            for attempt in attempts:
                self._open.pop((query, attempt), None)
            move = committed(record, position)
            await self._move(query, move)
            return Committed(move.rows, False)

    async def _find(self, query: str, attempts: Sequence[str]) -> list[Attempt]:
        """The stages of these names, whole."""
        found, missing = [], []
        for name in attempts:
            attempt = await self._whole(query, name)
            if attempt is None:
                missing.append(name)
            else:
                found.append(attempt)
        if missing:
            shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
            hint = "nothing of the batch was published; write its rows again, under new names"
            raise StagesMissingError(value=shown, hint=hint)
        return found

    async def _whole(self, query: str, name: str) -> Attempt | None:
        room = stage_room(query, name)
        end = await self._last(room)
        if end is None or "end" not in end.headers:
            return None
        if time.time() - end.timestamp_us / 1e6 > self._limits()["stage_ms"] / 1_000:
            return None
        told = json.loads(end.payload)
        attempt = Attempt(name, told["rows"], told["chunks"], tuple(told["first"]))
        # A log lets go of its oldest: if the first is there, all are.
        return attempt if not attempt.chunks or await self._chunk(room, attempt, 0) else None

    # -- move --

    async def _move(self, query: str, move: Move) -> None:
        """Publishes what is left of a batch; it is held if its rooms do not take it."""
        try:
            await self._go_on(query, move)
        except HubSubError as error:
            if isinstance(error, StageLostError):
                self._ready().free(query)  # There is nothing left to be kept for it.
            self.held.hold(query, move.batch, move.rows, error)
            self._news.set()
            raise
        self.held.free(query)
        self.counts["batches_published"] += 1
        self.counts["rows_published"] += move.rows

    async def _go_on(self, query: str, move: Move) -> None:
        """Publishes chunk after chunk, and says how far that is."""
        self._ready().hold_all(query)
        ahead = self._ahead.get(query)
        if ahead is not None and ahead.commit == move.commit:
            # Written down before more is sent: a disk that is still full refuses that, and no row goes in vain.
            move = ahead
            await self._note_ahead(query)
        elif move.is_done:
            await self._note(query, progress_record(move))
        row = await self._next(query, move)
        while row is not None:
            done = await self._node.publish_rows(row.payload, move.left, move.producer(query), move.next)
            refused = [(place, failed) for place, failed in done.refused]
            before = move
            move = move.after(int(row.headers["rows"]), [(place, failed.code) for place, failed in refused])
            held = [failed for _, failed in refused if failed.code not in LATE]
            if move != before:
                self._ahead[query] = move
            if held:
                if move != before:  # Each try of a day would be a record, and push out what the query knows.
                    with suppress(HubSubError):
                        await self._note_ahead(query)
                raise refusal(*held[0])
            # The next chunk is read while the disk takes the note; both are over before somebody else goes on.
            note = asyncio.ensure_future(self._note_ahead(query))
            try:
                row = await self._next(query, move)
            finally:
                await note
        self._ready().free(query)
        await self._drop(query, [attempt.name for attempt in move.attempts])

    async def _next(self, query: str, move: Move) -> HistoryRow | None:
        """The chunk that is to be published now; None at the end."""
        if move.is_done:
            return None
        attempt = move.attempts[move.attempt]
        row = await self._chunk(stage_room(query, attempt.name), attempt, move.chunk)
        if row is None:
            raise StageLostError(
                value=f"batch {move.batch}, attempt {attempt.name}, chunk {move.chunk} of {attempt.chunks}",
                hint="the log of $stage was damaged or removed; `hubsub log verify` says more",
            )
        return row

    async def resume(self) -> None:
        """Goes on with the batches that were being moved when the node ended; some may be held."""
        if self._node.config.data is None:
            return
        after: bytes | None = None
        try:
            while rooms := await self._node.rooms(b"$queries/*", after, PAGE):
                after = rooms[-1]["name"]
                for room in rooms:
                    await self._resume(unquote(room["name"].decode().partition("/")[2]))
        except HubSubError as error:
            # A damaged hub hides the names of all rooms; a commit reads its own query's and goes on.
            log.warning("batches go on at their next commit", code=error.code, reason=str(error))

    async def retry(self) -> None:
        """Tries batches that are held again, each when it is due, until cancelled.

        Cancelled amid a move it leaves what a kill would: the next start goes on.
        """
        while True:
            self._news.clear()
            try:
                async with asyncio.timeout(self.held.wait_s()):
                    await self._news.wait()
            except TimeoutError:
                for query in self.held.due():
                    try:
                        await self._resume(query)
                    except Exception:  # Of one query, and the others go on.
                        log.exception("a held batch could not be tried again", query=query)
                        self.held.postpone(query, BatchMovingError())

    async def _resume(self, query: str) -> None:
        before = self.held.all().get(query)
        try:
            async with self._locked(query):
                latest = await self._latest(query)
                if latest is None or latest.move is None:
                    self.held.free(query)
                    return
                await self._move(query, latest.move)
                log.info("batch goes on and is published", query=query, batch=latest.batch, rows=latest.rows)
        except HubSubError as error:
            if before is not None and self.held.all().get(query) == before:
                self.held.postpone(query, error)
            if before is None or before.code != error.code:
                log.warning("batch is held", query=query, code=error.code, reason=str(error))

    # -- records --

    async def _latest(self, query: str) -> Latest | None:
        """What the query's room says last."""
        room = query_room(query)
        row = await self._last(room)
        if row is None:
            return None
        record = json.loads(row.payload)
        if "done" in record:
            return Latest(batch=record["batch"], rows=record["done"], move=None)
        if "attempts" in record:
            move = committed(record, (row.epoch, row.seq))
        else:
            epoch, seq = record["commit"]
            recovered, rows = await self._node.history(room, 1, (epoch, seq - 1), as_node=True)
            if not recovered or not rows or (rows[0].epoch, rows[0].seq) != (epoch, seq):
                raise StageLostError(
                    "the commit of a batch is lost", value=f"{query}, batch {record['batch']}"
                )
            move = moved(record, committed(json.loads(rows[0].payload), (epoch, seq)))
        return Latest(batch=move.batch, rows=move.rows, move=move)

    async def _last(self, room: bytes) -> HistoryRow | None:
        _, rows = await self._node.history(room, 1, as_node=True)
        return rows[-1] if rows else None

    async def _chunk(self, room: bytes, attempt: Attempt, number: int) -> HistoryRow | None:
        epoch, seq = attempt.first[0], attempt.first[1] + number
        recovered, rows = await self._node.history(room, 1, (epoch, seq - 1), as_node=True)
        is_it = recovered and rows and (rows[0].epoch, rows[0].seq) == (epoch, seq)
        return rows[0] if is_it else None

    async def _note(self, query: str, record: Mapping[str, Any]) -> Position:
        text = json.dumps(record, separators=(",", ":")).encode()
        (position,) = await self._write([Item(query_room(query), text, {}, "")])
        return position

    async def _note_ahead(self, query: str) -> None:
        """Writes down what the process knows of a move beyond the query's latest record."""
        await self._note(query, progress_record(self._ahead[query]))
        del self._ahead[query]

    async def _write(self, items: Sequence[Item]) -> list[Position]:
        results = await self._node.publish(items, as_node=True)
        for result in results:
            if isinstance(result, Failed):
                raise refusal(*result)
        return [(result.epoch, result.seq) for result in results if not isinstance(result, Failed)]

    async def _drop(self, query: str, attempts: Sequence[str]) -> None:
        """Deletes stages. One that cannot be deleted goes with the rest of its log."""
        for attempt in attempts:
            self._open.pop((query, attempt), None)
            with suppress(HubSubError):
                await self._node.room_delete(stage_room(query, attempt), as_node=True)

    # -- bounds --

    def _ready(self) -> Space:
        if self._node.config.data is None:
            hint = 'data = "DIR", or --data DIR, gives it a directory'
            raise NoStagesError(hint=hint)
        if self._space is None:
            hubs = (self._node.log() or {"hubs": []})["hubs"]
            self._space = Space(sum(hub["bytes"] for hub in hubs if hub["class"] == "$stage"))
        return self._space

    def _forget(self) -> None:
        """Lets go of stages that nobody has committed in their time; they are oldest first."""
        until = time.monotonic() - self._limits()["stage_ms"] / 1_000
        for key, stage in list(self._open.items()):
            if stage.made_at >= until:
                return
            del self._open[key]

    @asynccontextmanager
    async def _locked(self, query: str) -> AsyncIterator[None]:
        """A query's lock, which is there as long as somebody wants it."""
        lock = self._locks.setdefault(query, asyncio.Lock())
        self._users[query] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[query] -= 1
            if not self._users[query]:
                del self._users[query], self._locks[query]


def stage_room(query: str, attempt: str) -> bytes:
    return f"$stage/{quote(query, safe='')}/{quote(attempt, safe='')}".encode()


def query_room(query: str) -> bytes:
    return f"$queries/{quote(query, safe='')}".encode()


def _read(call: Callable[..., Any], *args: Any) -> Any:
    """A call of the reader, with its errors."""
    try:
        return call(*args)
    except ValueError as error:
        code, text = error.args
        if code == BadRowsError.code:
            raise BadRowsError(text) from None
        raise refusal(code, text, text) from None
