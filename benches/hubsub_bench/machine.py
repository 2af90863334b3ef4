"""The machine that a benchmark ran on, and the assignment of its cores."""

import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hubsub_bench import BenchError

OTHERS_BUSY_MAX = 0.25
"""Cores that other processes may keep busy during a run."""

LOAD_THREADS_MAX = 6
"""More threads of the generator than this only disturb each other."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the machine that a result must name."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    congestion_control: str
    """TCP's congestion control, also on loopback."""
    python: str
    commit: str
    time: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe() -> Machine:
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), ""
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=cpu or platform.processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=memory,
        kernel=f"{platform.system()} {platform.release()}",
        congestion_control="".join(_lines("/proc/sys/net/ipv4/tcp_congestion_control")).strip(),
        python=platform.python_version(),
        commit=commit(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def commit() -> str:
    """Short id of the checked-out commit, with `-dirty` if files differ; `none` outside a repository."""
    found = _git("rev-parse", "--short", "HEAD")
    if not found:
        return "none"
    return f"{found}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else found


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of the server and the generator; empty sets if there are too few to separate them."""

    server: frozenset[int]
    load: frozenset[int]
    load_threads: int

    def two_loads(self) -> "tuple[Cores, Cores]":
        """Splits them for two generators at once: all cores of the generator but one, and that one."""
        if len(self.load) < 2:
            return self, self
        *most, last = sorted(self.load)
        return (
            Cores(self.server, frozenset(most), min(len(most), self.load_threads)),
            Cores(self.server, frozenset([last]), 1),
        )


def share_cores(shards: int, available: set[int] | None = None) -> Cores:
    """Assigns the first `shards` cores to the server, the others to the generator.

    A one-core server leaves three of four to the generator; a two-core server leaves two.
    """
    cores = sorted(_affinity() if available is None else available)
    if len(cores) <= shards:
        return Cores(frozenset(), frozenset(), max(1, min(len(cores), LOAD_THREADS_MAX)))
    load = cores[shards:]
    return Cores(frozenset(cores[:shards]), frozenset(load), min(len(load), LOAD_THREADS_MAX))


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine have spent."""
    fields = [int(field) for field in (_lines("/proc/stat") or ["cpu 0 0 0 0 0 0 0 0"])[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, _steal = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int | None) -> float:
    """CPU seconds that a process has spent; 0 if it cannot be read."""
    fields = "".join(_lines(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def spent_s(*who: int) -> float:
    """CPU seconds of this process (`RUSAGE_SELF`), or of its children that have ended (`RUSAGE_CHILDREN`)."""
    spent = map(resource.getrusage, who)
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


class Others:
    """Cores that other processes keep busy from now on.

    Args:
        own_s: Returns the CPU seconds of all processes that are none of the others.
    """

    def __init__(self, own_s: Callable[[], float]) -> None:
        self._own_s = own_s
        self._at, self._before = time.monotonic(), busy_seconds() - own_s()

    def busy(self) -> float:
        """Cores in the mean."""
        spent = busy_seconds() - self._own_s() - self._before
        return max(0.0, spent / (time.monotonic() - self._at))


def crowded(busy: float) -> list[str]:
    """A complaint if other processes kept too many cores busy."""
    return [f"other processes kept {busy:.1f} cores busy"] if busy > OTHERS_BUSY_MAX else []


def need_descriptors(count: int) -> None:
    """Raises the limit of open descriptors for this process and its children.

    Raises:
        BenchError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchError("too few open files are allowed", hard, f"raise it to {count}: ulimit -Hn {count}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _git(*args: str) -> str:
    try:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
