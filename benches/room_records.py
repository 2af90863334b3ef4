"""A million room records: creation rate, size, and time of an election with them.

    .venv/bin/python benches/room_records.py [--backends memory,embedded,etcd,zookeeper] [--rooms 1000000]

Three nodes in one process, each with its own connection to the coordinator; their data planes only report
that all is well. The measurement covers the control plane's own work, of all three, and the coordinator's: in
memory, without disk and network; or three separate servers on this machine and its disk (for the embedded
one, three voters; the nodes are learners, like nodes beyond the third). All rooms are requested at a node
that is not the controller. Prints one JSON object per backend, and writes them with the machine to rows.jsonl
in `--out`.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from hubsub.config import resolve
from hubsub.control.cluster.buckets import Buckets
from hubsub.control.cluster.directory import WAITING_MAX
from hubsub.control.cluster.membership import prepare
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.cluster.placement import Load
from hubsub.control.cluster.plane import Neighbour, PlaneEvents, Route, TopicRoute
from hubsub.control.cluster.records import ClassRecord
from hubsub.control.cluster.view import Claims, Peer, ProcessId, Tables
from hubsub.coordination import Coordinator
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.errors import NoControllerError, PeerError
from hubsub.testing.stores import Embedded, Etcd, Members, ZooKeeper
from hubsub.version import VERSION
from hubsub_bench.machine import describe
from hubsub_bench.report import RowFile, directory
from hubsub_bench.runner import Row

CLASS = "chat"
SETTLED_S = 60.0
"""Time limit until all three nodes are voters, in seconds."""
TRIES_MAX = 20
"""Attempts for a room whose place did not come in time: a coordinator with a slow disk delays them."""
LIMIT_S = 3_600.0
"""Default time limit for the creation of rooms, in seconds."""
ETCD_OPTIONS = (
    "--auto-compaction-mode revision --auto-compaction-retention 1000 --quota-backend-bytes 8589934592"
)
"""By default etcd keeps all old values, and refuses writes above its quota."""
ZOOKEEPER_HEAP = "1g"
CONFIG = {"class": [{"name": CLASS, "match": [f"{CLASS}:*"]}], "shards": 2}


class Plane:
    """A data plane in which all processes of `there` are heard, acknowledge the controller and have a leader
    lease, until they are in `dead`.
    """

    there: dict[str, "Plane"] = {}
    dead: dict[ProcessId, float] = {}
    """Process to the time of its death."""
    told = asyncio.Event()
    """Set whenever a plane receives voters."""

    def __init__(self, process: ProcessId) -> None:
        self.me = process
        self.began_s = time.monotonic()
        self.face: PlaneEvents
        self.counted: tuple[str, ...] = ()
        """The voters, while the set is not changing."""
        self.open_errors: Mapping[int, str] = {}
        """Nothing is opened here."""
        self.there[process[0]] = self

    def claims(self) -> Claims:
        return Claims()

    def unmovable(self) -> frozenset[int]:
        return frozenset()

    def attach(self, face: PlaneEvents) -> None:
        self.face = face

    def roster(self, neighbours: Sequence[Neighbour]) -> None: ...

    def classes(self, classes: Mapping[str, ClassRecord]) -> None: ...

    def class_versions(self) -> Mapping[str, int]:
        return {}

    def is_cut_off(self) -> bool:
        return False

    def routes(self, rows: Sequence[Route]) -> None: ...

    def pins(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None: ...

    def voters(self, revision: int, nodes: tuple[str, ...], before: tuple[str, ...]) -> None:
        self.counted = () if before else nodes
        self.told.set()

    async def grants(
        self, controller_term: int, until_s: float, confirmed_s: float, tables: Tables, voters: int
    ) -> None: ...

    def confirmed_s(self, controller_term: int) -> float:
        return time.monotonic()

    def alone_s(self) -> float | None:
        return None

    def peers(self, controller_term: int) -> Mapping[ProcessId, Peer]:
        now = time.monotonic()
        well = {
            plane.me: Peer(
                heard_s=now,
                acknowledged_s=plane.began_s,
                acknowledged_until_s=now,
                lease_until_s=now + 1,
                is_ready=True,
            )
            for plane in self.there.values()
        }
        return well | {process: Peer(heard_s=0.0, dead_s=dead_s) for process, dead_s in self.dead.items()}

    async def ask(self, node: str, body: bytes) -> bytes:
        plane = self.there.get(node)
        if plane is None or plane.me in self.dead:
            raise PeerError(value=node)
        return await plane.face.on_request(self.me[0], body)

    def topic_route(self, topic: bytes) -> TopicRoute:
        return TopicRoute(topic, CLASS, 0)

    async def unused(self, hub: int, term: int, rooms: Sequence[bytes], *, gives_up: bool) -> Sequence[bytes]:
        return []

    async def load(self) -> Load | None:
        return Load(cpu_share=0.1)


@dataclass(frozen=True)
class Backend:
    """A coordinator to measure.

    Args:
        open: Opens a connection for a node.
        members: Its processes; None if there are none.
        directory: Directory of their files.
    """

    open: Callable[[], Awaitable[Coordinator]]
    members: Members | None
    directory: Path

    def resident_bytes(self) -> int | None:
        if self.members is None:
            return None
        return sum(resident_bytes(process.pid) for process in self.members.processes)

    def disk_bytes(self) -> int | None:
        """Bytes of all its files as allocated on disk; of preallocated files only the written part."""
        if self.members is None:
            return None
        total = 0
        for path in self.directory.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue  # It was removed meanwhile.
        return total


@contextmanager
def running(name: str) -> Iterator[Backend]:
    """Runs the coordinator of a name until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="hubsub-bench-") as temporary:
        path = Path(temporary)
        if name == "memory":
            store = MemoryStore()

            async def in_memory() -> Coordinator:
                return MemoryCoordinator(store)

            yield Backend(in_memory, None, path)
            return
        makers: Mapping[str, Callable[[], Members]] = {
            "embedded": lambda: Embedded(path),
            "etcd": lambda: Etcd(path, options=ETCD_OPTIONS),
            "zookeeper": lambda: ZooKeeper(path, heap=ZOOKEEPER_HEAP),
        }
        with makers[name]() as members:
            yield Backend(lambda: members.open("bench", timeout="10s"), members, path)


async def start(name: str, backend: Backend) -> tuple[ClusterNode, Coordinator]:
    config = resolve({**CONFIG, "node": name}, {}, {})
    coordinator = await backend.open()
    prepared = await prepare(config, coordinator)
    node = await ClusterNode.start(config, coordinator, Plane((name, prepared.incarnation)), prepared)
    return node, coordinator


async def until_placed(node: ClusterNode, topic: bytes) -> float:
    """Seconds until a new room has a place."""
    begun_s = time.monotonic()
    found = await node.locate(topic)
    assert found is not None
    return time.monotonic() - begun_s


async def refused(node: ClusterNode, topics: list[bytes]) -> list[bytes]:
    """Requests new rooms; returns those that got no place in time."""
    found = await asyncio.gather(*map(node.locate, topics), return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, NoControllerError):
            raise one
    return [topic for topic, one in zip(topics, found, strict=True) if isinstance(one, BaseException)]


def resident_bytes(pid: int | None = None) -> int:
    with open(f"/proc/{pid or 'self'}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def records(coordinator: Coordinator) -> list[tuple[str, bytes, int]]:
    """All buckets: key, value, revision."""
    found: list[tuple[str, bytes, int]] = []
    after, more = "", True
    while more:
        page = await coordinator.page(f"rooms/{CLASS}", after)
        found += ((entry.key, bytes(bytearray(entry.value)), entry.revision) for entry in page.entries)
        more = page.more
        if page.entries:
            after = page.entries[-1].key.rpartition("/")[2]
    return found


async def run(backend: Backend, rooms: int, at_once: int, limit_s: float) -> dict[str, float | None]:
    """Takes all measurements of a backend.

    Args:
        backend: The coordinator.
        rooms: Number of rooms to create.
        at_once: Requests in flight.
        limit_s: Time limit for the creation of rooms.

    Returns:
        Figures by name.
    """
    Plane.there, Plane.dead, Plane.told = {}, {}, asyncio.Event()
    started = {name: await start(name, backend) for name in "abc"}
    nodes = {name: node for name, (node, _) in started.items()}
    await until_placed(nodes["b"], b"chat:first")
    async with asyncio.timeout(SETTLED_S):
        while any(plane.counted != ("a", "b", "c") for plane in Plane.there.values()):
            Plane.told.clear()
            await Plane.told.wait()
    controller = next(name for name, node in nodes.items() if node.is_controller)
    other = next(node for name, node in nodes.items() if name != controller)
    coordinator = next(opened for name, (_, opened) in started.items() if name != controller)
    before_resident = backend.resident_bytes()

    rates, made, waited = [], 0, 0
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    while made < rooms and time.monotonic() - begun_s < limit_s:
        names = [b"chat:channel-%07d" % i for i in range(made, min(made + at_once, rooms))]
        part_s = time.monotonic()
        asked = names
        for _ in range(TRIES_MAX):
            if not (asked := await refused(other, asked)):
                break
            waited += len(asked)
        else:
            raise RuntimeError(f"{len(asked)} rooms were given no place")
        made += len(names)
        rates.append(len(names) / (time.monotonic() - part_s))
    made_s, made_cpu_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
    servers, disk = backend.resident_bytes(), backend.disk_bytes()

    copies = await records(coordinator)
    before = resident_bytes()
    buckets, given_s = Buckets(CLASS), time.monotonic()
    for key, value, revision in copies:
        buckets.apply(key, value, revision)
    read_s = time.monotonic() - given_s
    kept = sum(len(value) for _, value, _ in copies) + resident_bytes() - before

    # The controller dies, and links prove it at once.
    Plane.dead[Plane.there[controller].me] = time.monotonic()
    other.changed()
    elected_s = await until_placed(other, b"chat:after-the-election")
    joined_s = time.monotonic()
    late, late_opened = await start("d", backend)
    placed_s = time.monotonic() - joined_s + await until_placed(late, b"chat:at-a-new-node")
    result = {
        "rooms": float(other.status()["rooms_with_record"]),
        "created per second": made / made_s,
        "created per second, first": rates[0],
        "created per second, last": rates[-1],
        "refused and asked again": float(waited),
        "CPU of the nodes a room": made_cpu_s / made * 1e6,
        "elected and placed": elected_s * 1e3,
        "joined and placed": placed_s * 1e3,
        "all records read": read_s * 1e3,
        "buckets": float(len(copies)),
        "values": float(sum(len(value) for _, value, _ in copies)),
        "controller's memory": float(kept),
        "coordinator's memory": None if servers is None else float(servers),
        "coordinator's memory before": None if before_resident is None else float(before_resident),
        "coordinator's files": None if disk is None else float(disk),
    }
    for node, opened in (*started.values(), (late, late_opened)):
        await node.stop(drain=False)
        await opened.close()
    return result


BACKENDS = ("memory", "embedded", "etcd", "zookeeper")
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default=",".join(BACKENDS), help="with commas between")
    parser.add_argument("--rooms", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=1_000, help=f"requests that wait, up to {WAITING_MAX}")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of making rooms, of a backend")
    parser.add_argument(
        "--out", type=Path, help="directory; default: benches/results/DATE-COMMIT/room-records"
    )
    options = parser.parse_args()
    names = options.backends.split(",")
    if unknown := set(names) - set(BACKENDS):
        parser.error(f"--backends: {', '.join(unknown)} (hint: {', '.join(BACKENDS)})")
    if not (options.rooms >= 1 and 1 <= options.at_once <= WAITING_MAX):
        parser.error(f"--rooms is 1 or more, --at-once 1 to {WAITING_MAX}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    machine = describe()
    path = options.out or directory(RESULTS, machine) / "room-records"
    path.mkdir(parents=True, exist_ok=True)
    rows = RowFile(path, machine)
    for name in names:
        with running(name) as backend:
            figures = asyncio.run(run(backend, options.rooms, options.at_once, options.limit))
        short = int(figures["rooms"] or 0) < options.rooms
        complaints = [f"stopped after {options.limit:g} s"] if short else []
        version = f"HubSub {VERSION}"
        rows.add(
            Row(
                "room-records",
                0,
                name,
                version,
                "",
                figures,
                complaints,
                0.0,
                [vars(options) | {"out": None}],
            )
        )
        json.dump({"backend": name, **figures, "complaints": complaints}, sys.stdout, indent=2)
        print(flush=True)


if __name__ == "__main__":
    main()
