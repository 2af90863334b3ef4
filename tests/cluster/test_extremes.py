"""Three nodes with data directories survive arbitrary client input, with extreme names and numbers, and start
again with what that left.

Runs a fixed sample of seeds; `EXTREMES_S` continues for that many seconds with further seeds, from
`EXTREMES_SEED` on. A seed determines what each connection sends, but not how the connections interleave.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from clients.raw import TIMEOUT_S, Connection
from clients.servers import until
from command_line import hubsub
from extremes.talks import Batch, Talk, talks

from cluster.cluster import NAMES, Cluster

SAMPLE = 2
"""Number of seeds that always run."""
TALKS = 40
"""Connections that each seed generates."""
AT_ONCE = 8
SEEDS_PER_RESTART = 10
"""After this many seeds one node is killed and starts again, each in turn."""

LEADER_S = 5.0
"""Time that a request may wait for the leader of a hub; the first of a batch has `TIMEOUT_S`."""

GOES_ON_S = float(os.environ.get("EXTREMES_S", 0))

PASSING = ("try again later", "outcome is unknown")
"""Endings of errors that may occur on a busy machine."""

LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}


def shown(batch: Batch) -> str:
    return f"{batch.data[:100]!r}…{batch.data[-100:]!r} of {len(batch.data)} bytes"


class Speaker:
    """A connection that sends a batch and reads at the same time, so that neither side blocks the other."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.setblocking(False)
        self.poll = selectors.DefaultSelector()
        self.poll.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def close(self) -> None:
        self.poll.close()
        self.socket.close()

    def say(self, batch: Batch) -> bool:
        """Sends a batch and reads until it is answered; false: the node closed the connection.

        Raises:
            AssertionError: there was no response in time.
        """
        left, seen, is_answered = memoryview(batch.data), b"", False
        self.poll.modify(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        deadline = time.monotonic() + TIMEOUT_S + LEADER_S * (batch.requests - 1)
        while left or not is_answered:
            assert time.monotonic() < deadline, f"no answer to {shown(batch)}"
            for _, events in self.poll.select(1):
                try:
                    if events & selectors.EVENT_WRITE:
                        left = left[self.socket.send(left) :]
                    if events & selectors.EVENT_READ:
                        data = self.socket.recv(1 << 16)
                        if not data:
                            return False
                        seen = seen[-len(batch.until) :] + data
                        is_answered = is_answered or (bool(batch.until) and batch.until in seen)
                except BlockingIOError:
                    continue
                except (ConnectionResetError, BrokenPipeError):
                    return False
            if not left:
                self.poll.modify(self.socket, selectors.EVENT_READ)
        return True


def addresses(cluster: Cluster, talk: Talk) -> tuple[str, int]:
    """Host and port for a talk."""
    host, port = cluster.nodes[NAMES[talk.node]].ready[talk.listener].rsplit(":", 1)
    return host, int(port)


def hold(cluster: Cluster, talk: Talk) -> None:
    """Sends a talk, until the node closes the connection."""
    speaker = Speaker(addresses(cluster, talk))
    try:
        for batch in talk.batches:
            if not speaker.say(batch):
                return
    finally:
        speaker.close()


def is_taken(connection: Connection, *command: str) -> bool:
    """Whether a publish was accepted; on a busy machine the room may briefly have no leader."""
    answer = connection.call(*command)
    if answer.kind == "-":
        assert answer.value is not None and str(answer.value).rstrip("'").endswith(PASSING), answer
    elif answer.kind == ":":
        assert answer.plain() != 0, "who subscribes is reached"
    return answer.kind != "-"


def is_whole(cluster: Cluster) -> None:
    """Checks that all processes run, none has panicked, and a record of each class gets from each node to
    each other node."""
    for name in NAMES:
        node = cluster.nodes[name]
        assert node.process.poll() is None, f"{name} has ended"
        assert "panicked" not in node.log
    for room in ("chat:whole", "log:whole", "busy:whole", "whole"):
        for name in NAMES:
            with cluster.connect(name) as subscriber, cluster.connect(NAMES[0]) as publisher:
                until(partial(is_taken, subscriber, "SUBSCRIBE", room))
                until(partial(is_taken, publisher, "PUBLISH", room, f"to {name}"))
                assert subscriber.read().plain() == [b"message", room.encode(), f"to {name}".encode()]


def seeds() -> Iterator[int]:
    """The sample, and further seeds as set in the environment."""
    yield from range(SAMPLE)
    first = int(os.environ.get("EXTREMES_SEED", SAMPLE))
    end = time.monotonic() + GOES_ON_S
    for seed in count(first):
        if time.monotonic() > end:
            return
        yield seed


@pytest.mark.timeout(300 + GOES_ON_S)
def test_nothing_that_clients_say_ends_a_node(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    config = LISTENERS | {"log_level": "info"}
    with Cluster(tmp_path, config=config) as cluster, ThreadPoolExecutor(AT_ONCE) as threads:
        for number, seed in enumerate(seeds(), 1):
            held = threads.map(lambda talk: hold(cluster, talk), talks(seed, len(NAMES), TALKS))
            try:
                list(held)
                is_whole(cluster)
                if number % SEEDS_PER_RESTART == 0:
                    name = NAMES[number // SEEDS_PER_RESTART % len(NAMES)]
                    cluster.kill(name)
                    cluster.start(name)
                    cluster.settled()
                    is_whole(cluster)
            except BaseException as error:
                error.add_note(f"in the seed {seed}; data and logs are in {tmp_path}")
                (tmp_path / "logs").write_text(cluster.report())
                raise
        for name in NAMES:
            cluster.kill(name)
        list(threads.map(cluster.start, NAMES))
        cluster.settled()
        is_whole(cluster)
        for name in NAMES:
            assert cluster.stop(name) == 0
    for name in NAMES:
        verified = hubsub("log", "verify", str(tmp_path / name))
        assert verified.returncode == 0, verified.stdout + verified.stderr
