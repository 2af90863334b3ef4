"""Fixture `three`: three nodes of one cluster, shared per session and coordinator; over etcd and ZooKeeper in
`make soak`. Fixture `cluster`: the same for a single test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from hubsub.testing.stores import STORES

# Nodes do the same with each coordinator. A cluster over each runs in `test_away.py`, and
# `tests/coordination` tests each.
_COORDINATORS = ["embedded", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("etcd", "zookeeper"))]


@pytest.fixture(scope="session", params=_COORDINATORS)
def three(
    request: pytest.FixtureRequest, needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Nodes `a`, `b`, `c`, over each kind of coordinator in turn."""
    needs("hubsub-core", *([] if request.param == "embedded" else [request.param]))
    directory = tmp_path_factory.mktemp(f"three-{request.param}")
    if request.param == "embedded":
        with Cluster(directory) as cluster:
            yield cluster
        return
    (directory / "store").mkdir()
    with STORES[request.param](directory / "store") as members:
        with Cluster(directory, members.url(members.ports, "tests", "5s")) as cluster:
            yield cluster


@pytest.fixture
def cluster(needs: Callable[..., None], tmp_path: Path) -> Iterator[Cluster]:
    """Nodes `a`, `b`, `c` over the embedded coordinator."""
    needs("hubsub-core")
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Adds the nodes' logs to the report of a failed test."""
    report: pytest.TestReport = yield
    if report.failed:
        used = [getattr(value, "cluster", value) for value in getattr(item, "funcargs", {}).values()]
        report.sections += [("nodes", one.report()) for one in used if isinstance(one, Cluster)]
    return report
