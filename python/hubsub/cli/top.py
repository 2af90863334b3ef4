"""`hubsub top`: a live view, drawn from the same REST API that anyone can use."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hubsub.cli.common import Api, Url, new_app, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

app = new_app("Shows live what a node does.")

COLUMNS = {
    "clients": "connections",
    "rooms": "rooms",
    "published/s": "published_total",
    "delivered/s": "delivered_total",
    "in B/s": "bytes_in_total",
    "out B/s": "bytes_out_total",
    "pending B": "output_bytes",
    "dropped/s": "dropped_total",
    "slow closed/s": "slow_closed_total",
}
"""Column to the metric of a shard that it shows."""


@app.command()
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Prints one look and ends.")] = False,
    rows: Annotated[int, typer.Option(help="Clients and rooms to show.", min=1, max=100)] = 10,
    url: Url = None,
) -> None:
    """Shows shards, busiest clients and busiest rooms until interrupted."""
    from rich.console import Console
    from rich.live import Live

    api = Api(url)
    if once:
        Console().print(_view(_look(api, rows), None))
        return
    before, view = None, _look(api, rows)
    with Live(_view(view, None), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            before, view = view, _look(api, rows)
            live.update(_view(view, before), refresh=True)


def _look(api: Api, rows: int) -> dict[str, Any]:
    return {
        "at": time.monotonic(),
        "url": api.url,
        "stat": api.get("/s/stat"),
        "clients": api.get("/v1/clients", sort="messages_out_1s", limit=rows)["clients"],
        "rooms": api.get("/v1/busiest", limit=rows)["rooms"],
    }


def _view(now: dict[str, Any], before: dict[str, Any] | None) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stat = now["stat"]
    title = Text(
        f"{stat['name']}  {now['url']}  {stat['version']}  up {stat['uptime_s']:.0f} s", style="bold"
    )
    shards = Table(box=None)
    for column in ("shard", *COLUMNS, "socket", "routing"):
        shards.add_column(column, justify="right")
    for number, counters in enumerate(stat["shards"]):
        # A node that was started anew has counted nothing before.
        is_same = before is not None and before["stat"]["uptime_s"] <= stat["uptime_s"]
        seconds = now["at"] - before["at"] if before is not None and is_same else 0.0
        earlier = before["stat"]["shards"][number] if before is not None and is_same else {}
        shards.add_row(str(number), *_shard(counters, earlier, seconds))
    clients = Table(title="busiest clients", box=None, title_justify="left")
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
    rooms = Table(title="busiest rooms", box=None, title_justify="left")
    rooms.add_column("room")
    rooms.add_column("messages/s", justify="right")
    for room in now["rooms"]:
        rooms.add_row(Text(shown(room["name"])), f"{room['messages_per_second']:.1f}")
    return Group(title, "", shards, "", clients, "", rooms)


def _shard(now: dict[str, int], before: dict[str, int], seconds: float) -> list[str]:
    """The cells of a shard: gauges as they are, counters a second, times as a share of one CPU."""

    def rate(name: str, scale: float = 1.0) -> float | None:
        return (now.get(name, 0) - before.get(name, 0)) / seconds / scale if seconds > 0 else None

    cells = []
    for name in COLUMNS.values():
        value = rate(name) if name.endswith("_total") else now.get(name, 0)
        cells.append("-" if value is None else f"{value:,.0f}")
    for name in ("socket_ns_total", "routing_ns_total"):
        share = rate(name, 1e7)
        cells.append("-" if share is None else f"{share:.0f}%")
    return cells
