"""`hubsub cluster ps|kill|start` finds the cluster of its directory, and no other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hubsub.cli.cluster.control import PREFIX, Control, ask
from hubsub.cli.cluster.supervisor import Supervisor
from hubsub.errors import ClientError, NotConnectedError

KILL = {"do": "kill", "name": "n1", "signal": 9}


class Nodes:
    """A supervisor that records the nodes that it was asked to kill."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def rows(self) -> list[dict[str, Any]]:
        return [{"name": "n1", "state": "serves"}]

    async def kill(self, name: str, number: int) -> dict[str, Any]:
        self.killed.append(name)
        return {"name": name, "pid": number, "state": "killed"}


def control(nodes: Nodes, name: str, temporary: Path) -> Control:
    """The control socket of a cluster that was started in the current working directory."""
    own = temporary / f"{PREFIX}{name}"
    own.mkdir()
    return Control(cast(Supervisor, nodes), own, own)


@pytest.fixture
def clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[dict[str, Nodes], list[Control]]]]:
    """Makes clusters that are started in directories of the test, each in the directory of its name."""
    # The path of a socket must be short.
    own = tempfile.TemporaryDirectory(prefix="hs-")
    temporary = Path(own.name)
    monkeypatch.setattr(tempfile, "tempdir", own.name)

    def make(*names: str) -> tuple[dict[str, Nodes], list[Control]]:
        nodes = {name: Nodes() for name in names}
        controls = []
        for name in names:
            directory = tmp_path / name.partition("-")[0]
            directory.mkdir(exist_ok=True)
            monkeypatch.chdir(directory)
            controls.append(control(nodes[name], name, temporary))
        return nodes, controls

    with own:
        yield make


async def test_a_node_is_killed_in_the_cluster_that_was_started_in_this_directory(
    clusters: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, (a, b) = clusters("a", "b")
    async with a, b:
        monkeypatch.chdir(tmp_path / "a")
        await asyncio.to_thread(ask, None, KILL)
        assert {name: one.killed for name, one in nodes.items()} == {"a": ["n1"], "b": []}


async def test_a_cluster_that_was_started_elsewhere_is_named_and_left_alone(
    clusters: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, (a,) = clusters("a")
    async with a:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NotConnectedError, match="no cluster was started in this directory") as caught:
            await asyncio.to_thread(ask, None, KILL)
        where = str(caught.value.hint).rpartition("--data ")[2]
        assert not nodes["a"].killed
        assert await asyncio.to_thread(ask, None, {"do": "ps"}) == nodes["a"].rows(), "a list changes nothing"
        await asyncio.to_thread(ask, Path(where), KILL)
        assert nodes["a"].killed == ["n1"]


async def test_of_two_clusters_of_a_directory_one_is_named(clusters: Callable[..., Any]) -> None:
    nodes, (one, other) = clusters("a-1", "a-2")
    async with one, other:
        with pytest.raises(ClientError, match="several clusters run here"):
            await asyncio.to_thread(ask, None, KILL)
    assert not any(nodes[name].killed for name in nodes)
