"""`hubsub cluster …`: several nodes in one terminal, to try a cluster and its behaviour on failures.

`plan` decides how each node is started. `kept` reads the state of an earlier run. `supervisor` runs the
nodes, `lines` formats the terminal output, and `control` lets a second terminal list, kill and start nodes.
In production each node has its own machine and a service manager.
"""

import asyncio
import os
import secrets
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hubsub.cli.cluster.control import PREFIX, Control, ask
from hubsub.cli.cluster.kept import Kept
from hubsub.cli.cluster.lines import Lines
from hubsub.cli.cluster.plan import NODES_MAX, Plan
from hubsub.cli.cluster.supervisor import Supervisor
from hubsub.cli.common import Json, group, print_rows, say

app = group("Runs several nodes in one terminal; lists, kills and starts them from another.")

COLUMNS = ("name", "redis", "http", "link", "pid")

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Which cluster. Default: the one that was started in this directory."
    ),
]
Name = Annotated[str, typer.Argument(help="Of the node.", show_default=False)]


@app.command("up")
def up(
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="How many.", min=1, max=NODES_MAX)] = 3,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Keeps what the nodes keep, each in a directory of its name; with one that is there they start again, "
            "on the addresses that they had. Default: a new one, removed at the end.",
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            metavar="PORT",
            help="n1: HTTP at PORT, Redis at PORT+1, links at PORT+2, Redis cluster clients at PORT+3, MQTT at "
            "PORT+4, the embedded coordinator at PORT+5, WebSockets at PORT+6; each further node 10 more. 0: free "
            "ports. Default: 3220 to 3224, 1883 and 4000 for n1, 3230 to 3234, 1893 and 4010 for n2, and so on.",
            min=0,
            max=65_535,
        ),
    ] = None,
    shards: Annotated[
        str | None, typer.Option(metavar="N", help="Of each node. Default: the CPUs, shared among the nodes.")
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(
            "--classes",
            "-c",
            metavar="FILE",
            envvar="HUBSUB_CONFIG",
            help="TOML file with classes for all nodes.",
        ),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="URL", help="As of `hubsub serve`. Default: the embedded one.")
    ] = None,
    exit_on_death: Annotated[
        bool, typer.Option("--exit-on-death", help="Ends all, with exit code 1, when one dies.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Starts nodes n1, n2, …; prints a table when all serve. Ctrl-C stops them all; a second Ctrl-C stops them at once.

    Output lines of the nodes go to stderr, each prefixed with the node's name.
    """
    from hubsub.config import load

    # Reports configuration errors once, not once per node.
    secret = os.environ.get("HUBSUB_CLUSTER_SECRET") or secrets.token_hex(32)
    asked = {"data": "-", "link": "127.0.0.1:0", "coordinator": coordinator, "shards": shards}
    load(classes, asked, {"HUBSUB_CLUSTER_SECRET": secret})
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as own:
        where = Path(own) if data is None else data.resolve()
        plan = Plan(
            nodes=nodes,
            directory=where,
            secret=secret,
            base_port=base_port,
            shards=shards,
            config=None if classes is None else classes.resolve(),
            coordinator=coordinator,
        )
        say(f"data: {where}" + (", removed at the end" if data is None else ""))
        code = asyncio.run(_run(plan, Path(own), exit_on_death, as_json))
        if data is None:
            say(f"removed: {where}")
    raise typer.Exit(code)


async def _run(plan: Plan, own: Path, exit_on_death: bool, as_json: bool) -> int:
    lines = Lines(plan.names)
    kept = Kept(plan.directory, plan.names)
    if kept.nodes:
        say(f"starts again, where they were: {', '.join(kept.nodes)}")
    supervisor = Supervisor(
        plan.names, plan.command_for, lines.say, exit_on_death, kept=kept.nodes, on_bound=kept.note
    )

    def on_ready() -> None:
        _print(supervisor.rows(), COLUMNS, as_json)
        say("ctrl-C stops all; `hubsub cluster ps|kill|start` in another terminal, in this directory")

    async with Control(supervisor, own, plan.directory):
        return await supervisor.run(on_ready)


@app.command("ps")
def ps(data: Data = None, as_json: Json = False) -> None:
    """Lists the nodes of a running `hubsub cluster up`, and the exit status of those that have ended."""
    _print(ask(data, {"do": "ps"}), ("name", "state", *COLUMNS[1:]), as_json)


@app.command("kill")
def kill(
    name: Name,
    number: Annotated[
        str,
        typer.Option("--signal", "-s", metavar="SIGNAL", help="KILL, TERM, STOP, CONT, …, or a number."),
    ] = "KILL",
    data: Data = None,
) -> None:
    """Sends a signal to a node, and waits for its end if the signal ends it. STOP and CONT pause and resume it."""
    sent = _signal(number)
    for row in ask(data, {"do": "kill", "name": name, "signal": sent}):
        say(f"{row['name']} (pid {row['pid']}) got {sent.name}: {row['state']}")


@app.command("start")
def start(name: Name, data: Data = None, as_json: Json = False) -> None:
    """Starts a node that has ended, on its old addresses and data, and waits until it serves."""
    _print(ask(data, {"do": "start", "name": name}), COLUMNS, as_json)


def _signal(text: str) -> signal.Signals:
    known = {s.name.removeprefix("SIG"): s for s in signal.Signals} | {str(int(s)): s for s in signal.Signals}
    wanted = known.get(text.upper().removeprefix("SIG"))
    if wanted is None:
        raise typer.BadParameter(f"no such signal: {text!r}", param_hint="--signal")
    return wanted


def _print(rows: list[dict[str, object]], columns: tuple[str, ...], as_json: bool) -> None:
    """Prints nodes as a table, with a column for each further listener that some node has."""
    more = [key for key in ("redis_cluster", "mqtt", "ws") if any(row.get(key) for row in rows)]
    print_rows(rows, (*columns[:-1], *more, columns[-1]), as_json)
