"""Batches on a node: commits them, moves their rows into rooms, resumes them after a start, gives them up.

Owns which batch of a query is being moved, and which are blocked. Rows come from `hubsub.control.staging`;
the records of a query are in `hubsub.control.query_rooms`; `hubsub.control.stages` and `blocked` decide, and
this module acts.

Invariants: one batch of a query is moved at a time, under the query's lock. Nothing of a batch is published
before the record that commits it is on disk, and Spark gets its reply after the record that marks it done.
The result of the last rows is only in memory until it is written; before that no others are sent.
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

from hubsub.control.blocked_batches import BlockedBatches
from hubsub.control.internal_rooms import attempt_name
from hubsub.control.query_rooms import QueryRooms
from hubsub.control.stages import (
    BatchState,
    Move,
    commit_record,
    committed,
    given_up_record,
    in_flight,
    plan,
    progress_record,
)
from hubsub.control.staging import Staging
from hubsub.coordination.tasks import wait_set
from hubsub.errors import (
    BatchGivenUpError,
    BatchMovingError,
    BatchNotBlockedError,
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
"""Refusals that another row of the same room causes: the row is sent again, and blocks no batch by itself."""

LEADER_WAIT_S, LEADER_WAIT_S_MAX = 0.1, 5.0
"""Wait before checking again whether a node of a cluster leads its queries' hubs: doubled each time."""

log = structlog.get_logger()

Key = tuple[str, int, tuple[str, ...]]
"""A commit: query, batch, attempts."""


class Committed(NamedTuple):
    """A batch that is published."""

    published: int
    duplicate: bool
    """It was published before this commit."""


class GivenUp(NamedTuple):
    """A batch whose other rows will not be published."""

    rows: int
    """Rows of the whole batch."""
    published: int
    """Rows known to be published; after a kill or a failed log, rows of one more chunk may be."""


class Batches:
    """The batches of one node's queries.

    Args:
        node: The node; must be started.
        stages: Holds their rows.
        limits: Returns `request_timeout_ms`; called at each use.
    """

    def __init__(self, node: Node, stages: Staging, limits: Callable[[], Mapping[str, int]]) -> None:
        self._node = node
        self._stages = stages
        self._limits = limits
        self._news = asyncio.Event()
        """Set when a batch becomes blocked or its wait changes, or when the record of a blocked batch is old. """
        self._rooms = QueryRooms(node, self._news.set)
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        self._commits: dict[Key, asyncio.Task[Committed]] = {}
        """Running commits; a repeated commit waits for the same task."""
        self._unrecorded: dict[str, Move] = {}
        """Progress of moves whose record could not be written, for example because the disk is full."""
        self.blocked = BlockedBatches(time.monotonic)
        self.counts = Counter[str]()
        """Since the start: `batches_published`, `rows_published`; repeated commits, `batches_repeated`;
        `batches_given_up`, `rows_given_up`.
        """

    # -- requests of writers and operators --

    async def commit(self, query: str, batch: int, attempts: Sequence[str]) -> Committed:
        """Publishes the rows of these attempts once, in this order; returns when all are published.

        Args:
            query: Name of the query.
            batch: Number of the batch.
            attempts: Names of the attempts as the writer used them.

        Raises:
            StagesMissingError: nothing of the batch is published, nor will be.
            BatchPassedError: a later batch is committed.
            BatchGivenUpError: its unpublished rows will not be published.
            BatchMovingError: it takes longer than a request may.
            HubClosedError: the query has moved to another node since the request began.
            HubSubError: a room does not accept its rows now. A repeated commit resumes where this one
                stopped.
        """
        self._stages.space()
        attempts = self._stages.stored_names(query, attempts)
        key = (query, batch, tuple(attempts))
        task = self._commits.get(key)
        if task is None:
            task = self._commits[key] = asyncio.ensure_future(self._commit(query, batch, attempts))
            task.add_done_callback(lambda done: self._committed(key, done))
        # The caller may give up waiting; the commit still finishes.
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
            self._check_owner(query)
            latest = await self._rooms.latest(query)
            what = plan(latest, batch)
            if latest is not None and latest.end is None:
                await self._move(query, latest)
            if latest is not None and what in ("finish", "repeated", "given up"):
                await self._stages.drop(query, attempts)
                if what == "given up":
                    raise BatchGivenUpError(value=_progress_text(query, latest))
                self.counts["batches_repeated"] += what == "repeated"
                return Committed(latest.rows, what == "repeated")
            # Hold them before they are looked up, so that none found is released.
            self._stages.hold(query, attempts)
            try:
                record = commit_record(batch, await self._stages.find(query, attempts))
                self._check_owner(query)
                position = await self._rooms.note(query, record)
                # Only a hub without a record goes to another node. If this hub had the record by then, the
                # other node moves the batch, too.
                self._check_owner(query)
            except Exception:
                self._stages.space().free(query)
                raise
            self._stages.taken(query, attempts)
            move = committed(record, position)
            await self._move(query, in_flight(move))
            return Committed(move.rows, False)

    def _check_owner(self, query: str) -> None:
        """Raises HubClosedError if the query has moved to another node: a repeated request is redirected."""
        if not self._stages.owns(query):
            raise HubClosedError()

    async def abort(self, query: str, attempt: str) -> None:
        """Drops a stage, if it exists.

        Raises:
            StageCommittedError: its batch is being moved.
            BatchMovingError: another batch of the query is being moved, and takes longer than a request may.
        """
        self._stages.space()
        (name,) = self._stages.stored_names(query, [attempt])
        async with self._locked_in_time(query, attempt):
            latest = await self._rooms.latest(query)
            if latest and latest.move and any(a.name == name for a in latest.move.attempts):
                raise StageCommittedError(value=attempt)
            await self._stages.drop(query, [name])

    async def give_up(self, query: str, batch: int) -> GivenUp:
        """Drops the rest of a blocked batch: the query continues with the next one. May be repeated.

        Raises:
            BatchNotBlockedError: it does not exist, is published, or is not the query's last.
            BatchMovingError: it is being moved now, and takes longer than a request may; nothing was done.
            DiskFullError: the record cannot be written.
        """
        self._stages.space()
        async with self._locked_in_time(query, batch):
            # Under the lock no one moves it, so if it has not ended it is blocked.
            latest = await self._rooms.latest(query)
            if latest is None or latest.batch != batch or latest.end == "published":
                found = "no batch" if latest is None else f"{latest.end or 'blocked'} {latest.batch}"
                raise BatchNotBlockedError(value=f"{query}, batch {batch}; its last is: {found}")
            if latest.end == "given up":
                return GivenUp(latest.rows, latest.published)
            move = self._unrecorded.get(query)
            if move is not None and latest.move is not None and move.commit == latest.move.commit:
                latest = in_flight(move)
            left = latest.rows - latest.published
            await self._rooms.note(query, given_up_record(latest))
            self._unrecorded.pop(query, None)
            self._unblock(query)
            self.counts["batches_given_up" if left else "batches_published"] += 1
            self.counts["rows_published"] += 0 if left else latest.rows
            self.counts["rows_given_up"] += left
            log.warning("batch is given up", query=query, batch=batch, rows=left, published=latest.published)
            await self._stages.drop(query, [a.name for a in latest.move.attempts] if latest.move else [])
            return GivenUp(latest.rows, latest.published)

    # -- moving --

    async def _move(self, query: str, latest: BatchState) -> None:
        """Publishes the rest of a batch; the batch is blocked if its rooms do not accept it."""
        try:
            if latest.move is None:
                raise StageLostError("the commit of a batch is lost", f"{query}, batch {latest.batch}")
            await self._publish_rest(query, latest.move)
        except HubSubError as error:
            if isinstance(error, StageLostError):
                self._stages.space().free(query)  # There is nothing left to hold for it.
            if not error.retryable:
                error.hint = _blocked_hint(query, latest.batch, error)
            self.blocked.block(query, latest.batch, latest.rows, error)
            self._rooms.watch(query)
            self._news.set()
            raise
        self._unblock(query)
        self.counts["batches_published"] += 1
        self.counts["rows_published"] += latest.rows

    async def _publish_rest(self, query: str, move: Move) -> None:
        """Publishes chunk after chunk, and records the progress."""
        self._stages.space().hold_all(query)
        ahead = self._unrecorded.get(query)
        if ahead is not None and ahead.commit == move.commit:
            # Write it before more is sent: a disk that is still full refuses that, and no row is sent in
            # vain.
            move = ahead
            await self._record_unrecorded(query)
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
                self._unrecorded[query] = move
            if held:
                # Otherwise each retry would write a record, and the records would push out older state of the
                # query.
                if move != before:
                    with suppress(HubSubError):
                        await self._record_unrecorded(query)
                raise refusal(*held[0])
            # The next chunk is read while the disk writes the note; both finish before the lock is released.
            note = asyncio.ensure_future(self._record_unrecorded(query))
            try:
                row = await self._next(query, move)
            finally:
                await note
        await self._stages.drop(query, [attempt.name for attempt in move.attempts])

    async def _next(self, query: str, move: Move) -> HistoryRow | None:
        """The next chunk to publish; None at the end."""
        if move.is_done:
            return None
        attempt = move.attempts[move.attempt]
        row = await self._stages.chunk(query, attempt, move.chunk)
        if row is None:
            place = f"batch {move.batch}, attempt {attempt_name(attempt.name)}, chunk {move.chunk} of {attempt.chunks}"
            raise StageLostError(value=place)
        return row

    async def _record_unrecorded(self, query: str) -> None:
        """Records a move's progress that is only in memory."""
        await self._rooms.note(query, progress_record(self._unrecorded[query]))
        del self._unrecorded[query]

    def _unblock(self, query: str) -> None:
        """The query has no batch in flight any more."""
        self._stages.space().free(query)
        self._rooms.unwatch(query)
        self.blocked.unblock(query)

    # -- resuming --

    async def resume(self) -> None:
        """Resumes the batches that were being moved when the node ended; some may be blocked."""
        if self._node.config.data is None:
            return
        try:
            async for query in self._rooms.names():
                await self._resume(query)
        except HubSubError as error:
            # A damaged hub hides the names of all rooms; a commit reads its own query's room and continues.
            log.warning("batches go on at their next commit", code=error.code, reason=str(error))

    async def resume_when_leading(self) -> None:
        """As `resume`, for a cluster: a node leads its hubs again only some time after its start."""
        if self._node.config.data is None:
            return
        try:
            left = {query async for query in self._rooms.names()}
        except HubSubError as error:
            log.warning("batches go on at their next commit", code=error.code, reason=str(error))
            return
        wait_s = LEADER_WAIT_S
        while left:
            for query in sorted(left):
                try:
                    if self._stages.owns(query):
                        # There is no event for that; until the node leads the hub, requests to it are
                        # refused.
                        await self._rooms.latest(query)
                        await self._resume(query)
                except HubSubError as error:
                    if error.retryable:
                        continue
                    log.warning("batch goes on at its next commit", query=query, reason=str(error))
                left.discard(query)
            if left:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LEADER_WAIT_S_MAX)

    async def retry(self) -> None:
        """Retries blocked batches, each when it is due, until cancelled.

        Cancelling it during a move has the effect of a kill: the next start resumes.
        """
        while True:
            self._news.clear()
            await wait_set(self._news, self.blocked.wait_s())
            for query in self.blocked.due():
                try:
                    await self._resume(query)
                except Exception:  # Affects one query; the others continue.
                    log.exception("a held batch could not be tried again", query=query)
                    self.blocked.postpone(query, BatchMovingError())
            for query in self._rooms.old():
                await self._remind(query)

    async def _resume(self, query: str) -> None:
        before = self.blocked.all().get(query)
        try:
            async with self._locked(query):
                latest = await self._rooms.latest(query)
                if latest is None or latest.end is not None:
                    self._unblock(query)
                    return
                await self._move(query, latest)
                log.info("batch goes on and is published", query=query, batch=latest.batch, rows=latest.rows)
        except HubSubError as error:
            if before is not None and self.blocked.all().get(query) == before:
                self.blocked.postpone(query, error)
            if before is None or before.code != error.code:
                log.warning("batch is held", query=query, code=error.code, reason=str(error))

    async def _remind(self, query: str) -> None:
        try:
            async with self._locked(query):
                await self._rooms.remind(query)
                if (ahead := self._unrecorded.get(query)) is not None:
                    self._unrecorded[query] = replace(ahead, is_whole=True)
        except HubSubError:
            pass  # The next record of another query triggers it again.
        except Exception:
            log.exception("what is known of a held batch could not be written again", query=query)

    # -- locks --

    @asynccontextmanager
    async def _locked(self, query: str) -> AsyncIterator[None]:
        """A query's lock, which exists while it is used."""
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
        """As `_locked`, but waits at most `request_timeout_ms` for the lock; the work has no limit."""
        try:
            async with (
                asyncio.timeout(self._limits()["request_timeout_ms"] / 1_000) as deadline,
                self._locked(query),
            ):
                deadline.reschedule(None)
                yield
        except TimeoutError:
            raise BatchMovingError(value=value) from None


def _progress_text(query: str, latest: BatchState) -> str:
    return f"{query}, batch {latest.batch}: {latest.published} of {latest.rows} rows are published"


def _blocked_hint(query: str, batch: int, error: HubSubError) -> str:
    """A hint for a batch whose error does not go away by itself."""
    if isinstance(error, StageLostError):
        first = "the log of $stage was damaged or removed, `hubsub log verify` says more"
    elif isinstance(error, PayloadLengthError | TopicLengthError):
        first = "a limit was lowered after the commit: raise it again and start the node"
    else:
        first = error.hint or "mend it and start the node"
    return f"{first}; or `hubsub query give-up {shlex.quote(query)} {batch}` lets the query go on without its rows"
