"""`hubsub top`: a live view of a node and its cluster, based on the same REST API that anyone can use.

This module polls. `view` combines the parts of `cluster` and `queries` into the `tables` that fit.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from hubsub.cli.common import Api, Url, new_app
from hubsub.cli.top.view import view
from hubsub.errors import NoClusterError, NoControllerError

app = new_app("Shows live what a node does.")

WIDTH_UNBOUNDED = 1_000
"""Width for output that is not a terminal."""


@app.command()
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Prints one interval and ends.")] = False,
    rows: Annotated[int, typer.Option(help="Clients and rooms to show.", min=1, max=100)] = 10,
    own: Annotated[bool, typer.Option("--own", help="Also the node's own rooms: $….")] = False,
    url: Url = None,
) -> None:
    """Shows a node and its cluster until `q` is pressed; to a pipe or file, once.

    Shows nodes, hubs, busiest rooms and clients, links, failovers and moves, queries of data pipelines, and
    the shards of the asked node. A low terminal shows only the first of these.
    """
    from rich.console import Console
    from rich.live import Live

    api, console = Api(url), Console()
    before = _look(api, rows, own)
    if once or not console.is_terminal:
        # Rates need two samples.
        time.sleep(interval)
        if not console.is_terminal:
            console = Console(width=WIDTH_UNBOUNDED)
        console.print(view(_look(api, rows, own), before, console.width))
        return
    live = Live(view(before, None, *console.size), console=console, screen=True, auto_refresh=False)
    with _waits() as ends, live:
        while not ends(interval):
            now = _look(api, rows, own)
            live.update(view(now, before, *console.size), refresh=True)
            before = now


@contextmanager
def _waits() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits for some seconds, or until `q` is pressed. It returns whether `q` was pressed."""

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
    queries = api.get("/v1/queries")
    return {
        "at": time.monotonic(),
        "url": api.url,
        "stat": api.get("/s/stat"),
        "nodes": api.get("/v1/console/now").rows("nodes"),
        "clients": api.get("/v1/clients", sort="messages_out_1s", limit=rows).rows("clients"),
        "rooms": api.get("/v1/busiest", limit=rows, own="true" if own else None).rows("rooms"),
        "queries": queries.rows("queries"),
        "blocked": queries.rows("blocked"),
        **_cluster(api),
    }


def _cluster(api: Api) -> dict[str, Any]:
    """The part of a sample that only a cluster has."""
    try:
        seen = api.get("/v1/cluster")
    except NoClusterError:
        return {"members": {}, "hubs": [], "moves": [], "wrong": []}
    try:
        moves = api.get("/v1/moves").rows("moves")
    except NoControllerError:  # There is no controller now.
        moves = []
    counted = seen["voters"] or {"nodes": []}
    members = dict.fromkeys(map(str, counted["nodes"]), "not registered")
    members |= {str(node["name"]): str(node["state"]) for node in seen.rows("nodes")}
    return {"members": members, "hubs": seen.rows("hubs"), "moves": moves, "wrong": seen["wrong"]}
