"""Environment of a scenario with a log: a directory in which it starts servers one after another."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from hubsub_bench import disk, load
from hubsub_bench.load import Report
from hubsub_bench.machine import Cores
from hubsub_bench.runner import Row
from hubsub_bench.scenarios import Figures
from hubsub_bench.servers import Running, Store, Target

METRICS_S = 10.0
SETTLE_S = 15.0
"""Longest wait for memory to settle."""
SETTLED_S = 4.0
"""Memory has settled after not falling for this time."""
LOOK_S = 0.25


class Site:
    """One run of one scenario against one target.

    Args:
        target: The server.
        cores: Cores of server and generator.
        shards: Shards of the server.
        directory: Empty; on the disk that is measured.
        size: Bytes of the log, if a scenario fills one.
        seconds: Length of every measured window.
    """

    def __init__(
        self, target: Target, cores: Cores, shards: int, directory: Path, *, size: int, seconds: float
    ) -> None:
        self.size, self.seconds = size, seconds
        self._target, self._cores, self._shards = target, cores, shards
        self._directory = directory
        self.reports: list[dict[str, Any]] = [{"measured": "disk", **disk.find(directory).as_dict()}]
        """All raw results in order; `measured` names each."""
        self.wrong: list[str] = []
        """Why the figures are unreliable."""
        self.version, self.build_profile = "", ""

    @contextmanager
    def serving(
        self, *, durability: str | None = "durable", hubs: int | None = None, rooms: int = 0
    ) -> Iterator["Subject"]:
        """A server on this site's directory; without a log if `durability` is None.

        Args:
            durability: Durability of its class.
            hubs: For HubSub: a new log with this number of hubs, a multiple of its shards.
            rooms: Number of the generator's rooms that are distributed over them.
        """
        store = None if durability is None else Store(self._directory, durability=durability)
        if store is not None and hubs is not None:
            directory = self._directory / f"hubs-{time.monotonic_ns()}"
            directory.mkdir()
            store = replace(store, directory=directory, classes=hubs // self._shards, rooms=rooms)
        with self._target.running(self._cores, self._shards, store) as server:
            self.version, self.build_profile = server.version, server.build_profile
            yield Subject(self, server, self._cores)

    def disk_sync_us(self, size: int) -> float:
        """Median time of a write of `size` bytes and its fdatasync.

        Measured on the server's cores: a disk interrupts one core, and another core sees the result later.
        """
        asked = {"directory": self._directory, "size": size, "seconds": max(0.2, self.seconds / 2)}
        raw = self.keep("sync", load.measure("sync", replace(self._cores, load=self._cores.server), asked))
        return float(raw["latency"]["p50_ns"]) / 1000

    def forget(self) -> None:
        """Drops the log from the system's page cache: the next reads are cold."""
        self.keep("forget", load.measure("scan", self._cores, {"directory": self._directory, "forget": True}))

    def scan_rate(self) -> float:
        """Bytes a second when the log's files are read from disk from end to end."""
        raw = self.keep("scan", load.measure("scan", self._cores, {"directory": self._directory}))
        return float(raw["bytes"]) / float(raw["seconds"])

    def flushes(self) -> int | None:
        return disk.flushes(self._directory)

    def row(self, scenario: str, pair: int, target: str, figures: Figures, others_busy: float = 0.0) -> Row:
        """The run so far, with its raw results and complaints.

        Args:
            scenario: Name of the row.
            pair: Number of the pair, from 0.
            target: Name of the server.
            figures: Figures by name.
            others_busy: Cores that other processes kept busy, default 0.
        """
        return Row(
            scenario=scenario,
            pair=pair,
            target=target,
            version=self.version,
            build_profile=self.build_profile,
            figures=figures,
            complaints=list(self.wrong),
            others_busy=round(others_busy, 2),
            reports=list(self.reports),
        )

    def keep(self, measured: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        self.reports.append({"measured": measured, **raw})
        return raw


class Subject:
    """A server that runs on a site."""

    def __init__(self, site: Site, server: Running, cores: Cores) -> None:
        self.server = server
        self._site, self._cores = site, cores

    def load(self, params: Mapping[str, object], *, leaves_a_core: bool = False) -> Report:
        """Runs the generator; any wrong delivery, error or bottleneck is stored as a complaint.

        Args:
            params: Options of the generator.
            leaves_a_core: Leaves a core to followers, in this run or in the run that it is compared with.
        """
        common = {"seconds": self._site.seconds, "warmup": min(1.0, self._site.seconds)}
        cores = self._cores.two_loads()[0] if leaves_a_core else self._cores
        report = load.run(self.server.address, self.server.pid, cores, {**common, **params})
        self._site.keep("load", report.raw)
        self._site.wrong += report.complaints()
        return report

    def past(self, params: Mapping[str, object]) -> Mapping[str, Any]:
        asked = {**params, "target": self.server.address}
        if self.server.pid is not None:
            asked["pid"] = self.server.pid
        raw = self._site.keep("past", load.measure("past", self._cores, asked))
        self._site.wrong += [
            f"{raw[count]} {count} in the past" for count in ("wrong", "errors") if raw[count]
        ]
        return raw

    def followed(
        self, params: Mapping[str, object]
    ) -> AbstractContextManager[Callable[[], Mapping[str, Any]]]:
        """Slow subscribers that catch up in the background, on a core that others leave them."""
        beside = self._cores.two_loads()[1]
        return load.beside("follow", beside, {**params, "target": self.server.address})

    def metrics(self) -> dict[str, float]:
        """The server's metrics by name, summed over labels; empty if it has none."""
        if self.server.http is None:
            return {}
        try:
            with urlopen(f"http://{self.server.http}/metrics", timeout=METRICS_S) as reply:
                text = reply.read().decode()
        except (URLError, OSError):
            return {}
        sums: dict[str, float] = {}
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name and not line.startswith("#"):
                bare = name.partition("{")[0]
                sums[bare] = sums.get(bare, 0.0) + float(value)
        return sums

    def resident(self) -> int | None:
        try:
            pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def resident_settled(self) -> int | None:
        """Resident memory once it no longer falls: allocators release the memory of a start gradually."""
        quiet_s = min(SETTLED_S, self._site.seconds)
        until = time.monotonic() + SETTLE_S
        least, since = self.resident(), time.monotonic()
        while least is not None and time.monotonic() < min(until, since + quiet_s):
            time.sleep(LOOK_S)
            now = self.resident()
            if now is not None and now < least * 0.99:
                least, since = now, time.monotonic()
        return least

    def kill(self) -> None:
        """Kills it as a crash does."""
        if self.server.pid is not None:
            os.kill(self.server.pid, signal.SIGKILL)
