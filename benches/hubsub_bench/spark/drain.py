"""Reads a whole log as Arrow over HTTP repeatedly, and discards it: the fastest possible reader.

As a program it reads its arguments as one JSON line: `{"servers": "HOST:PORT", "seconds": S}`, opens one
connection per hub, and prints `{"bytes": …, "seconds": …, "passes": …}`.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hubsub.pipeline.listing import Hub
from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.wire import Wire
from hubsub_bench import BenchError
from hubsub_bench.machine import Cores
from hubsub_bench.pinning import pinned

BUFFER_BYTES = 1 << 20
SLACK_S = 60.0


@contextmanager
def beside(http: str, cores: Cores, seconds: float) -> Iterator[Callable[[], dict[str, Any]]]:
    """Drains in the background on the given cores.

    Args:
        http: `HOST:PORT` of the node.
        cores: Cores to use.
        seconds: Length of the drain.

    Yields:
        A function that waits for the end and returns the result.
    """
    with pinned(cores.load):
        process = subprocess.Popen(
            [sys.executable, "-m", "hubsub_bench.spark.drain"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended() -> dict[str, Any]:
        printed, complaint = process.communicate(timeout=seconds + SLACK_S)
        if process.returncode != 0:
            raise BenchError("the log could not be read", complaint.strip().rpartition("\n")[2])
        answer: dict[str, Any] = json.loads(printed)
        return answer

    try:
        assert process.stdin is not None
        print(json.dumps({"servers": http, "seconds": seconds}), file=process.stdin, flush=True)
        yield ended
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def rate(answer: Mapping[str, Any]) -> float:
    """MB a second of a drain."""
    return float(answer["bytes"]) / float(answer["seconds"]) / 1e6


class _Drain:
    """Total of all connections."""

    def __init__(self, options: SourceOptions, log: str, until: float) -> None:
        self._options, self._log, self._until = options, log, until
        self.bytes = 0
        self.passes = 0.0
        self.failed: Exception | None = None

    def read(self, hub: Hub, share: float) -> None:
        """Reads one hub until the time is over."""
        try:
            with Wire(self._options.access) as wire:
                while time.monotonic() < self._until:
                    self._pass(wire, hub, share)
        except Exception as error:
            self.failed = error

    def _pass(self, wire: Wire, hub: Hub, share: float) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        span = [("from", str(hub.earliest)), ("until", str(hub.end)), ("log", self._log)]
        with wire.records(hub.id, hub.servers, span) as answer:
            while (got := answer.readinto(buffer)) and time.monotonic() < self._until:
                self.bytes += got
            if not got:
                self.passes += share


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    options = SourceOptions.parse({"servers": orders["servers"]})
    with Wire(options.access) as wire:
        listing = wire.listing()
    hubs = [hub for hub in listing.hubs.values() if hub.end > hub.earliest]
    started = time.monotonic()
    drain = _Drain(options, listing.log, started + orders["seconds"])
    threads = [threading.Thread(target=drain.read, args=(hub, 1 / len(hubs))) for hub in hubs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if drain.failed is not None:
        raise drain.failed
    print(json.dumps({"bytes": drain.bytes, "seconds": time.monotonic() - started, "passes": drain.passes}))


if __name__ == "__main__":
    main()
