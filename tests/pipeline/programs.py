"""Programs with their own Spark, several at once; the tests of a file check what they left.

The fixtures yield functions that wait for the programs to end. Without the tests that are marked `soak`, programs
leave out what only those check.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import environment

from hubsub import BlockingClient
from hubsub.testing import Node
from pipeline import dying, everywhere

CLASSES = Path(sys.prefix, "spark", "classes.jsa")
"""A class data archive for the JVM, written by `scripts/quick_spark.py`."""
JAVA = "-Xss32m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Tests are too short to gain from Java's second compiler."""
if CLASSES.exists():
    JAVA += f" -XX:SharedArchiveFile={CLASSES}"
CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": JAVA,
    "spark.executor.defaultJavaOptions": JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "OFF",
}
END_S = 240

USERS = 50


def event(kind: str, second: int, user: int) -> dict[str, Any]:
    at = f"2026-03-01T12:00:{second:02}Z"
    return {"kind": kind, "user": f"user-{user}", "room": f"chat:{user % 4}", "ts": at}


EVENTS = [
    event(kind, at, user) for at, kind in enumerate(("join", "message", "leave")) for user in range(USERS)
]
"""The events in rooms `chat:*` for `everywhere.py`."""
NUMBERS = 1_200
"""Number of payloads, themselves numbers, in rooms `chat:*` for `dying.py`."""


class Left(NamedTuple):
    """The output of a program."""

    name: str
    out: str
    directory: Path
    node: Node

    def published(self, *rooms: str) -> list[str]:
        """The current payloads of rooms."""
        with BlockingClient(self.node.redis_url) as client:
            pages = [client.history(room, count=10_000) for room in rooms]
        return [record.payload.decode() for page in pages for record in page.records]


def logged(*match: str) -> dict[str, Any]:
    """A durable class for these patterns."""
    name = re.sub(r"\W.*", "", match[0])
    return {"name": name, "match": [*match], "durability": "durable", "history": {"bytes": "1GiB"}}


Ends = Callable[[], dict[str, Left]]


def soaks(request: pytest.FixtureRequest) -> bool:
    """Whether tests that are marked `soak` may run."""
    return bool(request.config.option.markexpr != "not soak")


@pytest.fixture(scope="session")
def places(
    request: pytest.FixtureRequest, needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ends]:
    """Runs `everywhere.py` per place, `cluster` and `connect`."""
    needs("hubsub-core")
    base = tmp_path_factory.mktemp("places")
    classes = [logged("chat:*"), logged("devices/#"), logged("cluster:*", "connect:*")]
    with Node(classes=classes, config={"data": str(base / "data")}) as node:
        with BlockingClient(node.redis_url) as client:
            client.publish_many((one["room"].encode(), json.dumps(one).encode()) for one in EVENTS)
            client.publish_many((f"devices/{n % 5}/state".encode(), b'{"t": %d}' % n) for n in range(20))
        commands = {}
        for name, master in (("cluster", "local-cluster[2,1,1024]"), ("connect", "sc")):
            conf = CONF | {"spark.sql.warehouse.dir": str(base / name / "warehouse")}
            jobs = everywhere.JOBS if name == "cluster" or soaks(request) else ["archive"]
            where = [node.http_url, str(base / name), f"{name}:", json.dumps(conf), ",".join(jobs)]
            commands[name] = [everywhere.__file__, master, *where]
        with running(commands, node, base, 0) as ends:
            yield ends


@pytest.fixture(scope="session")
def drivers(
    request: pytest.FixtureRequest, needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ends]:
    """Runs `dying.py` per point of its death: `before` and `behind` its commits."""
    needs("hubsub-core")
    base = tmp_path_factory.mktemp("drivers")
    classes = [logged("chat:*"), logged("before:*", "behind:*")]
    with Node(classes=classes, config={"data": str(base / "data")}) as node:
        with BlockingClient(node.redis_url) as client:
            client.publish_many((f"chat:{n % 4}".encode(), str(n).encode()) for n in range(NUMBERS))
        commands = {}
        for where in dying.POINTS if soaks(request) else ["before"]:
            directory = base / where
            conf = CONF | {"spark.sql.warehouse.dir": str(directory / "warehouse")}
            places = [node.http_url, str(directory), f"{where}:", json.dumps(conf)]
            commands[where] = [dying.__file__, where, *places]
        with running(commands, node, base, -signal.SIGKILL) as ends:
            yield ends


@contextlib.contextmanager
def running(commands: dict[str, list[str]], node: Node, base: Path, code: int) -> Iterator[Ends]:
    """Starts programs; yields a function that waits until all have ended with this exit code.

    Args:
        commands: Arguments of each program, by name.
        node: The node that the programs use.
        base: Contains a new directory per program, with its stdout and stderr.
        code: The expected exit code.
    """
    processes = {}
    for name, command in commands.items():
        (base / name).mkdir()
        with (base / name / "stdout").open("w") as out, (base / name / "stderr").open("w") as err:
            processes[name] = subprocess.Popen(
                [sys.executable, *command], stdout=out, stderr=err, env=environment(), start_new_session=True
            )

    @functools.cache
    def ends() -> dict[str, Left]:
        left = {}
        for name, process in processes.items():
            process.wait(END_S)
            said = (base / name / "stderr").read_text()
            assert process.returncode == code, f"{name}: {said[-6_000:]}"
            left[name] = Left(name, (base / name / "stdout").read_text(), base / name, node)
        return left

    try:
        yield ends
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # Includes its JVM and any server that it started.
            process.wait()
