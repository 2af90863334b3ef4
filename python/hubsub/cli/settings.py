"""`hubsub config …`: checks, shows, documents."""

from pathlib import Path
from typing import Annotated

import typer

from hubsub.cli.common import Data, group, print_json, say

app = group("Checks and shows the configuration.")

File = Annotated[
    Path | None, typer.Argument(help="TOML file; default: HUBSUB_CONFIG, else none.", show_default=False)
]


@app.command("check")
def check(file: File = None, data: Data = None) -> None:
    """Reports all errors at once; exit code 2 if there are any. Unknown variables are warnings."""
    import os

    from hubsub.config import load, unknown_variables

    for name, hint in unknown_variables(os.environ):
        say(f"warning: this variable means nothing: {name}" + (f"\nhint: {hint}" if hint else ""))
    config = load(file, {"data": data})
    amounts = (_amount(len(config.classes), "class", "classes"), _amount(config.shards, "shard", "shards"))
    say(f"the configuration is sound: {', '.join(amounts)}")


@app.command("show")
def show(
    file: File = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Prints one JSON object.")] = False,
) -> None:
    """Prints every value with its source, as TOML that reads back."""
    from hubsub.config import load, render

    config = load(file, {"data": data})
    if as_json:
        print_json(render.plain(config))
    else:
        print(render.show(config), end="")


@app.command("reference")
def reference() -> None:
    """Prints the reference page of all keys, as Markdown."""
    from hubsub.config.render import reference as page

    print(page(), end="")


def _amount(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
