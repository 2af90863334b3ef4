"""Leadership moves while nodes join and leave: clients of the remaining nodes miss no record, subscribers of
rooms get no gap, and each publish counts all subscribers."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

import pytest
from clients.raw import Connection
from clients.servers import until

from cluster.cluster import DEALT, NAMES, Cluster
from cluster.test_deaths import Publishing
from hubsub.testing.rest import hubs_away

pytestmark = pytest.mark.needs("hubsub-core")

ROOMS = [f"{prefix}:over-{number}" for prefix in ("chat", "plain", "busy") for number in range(6)]
"""Rooms with a history, without one, and placed individually."""

AT_LEAST = 3
"""Minimum records of each publisher in each room, before and after each step."""

END = "end"


class Counting(Publishing):
    """Also counts the results of publishes: numbers of receivers, and errors."""

    counts: Counter[object]

    def run(self) -> None:
        self.counts = Counter()
        number = 0
        while not self.ends.is_set():
            for room in self.rooms:
                payload = f"{self.on} {(number := number + 1)}"
                reply = self.client.ask("PUBLISH", room, payload)
                self.counts[reply] += 1
                if isinstance(reply, int):
                    self.taken[room].append(payload)


class Reading(threading.Thread):
    """Reads all that a client is sent, until the last record of each room has arrived."""

    def __init__(self, client: Connection, by_pattern: bool) -> None:
        super().__init__(daemon=True)
        self.client, self.by_pattern = client, by_pattern
        self.got: dict[str, list[str]] = defaultdict(list)
        self.others: list[tuple[int, object]] = []
        """Pushes other than messages, such as gaps, each with the number of messages before it."""

    def run(self) -> None:
        ended: set[str] = set()
        while len(ended) < len(ROOMS):
            frame = self.client.read().plain()
            if not isinstance(frame, list) or frame[0] not in (b"message", b"pmessage"):
                self.others.append((sum(map(len, self.got.values())), frame))
                continue
            # A pattern's name precedes the room's; a position follows the payload.
            room, payload = (part.decode() for part in frame[1 + (frame[0] == b"pmessage") :][:2])
            self.got[room].append(payload)
            if payload == END:
                ended.add(room)


def test_nodes_join_and_leave_and_nobody_misses_a_record(cluster: Cluster) -> None:
    reading: list[Reading] = []
    for name in NAMES:
        rooms, patterns = cluster.connect(name), cluster.connect(name)
        for client in (rooms, patterns):
            client.call("HUBSUB", "POSITIONS", "ON")
        for room in ROOMS:
            rooms.call("SUBSCRIBE", room)
        patterns.call("PSUBSCRIBE", "*:over-*")
        reading += [Reading(rooms, by_pattern=False), Reading(patterns, by_pattern=True)]
    publishing = [Counting(cluster, name, ROOMS) for name in NAMES]
    for thread in [*reading, *publishing]:
        thread.start()
    before = cluster.leaders("a")
    for step in (lambda: cluster.start("d"), lambda: cluster.stop("d")):
        for one in publishing:
            until(one.enough(AT_LEAST))
        step()
        # A logged hub that has a record by then stays and waits for its node.
        until(lambda: not hubs_away(cluster.status("a"), cluster.nodes, DEALT))
        after = cluster.leaders("a")
        assert before != after, "leads have passed on"
        before = after
        for one in publishing:
            until(one.enough(AT_LEAST))
    for one in publishing:
        one.end()
    with cluster.connect("b") as last:
        for room in ROOMS:
            assert last.ask("PUBLISH", room, END) == len(reading)
    for one in publishing:
        assert set(one.counts) == {len(reading)}, (one.on, one.counts)
    for thread in reading:
        thread.join(60)
        assert not thread.is_alive()
        if not thread.by_pattern:
            assert not thread.others, thread.others[:5]
        for room, payloads in thread.got.items():
            wanted = {one.on: one.taken[room] for one in publishing}
            for name, taken in wanted.items():
                own = [payload for payload in payloads if payload.startswith(f"{name} ")]
                assert own == taken, (room, "all, once, in order")
        thread.client.close()
