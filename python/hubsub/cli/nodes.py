"""`hubsub node …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, segment

app = group("Lists and shows nodes.")


@app.command("ls")
def list_nodes(url: Url = None, as_json: Json = False) -> None:
    """Lists the nodes."""
    print_rows(
        Api(url).get("/v1/nodes").rows("nodes"),
        ("name", "redis", "http", "shards", "version", "uptime_s"),
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
        print_fields(api.get("/v1/nodes").rows("nodes", least=1)[0], as_json)
    else:
        print_fields(api.get(f"/v1/nodes/{segment(node)}"), as_json)
