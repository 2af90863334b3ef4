"""`hubsub demo …`: demonstrations. `generate` prints data, `chat` runs a cluster with a chat page.

`generator` creates the data and `talk` a conversation from it; `page` serves the page in `static`; `chat`
runs it all.
"""

import json
from typing import Annotated, Any

import typer

from hubsub.cli.common import Json, group
from hubsub.cli.demo.generator import events, reports
from hubsub.config.kinds import Bad, parse_duration

__all__ = ["app", "events", "reports"]

app = group("Makes data to try things with; runs a chat in a cluster.")


@app.command("generate")
def generate(
    count: Annotated[int, typer.Option("--events", help="Number of events.", min=0)] = 1_000,
    rooms: Annotated[int, typer.Option(help="Number of rooms.", min=1)] = 100,
    users: Annotated[int, typer.Option(help="Number of users.", min=1)] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 1,
    devices: Annotated[
        int | None, typer.Option(help="So many devices that report, instead of people in rooms.", min=1)
    ] = None,
) -> None:
    """Prints a chat log as JSON lines of `topic` and `payload`, as input for `hubsub pub --from -`."""
    if devices is None:
        for event in events(count, rooms, users, seed):
            _line(event["room"], event)
    else:
        for report in reports(count, devices, seed):
            _line(f"devices/{report['device']}/state", report)


@app.command("chat")
def chat(
    pace: Annotated[
        float,
        typer.Option(help="How fast people talk: 1 as people do, 10 ten times as fast, 0 not at all.", min=0),
    ] = 1.0,
    ends_after: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Ends all after so long (90s, 10m). Default: at ctrl-C."),
    ] = None,
    opens: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Opens page and console. Default: where there is a display."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Starts a cluster of three nodes and a chat page with simulated users.

    Prints the addresses of the page and the consoles. `hubsub cluster ps|kill|start` in another terminal, in
    the same directory, controls its nodes.
    """
    from hubsub.cli.demo.chat import run

    try:
        seconds = None if ends_after is None else parse_duration(ends_after) / 1_000
    except Bad as bad:
        raise typer.BadParameter(str(bad), param_hint="--for") from None
    raise typer.Exit(run(pace, seconds, opens, as_json))


def _line(topic: str, payload: dict[str, Any]) -> None:
    print(json.dumps({"topic": topic, "payload": payload}, ensure_ascii=False, separators=(",", ":")))
