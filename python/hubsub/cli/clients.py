"""`hubsub client …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say
from hubsub.errors import NoSuchClientError, OptionError

app = group("Lists, shows and closes connections.")

Id = Annotated[int | None, typer.Argument(help="Id of the connection.", show_default=False)]

ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="In place of that: the client id of MQTT.")
]

Node = Annotated[str | None, typer.Option("--node", help="That has it. Default: the one that is asked.")]

FLOWS = ("messages_in", "messages_out", "bytes_in", "bytes_out")

COLUMNS = (
    "id",
    "addr",
    "name",
    "node",
    "age_s",
    "protocol",
    "subscriptions",
    "pending_bytes",
    "inflight",
    "waiting",
    "dropped",
    *(f"{flow}{over}" for over in ("_1s", "_60s", "") for flow in FLOWS),
)
"""Columns for a pipe. A terminal gets as many as fit, always including the sort column."""


@app.command("ls")
def list_clients(
    sort: Annotated[str, typer.Option(help="By this number, largest first.")] = "messages_out_1s",
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="ID", help="With this client id of MQTT.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists connections, the largest first."""
    answer = Api(url).get("/v1/clients", sort=sort, limit=limit, client_id=client_id)
    columns = COLUMNS if sort in COLUMNS else (*COLUMNS, sort)
    print_rows(answer.rows("clients"), columns, as_json, keep=sort)


@app.command("show")
def show_client(
    client: Id = None, client_id: ClientId = None, node: Node = None, url: Url = None, as_json: Json = False
) -> None:
    """Shows all data of a connection."""
    api = Api(url)
    client, node = _found(api, client, client_id, node)
    print_fields(api.get(f"/v1/clients/{client}", node=node), as_json)


@app.command("kill")
def kill_client(client: Id = None, client_id: ClientId = None, node: Node = None, url: Url = None) -> None:
    """Closes a client's connection."""
    api = Api(url)
    client, node = _found(api, client, client_id, node)
    api.ask("DELETE", f"/v1/clients/{client}", node=node)
    say(f"closed {client}")


def _found(api: Api, client: int | None, client_id: str | None, node: str | None) -> tuple[int, str | None]:
    """Id and node of the selected connection.

    Raises:
        OptionError: it is named twice, or not at all.
        NoSuchClientError: no client with that client id is connected.
    """
    if (client is None) == (client_id is None):
        raise OptionError("a client is named by the id of its connection, or by --client-id")
    if client is not None:
        return client, node
    rows = api.get("/v1/clients", client_id=client_id).rows("clients")
    if not rows:
        raise NoSuchClientError("no client is connected under this client id", client_id)
    return rows[0]["id"], rows[0]["node"]
