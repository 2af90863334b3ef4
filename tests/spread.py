"""Distributes the tests over the processes of `pytest -n auto`.

One process runs all tests of a file. `tests/coordination` is divided by store instead, because stores are expensive
to start, and per store into two parts: promises, and faults, which wait for leases rather than for a processor. The
files of `tests/cluster` whose tests share a cluster over each of the stores are divided by store, too. The first two
processes begin with the pipeline, so that few start a Spark session, which is also expensive; the others begin with
everything else. A process that has finished its own files takes those of the others. The longest files come first, so
that all processes end at about the same time.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

PROCESSES_MAX = 4
WITH_SPARK = 2
"""Processes that begin with the pipeline."""
PIPELINE = "tests/pipeline/"
COORDINATION = "tests/coordination/"
CLUSTER = "tests/cluster/"
SHARED = re.compile("tests/cluster/test_(chat_log|moves|pipeline|three)[.]py")
"""Files whose tests use the fixture `three`."""
STORES = "embedded-one", "embedded", "etcd", "zookeeper"
WAITING = re.compile("faults|leases|watches")
"""Matches names of files in `tests/coordination` whose tests wait."""
SECONDS = {PIPELINE: 2.5, CLUSTER: 5.0, COORDINATION: 0.8, "tests/node/": 0.8}
"""Approximate seconds per test, by folder; for others `SECONDS_ELSE`."""
SECONDS_ELSE = 0.2
LONG = (
    "elsewhere waiting promises driver_kill replay runners publishing archive deploy sink full_disk bench_cluster"
    " away demo_chat console bench_log kills extremes partitions broker_model schema"
).split()
"""Files that begin first, so that short ones are left for the end; the first of them wait for their own programs."""


class Spread(LoadScopeScheduling):
    """A queue of files; each process takes the files meant for it first."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        store = next((store for store in STORES if store in test), "others")
        if SHARED.fullmatch(file):
            return CLUSTER + store + "/test_three"
        if not file.startswith(COORDINATION):
            return file
        return COORDINATION + store + ("/test_waiting" if WAITING.search(file) else "/test_promises")

    def _assign_work_unit(self, node: Any) -> None:
        takes_spark = self.nodes.index(node) < WITH_SPARK

        def rank(file: str) -> tuple[bool, int, float]:
            name = file.rpartition("/test_")[2].removesuffix(".py")
            place = LONG.index(name) if name in LONG else len(LONG)
            a_test = next((s for folder, s in SECONDS.items() if file.startswith(folder)), SECONDS_ELSE)
            return (PIPELINE in file) != takes_spark, place, -a_test * len(self.workqueue[file])

        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spread:
    return Spread(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """One process per processor: with more, tests that have a time limit exceed it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, PROCESSES_MAX)
