"""Installed versions, and kernel limits that affect a node."""

import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from hubsub.cli.doctor.finding import Finding

SYSCTLS = (
    ("net.core.somaxconn", 4_096, "bursts of new connections are refused above it"),
    ("fs.nr_open", 1_048_576, "descriptors of one process"),
    ("fs.file-max", 1_048_576, "descriptors of the machine"),
    ("net.ipv4.tcp_max_syn_backlog", 4_096, "bursts of new connections"),
)
"""Name, least value that no clients notice, and the effect of the limit."""

NEVER_OVERCOMMIT = 2
"""Value of vm.overcommit_memory that refuses overcommit."""


def installed() -> Iterator[Finding]:
    """Versions of the package, its core, Python and the kernel."""
    from hubsub.config import cpus
    from hubsub.version import VERSION

    yield Finding("hubsub", "ok", VERSION)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    try:
        from hubsub.node import BUILD_PROFILE, CORE_VERSION
    except ImportError as error:
        yield Finding("core", "bad", str(error), "make build")
    else:
        yield core(CORE_VERSION, BUILD_PROFILE, VERSION)
    yield Finding("cpus", "ok", str(cpus()))


def core(version: str, profile: str, package: str) -> Finding:
    """Checks that the compiled core belongs to this package and is a release build.

    Args:
        version: Version of the core.
        profile: Its build profile.
        package: Version of the package.
    """
    if version != package:
        hint = "install the package again, or `make build`: a core of another version was left beside it"
        return Finding("core", "bad", f"{version}, in a package of {package}", hint)
    if profile == "debug":
        return Finding("core", "note", f"{version}, debug", "make build makes a fast one")
    return Finding("core", "ok", f"{version}, {profile}")


def allowed(system: Path = Path("/")) -> Iterator[Finding]:
    """Limits of this process and of the kernel. Limits that the system does not have are left out.

    Args:
        system: Root directory of /proc and /sys.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield descriptors(soft, hard)
    for name, wanted, doc in SYSCTLS:
        value = _number(system / "proc/sys" / name.replace(".", "/"))
        if value is not None:
            enough = value >= wanted
            hint = "" if enough else f"{doc}; sysctl -w {name}={wanted}"
            yield Finding(name, "ok" if enough else "note", str(value), hint)
    yield from _overcommit(_number(system / "proc/sys/vm/overcommit_memory"))
    yield from _huge_pages(system / "sys/kernel/mm/transparent_hugepage/enabled")


def descriptors(soft: int, hard: int) -> Finding:
    """Checks how many files and connections a node may open. `hubsub serve` raises the soft limit to the hard one."""
    from hubsub.config.limits import LIMIT

    wanted = LIMIT["descriptors_reserved"].default
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    value = f"{soft}, which a node raises to {most}" if soft != hard else most
    if hard == resource.RLIM_INFINITY or hard >= 65_536:
        return Finding("open files", "ok", value)
    reserved = min(wanted, hard // 2)
    fit = max(0, hard - reserved - 64)
    hint = f"about {fit} connections fit beside {reserved} that are reserved; ulimit -n 1048576 allows more"
    return Finding("open files", "note", value, hint)


def _overcommit(value: int | None) -> Iterator[Finding]:
    if value is None:
        return
    strict = value == NEVER_OVERCOMMIT
    hint = "memory is refused before it is used up, and a node that is refused ends; sysctl -w vm.overcommit_memory=0"
    yield Finding("vm.overcommit_memory", "note" if strict else "ok", str(value), hint if strict else "")


def _huge_pages(file: Path) -> Iterator[Finding]:
    try:
        chosen = file.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return
    always = chosen == "always"
    hint = f"the kernel merges pages of every process, which may stall it; echo madvise > {file}"
    yield Finding("huge pages", "note" if always else "ok", chosen, hint if always else "")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
