"""A data directory and an address that outlive the nodes that use them.

A test ends a node by its pid, cleanly or with SIGKILL, and the next node finds the data that it left. After
SIGKILL the data that the process had passed to the kernel remains: this tests the order of the process's
writes and promises, not the disk.
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
    """Runs one node at a time, always on the same directory and, from its second start on, the same port."""

    def __init__(
        self, directory: Path, shards: int = 2, config: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """No node runs until `start`.

        Args:
            directory: The data directory.
            shards: Number of shards.
            config: As for `hubsub.testing.Node`. With `redis`, each node has that address.
            options: As for `hubsub.testing.Node`.
        """
        self.directory = directory
        self.server: Server
        self._config: dict[str, Any] = {"data": str(directory), "shards": shards, **(config or {})}
        self._keeps_port = "redis" not in self._config
        self._options = {"classes": [CHAT], **options}

    def start(self) -> Server:
        """Starts a node; the previous one must have ended."""
        node = Node(config=self._config, **self._options)
        if self._keeps_port:
            self._config["redis"] = node.ready["redis"]
        self.server = Server(*node.redis, node.pid, node)
        return self.server

    def stop(self) -> None:
        """Ends the node cleanly."""
        assert self._end(signal.SIGTERM) == 0, self.log

    def kill(self) -> None:
        """Ends the node with SIGKILL."""
        assert self._end(signal.SIGKILL) == -signal.SIGKILL, self.log

    def restart(self, kills: bool = False, **options: Any) -> Server:
        """Ends the node, cleanly or with SIGKILL, and starts the next one with changed `options`."""
        self._options |= options
        self.kill() if kills else self.stop()
        return self.start()

    def start_and_kill(self, after_s: float) -> None:
        """Starts a node and kills it with SIGKILL after `after_s` seconds, however far its start is."""
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
        """The log output of the last node."""
        assert self.server.node
        return self.server.node.log


@contextmanager
def home(directory: Path, shards: int = 2, **options: Any) -> Iterator[Home]:
    """A home whose first node runs; at the end the last node is killed if it still runs."""
    one = Home(directory, shards, **options)
    one.start()
    try:
        yield one
    finally:
        one._end(signal.SIGKILL)
