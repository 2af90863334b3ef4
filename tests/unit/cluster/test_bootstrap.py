"""A node with a log founds a cluster: its hubs keep their numbers, or the error gives the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from hubsub.config import Config, resolve
from hubsub.control.cluster import bootstrap
from hubsub.control.cluster.failover import decide
from hubsub.control.cluster.membership import prepare
from hubsub.control.cluster.records import (
    CLASSES,
    CLUSTER,
    ClassRecord,
    ClusterRecord,
    Founder,
    HubRecord,
    format_of,
    parse,
)
from hubsub.control.cluster.status import _adopted
from hubsub.control.cluster.view import Stored
from hubsub.coordination import Put
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.errors import OtherClusterError, StartError
from unit.cluster.fixtures import peer, view
from unit.cluster.played import YEAR_2030, play

LOGGED = {"name": "log", "match": ["log:*"], "durability": "durable", "history": {"bytes": "64MiB"}}
CHAT = {"name": "chat", "match": ["chat:*"]}
HUBS = {"$stage": 5, "$queries": 6, "$stats": 7}
"""Hubs of the node's internal classes, one per class."""


def made(steps: Any) -> dict[int, HubRecord]:
    assert all(step.why == "new" for step in steps)
    return {step.hub: step.after for step in steps}


def classes(**hubs: int) -> dict[str, ClassRecord]:
    return {
        name: ClassRecord(version=1, hubs=count, durability="ephemeral" if name == "chat" else "durable")
        for name, count in hubs.items()
    }


def test_hubs_of_the_founders_log_keep_their_numbers_and_their_node() -> None:
    founder = Founder(node="b", log="1f", hubs={"log": (9, 4)})
    known = view("abc", classes=classes(chat=2, log=2, more=1), founder=founder)
    hubs = made(decide(known).steps)
    assert {hub: (record.room_class, record.index) for hub, record in hubs.items()} == {
        9: ("log", 0), 4: ("log", 1), 10: ("chat", 0), 11: ("chat", 1), 12: ("more", 0)
    }  # fmt: skip
    for hub in (9, 4):
        assert (hubs[hub].leader, hubs[hub].members, hubs[hub].term) == ("b", ("b",), 1)


def test_hubs_of_the_founders_log_wait_for_it_and_others_do_not() -> None:
    founder = Founder(node="b", log="1f", hubs={"log": (2,)})
    away = {("b", 1): peer(is_ready=False)}
    known = view("abc", classes=classes(chat=1, log=1), peers=away, founder=founder)
    assert {hub: record.room_class for hub, record in made(decide(known).steps).items()} == {3: "chat"}


class World:
    """A store without a cluster, and the manifest of a node's log."""

    def __init__(self, patch: pytest.MonkeyPatch, path: Any, **more: Any) -> None:
        self.manifest: dict[str, Any] = {"identity": "1f", "cluster": None, "hubs": []}
        self.store = MemoryStore(lambda: 0.0)
        self.config = resolve(
            {"node": "a", "data": str(path), "shards": 2, "class": [LOGGED | more, CHAT]}, {}, {}
        )
        for name, hub in HUBS.items():
            self.add(hub, name, 0)
        patch.setattr(bootstrap, "_manifest", self._manifest)

    def _manifest(self, config: Config) -> Mapping[str, Any] | None:
        return self.manifest

    def add(self, hub: int, room_class: str, index: int) -> None:
        self.manifest["hubs"].append({"hub": hub, "class": room_class, "index": index})

    async def prepare(self) -> bool:
        """Prepares the node. Returns whether it has founded the cluster."""
        prepared = await prepare(self.config, MemoryCoordinator(self.store), wall=lambda: YEAR_2030)
        prepared.identity.close()
        return prepared.founded

    def written(self) -> ClusterRecord:
        return parse(ClusterRecord, CLUSTER, self.store.entries[CLUSTER].value)

    def hubs_of(self, name: str) -> int:
        key = f"{CLASSES}/{name}"
        return parse(ClassRecord, key, self.store.entries[key].value).hubs


def test_who_founds_with_a_log_says_which_hubs_it_has_and_their_classes_have_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def test() -> None:
        world = World(monkeypatch, tmp_path, placement="ring")
        world.add(2, "log", 1)
        world.add(1, "log", 0)
        assert await world.prepare()
        hubs = {name: (hub,) for name, hub in HUBS.items()} | {"log": (1, 2)}
        assert world.written().founder == Founder(node="a", log="1f", hubs=hubs)
        assert [world.hubs_of(name) for name in ("log", "$stats", "chat")] == [2, 1, 64]

    play(test)


def test_a_founder_that_stopped_before_it_knew_is_the_founder_still_and_no_other_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def test() -> None:
        world = World(monkeypatch, tmp_path)
        assert await world.prepare()
        (tmp_path / "cluster.json").unlink()
        assert await world.prepare()
        (tmp_path / "cluster.json").unlink()
        world.manifest["identity"] = "2f"
        assert not await world.prepare(), "its directory is another one"

    play(test)


@pytest.mark.parametrize(
    ("hubs", "words"),
    [
        ([(1, "log", 0), (2, "log", 1)], 'class log, 2 hubs\nhint: placement = "ring"'),
        ([(1, "chat", 0)], "a log of a class that keeps none: chat"),
        ([(1, "gone", 0)], "a log of a class that keeps none: gone"),
        ([(1, "log", 1)], "hubs of the log are missing: class log has \\[1\\]"),
    ],
)
def test_what_a_cluster_would_not_find_founds_none(
    hubs: list[tuple[int, str, int]], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def test() -> None:
        world = World(monkeypatch, tmp_path)
        for hub in hubs:
            world.add(*hub)
        with pytest.raises(StartError, match=words) as caught:
            await world.prepare()
        assert "another data directory" in str(caught.value) and not world.store.entries

    play(test)


def test_a_log_of_another_cluster_founds_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    async def test() -> None:
        world = World(monkeypatch, tmp_path)
        world.manifest["cluster"] = "c0ffee"
        with pytest.raises(OtherClusterError, match="c0ffee"):
            await world.prepare()
        assert not world.store.entries

    play(test)


def test_classes_that_another_founder_left_with_other_hubs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def test() -> None:
        world = World(monkeypatch, tmp_path)
        left = ClassRecord(version=1, hubs=16, durability="durable")
        await MemoryCoordinator(world.store).commit({}, [Put(f"{CLASSES}/$stats", format_of(left))])
        with pytest.raises(StartError, match="class \\$stats, 16 hubs, 1 here"):
            await world.prepare()

    play(test)


def test_hubs_that_wait_for_an_absent_founder_are_told_as_wrong() -> None:
    founder = Founder(node="b", log="1f", hubs={"log": (9, 4), "more": (7,)})
    cluster = Stored(ClusterRecord(id="x", founder=founder), 1)
    known: Any = SimpleNamespace(cluster=cluster, nodes={"a": None}, hubs={9: None, 7: None})
    assert list(_adopted(known)) == [
        "1 hubs of class log wait for node b, which founded the cluster and has their records"
    ]
    known.nodes["b"] = None
    assert list(_adopted(known)) == []
