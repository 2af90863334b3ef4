"""How far the queries of data pipelines have read: what each told last.

Pure: a table by name. Bounds: `http_queries_max` names, of each the hubs that there are. A query that says nothing
for an hour is forgotten; while the table is full of those that speak, new ones are refused.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from hubsub.errors import BadRequestError, TooBusyError

SILENCE_S = 3_600.0
"""After which a query is taken to be over. A stream reports with each batch, so this is one that stands still."""

NAME_CHARACTERS_MAX = 255


@dataclass(frozen=True)
class Progress:
    """What a query told."""

    offsets: Mapping[int, int]
    """Hub to the first offset that is not read yet."""
    rows_per_second: float | None
    batch: int | None
    at: float
    """When, by the table's clock."""
    ended: bool
    """It has said that it reads no further."""

    def lag(self, hub: int, end: int) -> int | None:
        """Records of a hub that it has not read, of those before `end`; None: it does not read this hub."""
        offset = self.offsets.get(hub)
        return None if offset is None else max(end - offset, 0)


class Queries:
    """The queries that a node knows.

    Args:
        limits: `http_queries_max`; read at each use.
        clock: Monotonic seconds.
    """

    def __init__(self, limits: Callable[[], Mapping[str, int]], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._queries: dict[str, Progress] = {}
        """By time of their last report, the oldest first."""
        self.refused = 0
        """Reports of new queries for which there was no room."""

    def report(
        self,
        query: str,
        offsets: Mapping[int, int],
        hubs: Collection[int],
        rows_per_second: float | None = None,
        batch: int | None = None,
        ended: bool = False,
    ) -> None:
        """Keeps what a query tells, in place of what it told before. Hubs that are not in `hubs` are left out.

        Raises:
            BadRequestError: the name is too long.
            TooBusyError: there are too many that speak.
        """
        if len(query) > NAME_CHARACTERS_MAX:
            what = f"a query's name has at most {NAME_CHARACTERS_MAX} characters"
            raise BadRequestError(what, len(query))
        self._forget()
        if query not in self._queries and len(self._queries) >= self._limits()["http_queries_max"]:
            self.refused += 1
            raise TooBusyError(hint="limits.http_queries_max queries report already")
        known = {hub: offset for hub, offset in offsets.items() if hub in hubs}
        self._queries.pop(query, None)
        self._queries[query] = Progress(known, rows_per_second, batch, self._clock(), ended)

    def all(self) -> dict[str, Progress]:
        """Those that speak, by name."""
        self._forget()
        return dict(sorted(self._queries.items()))

    def silence_s(self, progress: Progress) -> float:
        """Since a report."""
        return self._clock() - progress.at

    def drop(self, query: str) -> bool:
        """Forgets a query; whether it was known."""
        self._forget()
        return self._queries.pop(query, None) is not None

    def _forget(self) -> None:
        now = self._clock()
        while self._queries:
            oldest = next(iter(self._queries))
            if now - self._queries[oldest].at < SILENCE_S:
                return
            del self._queries[oldest]
