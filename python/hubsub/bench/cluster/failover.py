"""Row `failover`: from the `kill -9` of a room's node to its first message in a new epoch, at another node.

Both clients are at one node that lives on, on connections that nothing retries. One publishes every few milliseconds
and waits for no reply; the other one has positions on. The time is from the signal to the read of the first message
with another epoch. Then the killed node is started again, and the next kill waits until all nodes know each other.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hubsub.bench import BenchError
from hubsub.bench.cluster.resp import Connection, ErrorReply
from hubsub.bench.cluster.rows import Asked
from hubsub.bench.cluster.subject import Cluster, ClusterTarget, room_name
from hubsub.bench.scenarios import Figures

P50, P99, MAX = "p50", "p99", "longest"
CONTROLLER_P50 = "p50 of the controller's node"
KILLS = "kills"
NEVER = "without a delivery in time"

NODES = 3
LOOK = 256
"""Rooms that are asked for, to find one of each node."""
EVERY_CONTROLLER = 3
PUBLISH_S = 0.005
LIMIT_S = 10.0
"""After which a kill counts as one without a delivery."""
LEADS_S = 30.0
"""How long a node that came back may take until it leads rooms; then another one is killed."""
POLL_S = 0.05


def measure(target: ClusterTarget, asked: Asked) -> Figures:
    """Runs it once; figures by name."""
    took: list[tuple[bool, float | None]] = []
    with target.running(NODES, asked.directory) as cluster:
        asked.version, asked.build_profile = cluster.version, cluster.build_profile
        for index in range(asked.kills):
            wants_controller = index % EVERY_CONTROLLER == EVERY_CONTROLLER - 1
            victim, number = _victim(cluster, index, wants_controller)
            controller = cluster.controller()
            others = [member for member in cluster.members() if member.name != victim]
            watcher = others[index % len(others)]
            took_s = _kill(cluster, victim, watcher.address, room_name(number))
            took.append((victim == controller, took_s))
            asked.reports.append(
                {"kill": index, "node": victim, "is_controller": victim == controller, "seconds": took_s}
            )
            if index + 1 < asked.kills:
                cluster.start(victim)
    wanted = asked.kills // EVERY_CONTROLLER
    if (had := sum(is_controller for is_controller, _ in took)) < wanted:
        asked.complaints.append(f"the controller's node was killed {had} times, not {wanted}")
    return _figures(took)


def _figures(took: Sequence[tuple[bool, float | None]]) -> Figures:
    all_ms = sorted(1e3 * seconds for _, seconds in took if seconds is not None)
    controller_ms = sorted(1e3 * seconds for is_it, seconds in took if is_it and seconds is not None)
    return {
        P50: _rank(all_ms, 0.5),
        P99: _rank(all_ms, 0.99),
        MAX: all_ms[-1] if all_ms else None,
        CONTROLLER_P50: _rank(controller_ms, 0.5),
        KILLS: float(len(took)),
        NEVER: float(sum(seconds is None for _, seconds in took)),
    }


def _rank(ascending: Sequence[float], share: float) -> float | None:
    """The smallest value that so many are at most as large as."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def _victim(cluster: Cluster, index: int, wants_controller: bool) -> tuple[str, int]:
    """The node that is killed, and a room that it leads."""
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
    """A room of each node that leads any."""
    try:
        return {name: number for number, name in cluster.places(range(LOOK)).items()}
    except BenchError:
        return {}  # Some have no leader at this moment.


def _kill(cluster: Cluster, victim: str, watcher: str, room: str) -> float | None:
    """Seconds until the first message of the new epoch; None: not within `LIMIT_S`."""
    with Connection(watcher) as subscriber:
        subscriber.ask("HUBSUB", "POSITIONS", "ON")
        subscriber.ask("SUBSCRIBE", room)
        with _publishing(watcher, room):
            epoch = _epoch(subscriber, LIMIT_S)
            if epoch is None:
                raise BenchError("a room that nobody has killed delivers nothing", room)
            killed_s = cluster.kill(victim)
            while (left_s := killed_s + LIMIT_S - time.monotonic()) > 0:
                now = _epoch(subscriber, left_s)
                if now is None:
                    break
                if now != epoch:
                    return time.monotonic() - killed_s
    return None


def _epoch(subscriber: Connection, within_s: float) -> bytes | None:
    """Of the next message; None: none came, or the connection ended."""
    until = time.monotonic() + within_s
    while (left_s := until - time.monotonic()) > 0:
        try:
            got = subscriber.read(left_s)
        except ErrorReply:
            continue
        except BenchError:
            return None
        match got:
            case [b"message", _, _, bytes(position)]:
                return position.partition(b"-")[0]
    return None


@contextmanager
def _publishing(address: str, room: str) -> Iterator[None]:
    """Publishes all the time meanwhile, and reads what is answered, whatever it is."""
    end = threading.Event()
    with Connection(address) as connection:

        def publish() -> None:
            while not end.wait(PUBLISH_S):
                try:
                    connection.send("PUBLISH", room, "now")
                except BenchError:
                    return

        def read() -> None:
            while not end.is_set():
                try:
                    connection.read(LIMIT_S)
                except ErrorReply:
                    continue
                except BenchError:
                    return

        threads = [threading.Thread(target=work, daemon=True) for work in (publish, read)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            connection.end()
            for thread in threads:
                thread.join()
