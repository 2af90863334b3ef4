"""The benchmark's cluster rows against a fake cluster: the reports match the events."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hubsub.control.cluster.failover import hub_name
from hubsub.control.cluster.hub_ring import Place, assign
from hubsub_bench import BenchError
from hubsub_bench.cluster import failover, forward
from hubsub_bench.cluster.cli import _sizes
from hubsub_bench.cluster.hubsub import is_at_rest
from hubsub_bench.cluster.places import place
from hubsub_bench.cluster.rows import Asked
from hubsub_bench.cluster.subject import Frames, Member

NAMES = ("n1", "n2", "n3")
WAITS = 5
"""Publishes that reach no subscriber after a death."""


class Handler(socketserver.StreamRequestHandler):
    """A connection to a node of a `Played`: publishes go to the subscribers of all nodes."""

    server: Node

    def handle(self) -> None:
        cluster = self.server.cluster
        while words := self._command():
            match words:
                case [b"PUBLISH", room, payload]:
                    cluster.publish(room, payload)
                    self._say(b":0\r\n")
                case [b"SUBSCRIBE", room]:
                    with cluster.lock:
                        self._say(b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(room), room))
                        cluster.subscribers.append((self.server.name, self))
                case [b"HUBSUB", b"POSITIONS", b"ON"]:
                    self._say(b"+OK\r\n")
                case _:
                    self._say(b"-ERR no such command\r\n")

    def deliver(self, room: bytes, payload: bytes, position: bytes) -> None:
        parts = (b"message", room, payload, position)
        self._say(b"*4\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))

    def _say(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
        except OSError:
            return

    def _command(self) -> list[bytes]:
        try:
            head = self.rfile.readline()
            sizes = range(int(head[1:])) if head else range(0)
            return [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in sizes]
        except OSError:
            return []


class Node(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, name: str, cluster: Played) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.cluster = name, cluster
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


class Played:
    """Three nodes, which lead the rooms in turn: the first leads room 0, the second room 1, and so on."""

    version, build_profile = "played", ""

    def __init__(self, never: int | None = None, other_owner: int | None = None) -> None:
        self.lock = threading.Lock()
        self.nodes = {name: Node(name, self) for name in NAMES}
        self.subscribers: list[tuple[str, Handler]] = []
        self.living = set(NAMES)
        self.epoch = 1
        self.waits = 0
        self.kills: list[tuple[str, str | None]] = []
        self.never = never
        """The kill after which nothing is delivered any more."""
        self.other_owner = other_owner
        """The kill of a node that no longer led the room."""
        self.sent = 0

    def publish(self, room: bytes, payload: bytes) -> None:
        with self.lock:
            if self.waits > 0:
                self.waits -= 1
                return
            self.sent += 1
            for _, subscriber in self.subscribers:
                subscriber.deliver(room, payload, b"%d-7" % self.epoch)

    def members(self) -> Sequence[Member]:
        return [
            Member(name, f"127.0.0.1:{self.nodes[name].server_address[1]}", 1, [])
            for name in NAMES
            if name in self.living
        ]

    def places(self, numbers: Collection[int]) -> dict[int, str]:
        return {number: NAMES[number % 3] for number in numbers}

    def frames(self, name: str) -> Frames:
        return Frames(self.sent, 0)

    def controller(self) -> str | None:
        return "n2" if "n2" in self.living else "n1"

    def kill(self, name: str) -> float:
        with self.lock:
            self.kills.append((name, self.controller()))
            is_last = self.never == len(self.kills) - 1
            self.living.discard(name)
            self.subscribers = [row for row in self.subscribers if row[0] in self.living]
            if self.other_owner != len(self.kills) - 1:
                self.waits = 10**9 if is_last else WAITS
                self.epoch += 1
        return time.monotonic()

    def evidence(self, room: str) -> Mapping[str, Any]:
        return {"silent": room}

    def start(self, name: str) -> None:
        with self.lock:
            self.living.add(name)
            self.waits = 0

    def close(self) -> None:
        for node in self.nodes.values():
            node.shutdown()
            node.server_close()


class Target:
    name, verb, is_forwarding, has_failover = "played", "publish", True, True

    def __init__(self, never: int | None = None, other_owner: int | None = None) -> None:
        self.never, self.other_owner = never, other_owner
        self.cluster: Played

    @contextmanager
    def running(self, nodes: int, directory: Path) -> Iterator[Played]:
        self.cluster = Played(self.never, self.other_owner)
        try:
            yield self.cluster
        finally:
            self.cluster.close()


def asked(directory: Path, kills: int = 6) -> Asked:
    return Asked(nodes=(1, 3), seconds=0.1, kills=kills, rate=10.0, directory=directory)


def test_every_third_kill_is_the_controllers_and_all_deliver_again(tmp_path: Path) -> None:
    target, run = Target(), asked(tmp_path)
    figures = failover.measure(target, run)
    assert [name == controller for name, controller in target.cluster.kills] == [False, False, True] * 2
    assert {name for name, _ in target.cluster.kills} == set(NAMES)
    assert (figures[failover.KILLS], figures[failover.NEVER]) == (6.0, 0.0)
    found = [report["seconds"] * 1e3 for report in run.reports]
    assert figures[failover.MAX] == max(found) == figures[failover.P99]
    assert figures[failover.CONTROLLER_P50] == min(found[2], found[5]) and run.complaints == []


def test_a_room_that_stays_silent_is_counted_and_does_not_stop_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "LIMIT_S", 0.3)
    run = asked(tmp_path, kills=3)
    figures = failover.measure(Target(never=1), run)
    assert (figures[failover.KILLS], figures[failover.NEVER]) == (3.0, 1.0)
    assert [report["seconds"] is None for report in run.reports] == [False, True, False]
    silent = run.reports[1]
    assert silent["seen"] == {"silent": silent["room"]} and silent["room"].startswith("room:")
    assert silent["heard"].keys() <= {"message of 2"} and silent["ended"] is None, "of the life before"
    # A message may be answered before it is counted as sent.
    assert 1 <= silent["answers"]["0 receivers"] <= silent["sent"] + 1
    assert 0 <= silent["last_answer_s"] <= 10, "seconds from the kill on"


def test_a_room_whose_life_goes_on_behind_a_kill_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "LIMIT_S", 0.3)
    run = asked(tmp_path, kills=1)
    failover.measure(Target(other_owner=0), run)
    assert run.reports[0]["heard"]["message of 1"] >= 1 and run.reports[0]["ended"] is None


def test_between_two_moves_of_hubs_a_cluster_is_not_at_rest() -> None:
    names = [hub_name("default", index) for index in range(64)]
    homes = {name: members[0] for name, members in assign([Place(name) for name in NAMES], names).items()}

    def seen(leaders: Mapping[str, str], proposed: str | None = None) -> dict[str, Any]:
        node = {"state": "up", "capacity": 1.0, "zone": "", "roles": ["hub", "edge"]}
        rows = [{"class": "default", "proposed": None, "leader": leaders[name]} for name in names]
        rows[0]["proposed"] = proposed
        return {
            "nodes": [node | {"name": name} for name in NAMES],
            "hubs": [row | {"hub": index + 1, "index": index} for index, row in enumerate(rows)],
            "voters": {"nodes": [*NAMES], "before": []},
            "wrong": [],
        }

    assert is_at_rest(seen(homes), 3) and not is_at_rest(seen(homes), 2)
    assert not is_at_rest(seen(homes, proposed="n2"), 3)
    # Four hubs are back on the first node, none is proposed, and the others are still on another node.
    moved = set([name for name in names if homes[name] == "n1"][:4])
    between = {name: home if home != "n1" or name in moved else "n2" for name, home in homes.items()}
    assert set(between.values()) == set(NAMES)
    assert not is_at_rest(seen(between), 3)


def test_frames_are_counted_behind_the_first_message_that_all_have(tmp_path: Path) -> None:
    target = Target()
    with target.running(3, tmp_path) as cluster:
        home, other, _ = cluster.members()
        assert forward._frames(cluster, target, home, [other], 0) == 1.0


def test_rooms_are_dealt_to_the_nodes_that_were_named_in_turn() -> None:
    with Target().running(3, Path()) as cluster:
        first, _, third = cluster.members()
        placed = place(cluster, [third, first], 3)
        assert list(placed.numbers) == [2, 0, 5, 3, 8, 6]
        assert placed.address == f"{third.address},{first.address}"
        with pytest.raises(BenchError, match="nodes get too few rooms: n9"):
            place(cluster, [Member("n9", "", 1, [])], 1)


def test_sizes_are_numbers_in_order() -> None:
    assert _sizes("8,1,2") == [1, 2, 8]
    for text in ("", "0", "three", "1,101"):
        with pytest.raises(BenchError, match="--nodes are no sizes of clusters"):
            _sizes(text)
