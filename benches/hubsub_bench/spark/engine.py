"""Spark as a process on its own cores that answers requests, and its CPU time."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hubsub_bench import BenchError
from hubsub_bench.machine import Cores
from hubsub_bench.pinning import pinned

ANSWER_S = 1_800.0
"""Time limit of a request, in seconds."""
STOP_S = 60.0
TAIL_BYTES = 2_000
"""Length of Spark's output in an error."""


class Engine:
    def __init__(self, process: "subprocess.Popen[str]", said: IO[bytes]) -> None:
        self._process, self._said = process, said

    def ask(self, name: str, **given: Any) -> Any:
        """Requests one measurement; see `measurements.Measurements` for names, arguments and results.

        Raises:
            BenchError: it failed.
        """
        self.tell({"ask": name, **given})
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if readable else ""
        try:
            answer = json.loads(line)
        except ValueError:
            raise BenchError("Spark gave no answer", name, self._tail()) from None
        if "error" in answer:
            raise BenchError(f"Spark could not do what it was asked for: {answer['error']}", name)
        return answer["answer"]

    def tell(self, value: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            print(json.dumps(value), file=self._process.stdin, flush=True)
        except OSError:
            raise BenchError("Spark has ended", None, self._tail()) from None

    def cpu_seconds(self) -> float:
        """CPU that the driver, the JVM and Python's workers have spent so far."""
        return session_seconds(self._process.pid)

    def _tail(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - TAIL_BYTES))
        return self._said.read().decode(errors="replace").strip() or "it said nothing"


@contextmanager
def running(cores: Cores, conf: Mapping[str, str]) -> Iterator[Engine]:
    """Runs Spark on the cores that the server leaves, until the end of the block.

    Raises:
        BenchError: it does not start.
    """
    with tempfile.TemporaryFile() as said:
        with pinned(cores.load):
            process = subprocess.Popen(
                [sys.executable, "-m", "hubsub_bench.spark.program"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,  # All its child processes are found by the session.
            )
        engine = Engine(process, said)
        try:
            engine.tell({"cores": max(1, len(cores.load)), "conf": dict(conf)})
            yield engine
        finally:
            _end(process)


def session_seconds(session: int, proc: Path = Path("/proc")) -> float:
    """CPU seconds of the processes of a session, including its dead ones that were waited for."""
    ticks = 0
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It has just ended.
            if int(fields[3]) == session:
                ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.close()
        process.wait(STOP_S)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
    process.stdout.close()
