"""The rows of a node with a log: the cost of a synced publish, and the effect of reading a large log.

A scenario starts servers on a directory of its own as often as it needs to. Redis writes with `XADD`, its log
synced before each reply (`appendfsync always`): the same guarantee as a publish to a durable class.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hubsub_bench.load import Report, latency_us
from hubsub_bench.scenarios import BaseScenario, Figure, Figures, Params
from hubsub_bench.site import Site, Subject
from hubsub_bench.stats import Bound

DURABLE: Params = {"rooms": 100, "subscribers": 0, "publishers": 16, "in_flight": 64, "replies": True}
DURABLE_ONE: Params = {
    "rooms": 1,
    "subscribers": 0,
    "publishers": 1,
    "in_flight": 1,
    "threads": 1,
    "replies": True,
    "spin": True,
}
JOURNAL_BYTES = 269
"""Bytes in the journal for one record of 128 bytes."""

PAYLOAD_BYTES = 1024
"""Payload of the records that fill a log."""
FILL: Params = {
    "subscribers": 0,
    "publishers": 16,
    "in_flight": 64,
    "payload": PAYLOAD_BYTES,
    "patience": 60,
}
ROOMS_MAX = 100_000
ROOM_RECORDS = 97
"""Mean number of records of a room: 10 GB have 100,000 rooms."""
QUESTIONS = 2000
HISTORY = 50
PAGE = 1000

LIVE_ROOMS = 100
LIVE: Params = {
    "rooms": LIVE_ROOMS,
    "subscribers": 10,
    "publishers": 20,
    "rate": 2000,
    "threads": 1,
    "spin": True,
}
ROUNDS = 5
"""Windows without and with slow subscribers, in turn: a single one may show only other activity of the machine."""
CATCH_UP_SHARE = 10
"""Slow subscribers catch up with a tenth of the log's size: the most that they read in a window."""
SLOW_SUBSCRIBERS = 1000
SLOW_BYTES_PER_SECOND = 50_000
SLOW_RECEIVE_BYTES = 64 * 1024
"""Receive buffer of each: a larger one would make them fast at first, until some MB are full."""


@dataclass(frozen=True, slots=True)
class LogScenario(BaseScenario):
    """One row.

    Args:
        stages: Runs it on a site; returns figures by name.
        shards: Shards of the server, and its cores.
        has_peer: Whether the peer can run it too.
        pairs_max: Limit of runs, if a run takes long.
    """

    stages: Callable[[Site], Figures]
    shards: int = 2
    has_peer: bool = True
    pairs_max: int | None = None


def _durable(site: Site) -> Figures:
    with site.serving() as server:
        flushes, before = site.flushes(), server.metrics()
        report = server.load({**DURABLE, "verb": server.server.verb})
        after, flushed = server.metrics(), site.flushes()
    syncs, records = (_gained(before, after, f"hubsub_log_{name}_total") for name in ("syncs", "records"))
    by_disk = None if flushes is None or flushed is None else flushed - flushes
    site.keep("syncs", {"flushes_of_the_disk": by_disk, "syncs": syncs, "records": records})
    if not syncs:
        # A server without these metrics: every sync is a flush of the disk, with few others in between.
        syncs, records = by_disk, report.raw["total"]["answered"]
    return {
        "acknowledged per second": report.answered_per_second,
        "p50": report.reply_us("p50"),
        "p99": report.reply_us("p99"),
        "CPU per publish": report.cpu_us_per_publish,
        "records per sync": records / syncs if syncs and records else None,
    }


def _durable_one(site: Site) -> Figures:
    before = site.disk_sync_us(JOURNAL_BYTES)
    with site.serving() as server:
        report = server.load({**DURABLE_ONE, "verb": server.server.verb})
    # The smaller of both: if the machine was busy meanwhile, it is closer to the disk's own time.
    disk = min(before, site.disk_sync_us(JOURNAL_BYTES))
    with site.serving(durability=None) as server:
        unlogged = server.load({**DURABLE_ONE, "verb": server.server.verb})
    p50 = report.reply_us("p50")
    return {
        "p50 to the disk's own": None if p50 is None else p50 / disk,
        "p50": p50,
        "p99": report.reply_us("p99"),
        "write and fdatasync": disk,
        "p50 without a log": unlogged.reply_us("p50"),
    }


def _cold(site: Site) -> Figures:
    rooms, records = _rooms(site.size), _records(site.size)
    asked = {"rooms": rooms, "count": HISTORY, "questions": QUESTIONS}
    with site.serving() as server:
        # The same requests to a log without records: the difference is the log's share.
        server.past(asked)
        empty = server.resident_settled()
        filled = _fill(server, site.size, rooms)
    with site.serving() as server:
        clean_start = server.server.start_s
        site.forget()
        cold = server.past(asked)
        loaded, index = server.resident_settled(), server.metrics().get("hubsub_hub_index_bytes")
        disk = site.scan_rate()
        whole = server.past({"rooms": rooms, "count": PAGE, "connections": 4})
        server.kill()
    if whole["records"] != records:
        site.wrong.append(f"{whole['records']} records of {records} were read")
    site.forget()
    with site.serving() as server:
        killed_start = server.server.start_s
    return {
        "history p99": latency_us(cold["latency"], "p99"),
        "history p50": latency_us(cold["latency"], "p50"),
        "index per room": None if index is None else index / rooms,
        "resident per room": None if loaded is None or empty is None else max(0, loaded - empty) / rooms,
        "resident, log read": None if whole["rss_max"] is None else whole["rss_max"] / 2**20,
        "start after a clean stop": clean_start,
        "start after a kill": killed_start,
        "disk, read from end to end": disk / 1e6,
        "filled": filled.answered_per_second,
        "read": whole["records"] / whole["seconds"],
    }


def _catch_up(site: Site) -> Figures:
    with site.serving() as server:
        _fill(server, site.size // CATCH_UP_SHARE, LIVE_ROOMS)
    asked = {
        "rooms": LIVE_ROOMS,
        "subscribers": SLOW_SUBSCRIBERS,
        "bytes_per_second": SLOW_BYTES_PER_SECOND,
        "receive_bytes": SLOW_RECEIVE_BYTES,
        "seconds": site.seconds + 2,
    }
    without, beside, rates = [], [], []
    with site.serving() as server:
        for _ in range(ROUNDS):
            without.append(server.load(LIVE, leaves_a_core=True))
            with server.followed(asked) as ended:
                beside.append(server.load(LIVE, leaves_a_core=True))
                slow = site.keep("follow", ended())
            rates.append(slow["bytes"] / slow["seconds"] / 1e6)
            for count in ("wrong", "without", "errors", "disconnected"):
                if slow[count]:
                    site.wrong.append(f"{slow[count]} {count} of the slow subscribers")
    figures = {
        f"{quantile} {name}": median(report.latency_us(quantile) or math.nan for report in reports)
        for quantile in ("p50", "p99")
        for name, reports in (("without", without), ("with", beside))
    }
    return {
        "p99 with to without": figures["p99 with"] / figures["p99 without"],
        "p50 with to without": figures["p50 with"] / figures["p50 without"],
        **figures,
        "caught up": median(rates),
    }


def _records(size: int) -> int:
    return max(1, size // PAYLOAD_BYTES)


def _rooms(size: int) -> int:
    return min(ROOMS_MAX, max(1, _records(size) // ROOM_RECORDS))


def _fill(server: Subject, size: int, rooms: int) -> Report:
    """Publishes a log of `size` bytes, as fast as it is accepted."""
    return server.load({**FILL, "rooms": rooms, "messages": _records(size), "verb": "publish"})


def _gained(before: Mapping[str, float], after: Mapping[str, float], name: str) -> Any:
    return after[name] - before.get(name, 0.0) if name in after else None


LOG_SCENARIOS: tuple[LogScenario, ...] = (
    LogScenario(
        "durable",
        "durable publish: 16 connections × 64 in flight, 100 rooms; Redis: XADD, appendfsync always",
        (
            Figure("acknowledged per second", "/s", lower_is_better=False, bound=Bound(1.0, 1.5)),
            Figure("p50", "µs"),
            Figure("p99", "µs"),
            Figure("CPU per publish", "µs"),
            Figure("records per sync", "", lower_is_better=False, bound=Bound(50, of="value")),
        ),
        _durable,
    ),
    LogScenario(
        "durable-one",
        "durable publish, one in flight on one connection, beside what a write and fdatasync take",
        (
            Figure("p50 to the disk's own", "×", bound=Bound(1.3, of="value")),
            Figure("p50", "µs"),
            Figure("p99", "µs"),
            Figure("write and fdatasync", "µs"),
            Figure("p50 without a log", "µs"),
        ),
        _durable_one,
    ),
    LogScenario(
        "cold",
        f"HISTORY COUNT {HISTORY} of cold rooms among {ROOMS_MAX:,} in a log of --size, restarts, reading it all",
        (
            Figure("history p99", "µs", bound=Bound(10_000, of="value")),
            Figure("history p50", "µs"),
            Figure("index per room", "B", bound=Bound(64 + ROOM_RECORDS / 1000, of="value")),
            Figure("resident per room", "B"),
            Figure("resident, log read", "MiB", bound=Bound(512, of="value")),
            Figure("start after a clean stop", "s", bound=Bound(3, of="value")),
            Figure("start after a kill", "s", bound=Bound(10, of="value")),
            Figure("disk, read from end to end", "MB/s", lower_is_better=False),
            Figure("filled", "/s", lower_is_better=False),
            Figure("read", "/s", lower_is_better=False),
        ),
        _cold,
        has_peer=False,
        pairs_max=1,
    ),
    LogScenario(
        "catch-up",
        f"live subscribers at a fixed rate, without and with {SLOW_SUBSCRIBERS:,} slow ones that catch up",
        (
            Figure("p99 with to without", "×", bound=Bound(1.5, of="value")),
            Figure("p50 with to without", "×"),
            Figure("p50 without", "µs"),
            Figure("p50 with", "µs"),
            Figure("p99 without", "µs"),
            Figure("p99 with", "µs"),
            Figure("caught up", "MB/s", lower_is_better=False),
        ),
        _catch_up,
        has_peer=False,
    ),
)

LOG_BY_NAME: dict[str, LogScenario] = {scenario.name: scenario for scenario in LOG_SCENARIOS}
