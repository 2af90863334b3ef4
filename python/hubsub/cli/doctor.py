"""`hubsub doctor`: what this machine allows, and the one command that allows more; how the node is that runs here."""

import os
import platform
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from hubsub.cli.common import Api, Json, Url, new_app, print_rows

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


SYSCTLS = (
    ("net.core.somaxconn", 4_096, "bursts of new connections are refused above it"),
    ("fs.nr_open", 1_048_576, "descriptors of one process"),
    ("fs.file-max", 1_048_576, "descriptors of the machine"),
    ("net.ipv4.tcp_max_syn_backlog", 4_096, "bursts of new connections"),
)


@app.command()
def doctor(url: Url = None, as_json: Json = False) -> None:
    """Prints one line a check; exit code 1 if one is bad."""
    found = [finding._asdict() for finding in findings(url)]
    print_rows(found, ("check", "state", "found", "hint"), as_json)
    if any(row["state"] == "bad" for row in found):
        raise typer.Exit(1)


def findings(url: str | None = None) -> Iterator[Finding]:
    """All checks, in order. Without `url` a node is looked for where the configuration has it."""
    from hubsub.config import cpus
    from hubsub.version import VERSION

    yield Finding("hubsub", "ok", VERSION)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield _core()
    yield Finding("cpus", "ok", str(cpus()))
    yield from _descriptors()
    for name, wanted, doc in SYSCTLS:
        yield from _sysctl(name, wanted, doc)
    yield from _configured()
    yield from _node(url)


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


def _configured() -> Iterator[Finding]:
    from hubsub.config import load
    from hubsub.errors import ConfigError

    try:
        config = load()
    except ConfigError as error:
        yield Finding("configuration", "bad", f"{len(error.problems)} problems", "hubsub config check")
        return
    if config.data is not None:
        yield _data(config, Path(config.data))
    yield from _ports(config)


def _data(config: "Config", directory: Path) -> Finding:
    """Whether the data directory can be written, and its disk has what the log leaves free."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding("data", "bad", f"{there} cannot be written", "another --data, or its permissions")
    stat = os.statvfs(there)
    free, reserve = stat.f_bavail * stat.f_frsize, config.limits["log_reserve_bytes"]
    kept = directory / "log" / "reserve"
    reserve -= kept.stat().st_size if kept.exists() else 0
    found = f"{directory}, {free >> 20:,} MiB free"
    if any(cls.is_logged for cls in config.classes) and free < reserve:
        hint = (
            f"its log keeps {reserve >> 20:,} MiB for itself (log_reserve_bytes), and refuses records without"
        )
        return Finding("data", "bad", found, hint)
    return Finding("data", "ok", found)


def _node(url: str | None) -> Iterator[Finding]:
    """What a node says of itself; nothing where none runs and none was named."""
    from hubsub.errors import ClientError, ConfigError, HubSubError, LogFailedError

    try:
        api = Api(url)
        ready = api.get("/readyz")
        state, reasons = ready["log"], ready["reasons"]
    except LogFailedError as error:
        yield Finding("node", "bad", error.message, error.hint or "")
    except ConfigError:
        return  # Told above.
    except ClientError as error:  # Nobody answers there, or a stranger.
        if url is not None:
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
