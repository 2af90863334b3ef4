"""Runs the load generator, a separate program, and reads its report."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubsub_bench import BenchError
from hubsub_bench.machine import Cores
from hubsub_bench.pinning import pinned

PROGRAM = "hubsub-load"
PATIENCE_S = 2.0
"""Messages that arrive later than this after a window's end count as lost, in seconds."""
SLACK_S = 120.0
"""Time for connecting and draining, in addition to the scenario's."""
REFUSED_PROFILE = "debug"
"""A build profile of the generator that would measure itself."""
FILL_S = 3600.0
"""Time limit for filling or reading a whole log."""
BUSY_MAX = 0.9
"""Share of a core above which a thread of the generator counts as the bottleneck."""


def find_program() -> Path:
    """Path of `hubsub-load`: `$HUBSUB_LOAD`, a checkout's build, the one beside Python, or the PATH.

    Raises:
        BenchError: there is none.
    """
    named = os.environ.get("HUBSUB_LOAD")
    if named:
        if os.access(named, os.X_OK):
            return Path(named)
        raise BenchError("HUBSUB_LOAD is no program", named)
    roots = (Path.cwd(), *Path.cwd().parents, *Path(__file__).resolve().parents)
    targets = [Path(os.environ["CARGO_TARGET_DIR"])] if "CARGO_TARGET_DIR" in os.environ else []
    for target in (*targets, *(root / "target" for root in roots)):
        built = [path for profile in ("dist", "release") if (path := target / profile / PROGRAM).is_file()]
        if built:
            return max(built, key=lambda path: path.stat().st_mtime)
    found = shutil.which(PROGRAM, path=Path(sys.executable).parent) or shutil.which(PROGRAM)
    if found:
        return Path(found)
    raise BenchError(
        "the load generator is not built",
        PROGRAM,
        "make bench, in a checkout; elsewhere set HUBSUB_LOAD to the program",
    )


def latency_us(latency: Mapping[str, Any], name: str) -> float | None:
    """One of the generator's latencies, in µs by name: `p50`, …; None if nothing was measured."""
    return latency[f"{name}_ns"] / 1000 if latency["count"] else None


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one run of the generator.

    Args:
        raw: Its JSON object, as printed.
    """

    raw: Mapping[str, Any]

    @property
    def cpu_us_per_delivery(self) -> float | None:
        """CPU of the server per delivery, in µs."""
        return self._cpu_us("delivery")

    @property
    def cpu_us_per_publish(self) -> float | None:
        """CPU of the server per publish, in µs."""
        return self._cpu_us("publish")

    @property
    def delivered_per_second(self) -> float:
        return float(self.raw["window"]["delivered_per_second"])

    @property
    def answered_per_second(self) -> float:
        return float(self.raw["window"]["answered_per_second"])

    @property
    def published_per_second(self) -> float:
        return float(self.raw["window"]["published_per_second"])

    def latency_us(self, name: str) -> float | None:
        """Latency in µs by name: `p50`, `p99`, `p999`, …; None if nothing was measured."""
        return latency_us(self.raw["latency"], name)

    def reply_us(self, name: str) -> float | None:
        """Time from a publish to its reply in µs, by name as `latency_us`."""
        return latency_us(self.raw["replies"], name)

    def memory(self, moment: str, kind: str = "rss") -> int | None:
        """Memory of the server in bytes at the last sample of a moment."""
        return self._sampled("server", moment, kind)

    def kernel(self, moment: str, kind: str) -> int | None:
        """Memory of the machine's kernel in bytes at the last sample of a moment."""
        return self._sampled("kernel", moment, kind)

    def _cpu_us(self, what: str) -> float | None:
        spent = (self.raw["server"] or {}).get(f"cpu_ns_per_{what}")
        return None if spent is None else spent / 1000

    def _sampled(self, of: str, moment: str, kind: str) -> int | None:
        samples = (self.raw["server"] or {}).get("samples", [])
        found = [s[of][kind] for s in samples if s["moment"] == moment and s[of]]
        return found[-1] if found else None

    def complaints(self) -> list[str]:
        """Why this run's figures are unreliable; empty if they are reliable."""
        total = self.raw["total"]
        counts = ("lost", "doubled", "reordered", "misrouted", "corrupt", "errors", "disconnected")
        found = [f"{total[name]} {name}" for name in (*counts, "idle_disconnected") if total[name]]
        scenario = self.raw["scenario"]
        paced = scenario["rate"] > 0
        threads = [t["busy"] for t in self.raw["window"]["threads"] if not (paced and t["publishes"])]
        busiest = max(threads, default=0.0)
        if busiest > BUSY_MAX and not scenario["spin"]:
            found.append(f"the generator is the bottleneck ({busiest:.0%} of a core)")
        return found


def run(address: str, pid: int | None, cores: Cores, params: Mapping[str, object]) -> Report:
    """Runs one scenario against a server.

    Args:
        address: `HOST:PORT`.
        pid: Process of the server; None if its costs cannot be read.
        cores: Cores of the generator.
        params: The generator's options by name, with `_` for `-`.

    Raises:
        BenchError: it failed, or is a debug build.
    """
    options = {"threads": cores.load_threads, "patience": PATIENCE_S, **params, "target": address}
    if pid is not None:
        options["pid"] = pid
    limit_s = float(str(options.get("seconds", 5))) + float(str(options.get("warmup", 1))) + SLACK_S
    if options.get("messages"):
        limit_s = FILL_S
    return Report(_end_of(_start(None, cores, options), limit_s))


def measure(what: str, cores: Cores, params: Mapping[str, object]) -> Mapping[str, Any]:
    """Runs one of the generator's smaller measurements.

    Args:
        what: `sync`, `scan` or `past`, for example.
        cores: Cores of the generator.
        params: Options by name, with `_` for `-`.

    Returns:
        Its JSON object.

    Raises:
        BenchError: it failed, or is a debug build.
    """
    return _end_of(_start(what, cores, params), FILL_S)


@contextmanager
def beside(
    what: str, cores: Cores, params: Mapping[str, object]
) -> Iterator[Callable[[], Mapping[str, Any]]]:
    """Runs a smaller measurement in the background.

    Args:
        what: Name of the measurement.
        cores: Cores of the generator.
        params: Options by name, with `_` for `-`.

    Yields:
        A function that waits for the end and returns the JSON object.
    """
    process = _start(what, cores, params)
    limit_s = float(str(params.get("seconds", 5))) + SLACK_S
    try:
        yield lambda: _end_of(process, limit_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _start(what: str | None, cores: Cores, params: Mapping[str, object]) -> "subprocess.Popen[str]":
    command = [str(find_program()), *([what] if what else [])]
    for name, value in params.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    with pinned(cores.load):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end_of(process: "subprocess.Popen[str]", limit_s: float) -> Mapping[str, Any]:
    try:
        printed, complaint = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise BenchError("the load generator did not end", f"{limit_s:.0f} s") from error
    if process.returncode != 0:
        raise BenchError("the load generator failed", complaint.strip() or process.returncode)
    raw: dict[str, Any] = json.loads(printed)
    if raw["build_profile"] == REFUSED_PROFILE:
        program = str(process.args[0] if isinstance(process.args, list) else process.args)
        raise BenchError(
            "the load generator is a debug build", program, "cargo build --release -p hubsub-load"
        )
    return raw
