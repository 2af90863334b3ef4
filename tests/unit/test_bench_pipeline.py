"""The benchmark's pipeline rows: requests to Spark, evaluation of the answers, and the pairs that are
compared."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="needs pyspark")

from hubsub_bench import BenchError
from hubsub_bench.load import Report
from hubsub_bench.runner import Row
from hubsub_bench.servers import Store
from hubsub_bench.spark.bench import Bench, Spent
from hubsub_bench.spark.drain import rate
from hubsub_bench.spark.engine import session_seconds
from hubsub_bench.spark.kafka import Kafka, parse
from hubsub_bench.spark.rows import IPC, KAFKA, OURS, PIPELINE, PIPELINE_BY_NAME, TUPLES, WARM, Runs, through
from hubsub_bench.spark.runner import results
from hubsub_bench.spark.sources import share
from hubsub_bench.spark.stream_delay import lateness, quantile
from hubsub_bench.stats import Verdict


@dataclass
class FakeBench:
    """Fake Spark and nodes with the answers that a test sets."""

    records: int = 1_000
    log_bytes: int = 1 << 20
    pairs: int = 2
    kafka: Kafka | None = None
    spark_cores: int = 2
    directory: Path = Path("nowhere")
    seconds: float = 10.0
    seen: int | None = None
    """Rows that Spark returns; None: all of them."""
    batch_s: list[float] = field(default_factory=list)
    p99_ns: list[int] = field(default_factory=list)
    """Reply latency of each run of the generator."""
    tasks: Mapping[int, int] = field(default_factory=dict)
    """Number of tasks of a batch, by number of hubs."""
    asked: list[tuple[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _hubs: int = 2

    @property
    def site(self) -> "FakeBench":
        return self

    @property
    def source(self) -> dict[str, str]:
        return {"servers": "127.0.0.1:1"}

    @contextmanager
    def serving(self, *, hubs: int | None = None, rooms: int = 0) -> Iterator["FakeBench"]:
        self._hubs = hubs or 2
        yield self

    @contextmanager
    def metered(self, node: object, *, beside_broker: bool = False) -> Iterator[Spent]:
        yield Spent(spark=2.0, server=1.0)

    def fill(self, records: int, rooms: int, payload: int = 128) -> None:
        self.asked.append(("fill", records * payload))

    def hubs(self) -> int:
        return self._hubs

    def publish(self, params: object, warm_s: float, seconds: float) -> tuple[int, int]:
        return 0, 10

    def load(self, params: object) -> Report:
        p99 = self.p99_ns.pop(0) if self.p99_ns else 1
        return Report({"replies": {"count": 1, "p50_ns": 1_000, "p99_ns": p99}})

    @contextmanager
    def drained(self, seconds: float) -> Iterator[Callable[[], Mapping[str, Any]]]:
        yield lambda: {"bytes": 3_000_000, "seconds": 3.0, "passes": 1.0}

    def keep(self, measured: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        return raw

    def ask(self, name: str, **given: Any) -> Any:
        self.asked.append((name, given.get("source", given)))
        few = given.get("source") == "bench_tuples"
        rows = (self.records // 10 if few else self.records) if self.seen is None else self.seen
        batch = {"rows": rows, "at": 5.0, "ms": {"triggerExecution": 500}}
        return {
            "batch": {
                "seconds": self.batch_s.pop(0) if self.batch_s else 1.0,
                "tasks": self.tasks.get(self._hubs, 2),
            },
            "check": {"rows": rows},
            "stream": {"rows": rows, "seconds": 2.0, "batches": [batch], "tasks": 2},
            "archive": {"rows": rows, "seconds": 2.0},
            "fresh_stop": {"rows": 10_000, "p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0},
        }.get(name)


def runs(name: str, bench: FakeBench) -> Runs:
    return PIPELINE_BY_NAME[name].runs(cast(Bench, bench))


def test_every_figure_of_every_row_is_measured_for_everybody() -> None:
    for scenario in PIPELINE:
        bench = FakeBench(kafka=parse("kafka://h:1/t"))
        found = list(runs(scenario.name, bench))
        assert {target for _, target, _ in found} == {OURS, *(peer for _, peer, _ in scenario.peers)}
        for _, _, figures in found:
            assert {figure.name for figure in scenario.figures} <= figures.keys()
            assert all(value is not None for value in figures.values())
        if scenario.name != "hubs":
            assert bench.wrong == []


def test_sources_take_turns_and_the_order_alternates() -> None:
    assert [(pair, target) for pair, target, _ in runs("batch", FakeBench())] == [
        *((0, OURS), (0, IPC), (0, TUPLES)),
        *((1, TUPLES), (1, IPC), (1, OURS)),
    ]


def test_rows_that_are_missing_are_complained_of() -> None:
    for name, text in (
        ("batch", "HubSub gave 999 rows of 1000"),
        ("streaming", "999 rows of 1000 were streamed"),
        ("archive", "999 rows of 1000 are in the archive"),
    ):
        bench = FakeBench(seen=999)
        list(runs(name, bench))
        assert text in bench.wrong


def test_a_topic_is_filled_with_the_rows_of_the_log_and_read_by_sparks_own_source() -> None:
    bench = FakeBench(kafka=parse("kafka://h:1/t"))
    list(runs("batch", bench))
    wanted = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    assert ("produce", {"options": bench.source, "kafka": wanted}) in bench.asked
    assert bench.asked.count(("batch", "kafka")) == WARM + bench.pairs


def test_more_hubs_that_cost_more_tasks_miss_the_bound() -> None:
    found = list(runs("hubs", FakeBench(tasks={2: 2, 64: 3})))
    assert [figures["tasks to those of few"] for _, _, figures in found] == [1.5, 1.5]
    rows = [_row("hubs", pair, target, figures) for pair, target, figures in found]
    (result,) = results(PIPELINE_BY_NAME["hubs"], rows, None)
    assert result.summary("tasks to those of few").verdict is Verdict.BELOW
    assert result.summary("tasks of a micro-batch to those of few").verdict is Verdict.FLOOR


def test_publishes_are_measured_without_and_with_a_reader_in_turn() -> None:
    bench = FakeBench(pairs=1, p99_ns=[2_000, 3_000] * 2 + [9_000, 1_000] + [2_000, 3_000] * 2)
    ((_, _, figures),) = runs("serving", bench)
    assert (figures["p99 without"], figures["p99 with"], figures["p99 with to without"]) == (2.0, 3.0, 1.5)
    assert (figures["read"], bench.asked) == (1.0, [("fill", 1 << 20)])


@pytest.mark.parametrize("peers", [[], ["kafka://h:1/t"]])
def test_each_peer_is_a_line_with_a_bound_of_its_own(peers: list[str]) -> None:
    against = parse(peers[0]) if peers else None
    speeds = {OURS: 900.0, IPC: 1_000.0, TUPLES: 100.0, KAFKA: 450.0}
    rows = [_row("batch", 0, target, {"rows per second": speed}) for target, speed in speeds.items()]
    found = {r.scenario.name: r for r in results(PIPELINE_BY_NAME["batch"], rows, against)}
    assert list(found) == ["batch", "batch-tuples", *(["batch-kafka"] if peers else [])]
    assert {row.target for row in found["batch-tuples"].rows} == {OURS, TUPLES}
    summaries = [result.summary("rows per second") for result in found.values()]
    assert [summary.ratio for summary in summaries] == [0.9, 9.0, 2.0][: len(summaries)]
    assert summaries[0].verdict is Verdict.FLOOR and summaries[1].verdict is Verdict.FLOOR


def test_a_broker_is_named_with_its_topic() -> None:
    broker = parse("kafka://a:9092,b:9092/rows-1")
    assert (broker.brokers, broker.topic) == ("a:9092,b:9092", "rows-1")
    assert broker.reading["startingOffsets"] == "earliest"


@pytest.mark.parametrize(
    "text", ["kafka://h:1", "kafka://h/t", "kafka://h:1/a/b", "redis://h:1/t", "kafka://me:hush@h:1/t"]
)
def test_a_broker_that_cannot_be_meant_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BenchError) as raised:
        parse(text)
    assert "kafka://HOST:PORT/TOPIC" in str(raised.value) and "hush" not in str(raised.value)


def test_sparks_kafka_package_is_asked_for_unless_the_user_brings_it() -> None:
    broker = parse("kafka://h:1/t")
    assert broker.conf({})["spark.jars.packages"].startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:")
    assert broker.conf({"spark.jars": "here.jar"}) == {}


@pytest.mark.parametrize(("count", "parts"), [(10, 3), (2, 4), (0, 2), (7, 1)])
def test_shares_hold_each_number_once(count: int, parts: int) -> None:
    shares = [share(count, parts, part) for part in range(parts)]
    assert [number for numbers in shares for number in numbers] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_stream_is_timed_from_its_first_batch_to_the_end_of_its_last() -> None:
    batches = [
        {"rows": 100, "at": 10.0, "ms": {"triggerExecution": 900}},
        {"rows": 300, "at": 11.5, "ms": {"triggerExecution": 500}},
    ]
    assert through(batches) == 200.0
    assert through([]) is None


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert quantile([7.0], 0.01) == 7.0 and quantile([], 0.5) is None


def test_only_records_of_the_window_count_as_late() -> None:
    assert lateness([([1_000, 2_000, 3_000], 4_000), ([3_500], 5_000)], 2_000, 3_500) == [1.0, 2.0]


def test_a_drain_is_told_in_bytes_a_second() -> None:
    assert rate({"bytes": 4_000_000, "seconds": 2.0}) == 2.0


def test_cpu_is_that_of_all_processes_of_the_session_and_their_dead(tmp_path: Path) -> None:
    for pid, session, ticks in ((10, 7, "100 50 20 30"), (11, 7, "1 1 0 0"), (12, 8, "999 0 0 0")):
        (tmp_path / str(pid)).mkdir()
        before = f"S 1 {pid} {session} 0 -1 0 0 0 0 0"
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) c) {before} {ticks} 20 0 1")
    (tmp_path / "self").mkdir()
    (tmp_path / "13").mkdir()  # The process has just ended.
    assert session_seconds(7, tmp_path) == 202 / os.sysconf("SC_CLK_TCK")


def test_a_store_deals_rooms_out_to_its_classes(tmp_path: Path) -> None:
    text = Store(tmp_path, classes=2, rooms=4).write_config().read_text()
    assert text.count("[[class]]") == text.count('durability = "durable"') == 2
    assert "match = ['room:00000001', 'room:00000003']" in text


def _row(scenario: str, pair: int, target: str, figures: Mapping[str, float | None]) -> Row:
    return Row(scenario, pair, target, "HubSub", "release", figures, [], 0.0, [])
