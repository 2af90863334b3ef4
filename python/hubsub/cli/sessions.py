"""`hubsub session …`: over the REST API."""

from typing import Annotated, Any

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say, say_more, segment, shown
from hubsub.errors import NoSuchSessionError

app = group("Lists, shows and ends MQTT sessions that outlive their connections.")

ClientId = Annotated[str, typer.Argument(help="The client id.", show_default=False)]

COLUMNS = ("client_id node client ends_in_s subscriptions unacknowledged queued queued_bytes dropped").split()


@app.command("ls")
def list_sessions(
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    after: Annotated[str | None, typer.Option(help="Sessions behind this client id.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists sessions in order of their client ids, connected or not."""
    rows, more = Api(url).pages("/v1/sessions", "sessions", limit, after)
    print_rows(rows, COLUMNS, as_json)
    say_more(more)


@app.command("show")
def show_session(client_id: ClientId, url: Url = None, as_json: Json = False) -> None:
    """Shows all data of a session."""
    api = Api(url)
    print_fields(api.get(f"/v1/sessions/{segment(client_id)}", node=_home(api, client_id)), as_json)


@app.command("kill")
def kill_session(client_id: ClientId, url: Url = None) -> None:
    """Closes the connection of a session; the session continues."""
    api = Api(url)
    row = _found(api, client_id)
    if row["client"] is None:
        say(f"{shown(client_id)} is not connected")
        return
    api.ask("DELETE", f"/v1/clients/{row['client']}", node=row["node"])
    say(f"closed the connection of {shown(client_id)}")


@app.command("delete")
def delete_session(client_id: ClientId, url: Url = None) -> None:
    """Ends a session, with its connection and all queued messages; its will is published."""
    api = Api(url)
    api.ask("DELETE", f"/v1/sessions/{segment(client_id)}", node=_home(api, client_id))
    say(f"ended {shown(client_id)}")


def _home(api: Api, client_id: str) -> str:
    return str(_found(api, client_id)["node"])


def _found(api: Api, client_id: str) -> dict[str, Any]:
    """A session.

    Raises:
        NoSuchSessionError: there is none under that client id.
    """
    rows = api.get("/v1/sessions", client_id=client_id).rows("sessions")
    if not rows:
        raise NoSuchSessionError(value=client_id)
    return rows[0]
