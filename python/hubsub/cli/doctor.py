"""`hubsub doctor`: what this machine allows, and the one command that allows more."""

import platform
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer

from hubsub.cli.common import Json, new_app, print_rows

app = new_app("Checks what this machine allows.")


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
def doctor(as_json: Json = False) -> None:
    """Prints one line a check; exit code 1 if one is bad."""
    found = [finding._asdict() for finding in findings()]
    print_rows(found, ("check", "state", "found", "hint"), as_json)
    if any(row["state"] == "bad" for row in found):
        raise typer.Exit(1)


def findings() -> Iterator[Finding]:
    """All checks, in order."""
    from hubsub.config import cpus
    from hubsub.version import VERSION

    yield Finding("hubsub", "ok", VERSION)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield _core()
    yield Finding("cpus", "ok", str(cpus()))
    yield from _descriptors()
    for name, wanted, doc in SYSCTLS:
        yield from _sysctl(name, wanted, doc)
    yield from _ports()


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


def _ports() -> Iterator[Finding]:
    from hubsub.config import LISTENERS, load, split_address
    from hubsub.errors import ConfigError

    try:
        config = load()
    except ConfigError as error:
        yield Finding("configuration", "bad", f"{len(error.problems)} problems", "hubsub config check")
        return
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
