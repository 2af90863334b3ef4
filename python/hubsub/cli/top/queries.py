"""Queries of data pipelines in `hubsub top`: their state and lag."""

from typing import Any

from hubsub.cli.top.tables import Rows, number, rate, seconds

SILENT_S = 150.0
"""A query without a report for this long may have ended: even an idle one reports every 60 s."""


def queries(now: dict[str, Any]) -> Rows:
    """Queries by name. One that only writes is listed while a batch of it is blocked."""
    blocked = {batch["query"]: batch for batch in now["blocked"]}
    known = {query["query"]: query for query in now["queries"]}
    lines = []
    for name in sorted(known.keys() | blocked.keys()):
        query, batch = known.get(name), blocked.get(name)
        lines.append(
            [
                name,
                _state(query, batch),
                number(query and query["lag"]),
                rate(query and query["rows_per_second"]),
                "-" if query is None else f"{seconds(query['silence_s'])} ago",
                "" if batch is None else batch["reason"],
            ]
        )
    heads = ("query", "state", "lag", "rows/s", "reported", "why blocked")
    return Rows("queries", heads, lines, texts=2, last=True)


def _state(query: dict[str, Any] | None, batch: dict[str, Any] | None) -> str:
    if batch is not None or query is None:
        return "a batch is blocked"
    if query["ended"]:
        return "ended"
    if query["silence_s"] > SILENT_S:
        return "silent"
    return "reads" if query["lag"] else "has all"
