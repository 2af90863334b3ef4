"""A million room records: how fast they are made, what they weigh, and how long an election takes with them.

    .venv/bin/python benches/room_records.py [--rooms 1000000] [--at-once 1000]

Three nodes in one process, the coordinator in memory, data planes that only say that all is well: so what is measured
is the control plane's own work, of all three, with no disk and no network. All rooms are asked for at a node that is
not the controller. Prints one JSON object.
"""

import argparse
import asyncio
import json
import logging
import platform
import sys
import time
from collections.abc import Mapping, Sequence

import structlog

from hubsub.config import resolve
from hubsub.control.cluster.busy import Load
from hubsub.control.cluster.directory import WAITING_MAX
from hubsub.control.cluster.membership import prepare
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.cluster.plane import Face, Named, Neighbour, Route
from hubsub.control.cluster.records import ClassRecord
from hubsub.control.cluster.rooms import Buckets
from hubsub.control.cluster.view import Peer, ProcessId, Tables
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.errors import PeerError

CLASS = "chat"
SETTLED_S = 3.0
"""Until the census counts all three."""
CONFIG = {"class": [{"name": CLASS, "match": [f"{CLASS}:*"]}], "shards": 2}


class Plane:
    """All processes of `there` are heard, heed and have a lead, until they are in `dead`."""

    there: dict[str, "Plane"] = {}
    dead: set[ProcessId] = set()

    def __init__(self, process: ProcessId) -> None:
        self.me = process
        self.began_s = time.monotonic()
        self.face: Face
        self.there[process[0]] = self

    def attach(self, face: Face) -> None:
        self.face = face

    def roster(self, neighbours: Sequence[Neighbour]) -> None: ...

    def classes(self, classes: Mapping[str, ClassRecord]) -> None: ...

    def routes(self, rows: Sequence[Route]) -> None: ...

    def pins(self, room_class: str, hubs: Mapping[bytes, int | None]) -> None: ...

    def census(self, revision: int, nodes: tuple[str, ...], before: tuple[str, ...]) -> None: ...

    async def grants(self, mandate: int, until_s: float, tables: Tables, census: int) -> None: ...

    def peers(self, mandate: int) -> Mapping[ProcessId, Peer]:
        now = time.monotonic()
        well = {
            plane.me: Peer(
                heard_s=now, heeds_s=plane.began_s, heeds_until_s=now, lead_until_s=now + 1, is_ready=True
            )
            for plane in self.there.values()
        }
        return well | {process: Peer(heard_s=0.0, is_dead=True) for process in self.dead}

    async def ask(self, node: str, body: bytes) -> bytes:
        plane = self.there.get(node)
        if plane is None or plane.me in self.dead:
            raise PeerError(value=node)
        return await plane.face.asked(self.me[0], body)

    def named(self, topic: bytes) -> Named:
        return Named(topic, CLASS, 0)

    async def load(self) -> Load | None:
        return Load(cpu_share=0.1)


async def start(name: str, store: MemoryStore) -> ClusterNode:
    config = resolve({**CONFIG, "node": name}, {}, {})
    coordinator = MemoryCoordinator(store)
    prepared = await prepare(config, coordinator)
    return await ClusterNode.start(config, coordinator, Plane((name, prepared.incarnation)), prepared)


async def until_placed(node: ClusterNode, topic: bytes) -> float:
    """Seconds until a new room has a place."""
    begun_s = time.monotonic()
    found = await node.locate(topic)
    assert found is not None
    return time.monotonic() - begun_s


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def run(rooms: int, at_once: int) -> dict[str, object]:
    store = MemoryStore()
    nodes = {name: await start(name, store) for name in "abc"}
    await until_placed(nodes["b"], b"chat:first")
    await asyncio.sleep(SETTLED_S)
    controller = next(name for name, node in nodes.items() if node.is_controller)
    other = next(node for name, node in nodes.items() if name != controller)

    rates = []
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    for first in range(0, rooms, at_once):
        names = [b"chat:channel-%07d" % i for i in range(first, min(first + at_once, rooms))]
        part_s = time.monotonic()
        await asyncio.gather(*(other.locate(name) for name in names))
        rates.append(len(names) / (time.monotonic() - part_s))
    made_s, made_cpu_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s

    values = [(e.key, e.value, e.revision) for e in store.entries.values() if e.key.startswith("rooms/")]
    copies = [(key, bytes(bytearray(value)), revision) for key, value, revision in values]
    before = resident_bytes()
    buckets, given_s = Buckets(CLASS), time.monotonic()
    for key, value, revision in copies:
        buckets.give(key, value, revision)
    read_s = time.monotonic() - given_s
    kept = sum(map(len, (value for _, value, _ in copies))) + resident_bytes() - before

    # The controller dies, and links prove it at once.
    Plane.dead.add(Plane.there[controller].me)
    other.changed()
    elected_s = await until_placed(other, b"chat:after-the-election")
    joined_s = time.monotonic()
    late = await start("d", store)
    placed_s = time.monotonic() - joined_s + await until_placed(late, b"chat:at-a-new-node")
    result = {
        "rooms": other.status()["rooms_with_record"],
        "buckets": len(values),
        "coordinator_bytes": sum(map(len, (value for _, value, _ in values))),
        "controller_bytes": kept,
        "created_per_second": round(rooms / made_s),
        "created_per_second_first": round(rates[0]),
        "created_per_second_last": round(rates[-1]),
        "cpu_us_per_room": round(made_cpu_s / rooms * 1e6, 1),
        "commits": store.revision,
        "elected_and_placed_ms": round(elected_s * 1e3, 1),
        "joined_and_placed_ms": round(placed_s * 1e3, 1),
        "read_all_ms": round(read_s * 1e3, 1),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    for node in (*nodes.values(), late):
        await node.stop(drain=False)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rooms", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=1_000, help=f"requests that wait, up to {WAITING_MAX}")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    json.dump(asyncio.run(run(options.rooms, options.at_once)), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
