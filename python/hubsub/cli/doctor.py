"""`hubsub doctor`: what this machine allows, and the one command that allows more; how the node is that runs here."""

import os
import platform
import resource
import socket
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hubsub.cli.common import Api, Data, Json, Url, new_app, print_rows

if TYPE_CHECKING:
    from hubsub.config import Config

app = new_app("Checks what this machine allows, and the node that runs on it.")


class Finding(NamedTuple):
    """One thing looked at."""

    check: str
    state: str
    """`ok`, `note` (works, with a bound worth knowing) or `bad`."""
    found: str
    hint: str = ""


START_BYTES = 1 << 20
"""What a log keeps beside its reserve, for a start on a full disk."""

SYSCTLS = (
    ("net.core.somaxconn", 4_096, "bursts of new connections are refused above it"),
    ("fs.nr_open", 1_048_576, "descriptors of one process"),
    ("fs.file-max", 1_048_576, "descriptors of the machine"),
    ("net.ipv4.tcp_max_syn_backlog", 4_096, "bursts of new connections"),
)


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file; also HUBSUB_CONFIG.")
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Prints one line a check; exit code 1 if one is bad."""
    found = [finding._asdict() for finding in findings(config, data, url)]
    print_rows(found, ("check", "state", "found", "hint"), as_json)
    if any(row["state"] == "bad" for row in found):
        raise typer.Exit(1)


def findings(file: Path | None = None, data: str | None = None, url: str | None = None) -> Iterator[Finding]:
    """All checks, in order.

    Args:
        file: The configuration; default: HUBSUB_CONFIG, else none.
        data: The data directory, if not the configuration's.
        url: Of a node; default: where the configuration has it.
    """
    from hubsub.config import cpus
    from hubsub.version import VERSION

    yield Finding("hubsub", "ok", VERSION)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield _core()
    yield Finding("cpus", "ok", str(cpus()))
    yield from _descriptors()
    for name, wanted, doc in SYSCTLS:
        yield from _sysctl(name, wanted, doc)
    config = yield from _configured(file, data)
    where = url or (f"http://{config.http}" if config is not None and config.http else None)
    if where is not None:
        yield from _node(where, is_named=url is not None)


def _core() -> Finding:
    try:
        from hubsub.node import BUILD_PROFILE, CORE_VERSION
    except ImportError as error:
        return Finding("core", "bad", str(error), "make build")
    if BUILD_PROFILE == "debug":
        return Finding("core", "note", f"{CORE_VERSION}, debug", "make build makes a fast one")
    return Finding("core", "ok", f"{CORE_VERSION}, {BUILD_PROFILE}")


def _descriptors() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = "ok" if soft >= 65_536 else "note"
    hint = (
        "" if state == "ok" else f"about {max(0, soft - 64)} connections fit; ulimit -n 1048576 allows more"
    )
    yield Finding("open files", state, f"{soft}, up to {hard}", hint)


def _sysctl(name: str, wanted: int, doc: str) -> Iterator[Finding]:
    try:
        value = int(Path("/proc/sys", *name.split(".")).read_text())
    except (OSError, ValueError):
        return
    enough = value >= wanted
    yield Finding(
        name, "ok" if enough else "note", str(value), "" if enough else f"{doc}; sysctl -w {name}={wanted}"
    )


def _configured(file: Path | None, data: str | None) -> "Generator[Finding, None, Config | None]":
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
        yield _data(config, Path(config.data))
    yield from _ports(config)
    return config


def _data(config: "Config", directory: Path) -> Finding:
    """Whether the data directory can be written, and its disk has what the log takes at once."""
    hint = "another --data, or its permissions"
    try:
        there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            return Finding("data", "bad", f"{there} cannot be written", hint)
        disk = os.statvfs(there)
        missing = _missing(directory / "log", config.limits)
    except OSError as error:
        return Finding("data", "bad", f"{error.filename} cannot be read ({error.strerror})", hint)
    free = disk.f_bavail * disk.f_frsize
    found = f"{directory}, {free >> 20:,} MiB free"
    if any(cls.is_logged for cls in config.classes) and free < sum(missing.values()):
        parts = " and ".join(f"{size >> 20:,} MiB for {what}" for what, size in missing.items() if size)
        return Finding("data", "bad", found, f"its log still needs {parts}; without, it refuses records")
    return Finding("data", "ok", found)


def _missing(log: Path, limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes that a log takes beside its records and has not yet, by what they are for."""
    reserve, journals = log / "reserve", log / "journal"
    has = reserve.stat().st_size if reserve.exists() else 0
    written = sum(file.stat().st_size for file in journals.iterdir()) if journals.exists() else 0
    kept = limits["log_reserve_bytes"]
    # The one that is written, the next, and the one behind that. Later ones take their places.
    return {
        "its reserve (log_reserve_bytes and 1 MiB)": max(0, kept + START_BYTES - has) if kept else 0,
        "its journals (3 × log_journal_bytes)": max(0, 3 * limits["log_journal_bytes"] - written),
    }


def _node(url: str, is_named: bool) -> Iterator[Finding]:
    """What a node says of itself; nothing where none runs and none was named."""
    from hubsub.errors import ClientError, HubSubError, LogFailedError

    try:
        api = Api(url)
        ready = api.get("/readyz")
        state, reasons = ready["log"], ready["reasons"]
    except LogFailedError as error:
        yield Finding("node", "bad", error.message, error.hint or "")
    except ClientError as error:  # Nobody answers there, or a stranger.
        if is_named:
            yield Finding("node", "bad", error.message, error.hint or "")
    except HubSubError as error:
        yield Finding("node", "note", error.message, error.hint or "")
    else:
        found = f"{api.url} serves, its log: {state}"
        hint = "; ".join(map(str, reasons))
        yield Finding("node", "bad" if reasons else "ok", found, hint)


def _ports(config: "Config") -> Iterator[Finding]:
    from hubsub.config import LISTENERS, split_address

    for name in LISTENERS:
        address = getattr(config, name)
        if address is None:
            continue
        host, port = split_address(address)
        if port == 0:
            continue
        try:
            info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            with socket.socket(info[0], info[1]) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(info[4])
            yield Finding(f"{name} listener", "ok", f"{address} is free")
        except OSError as error:
            yield Finding(
                f"{name} listener",
                "note",
                f"{address}: {error.strerror}",
                "a node runs there, or another program",
            )
