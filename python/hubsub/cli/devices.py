"""`hubsub device …`: over the REST API."""

from typing import Annotated

import typer

from hubsub.cli.common import Api, Json, Url, group, print_fields, print_rows, say, say_more, segment, shown
from hubsub.errors import OptionError

app = group("Lists and shows devices; gives them something to do, and says what became of it.")

Device = Annotated[str, typer.Argument(help="Name of the device.", show_default=False)]
Class = Annotated[
    str | None,
    typer.Option("--class", metavar="NAME", help="Of this class. Default: the first that has devices."),
]


@app.command("ls")
def list_devices(
    prefix: Annotated[str | None, typer.Argument(help="Names that begin so.", show_default=False)] = None,
    connected: Annotated[
        bool | None, typer.Option("--connected/--absent", help="Those that are, or those that are not.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    after: Annotated[str | None, typer.Option(help="Devices behind this one.")] = None,
    room_class: Class = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists devices that have published their state."""
    query: dict[str, object] = {"prefix": prefix, "class": room_class}
    if connected is not None:
        query["connected"] = str(connected).lower()
    rows, more = Api(url).pages("/v1/devices", "devices", limit, after, **query)
    for row in rows:
        connection = row["connection"] or {}
        row |= {key: connection.get(key) for key in ("node", "client", "connected_s")}
    print_rows(rows, ("id", "node", "client", "connected_s", "room", "position"), as_json)
    say_more(more)


@app.command("show")
def show_device(device: Device, room_class: Class = None, url: Url = None, as_json: Json = False) -> None:
    """Shows whether a device is connected, and its last state."""
    print_fields(Api(url).get(f"/v1/devices/{segment(device)}", **{"class": room_class}), as_json)


@app.command("act")
def act(
    device: Device,
    action: Annotated[str, typer.Argument(help="What it is to do.", show_default=False)],
    payload: Annotated[str, typer.Argument(help="More of it.")] = "",
    expiry: Annotated[
        str,
        typer.Option(
            "--expiry", metavar="TIME", help="How long it may wait, such as 30s, 2h or 7d; or never."
        ),
    ] = "1d",
    room_class: Class = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Sends a device an action, which waits until the device is back."""
    order = {"name": action, "payload": payload, "expiry_s": _seconds(expiry)}
    path = f"/v1/devices/{segment(device)}/actions"
    answer = Api(url).ask("POST", path, order, **{"class": room_class})
    print_fields(answer, as_json)
    if answer["seen"] is False:
        say(f"no such device has been seen yet: {shown(device)}; the action waits for one to come")


@app.command("actions")
def list_actions(
    device: Device,
    state: Annotated[
        str | None, typer.Option(help="Those in this state: queued, delivered, acknowledged, expired.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many, the latest.", min=1)] = 50,
    room_class: Class = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Lists a device's actions and their progress."""
    path = f"/v1/devices/{segment(device)}/actions"
    answer = Api(url).get(path, state=state, limit=limit, **{"class": room_class})
    rows = answer.rows("actions")
    for row in rows:
        answered = row["answer"] or {}
        row["said"] = answered.get("payload") or answered.get("payload_base64")
    print_rows(rows, ("id", "name", "state", "payload", "said", "position"), as_json)
    if not answer["is_whole"]:
        say("older ones were not looked at: the room remembers more than one answer of its history may have")


def _seconds(text: str) -> int | None:
    """Whole seconds, at least one; None for `never`."""
    from hubsub.config.kinds import Bad, parse_duration

    if text == "never":
        return None
    try:
        return max(1, -(-parse_duration(text) // 1_000))
    except Bad as bad:
        raise OptionError(f"--expiry {bad.reason}", text, bad.hint) from None
