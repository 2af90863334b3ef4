"""Commits of a controller in one controller term: sends the commits of one decision, and retries until all
outcomes are known.

Owns the terms that these commits end (`replacing`), and the revisions that the watches have to deliver before
the next decision.

**Unknown outcomes.** A refused commit was based on an old view: the next decision has to wait until the watch
delivers the revision found, unless that key was removed since. A commit of unknown outcome is retried until
the outcome is known; nothing is granted for its terms meanwhile.

Invariants: the commits of only one decision are in flight at a time. Each expects the revision of
`controller` from this term's election.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from hubsub.control.cluster.commits import CONTROLLER, Commit
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.failover import Decision
from hubsub.control.cluster.initial_state import REREAD_S
from hubsub.control.cluster.records import hub_key
from hubsub.control.cluster.view import HubTerm
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination import Put
from hubsub.coordination.tasks import end
from hubsub.errors import CoordinatorError, CoordinatorUnknownError, ExpectationError, HubSubError

BACK_OFF_S: Final = 0.1
BACK_OFF_S_MAX: Final = 2.0
"""Delay before the coordinator is used again after a failure, doubled each time up to `BACK_OFF_S_MAX`."""

COMMITS_MAX: Final = 8
"""Maximum number of commits in flight at a time."""

log = structlog.get_logger("hubsub.cluster")


class BackOff:
    """Back-off of a controller or candidate after a failure of the coordinator.

    Args:
        clock: Monotonic, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.until_s = 0.0
        """Time by the clock when the back-off ends."""
        self._clock = clock
        self._wait_s = BACK_OFF_S

    def fail(self, error: HubSubError) -> None:
        log.info("the coordinator failed the controller", reason=error.message)
        self.until_s = self._clock() + self._wait_s
        self._wait_s = min(2 * self._wait_s, BACK_OFF_S_MAX)

    def reset(self) -> None:
        """Resets the delay to the minimum."""
        self._wait_s = BACK_OFF_S


class ControllerWrites:
    """Commits of one controller term.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache.
        back_off: Notified of failures and successes.
        done: Called when the outcome of all commits is known.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        back_off: BackOff,
        done: Callable[[], None],
    ) -> None:
        self._ctx = context
        self.replacing: set[HubTerm] = set()
        """Terms that commits in flight end; see `View.replacing`."""
        self.is_over = False
        """Whether a commit was refused because the revision of `controller` changed."""
        self._cache = cache
        self._back_off = back_off
        self._done = done
        self._awaited: dict[str, int] = {}
        """Key to the revision that the watch has to deliver before the next decision."""
        self._looked_s = 0.0
        """When the outcome of the last commits became known, or the awaited keys were last checked."""
        self._commits: asyncio.Task[None] | None = None

    @property
    def must_wait(self) -> bool:
        """Whether no decision may be sent yet."""
        return self._is_busy() or bool(self._awaited)

    def send(self, decision: Decision) -> None:
        """Sends the commits of a decision, in a task."""
        assert not self.must_wait, "one decision at a time"
        self._commits = asyncio.create_task(self._send(decision))
        self._commits.add_done_callback(self._ctx.ended)

    async def check_delivered(self) -> None:
        """Drops awaited revisions that the watch has delivered, and keys that were removed since: no watch
        delivers those.

        Raises:
            CoordinatorError: it cannot be reached; the awaited keys are checked later.
        """
        for key, revision in list(self._awaited.items()):
            if self._cache.revision(key) >= revision:
                del self._awaited[key]
        if self._awaited and not self._is_busy() and self._ctx.clock() >= self._looked_s + REREAD_S:
            self._looked_s = self._ctx.clock()
            for key in list(self._awaited):
                if await self._ctx.coordinator.get(key) is None:
                    del self._awaited[key]
        if not self.must_wait:
            self.replacing.clear()

    async def end(self) -> None:
        """Cancels commits in flight: they expect a controller term that is over, or were decided within it."""
        if self._commits is not None:
            await end(self._commits)
            self._commits = None

    def _is_busy(self) -> bool:
        return self._commits is not None and not self._commits.done()

    async def _send(self, decision: Decision) -> None:
        ends = {hub_key(step.hub): step.ended_term for step in decision.steps if step.ended_term is not None}
        self.replacing |= set(ends.values())
        slots = asyncio.Semaphore(COMMITS_MAX)

        async def one(commit: Commit) -> None:
            async with slots:
                is_made = await self._commit(commit)
            if not is_made:
                self.replacing -= {ends[w.key] for w in commit.writes if w.key in ends}

        await asyncio.gather(*(one(commit) for commit in decision.commits))
        self._looked_s = self._ctx.clock()
        self._done()

    async def _commit(self, commit: Commit) -> bool:
        """Whether it was applied, or may have been when another node is the controller."""
        writes = [Put(write.key, write.value) for write in commit.writes]
        pause, is_unknown = BACK_OFF_S, False
        while True:
            try:
                made = await self._ctx.coordinator.commit(commit.expect, writes)
                self._awaited |= made
                self._back_off.reset()
                return True
            except ExpectationError as error:
                if error.key == CONTROLLER:
                    self.is_over = True
                    return True
                if is_unknown and error.key not in {write.key for write in commit.writes}:
                    is_unknown = await self._was_made(commit)
                # Only the controller writes these keys: the revision found is from the earlier attempt.
                if is_unknown:
                    self._awaited |= {w.key: commit.expect[w.key] + 1 for w in commit.writes}
                self._awaited[error.key] = error.found
                return is_unknown
            except CoordinatorUnknownError as error:
                log.info("a commit is asked for again", reason=error.message)
                is_unknown = True
            except CoordinatorError as error:
                if not is_unknown:
                    self._back_off.fail(error)
                    return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACK_OFF_S_MAX)

    async def _was_made(self, commit: Commit) -> bool:
        """Whether a commit of unknown outcome was applied. It no longer can be, because another expected key
        has changed."""
        key = commit.writes[0].key
        while True:
            try:
                held = await self._ctx.coordinator.get(key)
                return (0 if held is None else held.revision) != commit.expect[key]
            except CoordinatorError as error:
                log.info("a commit's outcome is asked for again", reason=error.message)
            await asyncio.sleep(BACK_OFF_S)
