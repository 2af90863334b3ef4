"""Row `failover`: from the `kill -9` of a room's node to its first message in a new epoch, at another node.

Both clients are connected to a surviving node, without retries. One publishes every few milliseconds and
waits for no reply; the other one has positions on. The time is from the signal to the read of the first
message with another epoch. Then the killed node is restarted, and the next kill waits until all nodes know
each other.

For a kill without such a message, data for a diagnosis is stored: see `Kill.report`.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hubsub_bench import BenchError
from hubsub_bench.cluster.resp import Connection, ErrorReply
from hubsub_bench.cluster.rows import Asked
from hubsub_bench.cluster.subject import Cluster, ClusterTarget, room_name
from hubsub_bench.scenarios import Figures

P50, P99, MAX = "p50", "p99", "longest"
CONTROLLER_P50 = "p50 of the controller's node"
KILLS = "kills"
NEVER = "without a delivery in time"

NODES = 3
LOOK = 256
"""Rooms that are located, to find one of each node."""
EVERY_CONTROLLER = 3
PUBLISH_S = 0.005
LIMIT_S = 10.0
"""Time after which a kill counts as one without a delivery, in seconds."""
LEADS_S = 30.0
"""Time limit for a restarted node to lead rooms, in seconds; then another one is killed."""
POLL_S = 0.05


def measure(target: ClusterTarget, asked: Asked) -> Figures:
    """Runs the row once; returns its figures by name."""
    took: list[Kill] = []
    with target.running(NODES, asked.directory) as cluster:
        asked.version, asked.build_profile = cluster.version, cluster.build_profile
        for index in range(asked.kills):
            wants_controller = index % EVERY_CONTROLLER == EVERY_CONTROLLER - 1
            victim, number = _victim(cluster, index, wants_controller)
            controller = cluster.controller()
            others = [member for member in cluster.members() if member.name != victim]
            watcher = others[index % len(others)]
            kill = _kill(cluster, victim, watcher.address, room_name(number))
            kill.is_controllers = victim == controller
            took.append(kill)
            asked.reports.append({"kill": index, **kill.report()})
            if index + 1 < asked.kills:
                cluster.start(victim)
    wanted = asked.kills // EVERY_CONTROLLER
    if (had := sum(kill.is_controllers for kill in took)) < wanted:
        asked.complaints.append(f"the controller's node was killed {had} times, not {wanted}")
    return _figures(took)


@dataclass(slots=True)
class Kill:
    node: str
    room: str
    is_controllers: bool = False
    seconds: float | None = None
    """Until the first message of another epoch; None: not within `LIMIT_S`."""
    heard: Counter[str] = field(default_factory=Counter)
    """Messages received after the kill, by epoch, and other kinds."""
    ended: str | None = None
    """Why reading ended before the time limit."""
    sent: int = 0
    """Publishes after the kill."""
    answers: Counter[str] = field(default_factory=Counter)
    """Their replies: receivers, or an error."""
    last_answer_s: float | None = None
    """Time of the last reply, in seconds after the kill."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The cluster's state at the time limit: `Cluster.evidence`."""

    def report(self) -> dict[str, Any]:
        """The stored form: complete only if no message came."""
        row = {"node": self.node, "is_controller": self.is_controllers, "seconds": self.seconds}
        if self.seconds is not None:
            return row
        return row | {
            "room": self.room,
            "heard": dict(self.heard),
            "ended": self.ended,
            "sent": self.sent,
            "answers": dict(self.answers),
            "last_answer_s": self.last_answer_s,
            "seen": self.seen,
        }


def _figures(took: Sequence[Kill]) -> Figures:
    timed = [(kill, 1e3 * kill.seconds) for kill in took if kill.seconds is not None]
    all_ms = sorted(ms for _, ms in timed)
    controller_ms = sorted(ms for kill, ms in timed if kill.is_controllers)
    return {
        P50: _rank(all_ms, 0.5),
        P99: _rank(all_ms, 0.99),
        MAX: all_ms[-1] if all_ms else None,
        CONTROLLER_P50: _rank(controller_ms, 0.5),
        KILLS: float(len(took)),
        NEVER: float(len(took) - len(timed)),
    }


def _rank(ascending: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values do not exceed."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def _victim(cluster: Cluster, index: int, wants_controller: bool) -> tuple[str, int]:
    """The node to kill, and a room that it leads."""
    until = time.monotonic() + LEADS_S
    while True:
        led = _led(cluster)
        controller = cluster.controller()
        names = [member.name for member in cluster.members() if member.name in led]
        if wants_controller and controller is not None:
            names = [name for name in names if name == controller]
        else:
            names = [name for name in names if name != controller] or names
        wanted = names or (list(led) if time.monotonic() > until else [])
        if wanted:
            victim = wanted[index % len(wanted)]
            return victim, led[victim]
        if time.monotonic() > until:
            raise BenchError("no node leads rooms", index)
        time.sleep(POLL_S)


def _led(cluster: Cluster) -> Mapping[str, int]:
    """One room of each node that leads any."""
    try:
        return {name: number for number, name in cluster.places(range(LOOK)).items()}
    except BenchError:
        return {}  # Some have no leader at this moment.


def _kill(cluster: Cluster, victim: str, watcher: str, room: str) -> Kill:
    """Kills a node, and waits for the first message of the new epoch."""
    kill = Kill(victim, room)
    with Connection(watcher) as subscriber:
        subscriber.ask("HUBSUB", "POSITIONS", "ON")
        subscriber.ask("SUBSCRIBE", room)
        with _Publisher(watcher, room) as publisher:
            epoch = _epoch(subscriber, LIMIT_S, kill)
            if epoch is None:
                raise BenchError("a room that nobody has killed delivers nothing", f"{room}: {kill.ended}")
            kill.heard.clear()
            killed_s = cluster.kill(victim)
            publisher.note(killed_s, kill)
            while (left_s := killed_s + LIMIT_S - time.monotonic()) > 0:
                now = _epoch(subscriber, left_s, kill)
                if now is None:
                    break
                if now != epoch:
                    kill.seconds = time.monotonic() - killed_s
                    return kill
            kill.seen = cluster.evidence(room)
    return kill


def _epoch(subscriber: Connection, within_s: float, kill: Kill) -> bytes | None:
    """Epoch of the next message; None: none came, or the connection ended."""
    until = time.monotonic() + within_s
    while (left_s := until - time.monotonic()) > 0:
        try:
            got = subscriber.read(left_s)
        except ErrorReply as error:
            kill.heard[f"error {error.value}"] += 1
            continue
        except BenchError as error:
            if time.monotonic() < until:
                kill.ended = error.what
            return None
        match got:
            case [b"message", _, _, bytes(position)]:
                epoch = position.partition(b"-")[0]
                kill.heard[f"message of {epoch.decode()}"] += 1
                return epoch
            case [bytes(kind), *_]:
                kill.heard[kind.decode()] += 1
    return None


class _Publisher:
    """Publishes continuously in the background, and reads all replies."""

    def __init__(self, address: str, room: str) -> None:
        self._connection = Connection(address)
        self._room = room
        self._end = threading.Event()
        self._noted: tuple[float, Kill] | None = None
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._read)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._connection.end()
        for thread in self._threads:
            thread.join()
        self._connection.close()

    def note(self, since_s: float, kill: Kill) -> None:
        """Records publishes and replies into `kill` from now on."""
        self._noted = since_s, kill

    def _publish(self) -> None:
        while not self._end.wait(PUBLISH_S):
            try:
                self._connection.send("PUBLISH", self._room, "now")
            except BenchError:
                return
            if self._noted is not None:
                self._noted[1].sent += 1

    def _read(self) -> None:
        while not self._end.is_set():
            try:
                answer = f"{self._connection.read(LIMIT_S)!r} receivers"
            except ErrorReply as error:
                answer = str(error.value)
            except BenchError as error:
                if not self._end.is_set():
                    self._note_answer(error.what)
                return
            self._note_answer(answer)

    def _note_answer(self, answer: str) -> None:
        if self._noted is not None:
            since_s, kill = self._noted
            kill.answers[answer] += 1
            kill.last_answer_s = time.monotonic() - since_s
