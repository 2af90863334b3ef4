"""A node for tests: a separate process on ports from the operating system.

```python
from hubsub.testing import Node

with Node(classes=[{"name": "chat", "match": ["chat:*"], "history": {"messages": 100}}]) as node:
    print(node.redis_url, node.http_url)
```
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hubsub.config import split_address
from hubsub.config.render import toml
from hubsub.errors import StartError
from hubsub.testing.forks import Process, start

READY_S = 30.0
"""Time limit of a start, in seconds."""
STOP_S = 30.0


class Node:
    """A running `hubsub serve`; starts in the constructor and ends with `stop()`, or with the process that created it.

    Args:
        classes: `[[class]]` tables.
        limits: `[limits]` by name.
        config: More top-level keys; they override the node's defaults here.
        args: More arguments for `hubsub serve`.
        env: More environment variables.
        command: Command that runs the program; default: this Python's `hubsub`. Another one is not ended when
            this process dies without `stop()`.

    Raises:
        StartError: it ended, or printed nothing, before it was ready; the message has its log.
    """

    def __init__(
        self,
        *,
        classes: Sequence[Mapping[str, Any]] = (),
        limits: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        table: dict[str, Any] = {"redis": "127.0.0.1:0", "http": "127.0.0.1:0", "shards": 2, **(config or {})}
        if limits:
            table["limits"] = dict(limits)
        if classes:
            table["class"] = [dict(row) for row in classes]
        self._directory = tempfile.TemporaryDirectory(prefix="hubsub-node-")
        self.directory = Path(self._directory.name)
        """Removed at the end."""
        self.config_file = self.directory / "hubsub.toml"
        self.config_file.write_text(toml(table))
        self.log_file = self.directory / "log"
        self._log_kept = ""
        """The log after the end."""
        self.process = self._start(command, ["serve", "--config", str(self.config_file), *args], env)
        try:
            self.ready = self._wait_ready()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def _start(
        self, command: Sequence[str] | None, args: Sequence[str], env: Mapping[str, str] | None
    ) -> Process:
        """Starts the process. The end of its input informs the node that this process is gone."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("HUBSUB_")} | dict(env or {})
        pipe = subprocess.PIPE
        with open(self.log_file, "wb") as log:
            if command is None:
                return start("hubsub.testing", args, log.fileno(), environ, fresh=env is not None)
            try:
                return subprocess.Popen([*command, *args], stdin=pipe, stdout=pipe, stderr=log, env=environ)
            except OSError as error:
                self._directory.cleanup()
                raise StartError(f"the node's program cannot be run ({error.strerror})", command[0]) from None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def redis(self) -> tuple[str, int]:
        return split_address(self.ready["redis"])

    @property
    def redis_cluster(self) -> tuple[str, int]:
        """Host and port for Redis cluster clients, if that listener is on."""
        return split_address(self.ready["redis_cluster"])

    @property
    def mqtt(self) -> tuple[str, int]:
        """Host and port for MQTT clients, if that listener is on."""
        return split_address(self.ready["mqtt"])

    @property
    def ws(self) -> tuple[str, int]:
        """Host and port for WebSockets, if that listener is on."""
        return split_address(self.ready["ws"])

    @property
    def redis_url(self) -> str:
        return f"redis://{self.ready['redis']}"

    @property
    def http_url(self) -> str:
        return f"http://{self.ready['http']}"

    @property
    def log(self) -> str:
        """The node's log; available even after its end."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else self._log_kept

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its log as events: JSON lines, the default format for files."""
        lines = self.log.splitlines(keepends=True)
        # The last line may be incomplete.
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Ends the process and waits for it; may be called more than once.

        Returns:
            Its exit code; negative: minus the signal that ended it.
        """
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self._log_kept = self.log
        self._directory.cleanup()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_ready(self) -> dict[str, Any]:
        """Reads the ready line without waiting longer than `READY_S`."""
        assert self.process.stdout is not None, "it is a pipe"
        fd, line, until = self.process.stdout.fileno(), b"", time.monotonic() + READY_S
        poll = select.poll()  # select() takes no descriptor above 1023, which a test of many connections has.
        poll.register(fd, select.POLLIN)
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            readable = left > 0 and poll.poll(left * 1_000)
            data = os.read(fd, 65_536) if readable else b""
            if not data:
                what = (
                    "the node said nothing in time" if not readable else "the node ended before it was ready"
                )
                raise StartError(what, self.log[-4_000:].strip() or "no log")
            line += data
        try:
            ready: dict[str, Any] = json.loads(line)
        except ValueError:
            raise StartError("the node printed no ready line", line[:200]) from None
        return ready
