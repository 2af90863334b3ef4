"""`hubsub client …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say

app = group("Lists, shows and closes connections.")

Id = Annotated[int, typer.Argument(help="Id of the connection.", show_default=False)]

Node = Annotated[str | None, typer.Option("--node", help="That has it. Default: the one that is asked.")]

FLOWS = ("messages_in", "messages_out", "bytes_in", "bytes_out")

COLUMNS = (
    "id",
    "addr",
    "name",
    "node",
    "age_s",
    "subscriptions",
    "pending_bytes",
    "dropped",
    *(f"{flow}{over}" for over in ("_1s", "_60s", "") for flow in FLOWS),
)
"""What a pipe gets; a terminal as many of these as fit, the column that is sorted by in any case."""


@app.command("ls")
def list_clients(
    sort: Annotated[str, typer.Option(help="By this number, largest first.")] = "messages_out_1s",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists connections, the largest first."""
    answer = Api(url).get("/v1/clients", sort=sort, limit=limit)
    columns = COLUMNS if sort in COLUMNS else (*COLUMNS, sort)
    print_rows(answer.rows("clients"), columns, as_json, keep=sort)


@app.command("show")
def show_client(client: Id, node: Node = None, url: Url = None, as_json: Json = False) -> None:
    """Shows all that is known of a connection."""
    print_fields(Api(url).get(f"/v1/clients/{client}", node=node), as_json)


@app.command("kill")
def kill_client(client: Id, node: Node = None, url: Url = None) -> None:
    """Closes a connection."""
    Api(url).ask("DELETE", f"/v1/clients/{client}", node=node)
    say(f"closed {client}")
