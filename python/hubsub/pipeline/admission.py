"""Size of a micro-batch: pure arithmetic on offsets.

Limits are in records and bytes of the log, before any filter. The allowance is divided in proportion to each
hub's backlog, so that lagging hubs catch up together: a watermark moves with the most advanced one, and the
remaining records of a slower hub would come too late.
"""

from collections.abc import Mapping


def admit(
    backlog: Mapping[int, int],
    *,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    row_bytes: Mapping[int, float] | None = None,
) -> dict[int, int]:
    """Divides the allowance of a batch among the hubs.

    Args:
        backlog: Records waiting, by hub.
        max_rows: Most records; None: no limit.
        max_bytes: Most bytes, by the average size; but always at least one record.
        row_bytes: Average size by hub; 1 where it is missing.

    Returns:
        Records by hub; together as many as limits and backlog allow.

    >>> admit({0: 900, 1: 100, 2: 0}, max_rows=100)
    {0: 90, 1: 10, 2: 0}
    """
    allowed = dict(backlog)
    if max_bytes is not None:
        sizes = {hub: (row_bytes or {}).get(hub, 1.0) for hub in backlog}
        total = sum(rows * sizes[hub] for hub, rows in backlog.items())
        if total > max_bytes:
            allowed = {hub: int(rows * max_bytes / total) for hub, rows in backlog.items()}
            if not any(allowed.values()):
                return _share(backlog, 1)
    return _share(allowed, max_rows) if max_rows is not None else allowed


def _share(backlog: Mapping[int, int], max_rows: int) -> dict[int, int]:
    """Exactly `max_rows`, or all. Each hub with a backlog gets at least one, as far as possible."""
    total = sum(backlog.values())
    if total <= max_rows:
        return dict(backlog)
    shares = {hub: rows * max_rows // total for hub, rows in backlog.items()}
    left = max_rows - sum(shares.values())
    by_remainder = sorted(backlog, key=lambda hub: (-(backlog[hub] * max_rows % total), hub))
    for hub in by_remainder[:left]:
        shares[hub] += 1
    for hub in [hub for hub, rows in backlog.items() if rows and not shares[hub]]:
        richest = max(shares, key=shares.__getitem__)
        if shares[richest] > 1:
            shares[richest] -= 1
            shares[hub] = 1
    return shares
