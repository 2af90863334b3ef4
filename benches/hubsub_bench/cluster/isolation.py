"""Row `isolation`: traffic of a node for rooms that neither live there nor have clients there.

Two windows of equal length on one cluster: in the first, clients are connected and do not publish; in the
second they publish. The additional traffic of the third node's connections in the second window is the cost
of the messages; heartbeats and other traffic between nodes are in both. The nodes themselves count the third
node's frames of rooms, in the second window, after the nodes' initial exchange.
"""

import time

from hubsub_bench import load
from hubsub_bench.cluster.places import place
from hubsub_bench.cluster.rows import Asked
from hubsub_bench.cluster.sockets import Carried, carried
from hubsub_bench.cluster.subject import Cluster, ClusterTarget, Member
from hubsub_bench.machine import Cores
from hubsub_bench.scenarios import Figures

FRAMES = "frames of them at a third node"
LINKS = "link bytes per message"
CLIENTS = "client bytes per message"
IDLE, BUSY = "all its bytes, nobody publishes", "all its bytes, all publish"

NODES = 3
ROOMS = 10
"""For each of the two nodes."""
SUBSCRIBERS = 5
RATE = 2_000.0
"""Publishes a second, of all clients."""
ANYWHERE = Cores(frozenset(), frozenset(), 2)
"""Servers and generator share the machine."""


def measure(target: ClusterTarget, asked: Asked) -> Figures:
    """Runs the row once; returns its figures by name."""
    with target.running(NODES, asked.directory) as cluster:
        asked.version, asked.build_profile = cluster.version, cluster.build_profile
        *active, third = cluster.members()
        placed = place(cluster, active, ROOMS)
        ports = {port for member in cluster.members() for port in member.node_ports}
        common = {
            **placed.params(),
            "subscribers": SUBSCRIBERS,
            "seconds": asked.seconds,
            "warmup": asked.warmup,
            "verb": target.verb,
        }

        def window(rate: float) -> tuple[float, Carried, int, int]:
            """Seconds, bytes, frames and messages of one window."""
            frames, before, begun_s = _frames(cluster, third), carried(third.pid, ports), time.monotonic()
            if rate:
                report = load.run(placed.address, None, ANYWHERE, {**common, "rate": rate, "sleep": True})
                asked.reports.append(report.raw)
                asked.complaints += report.complaints()
                messages = report.raw["total"]["published"]
            else:
                idle = {**common, "publishers": 0}
                report = load.run(placed.address, None, ANYWHERE, idle)
                messages = 0
            seconds = time.monotonic() - begun_s
            after = carried(third.pid, ports)
            gained = Carried(after.links - before.links, after.clients - before.clients)
            return seconds, gained, _frames(cluster, third) - frames, messages

        idle_s, idle, idle_frames, _ = window(0.0)
        busy_s, busy, busy_frames, messages = window(RATE)
    asked.reports.append(
        {
            "third": third.name,
            "messages": messages,
            "idle": {
                "seconds": idle_s,
                "links": idle.links.both,
                "clients": idle.clients.both,
                "frames": idle_frames,
            },
            "busy": {
                "seconds": busy_s,
                "links": busy.links.both,
                "clients": busy.clients.both,
                "frames": busy_frames,
            },
        }
    )
    longer = busy_s / idle_s

    def per_message(while_busy: int, while_idle: int) -> float | None:
        return max(0.0, while_busy - while_idle * longer) / messages if messages else None

    return {
        FRAMES: float(busy_frames),
        LINKS: per_message(busy.links.both, idle.links.both),
        CLIENTS: per_message(busy.clients.both, idle.clients.both),
        IDLE: (idle.links.both + idle.clients.both) / idle_s,
        BUSY: (busy.links.both + busy.clients.both) / busy_s,
    }


def _frames(cluster: Cluster, member: Member) -> int:
    frames = cluster.frames(member.name)
    return frames.sent + frames.received
