"""Nodes join while clients keep subscribing: once a node is ready, a publish on it reaches every subscription
that was confirmed before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from clients.raw import encode
from clients.servers import until

from cluster.cluster import Cluster

pytestmark = pytest.mark.needs("hubsub-core")

FIRM = 25
"""Rooms and patterns that a client subscribes to before a node joins, and the same number while it does."""

FLEETING = 8
"""Short-lived subscriptions of a client at a time."""

PREFIXES = ("chat:", "plain:")
"""Prefixes of rooms with and without a history."""


@pytest.fixture
def one(needs: Callable[..., None], tmp_path: Path) -> Iterator[Cluster]:
    needs("hubsub-core")
    with Cluster(tmp_path, names=("a",)) as cluster:
        yield cluster


class Subscribing(threading.Thread):
    """Subscribes to rooms and patterns until it is stopped. It keeps the `firm` subscriptions, and cancels
    the others."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(daemon=True)
        self.on, self.client = name, cluster.connect(name)
        self.ends = threading.Event()
        self.firm_max = 0
        self.firm: list[tuple[bytes, bytes]] = []
        """Verb and name of confirmed subscriptions."""
        self.got: set[tuple[bytes, ...]] = set()
        """Received messages: kind, pattern (if any), room and payload."""
        self.doubled: list[Any] = []

    def more(self) -> Callable[[], bool]:
        """Requests `FIRM` more subscriptions; the result checks whether they are confirmed."""
        self.firm_max += FIRM
        return lambda: len(self.firm) == self.firm_max

    def gets(self, wanted: set[tuple[bytes, ...]]) -> None:
        """Waits until all of these messages have arrived."""
        try:
            until(lambda: wanted <= self.got)
        except AssertionError:
            missing = sorted(wanted - self.got)
            raise AssertionError(f"missing on {self.on}: {missing}") from None

    def run(self) -> None:
        for number in count():
            if self.ends.is_set():
                self.call("PING")
                return
            prefix = PREFIXES[number % 2]
            verb, name = (
                ("PSUBSCRIBE", f"{prefix}{self.on}-?{number}")
                if number % 5 == 0
                else ("SUBSCRIBE", f"{prefix}{self.on}-r{number}")
            )
            if len(self.firm) < self.firm_max:
                self.call(verb, name)
                self.firm.append((verb.encode(), name.encode()))
            # Add one, and remove the one from `FLEETING` turns ago.
            self.call("SUBSCRIBE", f"{prefix}{self.on}-fleeting-{number}")
            self.call("UNSUBSCRIBE", f"{prefix}{self.on}-fleeting-{number - FLEETING}")

    def call(self, *command: str) -> None:
        """Sends a command, and collects messages until the response arrives."""
        self.client.send(encode(*command))
        while True:
            frame = self.client.read().plain()
            if not isinstance(frame, list):
                assert frame in (b"PONG", b"OK"), frame
                return
            if frame[0] not in (b"message", b"pmessage"):
                assert frame[:2] == [command[0].lower().encode(), command[1].encode()], frame
                return
            # A hub with a log would close this client on a gap in a pattern subscription, which its protocol
            # cannot express.
            if tuple(frame) in self.got:
                self.doubled.append(frame)
            self.got.add(tuple(frame))


def due(firm: list[tuple[bytes, bytes]], rooms: list[bytes], payload: bytes) -> set[tuple[bytes, ...]]:
    """Expected messages of these subscriptions for one record in each of these rooms."""
    rows: set[tuple[bytes, ...]] = set()
    patterns = [name for verb, name in firm if verb == b"PSUBSCRIBE"]
    rows |= {(b"message", name, payload) for verb, name in firm if verb == b"SUBSCRIBE"}
    for room in rooms:
        rows |= {(b"pmessage", p, room, payload) for p in patterns if fnmatch(room.decode(), p.decode())}
    return rows


def test_a_node_that_joins_knows_all_subscriptions_before_it_serves(one: Cluster) -> None:
    subscribing = [Subscribing(one, "a") for _ in range(2)]
    for thread in subscribing:
        thread.start()
    for joins in "bcd":
        for thread in subscribing:
            until(thread.more())
        for thread in subscribing:
            thread.firm_max += FIRM
        one.start(joins)
        # The node is ready, and hubs move to it, while clients continue.
        before = {thread: list(thread.firm) for thread in subscribing}
        rooms = sorted({name.replace(b"?", b"r") for firm in before.values() for _, name in firm})
        with one.connect(joins) as publisher:
            for room in rooms:
                publisher.command("PUBLISH", room, joins)
            refused = [frame for frame in publisher.read_many(len(rooms)) if frame.kind != ":"]
            assert not refused
        for thread, firm in before.items():
            wanted = due(firm, rooms, joins.encode())
            thread.gets(wanted)
        subscribing.append(Subscribing(one, joins))
        subscribing[-1].start()
    for thread in subscribing:
        thread.ends.set()
        thread.join(60)
        assert not thread.is_alive() and not thread.doubled
        thread.client.close()
