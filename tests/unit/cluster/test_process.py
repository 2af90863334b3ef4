"""The steps in which a process joins a cluster and leaves it, and the state after each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from hubsub.config import Config, resolve
from hubsub.control.cluster import process as process_module
from hubsub.control.cluster.membership import Prepared
from hubsub.control.cluster.process import ClusterProcess, advertised
from hubsub.control.cluster.records import (
    CLASSES,
    NODES,
    ClassRecord,
    HubRecord,
    NodeRecord,
    format_of,
    hub_key,
    node_key,
    parse,
)
from hubsub.coordination import Coordinator, Put
from hubsub.coordination.memory import MemoryCoordinator, MemoryStore
from hubsub.errors import CoordinatorUnreachableError, DuplicateNodeError, NodeFailedError, StartError

from .fake_data import FakeData, Snapshot
from .played import YEAR_2030, play, until


class FakeNode(FakeData):
    """A node whose life-cycle steps are recorded."""

    def __init__(self, world: World, me: tuple[str, int], classes: Sequence[str]) -> None:
        super().__init__(me)
        self.world = world
        self.name = me[0]
        self.given = classes
        self.addresses: dict[str, str | None] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.slots: Sequence[Any] = ()

    async def start(self) -> dict[str, str | None]:
        await self.world.step("start")
        self.addresses = {"redis": "127.0.0.1:7", "redis_cluster": "127.0.0.1:6", "link": "127.0.0.1:5"}
        return self.addresses

    async def stop(self) -> None:
        self.world.steps.append("stop")

    async def part_from_sessions(self) -> None:
        self.world.steps.append("part")

    def accept(self) -> None:
        self.world.steps.append("accept")

    def link_begin(self, cluster: str, incarnation: int) -> None:
        assert incarnation == self.me[1] and cluster
        self.world.steps.append("links")

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        assert "links" in self.world.steps, "links begin first"
        super().link_roster(peers)

    def redis_cluster_node(self, cluster: str) -> Any:
        return (self.name, "id", "127.0.0.1", 6)

    def redis_cluster_nodes(self, nodes: Sequence[Any]) -> None:
        self.slots = nodes

    async def wait_failed(self) -> None:
        await asyncio.shield(self.failure)

    def lead_snapshot(self) -> Snapshot:
        self.world.note_registered()
        return self.snapshot


class World:
    """Processes that share a store."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = MemoryStore(self.loop.time)
        self.steps: list[str] = []
        self.fails: dict[str, BaseException] = {}
        self.nodes: list[FakeNode] = []

    async def step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.fails:
            raise self.fails[name]

    def note_registered(self) -> None:
        if any(key.startswith(NODES) for key in self.store.entries) and "registered" not in self.steps:
            self.steps.append("registered")

    def process(self, name: str = "a", **file: Any) -> ClusterProcess:
        whole: dict[str, Any] = {"node": name, "shards": 1, "link": "127.0.0.1:0", "zone": "east"}
        whole |= {"cluster_secret": "a secret of the tests", "class": [{"name": "chat", "match": ["chat:*"]}]}
        world = self

        class Closing(MemoryCoordinator):
            async def close(self) -> None:
                world.steps.append("left")
                await super().close()

        async def open_store(config: Config) -> Coordinator:
            await world.step("coordinator")
            return Closing(world.store)

        def make(config: Config, prepared: Prepared) -> FakeNode:
            world.nodes.append(
                FakeNode(world, (name, prepared.incarnation), [c.name for c in config.classes])
            )
            return world.nodes[-1]

        return ClusterProcess(
            resolve(whole | file, {}, {}),
            make,
            open_store=open_store,
            clock=self.loop.time,
            wall=lambda: YEAR_2030 + self.loop.time(),
        )

    async def joined(self, name: str = "a") -> ClusterProcess:
        """A process that has joined; its data plane is the last of `nodes`."""
        process = self.process(name)
        await process.open()
        node = self.nodes[-1]
        node.ready = [node.me]
        await self.hubs()
        await process.join()
        return process

    async def hubs(self) -> None:
        """Gives every class in the store its hubs, numbered from 1, led by the absent node `z`."""
        classes = [entry for key, entry in sorted(self.store.entries.items()) if key.startswith(CLASSES)]
        records = [parse(ClassRecord, entry.key, entry.value) for entry in classes]
        names = [entry.key.rpartition("/")[2] for entry in classes]
        places = [
            (name, index) for name, record in zip(names, records, strict=True) for index in range(record.hubs)
        ]
        for hub, (name, index) in enumerate(places, 1):
            row = HubRecord(room_class=name, index=index, term=1, leader="z", incarnation=1, members=("z",))
            await MemoryCoordinator(self.store).commit({}, [Put(hub_key(hub), format_of(row))])

    def registered(self, name: str = "a") -> NodeRecord | None:
        entry = self.store.entries.get(node_key(name))
        return None if entry is None else parse(NodeRecord, entry.key, entry.value)


def test_clients_are_accepted_last_and_a_node_ends_in_reverse() -> None:
    async def test() -> None:
        world = World()
        process = world.process()
        await process.open()
        assert world.steps == ["coordinator", "start", "links"] and world.registered() is None
        joining = asyncio.create_task(process.join("127.0.0.1:4"))
        await until(lambda: world.registered() is not None)
        await asyncio.sleep(25)
        assert not joining.done(), "it does not hold all patterns"
        node = world.nodes[0]
        node.ready = [node.me]
        assert node.on_ready is not None
        node.on_ready()
        await asyncio.sleep(25)
        assert not joining.done(), "rooms have no home"
        await world.hubs()
        await joining
        assert "accept" not in world.steps
        process.accept()
        record = world.registered()
        assert record is not None and record.zone == "east" and record.incarnation == node.me[1]
        assert record.addresses == {
            "redis": "127.0.0.1:7", "redis_cluster": "127.0.0.1:6", "link": "127.0.0.1:5", "http": "127.0.0.1:4"
        }  # fmt: skip
        assert node.given == ["chat"] and [row[0] for row in node.slots] == ["a"]
        await process.stop()
        assert [step for step in world.steps if step != "registered"][3:] == [
            "accept",
            "part",
            "stop",
            "left",
        ]
        assert world.registered() is None and node.on_peer is None

    play(test)


@pytest.mark.parametrize(
    ("where", "error", "left"),
    [
        ("coordinator", CoordinatorUnreachableError(value="etcd:1"), ["coordinator"]),
        ("start", StartError("cannot listen", "127.0.0.1:7"), ["coordinator", "start", "stop", "left"]),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    where: str, error: Exception, left: list[str]
) -> None:
    async def test() -> None:
        world = World()
        world.fails[where] = error
        process = world.process()
        with pytest.raises(StartError) as caught:
            await process.open()
        text = str(caught.value)
        assert ("cannot be reached" if where == "coordinator" else "cannot listen") in text
        assert "\nhint: " in text or where == "start"
        assert world.steps == left
        await process.stop()
        assert world.steps == left
        world.fails.clear()
        again = world.process()
        await again.open()
        await again.stop()

    play(test)


def failing(patch: pytest.MonkeyPatch, error: Exception) -> None:
    async def start(*_: Any, **__: Any) -> None:
        raise error

    patch.setattr(process_module.ClusterNode, "start", start)


def test_a_node_that_cannot_register_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        world = World()
        process = world.process()
        await process.open()
        failing(monkeypatch, DuplicateNodeError(value="a"))
        with pytest.raises(DuplicateNodeError):
            await process.join()
        assert world.steps[-2:] == ["stop", "left"]

    play(test)


def test_a_start_that_is_given_up_while_it_waits_for_patterns_leaves_nothing() -> None:
    async def test() -> None:
        world = World()
        process = world.process()
        await process.open()
        joining = asyncio.create_task(process.join())
        await until(lambda: world.registered() is not None)
        await asyncio.sleep(1)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert world.steps[-2:] == ["stop", "left"] and world.registered() is None

    play(test)


def test_a_coordinator_that_goes_silent_at_the_start_is_told() -> None:
    async def test() -> None:
        world = World()
        process = world.process()
        await process.open()
        cache: Callable[..., Awaitable[None]] = MemoryCoordinator._follow

        async def silent(self: MemoryCoordinator, watch: Any) -> None:
            await (asyncio.Event().wait() if watch.directory == "hubs" else cache(self, watch))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryCoordinator, "_follow", silent)
            with pytest.raises(StartError, match="has not told this node") as caught:
                await process.join()
        assert "hint: " in str(caught.value) and world.steps[-2:] == ["stop", "left"]

    play(test)


@pytest.mark.parametrize("waits_for", ["watches", "patterns"])
@pytest.mark.parametrize("what", ["shard", "name"])
def test_a_node_that_fails_while_it_joins_says_so_at_once(what: str, waits_for: str) -> None:
    async def test() -> None:
        world = World()
        process = world.process()
        await process.open()
        node = world.nodes[0]
        cache: Callable[..., Awaitable[None]] = MemoryCoordinator._follow

        async def silent(self: MemoryCoordinator, watch: Any) -> None:
            is_silent = waits_for == "watches" and watch.directory == "hubs"
            await (asyncio.Event().wait() if is_silent else cache(self, watch))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryCoordinator, "_follow", silent)
            joining = asyncio.create_task(process.join())
            await until(lambda: world.registered() is not None)
            await asyncio.sleep(1)
            at_s = world.loop.time()
            error = NodeFailedError(value="shard 1") if what == "shard" else DuplicateNodeError(value="a")
            (node.failure if what == "shard" else process.cluster.failed).set_exception(error)
            with pytest.raises(type(error)):
                await joining
            assert world.loop.time() - at_s < 1
        assert world.steps[-2:] == ["stop", "left"]

    play(test)


@pytest.mark.parametrize("what", ["shard", "name"])
def test_what_ends_the_node_ends_its_process_which_drains_nothing(what: str) -> None:
    async def test() -> None:
        world = World()
        process, other = await world.joined(), await world.joined("b")
        node = world.nodes[0]
        hub = HubRecord(
            room_class="chat", index=0, term=1, leader="a", incarnation=node.me[1], members=("a",)
        )
        await MemoryCoordinator(world.store).commit({}, [Put(hub_key(1), format_of(hub))])
        await until(lambda: node.rows[1].leader == node.me)
        waits = asyncio.create_task(process.wait_failed())
        await asyncio.sleep(1)
        assert not waits.done()
        error = NodeFailedError(value="shard 1") if what == "shard" else DuplicateNodeError(value="a")
        (node.failure if what == "shard" else process.cluster.failed).set_exception(error)
        with pytest.raises(type(error)):
            await waits
        at_s = world.loop.time()
        await process.stop()
        assert world.loop.time() - at_s < 1
        await other.stop()

    play(test)


def test_a_node_whose_name_another_one_has_ends_all_the_same() -> None:
    async def test() -> None:
        world = World()
        process = await world.joined()
        node = world.nodes[0]
        entry = world.store.entries[node_key("a")]
        later = structs.replace(parse(NodeRecord, entry.key, entry.value), incarnation=node.me[1] + 1)
        await MemoryCoordinator(world.store).commit({}, [Put(entry.key, format_of(later))])
        await process.stop()
        assert world.steps[-2:] == ["stop", "left"]
        assert entry.key in world.store.entries, "it is the other one's"

    play(test)


def test_cluster_clients_are_told_of_all_nodes() -> None:
    async def test() -> None:
        world = World()
        processes = [await world.joined(name) for name in "ab"]
        await until(lambda: all({row[0] for row in node.slots} == {"a", "b"} for node in world.nodes))
        await processes[1].stop()
        await until(lambda: {row[0] for row in world.nodes[0].slots} == {"a"})
        await processes[0].stop()

    play(test)


def test_a_node_whose_record_has_no_address_for_cluster_clients_is_not_told_to_them() -> None:
    async def test() -> None:
        world = World()
        process = await world.joined()
        node = world.nodes[0]
        kept = parse(NodeRecord, node_key("a"), world.store.entries[node_key("a")].value)
        bad = structs.replace(kept, incarnation=1, addresses={"redis_cluster": "nowhere", "link": "nowhere"})
        routes = node.rows
        await MemoryCoordinator(world.store).commit({}, [Put(node_key("b"), format_of(bad))])
        await until(lambda: [row[0] for row in node.roster] == ["b"])
        await until(lambda: node.rows is not routes)
        assert [row[0] for row in node.slots] == ["a"]
        await process.stop(drain=False)

    play(test)


def test_what_others_are_told_is_the_advertised_host_or_that_of_the_route() -> None:
    config = resolve({"advertise": "hub.example"}, {}, {})
    assert advertised(config, {"redis": "0.0.0.0:7", "ws": None}) == {"redis": "hub.example:7"}
    bound = advertised(resolve({}, {}, {}), {"redis": "127.0.0.1:7", "link": "0.0.0.0:5"})
    assert bound["redis"] == "127.0.0.1:7" and not bound["link"].startswith("0.0.0.0")
