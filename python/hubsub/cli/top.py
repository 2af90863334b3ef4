"""`hubsub top`: a live view, drawn from the same REST API that anyone can use."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hubsub.cli.common import Api, Url, fitting, new_app, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

app = new_app("Shows live what a node does.")

COLUMNS = {
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
"""Column to the metric of a shard that it shows, the most useful first: a narrow terminal shows those."""

WIDTH_UNBOUNDED = 1_000
"""Of what is no terminal."""


@app.command()
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Prints one interval and ends.")] = False,
    rows: Annotated[int, typer.Option(help="Clients and rooms to show.", min=1, max=100)] = 10,
    own: Annotated[bool, typer.Option("--own", help="Also the node's own rooms: $….")] = False,
    url: Url = None,
) -> None:
    """Shows nodes, shards, busiest clients and busiest rooms until `q` is pressed; to a pipe or file, once."""
    from rich.console import Console
    from rich.live import Live

    api, console = Api(url), Console()
    before = _look(api, rows, own)
    if once or not console.is_terminal:
        # Rates need two looks.
        time.sleep(interval)
        if not console.is_terminal:
            console = Console(width=WIDTH_UNBOUNDED)
        console.print(view(_look(api, rows, own), before, console.width))
        return
    live = Live(view(before, None, console.width), console=console, screen=True, auto_refresh=False)
    with _waits() as ends, live:
        while not ends(interval):
            now = _look(api, rows, own)
            live.update(view(now, before, console.width), refresh=True)
            before = now


@contextmanager
def _waits() -> Iterator[Callable[[float], bool]]:
    """Gives what waits for so many seconds, or until `q` is pressed: whether it was."""

    def without_keys(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    if not sys.stdin.isatty():
        yield without_keys
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()

    def with_keys(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([keyboard], [], [], left)[0]:
                keys = os.read(keyboard, 64)
                if not keys or b"q" in keys.lower():
                    return True
        return False

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield with_keys
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _look(api: Api, rows: int, own: bool) -> dict[str, Any]:
    return {
        "at": time.monotonic(),
        "url": api.url,
        "stat": api.get("/s/stat"),
        "nodes": api.get("/v1/console/now").rows("nodes"),
        "clients": api.get("/v1/clients", sort="messages_out_1s", limit=rows).rows("clients"),
        "rooms": api.get("/v1/busiest", limit=rows, own="true" if own else None).rows("rooms"),
    }


def view(now: dict[str, Any], before: dict[str, Any] | None, width: int) -> "RenderableType":
    """Two looks as tables, with those columns of the shards that fit into the width."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stat = now["stat"]
    title = Text(
        f"{stat['name']}  {now['url']}  {stat['version']}  up {stat['uptime_s']:.0f} s", style="bold"
    )
    heads = ("shard", *COLUMNS)
    lines = []
    for number, counters in enumerate(stat["shards"]):
        # A node that was started anew has counted nothing before.
        is_same = before is not None and before["stat"]["uptime_s"] <= stat["uptime_s"]
        seconds = now["at"] - before["at"] if before is not None and is_same else 0.0
        earlier = before["stat"]["shards"][number] if before is not None and is_same else {}
        lines.append([str(number), *_shard(counters, earlier, seconds)])
    widths = [max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads))]
    columns = fitting(widths, width)
    shards = Table(box=None, pad_edge=False)
    for i in columns:
        shards.add_column(heads[i], justify="right", no_wrap=True)
    for line in lines:
        shards.add_row(*(line[i] for i in columns))
    nodes = _nodes(now, before, width)
    clients = Table(title="busiest clients", box=None, pad_edge=False, title_justify="left")
    for column in ("id", "addr", "name", "in/s", "out/s", "pending", "dropped"):
        clients.add_column(column, justify="left" if column in ("addr", "name") else "right")
    for c in now["clients"]:
        values = (
            c["id"],
            c["addr"],
            c["name"],
            c["messages_in_1s"],
            c["messages_out_1s"],
            c["pending_bytes"],
            c["dropped"],
        )
        clients.add_row(*(Text(shown(v)) for v in values))
    rooms = Table(title="busiest rooms", box=None, pad_edge=False, title_justify="left")
    rooms.add_column("room")
    rooms.add_column("messages/s", justify="right")
    for room in now["rooms"]:
        rooms.add_row(Text(shown(room["name"])), f"{room['messages_per_second']:.1f}")
    return Group(title, "", *nodes, shards, "", clients, "", rooms)


NODE_COLUMNS = (
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


def _nodes(now: dict[str, Any], before: dict[str, Any] | None, width: int) -> list["RenderableType"]:
    """The nodes of a cluster and what is wrong with them; nothing of a node alone that is well."""
    from rich.table import Table
    from rich.text import Text

    rows, earlier = now["nodes"], {n["name"]: n for n in (before or now)["nodes"]}
    troubles = [Text(f"{n['name']}: {why}", style="bold red") for n in rows for why in n["reasons"]]
    if len(rows) < 2:
        return [*troubles, ""] if troubles else []
    lines = [[shown(n["name"]), *_node(n, earlier.get(n["name"]))] for n in rows]
    heads = ("node", *NODE_COLUMNS)
    widths = [max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads))]
    table, columns = Table(box=None, pad_edge=False), fitting(widths, width)
    for i in columns:
        table.add_column(heads[i], justify="left" if i < 2 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(line[i]) for i in columns))
    return [table, *troubles, ""]


def _node(now: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """The cells of a node; rates are of one life of it."""
    counts, rates = now["counts"], ["-", "-", "-"]
    is_same = before is not None and before["incarnation"] == now["incarnation"]
    if before is not None and is_same and (seconds := now["uptime_s"] - before["uptime_s"]) > 0:
        published, delivered = (
            (counts[name] - before["counts"][name]) / seconds
            for name in ("published_total", "delivered_total")
        )
        cpu = (now["cpu_s"] - before["cpu_s"]) / seconds
        rates = [f"{published:,.0f}", f"{delivered:,.0f}", f"{cpu:.0%}"]
    hubs_led, resident = now["hubs_led"], now["resident_bytes"]
    return [
        now["state"],
        "-" if hubs_led is None else str(hubs_led),
        f"{counts['connections']:,}",
        *rates,
        "-" if resident is None else f"{resident / 2**20:,.0f}",
        f"{counts['rooms']:,}",
        f"{now['uptime_s']:.0f}",
    ]


def _shard(now: dict[str, int], before: dict[str, int], seconds: float) -> list[str]:
    """The cells of a shard: gauges as they are, counters a second, times as a share of one CPU."""

    cells = []
    for name in COLUMNS.values():
        if not name.endswith("_total"):
            cells.append(f"{now.get(name, 0):,}")
        elif seconds <= 0:
            cells.append("-")
        else:
            rate = (now.get(name, 0) - before.get(name, 0)) / seconds
            cells.append(f"{rate / 1e7:.0f}%" if name.endswith("_ns_total") else f"{rate:,.0f}")
    return cells
