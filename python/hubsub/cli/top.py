"""`hubsub top`: a live view, drawn from the same REST API that anyone can use."""

import time
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
    """Shows shards, busiest clients and busiest rooms until interrupted; to a pipe or file, once."""
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
    with Live(view(before, None, console.width), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            now = _look(api, rows, own)
            live.update(view(now, before, console.width), refresh=True)
            before = now


def _look(api: Api, rows: int, own: bool) -> dict[str, Any]:
    return {
        "at": time.monotonic(),
        "url": api.url,
        "stat": api.get("/s/stat"),
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
    return Group(title, "", shards, "", clients, "", rooms)


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
