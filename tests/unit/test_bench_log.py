"""The benchmark's rows about history: requests to a server, evaluation of the answers, and the choice of the
disk."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hubsub_bench import BenchError, disk
from hubsub_bench.cli import app
from hubsub_bench.load import Report
from hubsub_bench.log_scenarios import LOG_BY_NAME, LOG_SCENARIOS, Figures
from hubsub_bench.machine import Cores
from hubsub_bench.servers import Running, Store
from hubsub_bench.site import Site, Subject

CORES = Cores(frozenset(), frozenset(), 1)
LATENCY = {"count": 10, "p50_ns": 150_000, "p99_ns": 400_000}


@dataclass
class FakeSite:
    """Fake servers with the answers that a test sets."""

    version: str = "HubSub 0.1.0"
    size: int = 50_000_000
    seconds: float = 1.0
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Values of successive reads of the metrics."""
    p99_ns: list[int] = field(default_factory=list)
    """Delivery latency of each run of the generator."""
    past: Mapping[str, Any] = field(default_factory=dict)
    follow: Mapping[str, Any] = field(default_factory=dict)
    resident: list[int] = field(default_factory=lambda: [50_000_000, 50_500_000])
    wrong: list[str] = field(default_factory=list)
    kept: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    asked: list[Mapping[str, object]] = field(default_factory=list)
    flushed: int = 0

    @contextmanager
    def serving(self, *, durability: str | None = "durable") -> Iterator["FakeSite"]:
        self.did.append(f"serves {durability}")
        yield self

    @property
    def server(self) -> Running:
        return Running("127.0.0.1:1", 1, self.version, "release", start_s=float(len(self.did)))

    def load(self, params: Mapping[str, object], *, leaves_a_core: bool = False) -> Report:
        self.asked.append(params)
        self.did.append("loads")
        p99 = self.p99_ns.pop(0) if self.p99_ns else 1
        return Report(
            {
                "window": {"answered_per_second": 1000.0},
                "total": {"answered": 6_000},
                "replies": LATENCY,
                "latency": {"count": 1, "p50_ns": 1, "p99_ns": p99},
                "server": {"cpu_ns_per_publish": 2_000.0},
            }
        )

    def ask(self, params: Mapping[str, object]) -> Mapping[str, Any]:
        self.asked.append(params)
        self.did.append("asks")
        whole = {"records": self.size // 1024, "seconds": 2.0, "rss_max": 2**26, "latency": LATENCY}
        return {**whole, **self.past}

    @contextmanager
    def followed(self, params: Mapping[str, object]) -> Iterator[Callable[[], Mapping[str, Any]]]:
        self.asked.append(params)
        clean = {"wrong": 0, "without": 0, "errors": 0, "disconnected": 0, "bytes": 3_000_000, "seconds": 3.0}
        yield lambda: {**clean, **self.follow}

    def read_metrics(self) -> dict[str, float]:
        return self.metrics.pop(0) if self.metrics else {"hubsub_hub_index_bytes": 25_000.0}

    def flushes(self) -> int:
        self.flushed += 60
        return self.flushed

    def disk_sync_us(self, size: int) -> float:
        return 100.0

    def scan_rate(self) -> float:
        self.did.append("scans")
        return 1e9

    def forget(self) -> None:
        self.did.append("forgets")

    def kill(self) -> None:
        self.did.append("kills")

    def resident_settled(self) -> int:
        return self.resident.pop(0)

    def keep(self, measured: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        self.kept[measured] = raw
        return raw


class _AsSite:
    """A fake whose server is a subject: two names have another meaning there."""

    def __init__(self, fake: FakeSite) -> None:
        self._fake = fake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, {"past": "ask", "metrics": "read_metrics"}.get(name, name))

    @contextmanager
    def serving(self, **kwargs: Any) -> Iterator["_AsSite"]:
        with self._fake.serving(**kwargs):
            yield self


def figures(name: str, site: FakeSite) -> Figures:
    return LOG_BY_NAME[name].stages(cast(Site, _AsSite(site)))


def test_every_figure_of_every_scenario_is_measured() -> None:
    for scenario in LOG_SCENARIOS:
        site = FakeSite()
        found = figures(scenario.name, site)
        assert [figure.name for figure in scenario.figures] == list(found)
        assert all(value is not None for value in found.values())
        assert site.wrong == []


@pytest.mark.parametrize(("version", "verb"), [("HubSub 0.1.0", "publish"), ("Redis 7.0.15", "xadd")])
def test_each_server_gets_its_own_command_for_a_record_that_lasts(version: str, verb: str) -> None:
    site = FakeSite(version=version)
    figures("durable", site)
    assert [params["verb"] for params in site.asked] == [verb]
    assert (site.asked[0]["publishers"], site.asked[0]["in_flight"]) == (16, 64)


def test_records_per_sync_are_what_the_server_says_and_else_what_the_disk_did() -> None:
    before = {"hubsub_log_syncs_total": 5.0, "hubsub_log_records_total": 100.0}
    after = {"hubsub_log_syncs_total": 15.0, "hubsub_log_records_total": 4_100.0}
    assert figures("durable", FakeSite(metrics=[before, after]))["records per sync"] == 400.0
    site = FakeSite()
    assert figures("durable", site)["records per sync"] == 100.0
    assert site.kept["syncs"] == {"flushes_of_the_disk": 60, "syncs": None, "records": None}


def test_one_publish_in_flight_is_held_against_the_disk_and_the_way_without_a_log() -> None:
    site = FakeSite()
    found = figures("durable-one", site)
    assert (found["p50"], found["p50 to the disk's own"]) == (150.0, 1.5)
    assert site.did == ["serves durable", "loads", "serves None", "loads"]
    assert site.asked[0]["in_flight"] == site.asked[0]["publishers"] == 1


def test_cold_rooms_are_asked_after_a_restart_with_nothing_in_memory() -> None:
    site = FakeSite()
    found = figures("cold", site)
    assert site.did == [
        *("serves durable", "asks", "loads"),
        *("serves durable", "forgets", "asks", "scans", "asks", "kills"),
        *("forgets", "serves durable"),
    ]
    records = 50_000_000 // 1024
    rooms = records // 97
    assert [params["rooms"] for params in site.asked] == [rooms] * 4
    assert site.asked[1]["messages"] == records
    assert found["resident per room"] == pytest.approx(500_000 / rooms)
    assert found["index per room"] == pytest.approx(25_000 / rooms)
    assert found["read"] == records / 2


def test_a_large_log_has_a_hundred_thousand_rooms() -> None:
    site = FakeSite(size=10 * 10**9)
    figures("cold", site)
    assert (site.asked[1]["rooms"], site.asked[1]["messages"]) == (100_000, 9_765_625)


def test_a_log_that_is_not_whole_is_complained_of() -> None:
    site = FakeSite(past={"records": 48_000})
    figures("cold", site)
    assert site.wrong == ["48000 records of 48828 were read"]


def test_live_ones_are_measured_without_and_with_those_that_catch_up() -> None:
    one_odd = [2_000_000, 3_000_000] * 2 + [9_000_000, 1_000_000] + [2_000_000, 3_000_000] * 2
    site = FakeSite(p99_ns=[0, *one_odd])
    found = figures("catch-up", site)
    assert (found["p99 with to without"], found["p99 without"], found["p99 with"]) == (1.5, 2_000.0, 3_000.0)
    assert found["caught up"] == 1.0
    fill, without, slow, beside, *others = site.asked
    assert others == [without, slow, beside] * 4
    assert fill["messages"] == 50_000_000 // 10 // 1024
    assert without == beside and float(str(without["rate"])) > 0
    assert (slow["subscribers"], slow["rooms"]) == (1000, without["rooms"])


@pytest.mark.parametrize("count", ["wrong", "without", "errors", "disconnected"])
def test_slow_ones_that_do_not_get_everything_are_complained_of(count: str) -> None:
    site = FakeSite(follow={count: 7})
    figures("catch-up", site)
    assert set(site.wrong) == {f"7 {count} of the slow subscribers"}


def test_metrics_are_added_up_over_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    page = '# HELP a x\nhubsub_a{shard="0"} 2\nhubsub_a{shard="1"} 3.5\nhubsub_b 1e3\n'

    class Reply:
        def __enter__(self) -> "Reply":
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(self) -> bytes:
            return page.encode()

    monkeypatch.setattr("hubsub_bench.site.urlopen", lambda url, timeout: Reply())
    subject = Subject(cast(Site, None), Running("127.0.0.1:1", None, "HubSub", "", http="127.0.0.1:2"), CORES)
    assert subject.metrics() == {"hubsub_a": 5.5, "hubsub_b": 1000.0}
    assert Subject(cast(Site, None), Running("127.0.0.1:1", None, "Redis", ""), CORES).metrics() == {}


def test_a_store_is_one_class_of_all_rooms(tmp_path: Path) -> None:
    text = Store(tmp_path, history_bytes=1000, durability="replicated").write_config().read_text()
    assert 'durability = "replicated"' in text and "history = { bytes = 1000 }" in text
    assert "match" not in text


def test_a_disk_is_found_by_its_longest_mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = [["/dev/a", "/", "ext4"], ["/dev/b", str(tmp_path), "xfs"], ["/dev/c", "/nowhere", "btrfs"]]
    monkeypatch.setattr(disk, "_fields", lambda _: mounts)
    below = tmp_path / "below"
    assert disk.find(below) == disk.Disk(file_system="xfs", device="/dev/b")


def test_flushes_are_those_of_the_device_below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    row = [str(os.major(device)), str(os.minor(device)), "sda", *["0"] * 15, "4711", "0"]
    monkeypatch.setattr(disk, "_fields", lambda _: [["999", "9", "x", *["0"] * 15, "1", "0"], row])
    assert disk.flushes(tmp_path) == 4711
    monkeypatch.setattr(disk, "_fields", lambda _: [row[:10]])  # An old kernel does not count them.
    assert disk.flushes(tmp_path) is None


def test_a_disk_without_room_or_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = 10 * disk.SPARE_BYTES
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(disk, "_fields", lambda _: [["/dev/a", "/", "ext4"]])
    disk.need_space(tmp_path, 7 * disk.SPARE_BYTES)
    with pytest.raises(BenchError, match="too little room"):
        disk.need_space(tmp_path, 8 * disk.SPARE_BYTES)
    monkeypatch.setattr(disk, "_fields", lambda _: [["tmpfs", "/", "tmpfs"]])
    with pytest.raises(BenchError, match="in memory"):
        disk.need_space(tmp_path, 0)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cold", "--size", "ten"], "--size"),
        (["all", "--only", "w1,durable", "--target", "redis://127.0.0.1:1"], "cannot be restarted"),
        (["all", "--only", "durable,nope"], "there is no such scenario"),
    ],
)
def test_what_cannot_be_run_is_refused(args: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=words):
        app([*args, "--out", str(tmp_path / "out")], standalone_mode=False)
    assert not (tmp_path / "out").exists()
