"""Capacity of a machine: measured costs, extrapolated to 100k to 1M connections.

Three idle runs separate the memory of a connection: connections that only sent a PING; the same, all
subscribed to one room (plus a subscription); the same, each subscribed to a room of its own (plus a room).
Loopback has both ends of a connection in one kernel, so the server's share is half of the kernel's growth.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hubsub_bench import BenchError
from hubsub_bench.load import Report, run
from hubsub_bench.machine import Cores, Machine, describe, need_descriptors, share_cores
from hubsub_bench.scenarios import IDLE_HOLD_S, W1B, W2, W3
from hubsub_bench.servers import Target

SIZES = (100_000, 600_000, 1_000_000)
"""Numbers of connections in the tables."""
PAGE_BYTES = 4096
BACKLOG = 65_535
"""Connections that may wait to be accepted when all reconnect at once."""
SPARE_DESCRIPTORS = 3_000
PORTS_PER_ADDRESS = 28_232
"""Local ports of Linux's default range; they limit a client machine, not the server."""
BUFFERED_SHARE = 0.05
"""Share of connections whose kernel buffers are assumed to be filled at the same time."""
BUFFERED_BYTES = 16 * 1024
"""Kernel memory of such a connection's buffers."""

WORKLOADS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "fan-out": ("1 room × 1000, 16 publishers × 4 in flight", W1B),
    "chat": ("1000 rooms × 10, 100 publishers × 4", W2),
    "point to point": ("200 rooms × 1, 64 in flight", W3),
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of one server.

    Args:
        machine: The machine.
        version: Version of the measured server.
        connections: Idle connections of each memory run.
        base_bytes: Resident memory before the first connection.
        connection_bytes: Resident memory of a connection without a subscription.
        subscription_bytes: Addition for a subscription to an existing room.
        room_bytes: Addition for a room with one subscriber.
        kernel_bytes: The kernel's memory for the server's end of a connection.
        per_core: Deliveries a second of one core, by workload.
    """

    machine: Machine
    version: str
    connections: int
    base_bytes: int
    connection_bytes: float
    subscription_bytes: float
    room_bytes: float
    kernel_bytes: float
    per_core: Mapping[str, float]

    @property
    def idle_bytes(self) -> float:
        """Resident memory of a connection with one subscription to a room of its own."""
        return self.connection_bytes + self.subscription_bytes + self.room_bytes


@dataclass(frozen=True, slots=True)
class Need:
    """Resources for a number of connections, each subscribed to a room of its own."""

    connections: int
    process_bytes: float
    kernel_bytes: float
    sysctls: Mapping[str, str]


def measure(target: Target, *, connections: int = 15_000, seconds: float = 5.0) -> Costs:
    """Measures a server's costs on one core.

    Args:
        target: The server.
        connections: Idle connections of each memory run, default 15,000.
        seconds: Length of the runs with traffic, default 5.

    Raises:
        BenchError: its process cannot be inspected, or it could not be run.
    """
    need_descriptors(connections + SPARE_DESCRIPTORS)
    cores = share_cores(1)
    version = ""
    idle: dict[str, Report] = {}
    for to in ("nothing", "one", "own"):
        params = {
            "subscribers": 0,
            "publishers": 0,
            "idle": connections,
            "idle_to": to,
            "seconds": IDLE_HOLD_S,
            "threads": 1,
        }
        version, idle[to] = _one(target, cores, params)
    per_core = {}
    for name, (_, workload) in WORKLOADS.items():
        cost = _one(target, cores, {**workload, "seconds": seconds})[1].cpu_us_per_delivery
        if cost is None:
            raise BenchError("the server's CPU time cannot be read", target.name)
        per_core[name] = 1e6 / cost
    each = {to: _gained(report, connections) for to, report in idle.items()}
    return Costs(
        machine=describe(),
        version=version,
        connections=connections,
        base_bytes=idle["own"].memory("before") or 0,
        connection_bytes=each["nothing"],
        subscription_bytes=each["one"] - each["nothing"],
        room_bytes=each["own"] - each["one"],
        kernel_bytes=_kernel_gained(idle["own"], connections),
        per_core=per_core,
    )


def reckon(costs: Costs, connections: int) -> Need:
    """Resources for a number of connections; every number follows from the costs."""
    buffers = connections * BUFFERED_SHARE * BUFFERED_BYTES
    pages = int(buffers / PAGE_BYTES)
    descriptors = connections + SPARE_DESCRIPTORS
    return Need(
        connections=connections,
        process_bytes=costs.base_bytes + connections * costs.idle_bytes,
        kernel_bytes=connections * costs.kernel_bytes + buffers,
        sysctls={
            "fs.nr_open": f"{max(1_048_576, descriptors)}",
            "fs.file-max": f"{2 * descriptors}",
            "net.core.somaxconn": f"{BACKLOG}",
            "net.ipv4.tcp_max_syn_backlog": f"{BACKLOG}",
            "net.ipv4.tcp_mem": f"{2 * pages} {3 * pages} {4 * pages}",
            "net.ipv4.tcp_rmem": "4096 16384 4194304",
            "net.ipv4.tcp_wmem": "4096 16384 4194304",
            "net.netfilter.nf_conntrack_max": f"{2 * connections}",
        },
    )


def _one(target: Target, cores: Cores, params: Mapping[str, object]) -> tuple[str, Report]:
    with target.running(cores, 1) as server:
        if server.pid is None:
            raise BenchError("the server's process is not known", server.address, "--pid PID")
        report = run(server.address, server.pid, cores, params)
    complaints = report.complaints()
    if complaints:
        raise BenchError("a run cannot be trusted", ", ".join(complaints))
    return server.version, report


def _gained(report: Report, connections: int) -> float:
    before, after = report.memory("before"), report.memory("end")
    if before is None or after is None:
        raise BenchError("the server's memory cannot be read", report.raw["server"])
    return (after - before) / connections


def _kernel_gained(report: Report, connections: int) -> float:
    gained = 0
    for kind in ("slab_unreclaimable", "tcp_buffers"):
        before, after = report.kernel("before", kind), report.kernel("end", kind)
        gained += max(0, (after or 0) - (before or 0))
    return gained / 2 / connections
