"""The command line. Data goes to stdout, everything else to stderr.

Each command lives in a module of its own, imported only when it is called, so that `hubsub --help` answers at
once. Exit codes: 0 done, 1 failed, 2 used or configured wrongly, 130 ended by Ctrl-C (SIGINT), 143 by
SIGTERM. A script can thus distinguish "-n records received" from "interrupted". `serve` alone ends with 0 on these
signals, as they are the normal way to stop a server; with 1 if its log had failed.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

BENCH = "hubsub_bench"
"""The module of a package of its own."""

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("hubsub.cli.serve", "Runs a node."),
    "pub": ("hubsub.cli.pub", "Publishes records."),
    "sub": ("hubsub.cli.sub", "Prints the records of topics as they come."),
    "room": ("hubsub.cli.rooms", "Lists, shows, creates and deletes rooms; reads their history."),
    "client": ("hubsub.cli.clients", "Lists, shows and closes connections."),
    "session": ("hubsub.cli.sessions", "Lists, shows and ends MQTT sessions that outlive their connections."),
    "retained": ("hubsub.cli.retained", "Lists, shows and removes what topics keep for later subscribers."),
    "device": ("hubsub.cli.devices", "Lists and shows devices; gives them something to do."),
    "consumer": ("hubsub.cli.consumers", "Lists, shows and deletes named consumers."),
    "hub": ("hubsub.cli.hubs", "Lists and shows hubs that have a log."),
    "query": ("hubsub.cli.queries", "Lists queries of data pipelines; gives up a batch that is blocked."),
    "cluster": ("hubsub.cli.cluster", "Runs several nodes in one terminal, to try a cluster."),
    "node": ("hubsub.cli.nodes", "Lists and shows nodes."),
    "class": ("hubsub.cli.classes", "Lists and changes room classes."),
    "trace": ("hubsub.cli.trace", "Follows the next records of a topic, step by step."),
    "top": ("hubsub.cli.top", "Shows live what a node does."),
    "bench": (f"{BENCH}.cli", "Measures a node, and others against it (package hubsub-bench)."),
    "pipeline": ("hubsub.pipeline.cli", "Runs jobs on Spark: archive, activity, devices, sessions, replay."),
    "doctor": ("hubsub.cli.doctor", "Checks what this machine allows."),
    "log": ("hubsub.cli.datadir", "Verifies, shows and repairs the log of a node that does not run."),
    "config": ("hubsub.cli.settings", "Checks and shows the configuration."),
    "demo": ("hubsub.cli.demo", "Makes data to try things with."),
}
"""Command name to its module, whose `app` is a Typer, and its description."""


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding lacks are shown as escapes.
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGINT, signal.SIGTERM):
        # Signals that are ignored at the start, as with nohup, stay ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    with friendly():
        _run(sys.argv[1:])
    sys.exit(0)


def _end(number: int, _frame: object) -> NoReturn:
    """Exits at once; the exit handlers release open resources."""
    sys.exit(128 + number)


def _run(args: list[str]) -> None:
    if not args or args[0] in ("--help", "-h", "help"):
        print(usage())
        sys.exit(0 if args else 2)
    if args[0] in ("--version", "version"):
        from hubsub.version import VERSION

        print(f"hubsub {VERSION}")
        return
    if args[0] not in COMMANDS:
        close = get_close_matches(args[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "hubsub --help lists all commands"
        print(f"error: no such command: {args[0]}\nhint: {hint}", file=sys.stderr)
        sys.exit(2)
    try:
        app = import_module(COMMANDS[args[0]][0]).app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != BENCH:
            raise
        print(
            "error: the benchmark is not installed: hubsub-bench\nhint: make bench, in a checkout",
            file=sys.stderr,
        )
        sys.exit(1)
    app(args=args[1:], prog_name=f"hubsub {args[0]}")


def usage() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {doc}" for name, (_, doc) in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: hubsub COMMAND [OPTIONS]…",
            "",
            "A pub/sub server for rooms, and the tools around it.",
            "",
            "Commands:",
            *lines,
            "",
            "Options:",
            "  --version  Prints the version.",
            "  --help     Prints this; `hubsub COMMAND --help` says more of a command.",
            "",
            "Exit codes:",
            "  0 done, 1 failed, 2 used or configured wrongly, 130 ended by Ctrl-C, 143 ended by SIGTERM.",
            "  `serve` ends with 0 when it is told to stop, with 1 if its log had failed.",
        ]
    )


@contextlib.contextmanager
def friendly() -> Iterator[None]:
    """Shows errors as sentences, with an exit code, instead of tracebacks."""
    from hubsub.errors import ConfigError, HubSubError, OptionError

    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # Flush here, where an error can still be reported.
    except (ConfigError, OptionError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except HubSubError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        # No message if the reader of our output is gone.
        if not isinstance(error, BrokenPipeError):
            name = "" if error.filename is None else f": {error.filename}"
            print(f"error: {error.strerror or error}{name}", file=sys.stderr)
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
