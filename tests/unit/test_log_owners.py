"""Logged hubs on several nodes: lookup from any node, and queries whose batches one node handles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hubsub.config import resolve
from hubsub.control.batches import Committed
from hubsub.control.cluster.log_owners import LogOwner, LogOwners
from hubsub.control.cluster.records import ClassRecord, ClusterRecord, Founder, HubRecord
from hubsub.control.cluster.view import Stored
from hubsub.control.internal_rooms import attempt_name, has_remote_stages, query_room, stage_room, stored_name
from hubsub.control.stages import RetainedSpace
from hubsub.errors import HubClosedError, NoStagesError, StagesMissingError
from hubsub.node import Failed, Item, Published

from .cluster.played import Cluster as Control
from .cluster.played import play, until
from .fake_rooms import FakeRooms
from .played_cluster import Cluster
from .played_node import Answer, fits, hub_row, played_log
from .stage_writers import OnNode, Ring, found, pieces

CHAT = {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "64MiB"}}
TALK = {"name": "talk", "match": ["talk:*"]}


def set_class(cluster: Cluster, rooms: dict[bytes, tuple[str, int | None]]) -> None:
    """Sets the classes on all nodes, and the class and hub of each room."""
    for api in cluster.apis.values():
        api.state.config = resolve({"class": [CHAT, TALK], "data": "nowhere"}, {}, {})
        # A node by itself knows only its own hubs.
        api.node.log_hub_of = lambda room: (rooms[room][0], None)
    cluster.hubs = {room: hub for room, (_, hub) in rooms.items() if hub is not None}


@pytest.fixture
def cluster() -> Cluster:
    """A hub of the class `chat` on each of three nodes."""
    cluster = Cluster()
    cluster.have({1: "one", 2: "two", 3: "three"})
    rooms = {
        b"chat:a": ("chat", 2),
        b"chat:b": ("chat", 3),
        b"chat:nowhere": ("chat", None),
        b"talk:x": ("talk", None),
    }
    set_class(cluster, rooms)
    return cluster


def ids(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.text
    fits(answer, "/v1/log")
    return [hub["hub"] for hub in answer.json["hubs"]]


async def test_the_log_of_a_cluster_is_one_with_the_hubs_of_all_nodes(cluster: Cluster) -> None:
    answer = await cluster.ask("GET", "/v1/log")
    assert ids(answer) == [1, 2, 3] and answer.json["log"] == "c1"
    assert answer.json["ephemeral"] == ["talk", "default"]
    assert sorted(cluster.asked) == ["three", "two"], "each is asked once"


async def test_rooms_are_read_from_their_hubs_and_no_other_node_is_asked(cluster: Cluster) -> None:
    answer = await cluster.ask("GET", "/v1/log?subscribe=chat:a,chat:nowhere,talk:x")
    assert ids(answer) == [2] and answer.json["ephemeral"] == ["talk"]
    assert cluster.asked == ["two"]
    assert ids(await cluster.ask("GET", "/v1/log?subscribePattern=chat:*")) == [1, 2, 3]
    assert ids(await cluster.ask("GET", "/v1/log?subscribePattern=talk:*")) == []
    assert ids(await cluster.ask("GET", "/v1/log?hubs=3,1")) == [1, 3]
    assert (await cluster.ask("GET", "/v1/log?hubs=chat")).json["code"] == "bad_request"


@pytest.mark.parametrize("how", ["it does not answer", "it is not registered", "it has not opened it yet"])
async def test_a_log_without_a_hub_is_refused_rather_than_short(cluster: Cluster, how: str) -> None:
    if how == "it does not answer":
        cluster.away = {"two"}
    elif how == "it is not registered":
        cluster.have({1: "one", 2: "gone", 3: "three"})
    else:
        cluster.apis["two"].node.played_log = played_log()
    answer = await cluster.ask("GET", "/v1/log")
    assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable")
    assert ("gone" if "registered" in how else "two") in answer.json["message"]
    assert ids(await cluster.ask("GET", "/v1/log?subscribe=chat:b")) == [3], "others are there"


async def test_a_hub_that_was_a_nodes_before_is_told_by_who_has_it(cluster: Cluster) -> None:
    log = cluster.apis["one"].node.played_log
    assert log is not None
    log["hubs"].append(hub_row(2, latest=99, committed=99))
    answer = await cluster.ask("GET", "/v1/log")
    assert [(hub["hub"], hub["committed_until"]) for hub in answer.json["hubs"]] == [(1, 4), (2, 4), (3, 4)]


async def test_who_asks_the_wrong_node_for_records_is_sent_to_the_right_one(cluster: Cluster) -> None:
    path = "/v1/hubs/chat-1/records?log=C1&room=caf%C3%A9"
    answer = await cluster.ask("GET", path)
    assert (answer.status, answer.json["code"]) == (307, "elsewhere")
    assert answer.headers["location"] == f"http://two:3220{path}"
    assert "retry-after" not in answer.headers, "who is sent on need not wait"
    assert (await cluster.ask("GET", "/v1/hubs/2/records?log=of%20two")).json["code"] == "other_log"
    cluster.have({1: "one", 2: "gone", 3: "three"})
    answer = await cluster.ask("GET", path)
    assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable")


async def test_the_past_of_a_room_is_asked_of_who_knows_where_it_is(cluster: Cluster) -> None:
    path = "/v1/rooms/chat%3Anowhere/history?count=2"
    nobody = await cluster.ask("GET", path)
    assert (nobody.status, nobody.json) == (200, {"recovered": True, "records": [], "next": None})
    fits(nobody, "/v1/rooms/{room}/history")
    assert not (await cluster.ask("GET", f"{path}&after=3-4")).json["recovered"]
    # A new room is known at its leader first.
    of_two: Any = cluster.apis["two"].state.others
    of_two.hub_of = known
    found = await cluster.ask("GET", path)
    assert len(found.json["records"]) == 2
    cluster.away = {"two"}
    answer = await cluster.ask("GET", path)
    assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable"), "it may know"
    cluster.away, cluster.asked = set(), []
    await cluster.ask("GET", "/v1/rooms/chat%3Aa/history")
    assert not cluster.asked, "what is known here is read by the data plane"


async def known(room: bytes) -> int:
    return 2


async def test_batches_of_a_query_are_done_by_one_node_alone(cluster: Cluster) -> None:
    cluster.log_owners.rows += [
        LogOwner(10 + i, "$queries", i, name, f"{name}:3220") for i, name in enumerate(cluster.apis)
    ]
    cluster.indexes = {query_room("q"): 1}
    cluster.apis["two"].state.batches.commit = committed  # type: ignore[method-assign]
    answer = await cluster.ask("POST", "/v1/queries/q/batches/7", {"attempts": ["a"]})
    assert answer.json == {"published": 7, "duplicate": False} and cluster.asked == ["two"]
    # Also if another node believes that this one has it.
    answer = await cluster.ask("POST", "/v1/queries/q/batches/7?scope=node", {"attempts": ["a"]})
    assert (answer.status, answer.json["code"]) == (307, "elsewhere")
    stage = "/v1/queries/q/stages/a?topic=t"
    answer = await cluster.ask("PUT", stage, b"rows")
    assert (answer.status, answer.headers["location"]) == (307, f"http://two:3220{stage}")
    cluster.away = {"two"}
    for method, path in (("POST", "/v1/queries/q/batches/7"), ("DELETE", "/v1/queries/q/batches/7")):
        answer = await cluster.ask(method, path, {"attempts": ["a"]})
        assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable")


async def committed(query: str, batch: int, attempts: list[str]) -> object:
    return Committed(batch, False)


async def test_a_cluster_without_a_data_directory_keeps_no_stages(cluster: Cluster) -> None:
    answer = await cluster.ask("PUT", "/v1/queries/q/stages/a", b"rows")
    assert (answer.status, answer.json["code"]) == (409, "no_stages")


def test_stages_are_in_the_hub_that_belongs_to_their_query() -> None:
    ring = Ring()
    for query in ("q", "a/b c", "é" * 20):
        names = {stored_name(query, f"{n:032x}", ring) for n in range(200)}  # type: ignore[arg-type]
        assert {ring.index_of(stage_room(query, name)) for name in names} == {
            ring.index_of(query_room(query))
        }
        assert {attempt_name(name) for name in names} == {f"{n:032x}" for n in range(200)}
    assert stored_name("q", "a", None) == "a", "alone each hub will do"
    with pytest.raises(NoStagesError):
        stored_name("q", "a", Nowhere())  # type: ignore[arg-type]


def test_hubs_that_the_founder_brought_are_told_before_they_are_recorded() -> None:
    founder = Founder(node="one", log="l1", hubs={"chat": (4, 9), "gone": (5,)})
    recorded = HubRecord(room_class="chat", index=0, term=1, leader="one", incarnation=1, members=("one",))
    cache: Any = SimpleNamespace(
        cluster=Stored(ClusterRecord(id="c1", founder=founder), 1),
        hubs={4: Stored(recorded, 2)},
        classes={"chat": Stored(ClassRecord(version=1, hubs=2, durability="durable"), 1)},
        nodes={},
    )
    homes = LogOwners(cache, "c1")
    assert [(home.id, home.name, home.node) for home in homes.all()] == [
        (4, "chat-0", "one"),
        (9, "chat-1", "one"),
    ]
    assert homes.find("chat-1") == homes.find("9") == homes.all()[1]


class Dealt(FakeRooms):
    """Moves a query's hub to another node while the record that commits its batch is written."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(random.Random(1))
        self.ring = ring

    async def publish(self, items: Sequence[Item], *, as_node: bool) -> list[Published | Failed]:
        if items[0].topic.startswith(b"$queries"):
            self.ring.of_queries = "other"
        return await super().publish(items, as_node=as_node)


@pytest.mark.parametrize("when", ["before", "as its commit is written"])
async def test_a_batch_of_a_query_that_goes_to_another_node_is_moved_there_alone(when: str) -> None:
    ring = Ring()
    rooms = FakeRooms(random.Random(1)) if when == "before" else Dealt(ring)
    node = OnNode(rooms, ring)
    await node.stage("q", "a", None, pieces(["x1", "x2"], 1))
    if when == "before":
        ring.of_queries = "other"
    with pytest.raises(HubClosedError):
        await node.commit("q", 0, ["a"])
    assert found(rooms) == [] and len(node.blocked) == 0
    is_written = any(room.startswith(b"$queries") for room, _ in rooms.journal)
    assert is_written == (when != "before")
    rooms.name = "other"
    assert (await OnNode(rooms, ring).commit("q", 0, ["a"])).published == 2
    assert found(rooms) == ["x1", "x2"]


@pytest.mark.parametrize("ahead_s", [-7_200, 7_200])
async def test_a_stage_is_as_old_as_by_the_clock_of_who_took_it_in(ahead_s: int) -> None:
    rooms = FakeRooms(random.Random(1))
    rooms.clock_ahead_s = ahead_s
    await OnNode(rooms).stage("q", "a", None, pieces(["x1"], 1))
    with pytest.raises(StagesMissingError):
        await OnNode(rooms, stage_ms=-1).commit("q", 0, ["a"])
    assert (await OnNode(rooms).commit("q", 0, ["a"])).published == 1


class Nowhere(Ring):
    """The hub of a stage never has the index of its query's hub."""

    def index_of(self, room: bytes) -> int:
        return 5 if room.startswith(b"$queries") else 4


def test_stages_that_another_node_has_are_counted_as_much_as_they_may_be() -> None:
    assert not has_remote_stages(Ring(), "me")  # type: ignore[arg-type]
    assert has_remote_stages(Ring(away=frozenset({3})), "me")  # type: ignore[arg-type]
    space = RetainedSpace(64)
    space.hold_all("q")
    assert not space.has_room(1, 64) and space.has_room(1, 65)


def test_a_cluster_tells_whose_each_hub_is_also_while_that_is_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with Control([CHAT]) as control:
            for name in "abc":
                await control.start(name, data=str(tmp_path / name))
            await control.settle()
            homes = control.nodes["b"].log_owners
            assert homes.log == control.nodes["b"].cluster
            of_chat = [home for home in homes.all() if home.room_class == "chat"]
            assert len(of_chat) == 16 and len(homes.all()) == 7 * 16, "the node's own keep a log, too"
            home = of_chat[5]
            assert homes.find(home.name) == homes.find(str(home.id)) == homes.of("chat", home.index) == home
            assert homes.find("default-0") is None and homes.of("default", 0) is None
            alike = {h.index: h.node for h in homes.all() if h.room_class == "$queries"}
            assert alike == {h.index: h.node for h in homes.all() if h.room_class == "$stage"}
            await control.kill(home.node)
            left = next(iter(control.nodes.values()))
            await until(lambda: home.node not in left.nodes)
            seen = left.log_owners.find(home.name)
            assert seen is not None and (seen.node, seen.http) == (home.node, None)

    play(test)
