"""`hubsub doctor`: checks the limits of this machine, the configuration, and the running nodes.

One module per subject. Each check is a function of its input, so that a test can pass it bad input.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hubsub.cli.common import Data, Json, Url, new_app, print_rows
from hubsub.cli.doctor.finding import Finding

if TYPE_CHECKING:
    from hubsub.config import Config

app = new_app("Checks what this machine allows, and the nodes that run.")


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file; also HUBSUB_CONFIG.")
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Prints one line per check, with a hint where one is not ok; exit code 1 if one is bad.

    With --url it also checks whether each node of that node's cluster can be reached from here at its
    advertised addresses.
    """
    found = [finding._asdict() for finding in findings(config, data, url)]
    print_rows(found, ("check", "state", "found", "hint"), as_json)
    if any(row["state"] == "bad" for row in found):
        raise typer.Exit(1)


def findings(file: Path | None = None, data: str | None = None, url: str | None = None) -> Iterator[Finding]:
    """All checks, in order.

    Args:
        file: The configuration; default: HUBSUB_CONFIG, else none.
        data: The data directory, if not the configuration's.
        url: URL of a node; default: from the configuration.

    Yields:
        One finding per check.
    """
    from hubsub.cli.doctor.clock import clock, kernel_clock
    from hubsub.cli.doctor.machine import allowed, installed
    from hubsub.cli.doctor.nodes import node

    yield from installed()
    yield from clock(kernel_clock())
    yield from allowed()
    config = yield from _configured(file, data)
    where = url or (f"http://{config.http}" if config is not None and config.http else None)
    if where is not None:
        yield from node(where, is_named=url is not None)


def _configured(file: Path | None, data: str | None) -> "Generator[Finding, None, Config | None]":
    from hubsub.cli.doctor import directory, listeners
    from hubsub.config import load
    from hubsub.errors import ConfigError

    try:
        config = load(file, {"data": data})
    except ConfigError as error:
        found, hint = (
            f"{len(error.problems)} problems",
            f"hubsub config check{'' if file is None else f' {file}'}",
        )
        yield Finding("configuration", "bad", found, hint)
        return None
    if config.data is not None:
        yield from directory.data(config, Path(config.data))
    yield from listeners.listeners(config)
    yield from listeners.advertised(config)
    return config
