"""Committed batches that their rooms do not accept now: the reason, the start, and the time of the next retry.

Decisions only. The wait doubles after each try, up to `WAIT_S_MAX`. A batch whose error does not go away by
itself waits for its commit, for the next start of the node, or until it is given up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hubsub.errors import HubSubError

WAIT_S, WAIT_S_MAX = 1.0, 60.0
"""Wait before the first automatic retry, and the longest wait."""


@dataclass(frozen=True, kw_only=True)
class BlockedBatch:
    batch: int
    rows: int
    """Rows of the whole batch; some may be published."""
    code: str
    reason: str
    hint: str | None
    since: float
    tries: int
    """Failed tries so far."""
    due: float | None
    """Time of the next automatic retry; None: there is none."""


class BlockedBatches:
    """The blocked batches, at most one per query.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._blocked: dict[str, BlockedBatch] = {}

    def __len__(self) -> int:
        return len(self._blocked)

    def block(self, query: str, batch: int, rows: int, error: HubSubError) -> BlockedBatch:
        """Records a failed try.

        Args:
            query: Name of the query.
            batch: Number of the batch.
            rows: Rows of the whole batch.
            error: The reason; decides whether there is an automatic retry.

        Returns:
            The blocked batch.
        """
        now, before = self._clock(), self._blocked.get(query)
        if before is not None and before.batch != batch:
            before = None
        tries = before.tries if before else 0
        blocked = BlockedBatch(
            batch=batch,
            rows=rows,
            code=error.code,
            reason=error.message,
            hint=error.hint,
            since=before.since if before else now,
            tries=tries + 1,
            due=now + _wait_s(tries) if error.retryable else None,
        )
        self._blocked[query] = blocked
        return blocked

    def postpone(self, query: str, error: HubSubError) -> None:
        """Records a try that could not even begin."""
        blocked = self._blocked.get(query)
        if blocked is not None:
            self.block(query, blocked.batch, blocked.rows, error)

    def unblock(self, query: str) -> None:
        """Removes a query's batch, which is published or given up."""
        self._blocked.pop(query, None)

    def all(self) -> Mapping[str, BlockedBatch]:
        """Blocked batches by query, sorted by name."""
        return dict(sorted(self._blocked.items()))

    def wait_s(self) -> float | None:
        """Seconds until the next retry; None: there is none."""
        dues = [blocked.due for blocked in self._blocked.values() if blocked.due is not None]
        return max(min(dues) - self._clock(), 0.0) if dues else None

    def due(self) -> list[str]:
        now = self._clock()
        return [
            query
            for query, blocked in self._blocked.items()
            if blocked.due is not None and blocked.due <= now
        ]

    def for_s(self, blocked: BlockedBatch) -> float:
        return self._clock() - blocked.since

    def until_s(self, blocked: BlockedBatch) -> float | None:
        return None if blocked.due is None else max(blocked.due - self._clock(), 0.0)


def _wait_s(tries: int) -> float:
    return min(WAIT_S * 2.0 ** min(tries, 10), WAIT_S_MAX)
