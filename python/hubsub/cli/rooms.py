"""`hubsub room …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import (
    Api,
    Json,
    Url,
    group,
    print_fields,
    print_json,
    print_rows,
    say,
    say_more,
    segment,
    shown,
)
from hubsub.errors import OptionError

app = group("Lists, shows, creates, moves and deletes rooms; reads their history.")

Room = Annotated[str, typer.Argument(help="Name of the room.", show_default=False)]


@app.command("ls")
def list_rooms(
    match: Annotated[str | None, typer.Argument(help="Redis glob over names.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    after: Annotated[str | None, typer.Option(help="Names behind this one.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Also the node's own rooms: $….")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists rooms in order of name."""
    asked = {"match": match, "own": "true" if own else None}
    rows, more = Api(url).pages("/v1/rooms", "rooms", limit, after, **asked)
    print_rows(rows, ("name", "class", "subscribers", "seq", "history", "idle_ms", "shard"), as_json)
    say_more(more)


@app.command("show")
def show_room(room: Room, url: Url = None, as_json: Json = False) -> None:
    """Shows a room and the nodes that serve it."""
    print_fields(Api(url).get(f"/v1/rooms/{segment(room)}"), as_json)


@app.command("presence")
def show_presence(room: Room, url: Url = None, as_json: Json = False) -> None:
    """Lists the members of a room, on all nodes."""
    answer = Api(url).get(f"/v1/rooms/{segment(room)}/presence")
    rows = answer.rows("members")
    print_rows(rows, ("key", "meta", "ref"), as_json)
    if answer["count"] > len(rows):
        say(f"{answer['count']} are there, {len(rows)} are listed")


@app.command("occupancy")
def show_occupancy(room: Room, url: Url = None, as_json: Json = False) -> None:
    """Shows the number of subscribers, publishers and members of a room, on all nodes."""
    print_fields(Api(url).get(f"/v1/rooms/{segment(room)}/occupancy"), as_json)


@app.command("create")
def create_room(room: Room, url: Url = None, as_json: Json = False) -> None:
    """Creates a room whose class has a history."""
    print_fields(Api(url).ask("PUT", f"/v1/rooms/{segment(room)}"), as_json)


@app.command("delete")
def delete_room(room: Room, url: Url = None) -> None:
    """Deletes a room without subscribers, with its history."""
    Api(url).ask("DELETE", f"/v1/rooms/{segment(room)}")
    say(f"deleted {shown(room)}")


@app.command("move")
def move_room(
    room: Room,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NODE|HUB", help="A node, or a hub by name (CLASS-INDEX) or id."),
    ] = None,
    back: Annotated[bool, typer.Option("--back", help="To where its class's ring has it.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Moves a room of an ephemeral class to another hub, where it begins a new epoch."""
    if (to is None) != back:
        raise OptionError("a room is moved somewhere: --to NODE|HUB, or --back")
    answer = Api(url).ask("POST", f"/v1/rooms/{segment(room)}/move", {"to": to})
    print_fields(answer, as_json)


@app.command("history")
def history(
    room: Room,
    count: Annotated[int, typer.Option("--count", "-n", help="At most so many records.", min=1)] = 100,
    after: Annotated[str | None, typer.Option(metavar="EPOCH-SEQ", help="Behind this position.")] = None,
    topic: Annotated[str | None, typer.Option(help="Of this topic only.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Prints the history of a room, oldest first."""
    api, path = Api(url), f"/v1/rooms/{segment(room)}"
    answer = api.get(f"{path}/history", count=count, after=after, topic=topic)
    if not answer["recovered"]:
        say("the position is of another life of the room, or what came behind it was removed")
        raise typer.Exit(1)
    records = answer.rows("records")
    if not records:
        api.get(path)  # Raises for a room that does not exist, as `show` does.
        say("there are no records" if after is None and topic is None else "there are no such records")
    for record in records:
        if as_json:
            print_json(record)
        else:
            text = record["payload"]
            payload = f"base64:{record['payload_base64']}" if text is None else text
            print(f"{record['position']}  {shown(record['topic'])}: {shown(payload)}")
