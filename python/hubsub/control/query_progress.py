"""Progress of the queries of data pipelines, from the last report of each.

Pure: a table by name. Bounds: `http_queries_max` names, and per name the existing hubs. A query without a
report for an hour is dropped; while the table is full, new queries are refused.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from hubsub.errors import BadRequestError, TooBusyError

SILENCE_S = 3_600.0
"""A query without a report for this long is dropped. A stream reports with each batch, so this one is idle. """

NAME_CHARACTERS_MAX = 255


@dataclass(frozen=True)
class Progress:
    offsets: Mapping[int, int]
    """Hub to the first offset that is not read yet."""
    rows_per_second: float | None
    batch: int | None
    at: float
    """Time of the report, by the table's clock."""
    ended: bool
    """The query reported that it reads no further."""

    def lag(self, hub: int, end: int) -> int | None:
        """Records of a hub before `end` that the query has not read; None: it does not read this hub."""
        offset = self.offsets.get(hub)
        return None if offset is None else max(end - offset, 0)


class Queries:
    """The queries that a node knows.

    Args:
        limits: Returns `http_queries_max`; called at each use.
        clock: Returns monotonic seconds.
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
        """Stores a query's report, replacing the previous one.

        Args:
            query: Name of the query.
            offsets: Hub to the first offset that is not read yet.
            hubs: Existing hubs; offsets of others are left out.
            rows_per_second: Reading rate.
            batch: Number of its last batch.
            ended: Whether the query reads no further.

        Raises:
            BadRequestError: the name is too long.
            TooBusyError: there are too many queries.
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
        """Current queries by name."""
        self._forget()
        return dict(sorted(self._queries.items()))

    def silence_s(self, progress: Progress) -> float:
        return self._clock() - progress.at

    def drop(self, query: str) -> bool:
        """Drops a query; returns whether it was known."""
        self._forget()
        return self._queries.pop(query, None) is not None

    def _forget(self) -> None:
        now = self._clock()
        while self._queries:
            oldest = next(iter(self._queries))
            if now - self._queries[oldest].at < SILENCE_S:
                return
            del self._queries[oldest]
