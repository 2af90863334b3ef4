"""The rows of the data pipeline and their bounds.

All payloads have 128 bytes; Spark has the cores that the node leaves (two and two of four). A row fills a log
of its own and yields one run after the other: number of the pair, target, figures by name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from hubsub_bench.scenarios import BaseScenario, Figure, Figures, Params
from hubsub_bench.spark.bench import Bench, Node
from hubsub_bench.spark.drain import rate
from hubsub_bench.stats import Bound

Runs: TypeAlias = Iterator[tuple[int, str, Figures]]

OURS = "HubSub"
IPC, TUPLES, KAFKA = "Arrow IPC file", "tuples", "Kafka"
ROOMS = 100
TUPLES_SHARE = 10
"""Tuples are so slow that a tenth of the rows suffices."""
WARM = 2
"""Runs before the measured ones: the JVM compiles frequent code."""
MICRO_BATCHES = 8
MANY_HUBS, MANY_ROOMS, FEW = 64, 2_000, 2
HUBS_SHARE = 4
RATE = 1_000
FRESH: Params = {"rooms": ROOMS, "subscribers": 0, "publishers": 4, "rate": RATE, "threads": 1, "warmup": 0}
FRESH_WARM_S = 8.0
"""A stream's first batches are slow until the JVM has compiled them."""
SERVING: Params = {
    "rooms": ROOMS,
    "subscribers": 0,
    "publishers": 20,
    "rate": 2_000,
    "threads": 1,
    "replies": True,
    "spin": True,
}
SERVING_PAYLOAD = 1024
ROUNDS = 5
"""Windows without and with a reader, in turn."""

SPEED = "rows per second"
SPARK_CPU, SERVER_CPU = "CPU of Spark per million", "CPU of the node per million"


@dataclass(frozen=True, slots=True)
class PipelineScenario(BaseScenario):
    """One row.

    Args:
        runs: Measures it.
        peers: Name of each comparison in tables, its peer, and its bound.
        spark: Whether it needs Spark.
    """

    runs: Callable[[Bench], Runs]
    peers: tuple[tuple[str, str, Bound], ...] = ()
    spark: bool = True

    def beside(self, name: str, peer: str, bound: Bound) -> "PipelineScenario":
        """The same runs, compared with one of the peers.

        Args:
            name: Name of the comparison.
            peer: The peer.
            bound: Bound of the first figure.
        """
        first, *rest = self.figures
        figures = (Figure(first.name, first.unit, first.lower_is_better, bound), *rest)
        return PipelineScenario(name, f"{self.title}; beside: {peer}", figures, self.runs)


def _batch(bench: Bench) -> Runs:
    rows = bench.records
    with bench.serving() as server:
        server.fill(rows, ROOMS)
        path = str(bench.directory / "rows.arrow")
        bench.ask("copy", options=server.source, path=path)
        few = rows // TUPLES_SHARE
        readers = {
            OURS: ("hubsub", server.source, rows),
            IPC: ("bench_ipc", {"path": path, "parts": str(bench.spark_cores)}, rows),
            TUPLES: (
                "bench_tuples",
                {"path": path, "parts": str(bench.spark_cores), "rows": str(few)},
                few,
            ),
        }
        if bench.kafka is not None:
            bench.ask("produce", options=server.source, kafka=bench.kafka.writing)
            readers[KAFKA] = ("kafka", bench.kafka.reading, rows)
        for name, (source, options, count) in readers.items():
            found = bench.ask("check", source=source, options=options)
            if found["rows"] != count:
                bench.site.wrong.append(f"{name} gave {found['rows']} rows of {count}")
            for _ in range(WARM):
                bench.ask("batch", source=source, options=options)
        for pair in range(bench.pairs):
            for name in readers if pair % 2 == 0 else reversed(readers):
                source, options, count = readers[name]
                with bench.metered(server, beside_broker=name == KAFKA) as spent:
                    answer = bench.ask("batch", source=source, options=options)
                figures = {
                    SPEED: count / answer["seconds"],
                    SPARK_CPU: spent.spark * 1e6 / count,
                    SERVER_CPU: spent.server * 1e6 / count,
                    "tasks": float(answer["tasks"]),
                }
                yield pair, name, figures


def _streaming(bench: Bench) -> Runs:
    rows = bench.records
    with bench.serving() as server:
        server.fill(rows, ROOMS)
        options = {**server.source, "maxRowsPerBatch": str(max(1, rows // MICRO_BATCHES))}
        bench.ask("stream", options=options, rows=rows, available_now=True)
        for pair in range(bench.pairs):
            with bench.metered(server) as spent:
                bounded = bench.ask("stream", options=options, rows=rows, available_now=True)
            endless = bench.ask("stream", options=options, rows=rows, available_now=False)
            for answer in (bounded, endless):
                if answer["rows"] != rows:
                    bench.site.wrong.append(f"{answer['rows']} rows of {rows} were streamed")
            figures = {
                "AvailableNow": through(bounded["batches"]),
                "without end": through(endless["batches"]),
                "AvailableNow, with its start": rows / bounded["seconds"],
                SPARK_CPU: spent.spark * 1e6 / rows,
                SERVER_CPU: spent.server * 1e6 / rows,
            }
            yield pair, OURS, figures


def _archive(bench: Bench) -> Runs:
    rows = bench.records
    with bench.serving() as server:
        server.fill(rows, ROOMS)
        asked = {"servers": server.source["servers"], "options": {}, "table_format": "parquet"}
        bench.ask("archive", **asked)
        for pair in range(bench.pairs):
            with bench.metered(server) as spent:
                answer = bench.ask("archive", **asked)
            if answer["rows"] != rows:
                bench.site.wrong.append(f"{answer['rows']} rows of {rows} are in the archive")
            figures = {
                SPEED: rows / answer["seconds"],
                SPARK_CPU: spent.spark * 1e6 / rows,
                SERVER_CPU: spent.server * 1e6 / rows,
            }
            yield pair, OURS, figures


def _freshness(bench: Bench) -> Runs:
    with bench.serving() as server:
        _fresh(bench, server)  # A warm-up for the JVM.
        for pair in range(bench.pairs):
            yield pair, OURS, _fresh(bench, server)


def _fresh(bench: Bench, server: Node) -> Figures:
    bench.ask("fresh_start", options=server.source)
    since, until = server.publish(FRESH, FRESH_WARM_S, bench.site.seconds)
    answer = bench.ask("fresh_stop", since_us=since, until_us=until)
    expected = bench.site.seconds * RATE
    if answer["rows"] < 0.95 * expected:
        bench.site.wrong.append(f"{answer['rows']} rows of {expected:.0f} were seen")
    return {name: answer[name] for name in ("p50", "p90", "p99", "max")}


def _hubs(bench: Bench) -> Runs:
    rows = max(1, bench.records // HUBS_SHARE)
    for pair in range(bench.pairs):
        found: dict[int, Figures] = {}
        for hubs, rooms in ((FEW, FEW), (MANY_HUBS, MANY_ROOMS)):
            with bench.serving(hubs=hubs, rooms=rooms) as server:
                server.fill(rows, rooms)
                got = server.hubs()
                if got != hubs:
                    bench.site.wrong.append(f"{got} hubs instead of {hubs} have records")
                options = {**server.source, "maxRowsPerBatch": str(max(1, rows // MICRO_BATCHES))}
                batches = [bench.ask("batch", source="hubsub", options=server.source) for _ in range(4)]
                stream = bench.ask("stream", options=options, rows=rows, available_now=True)
                found[hubs] = {
                    "tasks": float(batches[-1]["tasks"]),
                    "tasks, stream": stream["tasks"] / max(1, len(stream["batches"])),
                    "seconds": median(batch["seconds"] for batch in batches[1:]),
                }
        few, many = found[FEW], found[MANY_HUBS]
        figures: Figures = {
            "tasks to those of few": (many["tasks"] or 0) / (few["tasks"] or 1),
            "tasks of a micro-batch to those of few": (many["tasks, stream"] or 0)
            / (few["tasks, stream"] or 1),
            "tasks": many["tasks"],
            "time to that of few": (many["seconds"] or 0) / (few["seconds"] or 1),
        }
        yield pair, OURS, figures


def _serving(bench: Bench) -> Runs:
    with bench.serving() as server:
        server.fill(bench.log_bytes // SERVING_PAYLOAD, ROOMS, SERVING_PAYLOAD)
    for pair in range(bench.pairs):
        without, beside, rates = [], [], []
        with bench.serving() as server:
            for _ in range(ROUNDS):
                without.append(server.load(SERVING))
                with server.drained(bench.site.seconds + 1.0) as ended:
                    beside.append(server.load(SERVING))
                    rates.append(rate(bench.site.keep("drain", ended())))
        figures: Figures = {}
        for quantile in ("p50", "p99"):
            for name, reports in (("without", without), ("with", beside)):
                figures[f"{quantile} {name}"] = median(report.reply_us(quantile) or 0.0 for report in reports)
        ratios = {
            f"{quantile} with to without": (figures[f"{quantile} with"] or 0)
            / (figures[f"{quantile} without"] or 1)
            for quantile in ("p99", "p50")
        }
        yield pair, OURS, {**ratios, **figures, "read": median(rates)}


def through(batches: list[dict[str, object]]) -> float | None:
    """Rows a second from the start of the first batch to the end of the last."""
    if not batches:
        return None
    rows = sum(float(str(batch["rows"])) for batch in batches)
    began = min(float(str(batch["at"])) for batch in batches)
    ended = max(_ended(batch) for batch in batches)
    return rows / (ended - began) if ended > began else None


def _ended(batch: dict[str, object]) -> float:
    spent = batch["ms"]
    assert isinstance(spent, dict), "milliseconds by stage"
    return float(str(batch["at"])) + float(spent["triggerExecution"]) / 1_000


_CPU = (Figure(SPARK_CPU, "s"), Figure(SERVER_CPU, "s"))

PIPELINE: tuple[PipelineScenario, ...] = (
    PipelineScenario(
        "batch",
        "all rows of a log into Spark's noop sink",
        (Figure(SPEED, "/s", lower_is_better=False), *_CPU, Figure("tasks", "")),
        _batch,
        peers=(
            ("batch", IPC, Bound(0.8, 1.0)),
            ("batch-tuples", TUPLES, Bound(8.0)),
            ("batch-kafka", KAFKA, Bound()),
        ),
    ),
    PipelineScenario(
        "streaming",
        f"the same as a stream to noop, in {MICRO_BATCHES} micro-batches",
        (
            Figure("AvailableNow", "/s", lower_is_better=False, bound=Bound(0.6e6, 1.0e6, of="value")),
            Figure("without end", "/s", lower_is_better=False, bound=Bound(0.6e6, 1.0e6, of="value")),
            Figure("AvailableNow, with its start", "/s", lower_is_better=False),
            *_CPU,
        ),
        _streaming,
    ),
    PipelineScenario(
        "archive",
        "the job `archive --once` to Parquet, exactly once",
        (Figure(SPEED, "/s", lower_is_better=False, bound=Bound(0.25e6, 0.5e6, of="value")), *_CPU),
        _archive,
    ),
    PipelineScenario(
        "freshness",
        f"from a record's timestamp to foreachBatch having its row, {RATE:,} published a second",
        (
            Figure("p50", "ms", bound=Bound(300, 150, of="value")),
            Figure("p90", "ms"),
            Figure("p99", "ms", bound=Bound(1_000, 400, of="value")),
            Figure("max", "ms"),
        ),
        _freshness,
    ),
    PipelineScenario(
        "hubs",
        f"{MANY_ROOMS:,} rooms in {MANY_HUBS} hubs beside {FEW} rooms in {FEW}",
        (
            Figure("tasks to those of few", "×", bound=Bound(1.0, of="value")),
            Figure("tasks of a micro-batch to those of few", "×", bound=Bound(1.0, of="value")),
            Figure("tasks", ""),
            Figure("time to that of few", "×"),
        ),
        _hubs,
    ),
    PipelineScenario(
        "serving",
        "durable publishes at a fixed rate, without and with a reader of the whole log, time to the reply",
        (
            Figure("p99 with to without", "×", bound=Bound(1.5, of="value")),
            Figure("p50 with to without", "×"),
            Figure("p50 without", "µs"),
            Figure("p50 with", "µs"),
            Figure("p99 without", "µs"),
            Figure("p99 with", "µs"),
            Figure("read", "MB/s", lower_is_better=False),
        ),
        _serving,
        spark=False,
    ),
)

PIPELINE_BY_NAME: dict[str, PipelineScenario] = {scenario.name: scenario for scenario in PIPELINE}
