"""Batches on a node: commits them, moves their rows into their rooms, goes on after a start, gives up.

Owned here: which batch of a query is being moved, and which are held. Rows come from
`hubsub.control.staging`, what is known of a query is in `hubsub.control.query_rooms`, and what is
decided stands in `hubsub.control.stages` and `held`; here it is carried out.

Invariants: one batch of a query is moved at a time, under the query's lock. Nothing of a batch is
published before the record that commits it is on disk, and Spark is answered after the one that says
done. What came of the last rows is known here alone until it is written down; before that no others
are sent.
"""

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import structlog

from hubsub.control.held import HeldBatches
from hubsub.control.own_rooms import named
from hubsub.control.query_rooms import QueryRooms
from hubsub.control.stages import (
    Latest,
    Move,
    commit_record,
    committed,
    given_up_record,
    on_its_way,
    plan,
    progress_record,
)
from hubsub.control.staging import Staging
from hubsub.errors import (
    BatchGivenUpError,
    BatchMovingError,
    BatchNotHeldError,
    HubClosedError,
    HubSubError,
    PayloadLengthError,
    StageCommittedError,
    StageLostError,
    TopicLengthError,
    refusal,
)
from hubsub.node import HistoryRow, Node

LATE = ("sequence_passed", "sequence_too_old", "sequence_ahead")
"""What a row meets because of another row of its room: it goes again, and holds no batch by itself."""

LED_S, LED_S_MAX = 0.1, 5.0
"""Before it is asked again whether a node of a cluster leads its queries' hubs: doubled each time."""

log = structlog.get_logger()

Key = tuple[str, int, tuple[str, ...]]
"""A commit: query, batch, attempts."""


class Committed(NamedTuple):
    """A batch that is published."""

    published: int
    duplicate: bool
    """It was before this commit."""


class GivenUp(NamedTuple):
    """A batch whose other rows will not be published."""

    rows: int
    """Of the whole batch."""
    published: int
    """That are known to be. A node that was killed, or whose log failed, may have published rows of one chunk more."""


class Batches:
    """The batches of one node's queries.

    Args:
        node: The node; started before anything is asked.
        stages: Where their rows are.
        limits: `request_timeout_ms`; read at each use.
    """

    def __init__(self, node: Node, stages: Staging, limits: Callable[[], Mapping[str, int]]) -> None:
        self._node = node
        self._stages = stages
        self._limits = limits
        self._news = asyncio.Event()
        """A batch is held that was not, or not so long; or what is written of one is old."""
        self._rooms = QueryRooms(node, self._news.set)
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        self._commits: dict[Key, asyncio.Task[Committed]] = {}
        """Those that run; one that is repeated waits for the same."""
        self._ahead: dict[str, Move] = {}
        """How far a move is whose record could not be written: a full disk refuses that, too."""
        self.held = HeldBatches(time.monotonic)
        self.counts = Counter[str]()
        """Since the start: `batches_published`, `rows_published`; commits of such, `batches_repeated`;
        `batches_given_up`, `rows_given_up`."""

    # -- asked by writers and operators --

    async def commit(self, query: str, batch: int, attempts: Sequence[str]) -> Committed:
        """Publishes the rows of these attempts, once, in this order; returns when all are.

        Raises:
            StagesMissingError: nothing of the batch is published, nor will be.
            BatchPassedError: a later batch is committed.
            BatchGivenUpError: what was not published of it will not be.
            BatchMovingError: it takes longer than a request may.
            HubClosedError: the query is another node's since it was asked for.
            HubSubError: a room does not take its rows now. The same commit goes on where this one was.
        """
        self._stages.space()
        attempts = self._stages.placed(query, attempts)
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

    def _committed(self, key: Key, task: "asyncio.Task[Committed]") -> None:
        del self._commits[key]
        if not task.cancelled() and task.exception() is not None:
            log.warning("batch is not published", query=key[0], batch=key[1], reason=str(task.exception()))

    async def _commit(self, query: str, batch: int, attempts: Sequence[str]) -> Committed:
        async with self._locked(query):
            self._check_home(query)
            latest = await self._rooms.latest(query)
            what = plan(latest, batch)
            if latest is not None and latest.end is None:
                await self._move(query, latest)
            if latest is not None and what in ("finish", "repeated", "given up"):
                await self._stages.drop(query, attempts)
                if what == "given up":
                    raise BatchGivenUpError(value=_told(query, latest))
                self.counts["batches_repeated"] += what == "repeated"
                return Committed(latest.rows, what == "repeated")
            # From before they are found and named: what is found is not let go of.
            self._stages.hold(query, attempts)
            try:
                record = commit_record(batch, await self._stages.find(query, attempts))
                self._check_home(query)
                position = await self._rooms.note(query, record)
                # Only a hub without a record goes to another node. If that had it by then, it moves the batch, too.
                self._check_home(query)
            except Exception:
                self._stages.space().free(query)
                raise
            self._stages.taken(query, attempts)
            move = committed(record, position)
            await self._move(query, on_its_way(move))
            return Committed(move.rows, False)

    def _check_home(self, query: str) -> None:
        """Raises HubClosedError where the query has become another node's: who asks again is sent there."""
        if not self._stages.is_home(query):
            raise HubClosedError()

    async def abort(self, query: str, attempt: str) -> None:
        """Drops a stage, if it is there.

        Raises:
            StageCommittedError: its batch is being moved.
            BatchMovingError: another batch of the query is, and takes longer than a request may.
        """
        self._stages.space()
        (name,) = self._stages.placed(query, [attempt])
        async with self._locked_in_time(query, attempt):
            latest = await self._rooms.latest(query)
            if latest and latest.move and any(a.name == name for a in latest.move.attempts):
                raise StageCommittedError(value=attempt)
            await self._stages.drop(query, [name])

    async def give_up(self, query: str, batch: int) -> GivenUp:
        """Drops what is left of a held batch: the query goes on with the next one. May be repeated.

        Raises:
            BatchNotHeldError: it is not there, it is published, or another one is the query's last.
            BatchMovingError: it is being moved now, and takes longer than a request may; nothing was done.
            DiskFullError: it cannot be written down.
        """
        self._stages.space()
        async with self._locked_in_time(query, batch):
            # Nobody moves it now, so if it has not ended it is held.
            latest = await self._rooms.latest(query)
            if latest is None or latest.batch != batch or latest.end == "published":
                found = "no batch" if latest is None else f"{latest.end or 'held'} {latest.batch}"
                raise BatchNotHeldError(value=f"{query}, batch {batch}; its last is: {found}")
            if latest.end == "given up":
                return GivenUp(latest.rows, latest.published)
            move = self._ahead.get(query)
            if move is not None and latest.move is not None and move.commit == latest.move.commit:
                latest = on_its_way(move)
            left = latest.rows - latest.published
            await self._rooms.note(query, given_up_record(latest))
            self._ahead.pop(query, None)
            self._freed(query)
            self.counts["batches_given_up" if left else "batches_published"] += 1
            self.counts["rows_published"] += 0 if left else latest.rows
            self.counts["rows_given_up"] += left
            log.warning("batch is given up", query=query, batch=batch, rows=left, published=latest.published)
            await self._stages.drop(query, [a.name for a in latest.move.attempts] if latest.move else [])
            return GivenUp(latest.rows, latest.published)

    # -- moving --

    async def _move(self, query: str, latest: Latest) -> None:
        """Publishes what is left of a batch; it is held if its rooms do not take it."""
        try:
            if latest.move is None:
                raise StageLostError("the commit of a batch is lost", f"{query}, batch {latest.batch}")
            await self._go_on(query, latest.move)
        except HubSubError as error:
            if isinstance(error, StageLostError):
                self._stages.space().free(query)  # There is nothing left to be kept for it.
            if not error.retryable:
                error.hint = _way_out(query, latest.batch, error)
            self.held.hold(query, latest.batch, latest.rows, error)
            self._rooms.watch(query)
            self._news.set()
            raise
        self._freed(query)
        self.counts["batches_published"] += 1
        self.counts["rows_published"] += latest.rows

    async def _go_on(self, query: str, move: Move) -> None:
        """Publishes chunk after chunk, and says how far that is."""
        self._stages.space().hold_all(query)
        ahead = self._ahead.get(query)
        if ahead is not None and ahead.commit == move.commit:
            # Written down before more is sent: a disk that is still full refuses that, and no row goes in vain.
            move = ahead
            await self._note_ahead(query)
        elif move.is_done:
            await self._rooms.note(query, progress_record(move))
        row = await self._next(query, move)
        while row is not None:
            done = await self._node.publish_rows(row.payload, move.left, move.of, move.producer(query))
            before = move
            move = move.after(
                int(row.headers["rows"]), [(place, failed.code) for place, failed in done.refused]
            )
            held = [failed for _, failed in done.refused if failed.code not in LATE]
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
        await self._stages.drop(query, [attempt.name for attempt in move.attempts])

    async def _next(self, query: str, move: Move) -> HistoryRow | None:
        """The chunk that is to be published now; None at the end."""
        if move.is_done:
            return None
        attempt = move.attempts[move.attempt]
        row = await self._stages.chunk(query, attempt, move.chunk)
        if row is None:
            place = (
                f"batch {move.batch}, attempt {named(attempt.name)}, chunk {move.chunk} of {attempt.chunks}"
            )
            raise StageLostError(value=place)
        return row

    async def _note_ahead(self, query: str) -> None:
        """Writes down what the process knows of a move beyond the query's latest record."""
        await self._rooms.note(query, progress_record(self._ahead[query]))
        del self._ahead[query]

    def _freed(self, query: str) -> None:
        """No batch of a query is on its way any more."""
        self._stages.space().free(query)
        self._rooms.unwatch(query)
        self.held.free(query)

    # -- going on --

    async def resume(self) -> None:
        """Goes on with the batches that were being moved when the node ended; some may be held."""
        if self._node.config.data is None:
            return
        try:
            async for query in self._rooms.names():
                await self._resume(query)
        except HubSubError as error:
            # A damaged hub hides the names of all rooms; a commit reads its own query's and goes on.
            log.warning("batches go on at their next commit", code=error.code, reason=str(error))

    async def resume_led(self) -> None:
        """Likewise in a cluster, where a node leads its hubs again some time after its start."""
        if self._node.config.data is None:
            return
        try:
            left = {query async for query in self._rooms.names()}
        except HubSubError as error:
            log.warning("batches go on at their next commit", code=error.code, reason=str(error))
            return
        wait_s = LED_S
        while left:
            for query in sorted(left):
                try:
                    if self._stages.is_home(query):
                        # Nobody says that it is led; what is asked of it is refused until then.
                        await self._rooms.latest(query)
                        await self._resume(query)
                except HubSubError as error:
                    if error.retryable:
                        continue
                    log.warning("batch goes on at its next commit", query=query, reason=str(error))
                left.discard(query)
            if left:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LED_S_MAX)

    async def retry(self) -> None:
        """Tries batches that are held again, each when it is due, until cancelled.

        Cancelled amid a move it leaves what a kill would: the next start goes on.
        """
        while True:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.held.wait_s()):
                    await self._news.wait()
            for query in self.held.due():
                try:
                    await self._resume(query)
                except Exception:  # Of one query, and the others go on.
                    log.exception("a held batch could not be tried again", query=query)
                    self.held.postpone(query, BatchMovingError())
            for query in self._rooms.old():
                await self._remind(query)

    async def _resume(self, query: str) -> None:
        before = self.held.all().get(query)
        try:
            async with self._locked(query):
                latest = await self._rooms.latest(query)
                if latest is None or latest.end is not None:
                    self._freed(query)
                    return
                await self._move(query, latest)
                log.info("batch goes on and is published", query=query, batch=latest.batch, rows=latest.rows)
        except HubSubError as error:
            if before is not None and self.held.all().get(query) == before:
                self.held.postpone(query, error)
            if before is None or before.code != error.code:
                log.warning("batch is held", query=query, code=error.code, reason=str(error))

    async def _remind(self, query: str) -> None:
        try:
            async with self._locked(query):
                await self._rooms.remind(query)
                if (ahead := self._ahead.get(query)) is not None:
                    self._ahead[query] = replace(ahead, is_whole=True)
        except HubSubError:
            pass  # The next record of another query asks again.
        except Exception:
            log.exception("what is known of a held batch could not be written again", query=query)

    # -- locks --

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

    @asynccontextmanager
    async def _locked_in_time(self, query: str, value: object) -> AsyncIterator[None]:
        """Likewise, if it can be had as long as a request may take; what is begun under it is done."""
        try:
            async with (
                asyncio.timeout(self._limits()["request_timeout_ms"] / 1_000) as deadline,
                self._locked(query),
            ):
                deadline.reschedule(None)
                yield
        except TimeoutError:
            raise BatchMovingError(value=value) from None


def _told(query: str, latest: Latest) -> str:
    return f"{query}, batch {latest.batch}: {latest.published} of {latest.rows} rows are published"


def _way_out(query: str, batch: int, error: HubSubError) -> str:
    """What to do about a batch whose error does not go away by itself."""
    if isinstance(error, StageLostError):
        first = "the log of $stage was damaged or removed, `hubsub log verify` says more"
    elif isinstance(error, PayloadLengthError | TopicLengthError):
        first = "a limit was lowered after the commit: raise it again and start the node"
    else:
        first = error.hint or "mend it and start the node"
    return f"{first}; or `hubsub query give-up {shlex.quote(query)} {batch}` lets the query go on without its rows"
