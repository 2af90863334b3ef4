"""Row `scaling`: CPU of all nodes per delivery, from one node to many, with the same load on each.

One generator drives all nodes and sleeps between turns, so that it leaves the cores to them; the machine must
stay below `BUSY_MAX`, since a node that waits for a core does more with each turn. The rate is determined
first, with the largest cluster, and is the same for all sizes and all targets.
"""

import os
import threading
import time
from statistics import median

from hubsub_bench import load
from hubsub_bench.cluster.places import place
from hubsub_bench.cluster.rows import Asked
from hubsub_bench.cluster.subject import ClusterTarget
from hubsub_bench.load import Report
from hubsub_bench.machine import Cores, busy_seconds
from hubsub_bench.scenarios import Figures

RATIO = "CPU per delivery, most nodes to fewest"
BUSY = "busiest, of the machine"
IDLE = "a node's core, nobody publishes, most nodes"

ROOMS = 10
"""Number of rooms per node."""
SUBSCRIBERS = 8
"""Number of subscribers per room."""
BUSY_MAX = 0.6
"""Share of the machine's cores, in any window."""
BUSY_AIM = 0.5
RATE_FIRST, RATE_MIN, RATE_MAX = 100.0, 20.0, 20_000.0
"""Publishes a second and node."""
TRIES = 4
CALIBRATION_S = 2.0
LOOK_S = 0.1


def cpu_of(nodes: int) -> str:
    return f"CPU per delivery, {_nodes(nodes)}"


def measure(target: ClusterTarget, asked: Asked) -> Figures:
    """Runs the row once over all sizes; returns its figures by name."""
    figures: Figures = {}
    most_busy = 0.0
    for count in asked.nodes:
        report, busy, idle = _window(target, asked, count, asked.rate, asked.seconds)
        figures[cpu_of(count)] = report.cpu_us_per_delivery
        figures[IDLE] = idle
        most_busy = max(most_busy, busy)
        asked.reports.append({**report.raw, "nodes": count, "machine_busy": busy, "idle_cores_a_node": idle})
        asked.complaints += [f"{_nodes(count)}: {text}" for text in report.complaints()]
        if busy > BUSY_MAX:
            asked.complaints.append(f"{_nodes(count)}: the machine was {busy:.0%} busy")
    figures[BUSY] = most_busy
    if len(asked.nodes) > 1:
        few, many = (figures[cpu_of(count)] for count in (asked.nodes[0], asked.nodes[-1]))
        figures[RATIO] = many / few if few and many is not None else None
    return figures


def calibrated(target: ClusterTarget, asked: Asked) -> float:
    """Publishes a second and node that keep the machine about half busy with the largest cluster."""
    count = max(asked.nodes)
    rate = RATE_FIRST
    for _ in range(TRIES):
        _, busy, _ = _window(target, asked, count, rate, min(CALIBRATION_S, asked.seconds))
        if 0.8 * BUSY_AIM <= busy <= BUSY_AIM:
            break
        rate = min(RATE_MAX, max(RATE_MIN, rate * min(10.0, 0.9 * BUSY_AIM / max(busy, 0.01))))
    return rate


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _window(
    target: ClusterTarget, asked: Asked, count: int, rate: float, seconds: float
) -> tuple[Report, float, float | None]:
    """One cluster, two windows, with all clients connected: without publishes, then with them.

    Returns:
        Report of the second, share of the machine that was busy in it, and cores that a node used in the
        first.
    """
    directory = asked.directory / f"{count}-{time.monotonic_ns()}"
    directory.mkdir()
    with target.running(count, directory) as cluster:
        asked.version, asked.build_profile = cluster.version, cluster.build_profile
        placed = place(cluster, cluster.members(), ROOMS)
        params = {
            **placed.params(),
            "subscribers": SUBSCRIBERS,
            "rate": rate * count,
            "sleep": True,
            "seconds": seconds,
            "warmup": asked.warmup,
            "pid": placed.pids,
            "verb": target.verb,
        }
        held = load.run(placed.address, None, Cores(frozenset(), frozenset(), 2), {**params, "publishers": 0})
        idle = (held.raw["server"] or {}).get("busy")
        with _Busy() as busy:
            report = load.run(placed.address, None, Cores(frozenset(), frozenset(), 2), params)
        return report, busy.share(), None if idle is None else idle / count


class _Busy:
    """Samples the machine's CPU time in the background; the median counts, as connecting and ending are no load."""

    def __enter__(self) -> "_Busy":
        self._end = threading.Event()
        self._shares: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def share(self) -> float:
        return median(self._shares) if self._shares else 0.0

    def _look(self) -> None:
        cores = os.cpu_count() or 1
        at_s, spent_s = time.monotonic(), busy_seconds()
        while not self._end.wait(LOOK_S):
            now_s, all_s = time.monotonic(), busy_seconds()
            self._shares.append((all_s - spent_s) / (now_s - at_s) / cores)
            at_s, spent_s = now_s, all_s
