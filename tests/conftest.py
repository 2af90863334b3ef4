"""Fixtures and markers for all tests.

- Fixture `node`: a running node with defaults; `@pytest.mark.config(limits=…, classes=…)` takes
  the arguments of `hubsub.testing.Node`. `make_node(…)` starts more of them.
- Fixture `redis_server`: `(host, port)` of a real redis-server, one a session.
- `@pytest.mark.needs("redis-cli", …)`: skips where a program is missing. The fixture `needs`
  does the same inside a test or fixture.

A skip is listed in the last line of the run; with `CI=true` it is a failure, but for `cluster.network.REASON`: no
program that is missing, but a right of the machine.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import failures
import hypothesis
import pytest
from clients import servers
from cluster.network import REASON as NO_NAMESPACES
from spread import pytest_xdist_auto_num_workers, pytest_xdist_make_scheduler

from hubsub.testing import Node

__all__ = ["pytest_xdist_auto_num_workers", "pytest_xdist_make_scheduler"]

# A shell may start background processes with SIGINT ignored, and the programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of nodes: where the environment forbids bytecode, each would compile all of its Python first.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Spark's processes start sooner from there (`scripts/quick_spark.py`).
if Path(sys.prefix, "spark", "jars").is_dir():
    os.environ.setdefault("SPARK_HOME", str(Path(sys.prefix, "spark")))

IN_CI = os.environ.get("CI") == "true"

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_skips: dict[str, int] = {}
_seconds: dict[str, float] = {}
"""By folder: of fixtures and tests, summed over the processes."""


def require(*programs: str) -> None:
    """Skips the test where a program is missing. `hubsub-core` is the compiled core, `zookeeper` Debian's package."""
    for program in programs:
        if program == "hubsub-core":
            there = importlib.util.find_spec("hubsub._core") is not None
        elif program == "zookeeper":
            there = Path("/usr/share/java/zookeeper.jar").exists() and shutil.which("java") is not None
        else:
            there = shutil.which(program) is not None
        if not there:
            pytest.skip(f"needs {program}")


@pytest.fixture(scope="session")
def needs() -> Callable[..., None]:
    """`needs("redis-server")`: goes on, or skips."""
    return require


@pytest.fixture(autouse=True)
def _needs_marker(request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("needs"):
        require(*marker.args)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts nodes with the arguments of `hubsub.testing.Node`; all end with the test, and before its directory is
    removed: a node whose data directory is gone would write its reserve anew."""
    require("hubsub-core")
    with contextlib.ExitStack() as stack:
        yield lambda **kwargs: stack.enter_context(Node(**kwargs))


@pytest.fixture
def node(request: pytest.FixtureRequest, make_node: Callable[..., Node]) -> Node:
    """A running node; the marker `config` sets it."""
    kwargs: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("config"))):
        kwargs |= marker.kwargs
    return make_node(**kwargs)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[tuple[str, int]]:
    """A real redis-server that keeps nothing."""
    require("redis-server")
    with servers.redis_server() as server:
        yield server.host, server.port


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that the tests run in."""
    return Path(__file__).resolve().parent.parent


# -- skips --


def _note_skip(report: Any, nodeid: str) -> None:
    """Keeps the reason of a skip; with `CI=true` it becomes a failure."""
    longrepr = report.longrepr
    text = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
    report.skip_reason = text.removeprefix("Skipped: ")
    if IN_CI and not report.skip_reason.startswith(NO_NAMESPACES):
        report.outcome = "failed"
        report.longrepr = f"{nodeid}: skipped, which CI=true does not allow: {report.skip_reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _note_skip(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    if report.skipped:
        _note_skip(report, collector.nodeid)
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Counts skips and seconds and keeps failures; of several processes, the one that has all reports is asked in the
    end."""
    failures.note(report)
    folder = "/".join(report.nodeid.split("/")[:2])
    _seconds[folder] = _seconds.get(folder, 0.0) + getattr(report, "duration", 0.0)
    if reason := getattr(report, "skip_reason", ""):
        _skips[reason] = _skips.get(reason, 0) + 1


pytest_collectreport = pytest_runtest_logreport


def pytest_terminal_summary(terminalreporter: Any) -> None:
    failures.write()
    folders = sorted(_seconds.items(), key=lambda one: -one[1])
    terminalreporter.write_line(
        "minutes by folder: " + ", ".join(f"{f} {s / 60:.1f}" for f, s in folders if s)
    )
    if not _skips:
        return
    summary = "; ".join(f"{reason} ({count} tests)" for reason, count in sorted(_skips.items()))
    if where := os.environ.get("HUBSUB_SKIPS"):
        Path(where).write_text(summary)
    else:
        terminalreporter.write_line(f"skipped: {summary}")
