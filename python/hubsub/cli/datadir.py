"""`hubsub log …`: the log in a data directory that no node uses.

A directory is either the one given to `hubsub serve --data`, or the log directory in it. `verify` and `show`
change nothing; `repair` changes nothing either without `--accept-loss`.
"""

import base64
import contextlib
import datetime
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hubsub.cli.common import Json, group, print_fields, print_json, print_rows, say, shown
from hubsub.errors import DataDirectoryError
from hubsub.names import bytes_of, text_of

if TYPE_CHECKING:
    from hubsub.node.status import LogRecord, Manifest, Repaired, VerifiedHub

app = group("Verifies, shows and repairs the log of a node that does not run.")

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="What --data was given, or the log in it.", show_default=False)
]

PROGRESS_BYTES = 256 << 20
"""Larger logs show a progress bar on a terminal."""


@app.command("verify")
def verify(directory: Directory, as_json: Json = False) -> None:
    """Reads and verifies every record. Exit code 1 if any is missing or damaged."""
    from hubsub.node import log_verify

    log = log_of(directory)
    with core_errors(directory), progress_bar() as progress:
        found = log_verify(log, progress)
    if as_json:
        print_json(found)
    else:
        _print_hubs(found["hubs"])
        for problem in found["problems"]:
            print(f"problem: {shown(problem)}")
        if found["problems"]:
            say(f"hint: `hubsub log repair {directory}` says what can be kept")
    if found["problems"]:
        raise typer.Exit(1)


@app.command("show")
def show(
    directory: Directory,
    hub: Annotated[int | None, typer.Option(help="Records of this hub.", min=1)] = None,
    room: Annotated[str | None, typer.Option(help="Records of this room.")] = None,
    first: Annotated[int, typer.Option("--from", metavar="OFFSET", help="From this offset on.", min=0)] = 0,
    count: Annotated[int | None, typer.Option("--count", "-n", help="At most so many.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Shows the contents of the log; with --hub or --room its records, oldest first, one per line.

    Exit code 1 if some cannot be read.
    """
    from hubsub.node import log_manifest, log_show

    log = log_of(directory)
    if hub is None and room is None:
        if first or count is not None:
            raise typer.BadParameter("--from and --count go with --hub or --room")
        with core_errors(directory):
            manifest = log_manifest(log)
        _print_manifest(log, manifest, as_json)
        return

    def take(records: "list[LogRecord]") -> None:
        for record in records:
            if as_json:
                print_json(_as_json(record))
            else:
                print(_as_line(record))

    with core_errors(directory):
        unread = log_show(log, hub, None if room is None else bytes_of(room), first, count, take)
    for problem in unread:
        say(f"problem: {shown(problem)}")
    if unread:
        raise typer.Exit(1)


@app.command("repair")
def repair(
    directory: Directory,
    hub: Annotated[int | None, typer.Option(help="Only this hub.", min=1)] = None,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Does it; else it only says.")] = False,
    as_json: Json = False,
) -> None:
    """Brings damaged hubs back into service with every record that verifies.

    The rooms of a hub with lost records begin new epochs, so that no position is mapped over the loss.
    Damaged files are renamed to *.damaged, never deleted. Exit code 1 if any problem is, or remains,
    unrepaired.
    """
    from hubsub.node import log_repair
    from hubsub.node.incarnation import set_damaged_aside

    # With --hub only that hub is changed.
    data = directory.parent if (directory / "manifest.json").exists() else directory
    aside = set_damaged_aside(data, accept_loss) if hub is None else None
    if aside is not None:
        # On stderr: stdout has the changes to the log.
        say(f"{data / 'incarnation'} is damaged: it {'became' if accept_loss else 'becomes'} {aside.name}")
        if not has_log(directory):
            if not accept_loss:
                say("nothing was changed; --accept-loss does it")
                raise typer.Exit(1)
            return
    log = log_of(directory)
    with core_errors(directory), progress_bar() as progress:
        done = log_repair(log, hub, accept_loss, progress)
    if as_json:
        print_json(done)
    else:
        _print_repair(done, hub)
    if done["left"] or (done["problems"] and not done["done"]) or (aside is not None and not accept_loss):
        raise typer.Exit(1)


def log_of(directory: Path) -> Path:
    """Directory of the log in a data directory, or that directory itself.

    Raises:
        DataDirectoryError: there is no log.
    """
    for log in (directory, directory / "log"):
        if _is_log(log):
            return log
    if not directory.is_dir():
        raise DataDirectoryError("there is no such directory", directory)
    raise DataDirectoryError("the directory has no log", directory, "give what --data of the node was given")


def has_log(directory: Path) -> bool:
    return _is_log(directory) or _is_log(directory / "log")


def _is_log(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("manifest.json", "hubs", "journal"))


@contextlib.contextmanager
def core_errors(directory: Path) -> Iterator[None]:
    """Turns the core's errors about a directory into errors for people."""
    from hubsub.node import log_problem

    try:
        yield
    except OSError as error:
        if error.errno:  # An error of our own output.
            raise
        raise DataDirectoryError(*log_problem(error, directory)) from None


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int], object] | None]:
    """Shows on a terminal how much of a large log has been read; yields None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    with Progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", visible=False)

        def look(done: int, whole: int) -> None:
            bar.update(task, completed=done, total=whole, visible=whole >= PROGRESS_BYTES)

        yield look


# -- output for people --


def _print_hubs(hubs: "Sequence[VerifiedHub]") -> None:
    rows = [{**row, "records": row["records"] + row["journal_records"]} for row in hubs]
    print_rows(rows, ("hub", "class", "segments", "records", "bytes", "earliest", "next"), False)


def _print_manifest(log: Path, manifest: "Manifest", as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    fields = {name: value for name, value in manifest.items() if name != "hubs"}
    print_fields({"log": log, **fields, "journals": _range(*manifest["journals"])}, False)
    for hub in manifest["hubs"]:
        print()
        print_fields({**hub, "lost": "; ".join(_range(*pair) for pair in hub["lost"]) or None}, False)


def _print_repair(done: "Repaired", hub: int | None) -> None:
    for problem in done["problems"]:
        print(f"problem: {shown(problem)}")
    if not done["problems"]:
        print("nothing is wrong, nothing was done")
        return
    if hub is not None and not done["hubs"]:
        say(f"hub {hub} has nothing to repair, nothing was done; what is wrong is elsewhere, see above")
        return
    if done["manifest"] is not None:
        print(f"the manifest is made again: {shown(done['manifest'])}")
    for plan in done["hubs"]:
        print(f"\nhub {plan['hub']} ({shown(plan['class'])})")
        print(f"  keeps {plan['kept']} records, {plan['kept_from_journals']} of them from journals")
        for pair in plan["lost"]:
            print(f"  loses offset{'s' if pair[0] < pair[1] else ''} {_range(*pair)}")
        if plan["unknown_from"] is not None:
            print(f"  may lose more from offset {plan['unknown_from']} on, nobody can tell how many")
        for path in plan["set_aside"]:
            print(f"  {path} becomes {path.rpartition('/')[2]}.damaged")
        print(f"  goes on with offset {plan['next']}, its rooms with new epochs")
    print()
    if done["done"]:
        for problem in done["left"]:
            print(f"still wrong: {shown(problem)}")
        if not done["left"]:
            print("done, and verified: the log is whole")
    else:
        say("nothing was changed; --accept-loss does it")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _as_json(record: Mapping[str, Any]) -> dict[str, Any]:
    payload = record["payload"]
    text = _text(payload)
    return {
        **record,
        "position": f"{record['epoch']}-{record['seq']}",
        "room": text_of(record["room"]),
        "topic": text_of(record["topic"]),
        "payload": text,
        "payload_base64": None if text is not None else base64.b64encode(payload).decode(),
    }


def _as_line(record: Mapping[str, Any]) -> str:
    """`offset  time  room  topic  position  publisher  producer/sequence  headers  payload`."""
    seconds, micros = divmod(record["timestamp_us"], 1_000_000)
    try:
        at = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=micros)
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # The timestamp is outside the calendar.
        time = f"{record['timestamp_us']}us"
    text = _text(record["payload"])
    if record["kind"] != "message":
        text = f"({record['kind']})"
    elif text is None:
        text = f"base64:{base64.b64encode(record['payload']).decode()}"
    fields = (
        f"{record['hub']}/{record['offset']}",
        time,
        text_of(record["room"]),
        text_of(record["topic"]),
        f"{record['epoch']}-{record['seq']}",
        record["publisher"] or "-",
        "-" if record["producer"] is None else f"{record['producer']}/{record['sequence']}",
        dict(record["headers"]),
        text,
    )
    return "  ".join(shown(field) for field in fields)


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
