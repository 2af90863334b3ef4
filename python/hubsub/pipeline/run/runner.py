"""Starts a job's queries, shows their progress, and ends them: when everything is read, on a signal, or on an error.

Invariants: queries are always stopped before `run` returns, and a session started by `session` before that
block ends. A stop may interrupt a batch; Spark repeats it the next time, which the consumers of batches
support.
"""

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubsub.pipeline.archive.store import Store
from hubsub.pipeline.offsets import StreamOffset
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.run.backlog import two_watermarks
from hubsub.pipeline.run.display import Progress
from hubsub.pipeline.run.failures import failure, is_late_worker
from hubsub.pipeline.run.settings import Settings, interval
from hubsub.pipeline.run.tally import Tally
from hubsub.pipeline.session import connect, is_running, tasks_at_once
from hubsub.pipeline.stderr_filter import silence_spark
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.2
"""Seconds between two polls of the queries, and so the delay of a signal."""

STARTS_MAX = 3
"""Starts of a query whose Python process is late. On Spark Connect a query starts with a Python process of its own,
which Spark gives 10 s, by no setting; on a busy server its imports take longer. A query that has not started has
read nothing, so its start can be repeated.
"""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

PARTITIONS = "spark.sql.shuffle.partitions"

PARTITIONS_ELSEWHERE = 16
"""Partitions of a job's shuffles, if Spark runs on other machines and their number of parallel tasks is
unknown. Spark's 200 mean as many state stores and Python processes in each batch: minutes for a few thousand
records on a few cores.
"""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
"""Ours and the user's are joined: with the user's alone, Spark would log on stderr."""

# Spark's gateway for Python prints on stderr that it sets a level, unless its own logger has the root's.
_LOGGING = """
status = error
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@dataclass(frozen=True)
class Output:
    """A query of a job: a frame, and the consumer of its batches."""

    name: str
    frame: "DataFrame"
    take: Callable[["DataFrame", int], None]
    mode: str = "append"


class Stopped(BaseException):
    """Raised by a signal outside of `Ending.gently`."""


class Ending:
    """Handles SIGINT and SIGTERM in its block: within `gently` they are recorded, elsewhere they raise `Stopped`.

    Args:
        write: Called at once with a message after a signal.
        quiet: Whether to silence Spark from then on.
    """

    def __init__(self, write: Callable[[str], object] = lambda _: None, *, quiet: bool = False) -> None:
        self.signal: int | None = None
        """The first one that came."""
        self._write = write
        self._is_quiet = quiet
        self._is_gentle = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Ending":
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Installs the signal handlers, again where Spark replaced one. Signals ignored at the start stay ignored."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before != signal.SIG_IGN and before != self._hear:
                self._before.setdefault(number, before)
                signal.signal(number, self._hear)

    @contextlib.contextmanager
    def gently(self) -> Iterator[None]:
        """Its block polls `signal` and ends itself."""
        self._is_gentle = True
        try:
            yield
        finally:
            self._is_gentle = False

    def _hear(self, number: int, _: object) -> None:
        is_first, self.signal = self.signal is None, self.signal or number
        if is_first:
            if self._is_quiet:
                silence_spark()
            with contextlib.suppress(
                Exception
            ):  # The reader may be gone, or the signal may have interrupted the output of a line.
                self._write("stopping")
        if not self._is_gentle:
            raise Stopped


@contextlib.contextmanager
def session(settings: Settings, ending: Ending) -> Iterator["SparkSession"]:
    """A session for a run: the existing one, or a new one.

    Spark's own log goes to stderr only with `verbose`.
    """
    # Spark's own processes may use it slightly longer than this one.
    with tempfile.TemporaryDirectory(prefix="hubsub-pipeline-", ignore_cleanup_errors=True) as directory:
        is_ours = not is_running()
        if is_ours:
            os.environ.setdefault("SPARK_LOCAL_DIRS", directory)
        conf, app = _conf(settings, Path(directory)), f"hubsub {settings.job}"
        spark = connect(settings.master, conf, app=app, quiet=not settings.verbose)
        ending.listen()
        try:
            yield spark
        finally:
            if is_ours:
                with contextlib.suppress(Exception):  # It may be gone already.
                    spark.stop()


def run(
    settings: Settings, outputs: Sequence[Output], ending: Ending, progress: Progress
) -> Mapping[str, Tally]:
    """Runs queries until everything is read (`once`), a signal comes, or one of them fails.

    Args:
        settings: Settings of the run.
        outputs: The queries.
        ending: Detects signals.
        progress: Shows progress.

    Returns:
        Progress of each query.

    Raises:
        HubSubError: one failed; the others were stopped.
    """
    with ending.gently():
        return _run(settings, outputs, ending, progress)


def _run(
    settings: Settings, outputs: Sequence[Output], ending: Ending, progress: Progress
) -> Mapping[str, Tally]:
    queries: dict[str, Any] = {}
    tallies = {output.name: Tally() for output in outputs}
    failed: Exception | None = None
    try:
        for output in outputs:
            queries[output.name] = _start(settings, output, ending)
        while ending.signal is None and any(query.isActive for query in queries.values()):
            for name, query in queries.items():
                query.awaitTermination(POLL_S / len(queries))  # Raises the error of a failed query.
                tallies[name] = _look(query, tallies[name])
                progress.show(name, tallies[name])
        failed = next((reason for query in queries.values() if (reason := query.exception())), None)
    except Exception as error:
        failed = error
    finally:
        for query in queries.values():
            with contextlib.suppress(Exception):
                query.stop()
        _over(settings, queries.values())
    for name, query in queries.items():
        tallies[name] = _look(query, tallies[name])
        progress.show(name, tallies[name], last=True)
    # A terminal's Ctrl-C reaches Spark's workers too: an error after a signal is caused by it.
    if failed is not None and ending.signal is None:
        raise failure(failed) from (failed if settings.verbose else None)
    return tallies


def _over(settings: Settings, queries: Iterable[Any]) -> None:
    """Reports to the nodes where queries ended; a query whose end cannot be reported just stops reporting."""
    with Wire(SourceOptions.parse(settings.access()).access) as wire:
        for query in queries:
            try:
                (source,) = query.lastProgress["sources"]
                last = StreamOffset.decode(json.loads(source["endOffset"]))
                wire.report(last.query, last.hubs, None, ended=True)
            except Exception:  # It never began, Spark is gone, or no node answers.
                continue


def _start(settings: Settings, output: Output, ending: Ending) -> Any:
    writer = output.frame.writeStream.queryName(output.name).foreachBatch(output.take).outputMode(output.mode)
    writer = writer.option("checkpointLocation", f"{Store(settings.checkpoint).uri}/{output.name}")
    trigger = {"availableNow": True} if settings.once else {"processingTime": interval(settings.trigger)}
    writer = writer.trigger(**trigger)
    with two_watermarks(output.frame.sparkSession):
        for _ in range(STARTS_MAX - 1):
            try:
                return writer.start()
            except Exception as error:
                if ending.signal is not None or not is_late_worker(error):
                    raise
        return writer.start()


def _look(query: Any, tally: Tally) -> Tally:
    try:
        report = query.lastProgress
    except Exception:  # The query is just ending.
        return tally
    return tally if report is None else tally.plus(report)


def _conf(settings: Settings, directory: Path) -> dict[str, str]:
    conf = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # A batch stores only its changes, not the whole state: 0.1 s a batch instead of 0.7.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Times in files are in UTC and marked as such, as every reader expects.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    given = dict(settings.conf)
    master = settings.master or ""
    if not master.startswith("sc://"):
        file = directory / "log4j2.properties"
        file.write_text(_LOGGING.format(level="warn" if settings.verbose else "off"))
        given[JAVA_OPTIONS] = (
            f"-Dlog4j2.configurationFile={file.as_uri()} {given.get(JAVA_OPTIONS, '')}".strip()
        )
        conf["spark.sql.warehouse.dir"] = str(directory / "warehouse")
    if master and not master.startswith("local"):
        conf[PARTITIONS] = str(tasks_at_once(master, given) or PARTITIONS_ELSEWHERE)
    return conf | given
