"""A node that a test controls as a cluster does: the test assigns hubs to it while it runs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.raw import Connection

from hubsub.config import split_address
from hubsub.errors import StartError
from hubsub.testing.forks import Process, start
from node.home import CHAT

PROGRAM = Path(__file__).with_name("given_node.py")


class Given:
    """A running node. Its calls are those of `hubsub.node.Node`, and `offsets`, which reads a stream of a
    hub's records."""

    def __init__(
        self,
        data: Path,
        cluster: tuple[str, bool] | None = ("red", False),
        shards: int = 3,
        limits: Mapping[str, Any] | None = None,
        classes: Sequence[Mapping[str, Any]] = (CHAT,),
        command: Sequence[str] = (),
    ) -> None:
        """Starts the node.

        Args:
            data: The data directory.
            cluster: The cluster's id, and whether hubs that the node numbered are its own; None without a
                cluster.
            shards: Number of shards.
            limits: Limits that differ from the defaults.
            classes: Room classes.
            command: A command that runs the program, such as one that enters a namespace.

        Raises:
            StartError: The node did not start.
        """
        config = {"data": str(data), "shards": shards, "redis": "127.0.0.1:0", "limits": dict(limits or {})}
        options = {"config": config | {"class": [dict(row) for row in classes]}, "cluster": cluster}
        self._numbers = itertools.count()
        self._early: dict[int, dict[str, Any]] = {}
        self.process: Process
        if command:
            run = [*command, sys.executable, str(PROGRAM), json.dumps(options)]
            self.process = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        else:
            self.process = start(str(PROGRAM), [json.dumps(options)], 2, os.environ)
        self.pid = self.process.pid
        self._addresses = self._read()
        if "error" in self._addresses:
            self.end()
            raise StartError(self._addresses["error"])

    def connect(self) -> Connection:
        return Connection(*split_address(self._addresses["redis"]))

    def ask(self, call: str, *args: Any) -> int:
        """Sends a call and returns its number for `answer`."""
        number = next(self._numbers)
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"n": number, "call": call, "args": args}).encode() + b"\n")
        self.process.stdin.flush()
        return number

    def answer(self, number: int) -> dict[str, Any]:
        """The response to a call: `answer`, or `code` and `message`."""
        while number not in self._early:
            answer = self._read()
            self._early[answer["n"]] = answer
        return self._early.pop(number)

    def call(self, call: str, *args: Any) -> Any:
        answer = self.answer(self.ask(call, *args))
        assert "answer" in answer, answer
        return answer["answer"]

    def refused(self, call: str, *args: Any) -> tuple[str, str]:
        """Code and message of a call that must fail."""
        answer = self.answer(self.ask(call, *args))
        return answer["code"], answer["message"]

    def hubs(self) -> dict[int, dict[str, Any]]:
        """The log's entry of each hub, by hub id."""
        return {hub["id"]: hub for hub in self.call("log")["hubs"]}

    def end(self, number: int | None = None) -> int:
        """Ends the node, by a signal or by closing its input; returns its exit code."""
        assert self.process.stdin and self.process.stdout
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the node has ended: {self.process.wait(60)}"
        read: dict[str, Any] = json.loads(line)
        return read


@contextmanager
def given(*args: Any, **kwargs: Any) -> Iterator[Given]:
    """A node that is killed at the end if it still runs."""
    node = Given(*args, **kwargs)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.end(signal.SIGKILL)
