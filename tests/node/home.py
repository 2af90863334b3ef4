"""A data directory, and an address, that outlive the nodes on them.

A node is ended by its pid, cleanly or with SIGKILL, and the next one finds what it left. SIGKILL
keeps what the process had handed to the kernel: it tests the order of the process's promises, and
not the disk's.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.servers import Server
from command_line import HUBSUB

from hubsub.config.render import toml
from hubsub.testing import Node

CHAT = {"name": "chat", "match": ["chat:*", "irc:*"], "durability": "durable", "history": {"bytes": "1GiB"}}


class Home:
    """One node at a time, always on the same directory and, from its second start on, the same port."""

    def __init__(
        self, directory: Path, shards: int = 2, config: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """`config`, `options`: as of `hubsub.testing.Node`. Where `redis` is given, each node has that address."""
        self.directory = directory
        self.server: Server
        self._config: dict[str, Any] = {"data": str(directory), "shards": shards, **(config or {})}
        self._keeps_port = "redis" not in self._config
        self._options = {"classes": [CHAT], **options}

    def start(self) -> Server:
        """A node; the one before must have ended."""
        node = Node(config=self._config, **self._options)
        if self._keeps_port:
            self._config["redis"] = node.ready["redis"]
        self.server = Server(*node.redis, node.pid, node)
        return self.server

    def stop(self) -> None:
        """Ends it cleanly."""
        assert self._end(signal.SIGTERM) == 0, self.log

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        assert self._end(signal.SIGKILL) == -signal.SIGKILL, self.log

    def restart(self, kills: bool = False, **options: Any) -> Server:
        """Ends it, cleanly or with SIGKILL, and starts the next one; `options`: those that change."""
        self._options |= options
        self.kill() if kills else self.stop()
        return self.start()

    def start_and_kill(self, after_s: float) -> None:
        """A start that SIGKILL ends so much later, wherever it is by then."""
        file = self.directory.with_suffix(".toml")
        tables = {"limits": dict(self._options.get("limits", {})), "class": list(self._options["classes"])}
        file.write_text(toml({"http": "127.0.0.1:0", **self._config, **tables}))
        command = [*HUBSUB, "serve", "--config", str(file)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            try:
                _, log = process.communicate(timeout=after_s)
                raise AssertionError(f"it ended by itself: {log.decode()}")
            except subprocess.TimeoutExpired:
                process.kill()

    def _end(self, number: int) -> int:
        assert self.server.node
        return self.server.node.stop(number)

    @property
    def log(self) -> str:
        """What the last node has logged."""
        assert self.server.node
        return self.server.node.log


@contextmanager
def home(directory: Path, shards: int = 2, **options: Any) -> Iterator[Home]:
    """A home whose first node runs; the last one is killed, if it still does."""
    one = Home(directory, shards, **options)
    one.start()
    try:
        yield one
    finally:
        one._end(signal.SIGKILL)
