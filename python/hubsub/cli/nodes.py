"""`hubsub node …`: over the REST API."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, segment

app = group("Lists and shows nodes.")


@app.command("ls")
def list_nodes(url: Url = None, as_json: Json = False) -> None:
    """Lists the nodes."""
    print_rows(
        Api(url).get("/v1/nodes").rows("nodes"),
        ("name", "state", "redis", "http", "role", "zone", "hubs_led", "shards", "version", "uptime_s"),
        as_json,
    )


@app.command("show")
def show_node(
    node: Annotated[str | None, typer.Argument(help="Its name; default: the one asked.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Shows a node."""
    api = Api(url)
    if node is None:
        _print(api.get("/v1/nodes").rows("nodes", least=1)[0], as_json)
    else:
        _print(api.get(f"/v1/nodes/{segment(node)}"), as_json)


def _print(row: Mapping[str, Any], as_json: bool) -> None:
    print_fields(row if as_json else {**row, "peers": [_peer(peer) for peer in row["peers"]]}, as_json)


def _peer(peer: Mapping[str, Any]) -> str:
    """Its links in a few words."""
    states = Counter(link["state"] for link in peer["links"])
    return f"{peer['node']}: " + ", ".join(f"{count} {state}" for state, count in states.items())
