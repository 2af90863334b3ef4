"""Environment of a row of the pipeline: a directory, nodes that are started in it, and Spark beside them."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubsub_bench.load import Report
from hubsub_bench.log_scenarios import FILL
from hubsub_bench.machine import Cores, busy_seconds, crowded, process_seconds
from hubsub_bench.scenarios import Params
from hubsub_bench.site import Site, Subject
from hubsub_bench.spark import drain
from hubsub_bench.spark.engine import Engine
from hubsub_bench.spark.kafka import Kafka

PAYLOAD_BYTES = 128


@dataclass(slots=True)
class Spent:
    """CPU seconds of a window; complete when it is over."""

    spark: float = 0.0
    server: float = 0.0


class Bench:
    """One run of a row.

    Args:
        site: Its directory and results.
        cores: Cores of server and generator.
        directory: The site's; for files of the row's own.
        records: Rows of a log that Spark reads.
        log_bytes: Size of a log that is only drained.
        pairs: Runs of each target.
        engine: None if the row needs no Spark.
        kafka: None without one.
    """

    def __init__(
        self,
        site: Site,
        cores: Cores,
        directory: Path,
        *,
        records: int,
        log_bytes: int,
        pairs: int,
        engine: Engine | None,
        kafka: Kafka | None,
    ) -> None:
        self.site, self.directory = site, directory
        self.records, self.log_bytes, self.pairs, self.kafka = records, log_bytes, pairs, kafka
        self._cores, self._engine = cores, engine

    @property
    def spark_cores(self) -> int:
        """Tasks that run at once."""
        return max(1, len(self._cores.load))

    @contextmanager
    def serving(self, *, hubs: int | None = None, rooms: int = 0) -> Iterator["Node"]:
        """A node; without `hubs` on the existing log, else on a new one with that number of hubs."""
        with self.site.serving(hubs=hubs, rooms=rooms) as subject:
            yield Node(self.site, subject, self._cores)

    def ask(self, name: str, **given: Any) -> Any:
        """Sends Spark a request; the reply is stored for the rows."""
        assert self._engine is not None, "the row says that it needs Spark"
        answer = self._engine.ask(name, **given)
        source = {"source": given["source"]} if "source" in given else {}
        return self.site.keep(name, {**source, **answer}) if isinstance(answer, dict) else answer

    @contextmanager
    def metered(self, node: "Node", *, beside_broker: bool = False) -> Iterator[Spent]:
        """Counts CPU in the block; complains of a high load of others, unless an external broker is measured."""
        assert self._engine is not None, "the row says that it needs Spark"
        spent = Spent()
        started, busy = time.monotonic(), busy_seconds()
        spark, server = self._engine.cpu_seconds(), node.cpu_seconds()
        yield spent
        spent.spark, spent.server = self._engine.cpu_seconds() - spark, node.cpu_seconds() - server
        others = (busy_seconds() - busy - spent.spark - spent.server) / (time.monotonic() - started)
        if not beside_broker:
            self.site.wrong += crowded(others)


class Node:
    """A node that serves on the site of a row."""

    def __init__(self, site: Site, subject: Subject, cores: Cores) -> None:
        self._site, self._subject, self._cores = site, subject, cores

    @property
    def source(self) -> dict[str, str]:
        """Options with which Spark reads it."""
        return {"servers": self._subject.server.http or ""}

    def fill(self, records: int, rooms: int, payload: int = PAYLOAD_BYTES) -> None:
        """Publishes `records` records, as fast as they are accepted.

        Args:
            records: Number of records.
            rooms: Number of rooms.
            payload: Bytes of each payload, default 128.
        """
        asked = {"rooms": rooms, "messages": records, "payload": payload, "verb": "publish"}
        self._subject.load({**FILL, **asked})

    def load(self, params: Params) -> Report:
        """Publishes beside a reader, or as if there were one."""
        return self._subject.load(params, leaves_a_core=True)

    def publish(self, params: Params, warm_s: float, seconds: float) -> tuple[int, int]:
        """Publishes for some time.

        Args:
            params: Options of the generator.
            warm_s: Seconds before the measured window.
            seconds: Length of the window.

        Returns:
            Start and end of the window, µs since 1970.
        """
        began = time.time_ns() // 1_000
        self._subject.load({**params, "seconds": warm_s + seconds + 1.0})
        since = began + int(warm_s * 1e6)
        return since, since + int(seconds * 1e6)

    def drained(self, seconds: float) -> AbstractContextManager[Callable[[], Mapping[str, Any]]]:
        """A reader of the whole log in the background, on a core that the generator leaves it."""
        return drain.beside(self.source["servers"], self._cores.two_loads()[1], seconds)

    def hubs(self) -> int:
        from hubsub.pipeline.options import SourceOptions
        from hubsub.pipeline.wire import Wire

        with Wire(SourceOptions.parse(self.source).access) as wire:
            return sum(hub.end > hub.earliest for hub in wire.listing().hubs.values())

    def cpu_seconds(self) -> float:
        return process_seconds(self._subject.server.pid)
