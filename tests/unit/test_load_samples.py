"""Load samples: rates computed from two successive snapshots of a node."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("hubsub._core", reason="needs hubsub-core")

from hubsub.control import load_samples
from hubsub.control.load_samples import ROOM_BYTES_MAX, Measurement, sample
from hubsub.errors import DiskFullError
from hubsub.node import BusyRoom, Failed, Item, Published
from hubsub.node.status import Hub, Log

from .played_node import hub_row, room_row


def shard(**more: int) -> dict[str, int]:
    names = ("published_total", "delivered_total", "bytes_in_total", "bytes_out_total", "connections")
    return dict.fromkeys((*names, "rooms", "socket_ns_total", "routing_ns_total"), 0) | more


def hub_of(number: int, **more: Any) -> Hub:
    return msgspec.convert(hub_row(number, **more), Hub)


def room(seq: int, epoch: int = 7) -> dict[str, Any]:
    busy = BusyRoom(b"r", messages=99, bytes_in=9_900, bytes_out=39_600)
    return room_row(b"r") | {"seq": seq, "epoch": epoch, "busy": busy, "subscribers": 4}


def measure(clock_s: float, **more: Any) -> Measurement:
    known: dict[str, Any] = {"cpu_s": 0.0, "shards": [shard(), shard()], "hubs": [], "rooms": {}}
    return Measurement(at_us=1_500_000, clock_s=clock_s, **known | more)


def rows(kind: str, before: Measurement, after: Measurement) -> list[dict[str, Any]]:
    return [row for row in sample("one", before, after) if row["kind"] == kind]


def test_rates_are_what_was_counted_between_two_looks_by_the_time_between() -> None:
    busy = shard(published_total=50, delivered_total=100, bytes_in_total=500, bytes_out_total=1_000)
    now = [busy | {"connections": 3, "socket_ns_total": 10**9, "routing_ns_total": 10**9}, shard(rooms=2)]
    before, after = measure(10, cpu_s=1.0), measure(20, cpu_s=4.0, shards=now)
    (node,) = rows("node", before, after)
    assert node == {
        "version": 1,
        "at": "1970-01-01T00:00:01.500Z",
        "seconds": 10,
        "node": "one",
        "kind": "node",
        "messages_per_second": 5,
        "deliveries_per_second": 10,
        "bytes_in_per_second": 50,
        "bytes_out_per_second": 100,
        "connections": 3,
        "rooms": 2,
        "cpu_share": 0.3,
    }
    first, second = rows("shard", before, after)
    assert (first["shard"], first["messages_per_second"], first["cpu_share"]) == (0, 5, 0.2)
    assert (second["shard"], second["messages_per_second"], second["rooms"]) == (1, 0, 2)


def test_hubs_tell_of_their_records_and_bytes_and_one_that_is_lost_of_nothing() -> None:
    before = measure(0, hubs=[hub_of(1, latest=100, bytes_out=70), hub_of(2)])
    traffic = {"deliveries": 600, "bytes_in": 2_000, "bytes_out": 20_070}
    hubs = [
        hub_of(1, latest=160, bytes=9_000, **traffic),
        hub_of(2, state="quarantined"),
        hub_of(3, bytes=10),
    ]
    after = measure(2, hubs=hubs)
    (hub,) = rows("hub", before, after)
    assert (hub["hub"], hub["class"], hub["messages_per_second"]) == ("chat-0", "chat", 30)
    assert (hub["log_bytes"], hub["shard"], hub["deliveries_per_second"]) == (9_000, 3, 300)
    assert (hub["bytes_in_per_second"], hub["bytes_out_per_second"]) == (1_000, 10_000)
    assert rows("node", before, after)[0]["log_bytes"] == 9_013, "those of all, also of a hub that is new"


def test_a_rooms_rate_is_counted_where_both_looks_know_it_and_else_an_estimate() -> None:
    before = measure(0, rooms={b"known": room(10), b"anew": room(10), b"\xff": room(10)})
    names = {b"known": room(30), b"new": room(30), b"anew": room(30, epoch=8), b"\xff": room(10)}
    found = rows("room", before, measure(2, rooms=names))
    assert [(row["room"], row["messages_per_second"], row["estimated"]) for row in found] == [
        ("known", 10, False),
        ("new", 99, True),
        ("anew", 99, True),
        ("%FF", 0, False),
    ]
    assert (found[0]["subscribers"], found[0]["hub"]) == (4, "chat-0")
    # 100 bytes a record, delivered to four subscribers.
    in_and_out = [(row["bytes_in_per_second"], row["bytes_out_per_second"]) for row in found]
    assert in_and_out == [(1_000, 4_000), (9_900, 39_600), (9_900, 39_600), (0, 0)]


def test_no_sample_is_large_and_none_is_of_no_time() -> None:
    names = {b"\0" * (ROOM_BYTES_MAX + n): room(1) for n in (0, 1)}
    after = measure(1, rooms=names)
    found = rows("room", measure(0), after)
    assert [len(json.dumps(row)) < 10_000 for row in found] == [True], "the longer name is left out"
    assert sample("one", after, after) == []


class Played:
    """A node of one busy room whose log may refuse records."""

    name = "one"

    def __init__(self, data: str | None = "data") -> None:
        self.config = SimpleNamespace(data=data)
        self.published: asyncio.Queue[list[Item]] = asyncio.Queue()
        self.refuses = False
        self.seq = 0
        self.looks: list[float] = []
        """Times of the snapshots."""

    async def busiest_rooms(self, limit: int) -> list[BusyRoom]:
        return [BusyRoom(b"r", 1.5, 15, 30), BusyRoom(b"gone", 1.0, 10, 10)]

    async def room(self, name: bytes) -> dict[str, Any] | None:
        self.seq += 1
        return room(self.seq) if name == b"r" else None

    def metrics(self) -> dict[str, Any]:
        return {"shards": [shard()]}

    def log(self) -> Log:
        self.looks.append(time.monotonic())
        return Log(state="open", identity="00", reason=None, figures={}, syncs=[], hubs=[hub_of(1)])

    async def publish(self, items: list[Item], *, as_node: bool) -> list[Published | Failed]:
        assert as_node
        if self.refuses:
            return [Failed("disk_full", "full") for _ in items]
        self.published.put_nowait(items)
        return [Published(0, 1, 1) for _ in items]


async def test_a_node_publishes_samples_to_its_room_until_it_is_told_to_stop() -> None:
    node = Played()
    task = asyncio.create_task(load_samples.report(node, lambda: 1))  # type: ignore[arg-type]
    items = [item for _ in range(2) for item in await node.published.get()]
    task.cancel()
    assert {item.topic for item in items} == {b"$stats/load"}
    kinds = [json.loads(item.payload)["kind"] for item in items]
    assert kinds == ["node", "shard", "hub", "room"] * 2


async def test_what_the_log_refuses_is_told_and_the_next_sample_is_of_a_longer_time() -> None:
    node = Played()
    with pytest.raises(DiskFullError):
        node.refuses = True
        await load_samples.publish(node, [{"kind": "node"}])  # type: ignore[arg-type]
    task = asyncio.create_task(load_samples.report(node, lambda: 20))  # type: ignore[arg-type]
    while len(node.looks) < 3:
        await asyncio.sleep(0)
    node.refuses = False
    items = await node.published.get()
    task.cancel()
    assert json.loads(items[0].payload)["seconds"] > node.looks[2] - node.looks[1] + 0.015


async def test_a_node_that_keeps_nothing_publishes_no_samples() -> None:
    node = Played(data=None)
    await load_samples.report(node, lambda: 1)  # type: ignore[arg-type]
    assert node.published.empty()
