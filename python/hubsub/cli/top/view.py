"""The view of `hubsub top`: two samples of a node and its cluster as tables, the most important first.

A sample is a dict of REST responses: `at` (monotonic seconds), `url`, `stat`, `nodes`, `clients`, `rooms`,
`queries`, `blocked`; and for a cluster, empty for a single node: `members` (state by name), `hubs`, `moves`,
`wrong`.
"""

from typing import TYPE_CHECKING, Any

from hubsub.cli.common import shown
from hubsub.cli.top.cluster import hubs, links, moves, nodes, troubles
from hubsub.cli.top.queries import queries
from hubsub.cli.top.tables import Rows, number, rate

if TYPE_CHECKING:
    from rich.console import RenderableType

SHARD_COLUMNS = {
    "clients": "connections",
    "rooms": "rooms",
    "published/s": "published_total",
    "delivered/s": "delivered_total",
    "socket": "socket_ns_total",
    "routing": "routing_ns_total",
    "pending B": "output_bytes",
    "dropped/s": "dropped_total",
    "in B/s": "bytes_in_total",
    "out B/s": "bytes_out_total",
    "slow closed/s": "slow_closed_total",
}
"""Column to the shard metric that it shows, the most useful first: a narrow terminal shows those."""

LEAST = 3
"""Minimum number of rooms and clients that a low terminal shows; tables below them get the remaining room."""


def view(
    now: dict[str, Any], before: dict[str, Any] | None, width: int, height: int | None = None
) -> "RenderableType":
    """Two samples as tables.

    Args:
        now: The latest sample.
        before: The previous sample; without it rates are dashes.
        width: Width of the terminal: columns that do not fit are left out, the least useful first.
        height: Height of the terminal: rooms and clients get the lines that the other tables leave. None: no
            limit.
    """
    from rich.console import Group
    from rich.text import Text

    stat = now["stat"]
    title = f"{stat['name']}  {now['url']}  {stat['version']}  up {stat['uptime_s']:.0f} s"
    wrong = [Text(shown(line), style="bold red") for line in troubles(now)]
    line, away = links(now)
    first = [nodes(now, before), hubs(now)]
    last = [moves(now), queries(now), _shards(now, before)]
    rest = None
    if height is not None:
        taken = 1 + len(wrong) + 2 * bool(line) + sum(rows.height for rows in (*first, away, *last))
        rest = max(LEAST, (height - taken) // 2 - 3)
    parts: list[RenderableType] = [Text(shown(title), style="bold"), *wrong]
    for rows in (*first, _rooms(now, rest), _clients(now, rest)):
        parts += rows.drawn(width)
    parts += ["", Text(line)] if line else []
    for rows in (away, *last):
        parts += rows.drawn(width)
    return Group(*parts)


def _rooms(now: dict[str, Any], most: int | None) -> Rows:
    lines = [[room["name"], rate(room["messages_per_second"])] for room in now["rooms"][:most]]
    return Rows("busiest rooms", ("room", "messages/s"), lines, stays=True)


def _clients(now: dict[str, Any], most: int | None) -> Rows:
    lines = [
        [
            c["name"] or c["addr"],
            c["protocol"],
            c["node"],
            number(c["id"]),
            rate(c["messages_in_1s"]),
            rate(c["messages_out_1s"]),
            number(c["pending_bytes"]),
            number(c["dropped"]),
        ]
        for c in now["clients"][:most]
    ]
    heads = ("client", "protocol", "node", "id", "in/s", "out/s", "pending B", "dropped")
    return Rows("busiest clients", heads, lines, texts=3, stays=True)


def _shards(now: dict[str, Any], before: dict[str, Any] | None) -> Rows:
    stat = now["stat"]
    # The counters of a restarted node begin at zero.
    is_same = before is not None and before["stat"]["uptime_s"] <= stat["uptime_s"]
    passed = now["at"] - before["at"] if before is not None and is_same else 0.0
    earlier = before["stat"]["shards"] if before is not None and is_same else [{}] * len(stat["shards"])
    lines = [[str(i), *_shard(counters, earlier[i], passed)] for i, counters in enumerate(stat["shards"])]
    return Rows("", ("shard", *SHARD_COLUMNS), lines, texts=0)


def _shard(now: dict[str, int], before: dict[str, int], passed: float) -> list[str]:
    """The cells of a shard: gauges as they are, counters per second, times as a share of one CPU."""
    cells = []
    for name in SHARD_COLUMNS.values():
        if not name.endswith("_total"):
            cells.append(number(now.get(name, 0)))
        elif passed <= 0:
            cells.append("-")
        else:
            second = (now.get(name, 0) - before.get(name, 0)) / passed
            cells.append(f"{second / 1e7:.0f}%" if name.endswith("_ns_total") else number(second))
    return cells
