"""The cluster in `hubsub top`: nodes and their problems, leaders of hubs, links, failovers and moves."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hubsub.cli.common import shown
from hubsub.cli.top.tables import Rows, number, seconds

MOVES = 5
"""Number of latest moves shown."""
TOGETHER_S = 1.0
"""Hubs that change for the same reason within this time share one line."""

OWN = "own ($…)"

NODE_HEADS = (
    "node",
    "state",
    "hubs led",
    "connections",
    "published/s",
    "delivered/s",
    "CPU",
    "memory MiB",
    "rooms",
    "up s",
)
"""The most useful first."""


def troubles(now: dict[str, Any]) -> list[str]:
    """Problems of the cluster and its nodes that need an operator."""
    nodes = [f"{node['name']}: {why}" for node in now["nodes"] for why in node["reasons"]]
    return [*now["wrong"], *nodes]


def nodes(now: dict[str, Any], before: dict[str, Any] | None) -> Rows:
    """Nodes of a cluster, also those that do not answer. A single node appears in the title only."""
    rows = now["nodes"]
    earlier = {n["name"]: n for n in (before or now)["nodes"]}
    lines = [[n["name"], *_node(n, earlier.get(n["name"]))] for n in rows]
    answered = {n["name"] for n in rows}
    away = [
        [name, state, *["-"] * (len(NODE_HEADS) - 2)]
        for name, state in now["members"].items()
        if name not in answered
    ]
    found = sorted([*lines, *away])
    return Rows("", NODE_HEADS, found if len(found) > 1 else [], texts=2)


def _node(now: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """The cells of a node; rates need two samples of the same incarnation."""
    counts, rates = now["counts"], ["-", "-", "-"]
    is_same = before is not None and before["incarnation"] == now["incarnation"]
    if before is not None and is_same and (passed := now["uptime_s"] - before["uptime_s"]) > 0:
        published, delivered = (
            (counts[name] - before["counts"][name]) / passed
            for name in ("published_total", "delivered_total")
        )
        cpu = (now["cpu_s"] - before["cpu_s"]) / passed
        rates = [number(published), number(delivered), f"{cpu:.0%}"]
    resident = now["resident_bytes"]
    return [
        now["state"],
        number(now["hubs_led"]),
        number(counts["connections"]),
        *rates,
        number(None if resident is None else resident / 2**20),
        number(counts["rooms"]),
        f"{now['uptime_s']:.0f}",
    ]


def hubs(now: dict[str, Any]) -> Rows:
    """Number of hubs per class and leader; internal classes are combined in the last row."""
    led: dict[str, Counter[str]] = {}
    for hub in now["hubs"]:
        name = OWN if hub["class"].startswith("$") else hub["class"]
        led.setdefault(name, Counter())[hub["leader"]] += 1
        led[name]["to go"] += hub["proposed"] is not None
    leaders = sorted({hub["leader"] for hub in now["hubs"]})
    lines = [
        [
            name,
            number(sum(of[leader] for leader in leaders)),
            *(number(of[one]) for one in ("to go", *leaders)),
        ]
        for name, of in sorted(led.items(), key=lambda item: (item[0] == OWN, item[0]))
    ]
    return Rows("", ("hubs of class", "all", "to go", *(f"by {shown(leader)}" for leader in leaders)), lines)


def links(now: dict[str, Any]) -> tuple[str, Rows]:
    """A summary line of all links, empty for a single node, and the peers with links that are down."""
    peers = [(node["name"], peer) for node in now["nodes"] for peer in node["peers"]]
    if not peers:
        return "", Rows("", (), ())
    trips = [peer["round_trip_us"] for _, peer in peers if peer["round_trip_us"] is not None]
    slowest = f", slowest round trip {max(trips) / 1_000:.1f} ms" if trips else ""
    up, every = (sum(peer[key] for _, peer in peers) for key in ("up", "links"))
    lines = [
        [
            name,
            peer["node"],
            f"{peer['up']} of {peer['links']}",
            _heard(peer["heard_ms"]),
            peer["reason"] or "",
        ]
        for name, peer in peers
        if peer["up"] < peer["links"]
    ]
    heads = ("from", "to", "up", "heard", "why not")
    return f"links  {up} of {every} up{slowest}", Rows("", heads, lines, texts=2, last=True)


def _heard(ms: float | None) -> str:
    return "never" if ms is None else f"{seconds(ms / 1_000)} ago"


def moves(now: dict[str, Any]) -> Rows:
    """The latest moves, newest first."""
    lines = [
        [
            f"{seconds(row['ago_s'])} ago",
            _moved(row),
            ", ".join(sorted(row["leaders"])),
            row["words"] if row["reason"] is None else f"{row['words']}; refused: {row['reason']}",
        ]
        for row in _together(now["moves"])
    ]
    return Rows("failovers and moves", ("when", "what", "to", "why"), lines[:MOVES], texts=3, last=True)


def _together(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Combines hubs that changed for the same reason at the same time into one row, newest first."""
    rows: list[dict[str, Any]] = []
    for note in reversed(notes):
        row = next(_alike(rows, note), None)
        if row is None:
            row = {**note, "since_s": note["ago_s"], "hubs": Counter(), "leaders": set()}
            rows.append(row)
        row["since_s"] = note["ago_s"]
        row["hubs"][OWN if note["class"].startswith("$") else note["class"]] += 1
        row["leaders"].add(note["leader"] or "-")
    return rows


def _alike(rows: list[dict[str, Any]], note: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in reversed(rows):
        is_hub = row["room"] is None and note["room"] is None
        is_same = all(row[key] == note[key] for key in ("why", "result", "reason"))
        if is_hub and is_same and note["ago_s"] - row["since_s"] <= TOGETHER_S:
            yield row


def _moved(row: dict[str, Any]) -> str:
    if row["room"] is not None:
        return f"room {row['room']}"
    if row["hubs"].total() == 1:
        return f"hub {row['hub']} of {row['class']}"
    parts = sorted(row["hubs"].items(), key=lambda item: (item[0] == OWN, item[0]))
    return "hubs: " + ", ".join(f"{count} of {name}" for name, count in parts)
