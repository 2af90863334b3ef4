"""`hubsub class …`: over the REST API."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hubsub.cli.common import Answer, Api, Json, Url, group, print_fields, print_rows, say, segment
from hubsub.errors import ConfigError, Problem

WAIT_S = 10.0
"""Time to wait for all nodes, in seconds; healthy nodes take some milliseconds."""

LOOK_S = 0.1

COLUMNS = ("name", "version", "state", "match", "room", "durability", "history", "on_slow", "on_gap")

app = group("Lists and changes room classes.")

Name = Annotated[str, typer.Argument(help="Of a class.", show_default=False)]


@app.command("ls")
def list_classes(url: Url = None, as_json: Json = False) -> None:
    """Lists the classes in order of precedence; the last is the default class. Warns of nodes that lag."""
    answer = Api(url).get("/v1/classes")
    print_rows(answer.rows("classes"), COLUMNS, as_json)
    _say_behind(answer)


@app.command("show")
def show_class(name: Name, url: Url = None, as_json: Json = False) -> None:
    """Shows one room class."""
    print_fields(Api(url).get(f"/v1/classes/{segment(name)}"), as_json)


@app.command("apply")
def apply_classes(
    file: Annotated[
        Path, typer.Argument(help="TOML with classes, such as a configuration.", show_default=False)
    ],
    url: Url = None,
) -> None:
    """Creates or changes the classes of a cluster from a file, on all nodes while they run; other classes stay."""
    from hubsub.config.resolve import read_file

    tables = read_file(file).get("class", [])
    if not isinstance(tables, list) or not tables:
        raise ConfigError([Problem("class", None, "is in it nowhere", "write [[class]]")], file)
    api = Api(url)
    changed = api.ask("POST", "/v1/classes", tables)["changed"]
    if not changed:
        say("nothing to change")
        return
    _wait(api, f"applied: {', '.join(changed)}")


@app.command("rm")
def remove_class(name: Name, url: Url = None) -> None:
    """Stops a class from getting new rooms; its existing rooms remain. `apply` reverts this."""
    api = Api(url)
    api.ask("DELETE", f"/v1/classes/{segment(name)}")
    _wait(api, f"removed: {name}")


def _wait(api: Api, done: str) -> None:
    """Waits until the nodes have taken over the change, and reports how many have."""
    until_s = time.monotonic() + WAIT_S
    answer = api.get("/v1/classes")
    while _behind(answer) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
        answer = api.get("/v1/classes")
    say(f"{done}, on {len(answer.rows('nodes')) - len(_behind(answer))} of {len(answer.rows('nodes'))} nodes")
    _say_behind(answer)


def _behind(answer: Answer) -> list[Any]:
    version = answer["version"]
    return [] if version is None else [row for row in answer.rows("nodes") if row["version"] < version]


def _say_behind(answer: Answer) -> None:
    for row in _behind(answer):
        say(f"node {row['name']} is behind: it has not taken over all changes yet")
