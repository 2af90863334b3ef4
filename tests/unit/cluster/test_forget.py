"""Removal of unused rooms: selection, effects of a removal, and lookups during it."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from hubsub.control.cluster import commits, rpc
from hubsub.control.cluster.bucket_values import FORMAT, Room, hash_of
from hubsub.control.cluster.buckets import Buckets
from hubsub.control.cluster.forget import Idle
from hubsub.control.cluster.forgotten import LINGER_S, Forgotten
from hubsub.control.cluster.plane import TopicRoute
from hubsub.control.cluster.records import HubRecord, format_of, hub_key, parse
from hubsub.coordination import Entry, Put, Write
from hubsub.coordination.memory import MemoryCoordinator
from hubsub.errors import (
    CoordinatorError,
    CoordinatorUnknownError,
    CoordinatorUnreachableError,
    ExpectationError,
    NoControllerError,
)
from unit.cluster.played import Cluster, play, until
from unit.cluster.test_directory import located
from unit.cluster.test_initial_state import hold

NAMES = [b"chat:%d" % number for number in range(99)]
KEYS = [("chat", b"%d" % number) for number in range(4)]


@pytest.mark.parametrize(("later_s", "due"), [(9.9, 0), (10.0, 4), (30.0, 4)])
def test_a_room_is_due_when_it_was_unused_at_two_looks_for_long_enough(later_s: float, due: int) -> None:
    idle = Idle(10.0)
    assert idle.look(KEYS, set(KEYS), 5.0) == []
    assert len(idle.look(KEYS, set(KEYS), 5.0 + later_s)) == due


def test_a_room_that_was_used_at_a_look_between_begins_anew() -> None:
    idle = Idle(10.0)
    idle.look(KEYS, set(KEYS), 0.0)
    assert idle.look(KEYS, set(KEYS[1:]), 8.0) == []
    assert idle.look(KEYS, set(KEYS), 12.0) == KEYS[1:]
    idle.drop(KEYS[1:])
    assert len(idle) == 1 and idle.look(KEYS, set(KEYS), 22.0) == KEYS[:1]


def test_as_many_rooms_are_remembered_as_may_be_and_others_when_these_are_done() -> None:
    idle = Idle(1.0, rooms_max=3)
    idle.look(KEYS, set(KEYS), 0.0)
    assert idle.look(KEYS, set(KEYS), 1.0) == KEYS[:3] and len(idle) == 3
    idle.drop(KEYS[:3])
    idle.look(KEYS[3:], set(KEYS), 2.0)
    assert idle.look(KEYS, set(KEYS), 3.0) == KEYS[3:]


def test_a_room_whose_record_went_keeps_its_hub_for_a_while() -> None:
    now = 0.0
    forgotten = Forgotten(lambda: now)
    forgotten.add("chat", {b"x": 7})
    now = LINGER_S - 0.1
    assert (forgotten.hub_of("chat", b"x"), forgotten.hub_of("game", b"x")) == (7, None)
    assert forgotten.is_since("chat", b"x", 0.0) and not forgotten.is_since("chat", b"x", 0.1)
    now = LINGER_S
    assert forgotten.hub_of("chat", b"x") is None
    forgotten.add("chat", {b"y": 8})
    assert len(forgotten) == 1


def test_a_room_that_was_not_met_in_a_whole_round_is_remembered_no_more() -> None:
    idle = Idle(1.0, rooms_max=4)
    idle.look(KEYS, set(KEYS), 0.0)
    idle.end_round()
    assert idle.look(KEYS[1:], set(KEYS), 0.5) == [] and len(idle) == 4
    idle.end_round()
    assert len(idle) == 3
    assert idle.look(KEYS, set(KEYS), 1.0) == KEYS[1:], "the first one begins anew"


def test_buckets_tell_which_rooms_went_and_not_those_that_a_split_took_elsewhere() -> None:
    writer, reader = Buckets("chat"), Buckets("chat")
    revision = 0

    def write(changes: dict[bytes, Room | None], backwards: bool = False) -> dict[bytes, int | None]:
        nonlocal revision
        changed: dict[bytes, int | None] = {}
        for commit in writer.commits(changes, 1).commits:
            for put in commit.writes[:: -1 if backwards else 1]:
                revision += 1
                writer.apply(put.key, put.value, revision)
                changed |= reader.apply(put.key, put.value, revision)
        return changed

    names = [b"room-%d" % number for number in range(1_000)]
    for backwards, part in ((False, names[:500]), (True, names[500:])):
        assert write({name: Room(7) for name in part}, backwards) == {}
    assert len(reader.keys()) > 4
    assert write(dict.fromkeys(names[:10])) == dict.fromkeys(names[:10], 7)
    assert reader.count == 990


def test_an_unused_room_is_given_up_and_comes_back_in_its_hub_and_a_used_one_stays() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=5_000) as cluster:
            cluster.used = {b"chat:used"}
            await cluster.start(*"abc")
            await cluster.settle()
            rooms = [b"chat:used", *(b"chat:%d" % number for number in range(40))]
            before = {}
            for room in rooms:
                found = await cluster.nodes["b"].locate(room)
                assert found is not None
                before[room] = found.hub
            assert cluster.status()["rooms_with_record"] == len(rooms)
            await until(lambda: cluster.status()["rooms_with_record"] == 1)
            given_up = [room for plane in cluster.planes.values() for room in plane.given_up]
            assert sorted(given_up) == sorted(rooms[1:])
            controller = cluster.controller()
            assert controller is not None and cluster.nodes[controller].room_records.forgotten == 40
            assert await cluster.nodes["c"].locate(b"chat:0", create=False) is None
            for room in rooms:
                found = await cluster.nodes["c"].locate(room)
                assert found is not None and found.hub == before[room], (
                    "a node may not have heard that it went"
                )

    play(test)


def test_a_room_whose_leader_gives_no_answer_keeps_its_record() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=5_000) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            for number in range(40):
                await cluster.nodes["b"].locate(b"chat:%d" % number)
            controller = cluster.controller()
            deaf = next(name for name in "abc" if name != controller)
            cluster.planes[deaf].is_deaf = True
            kept = {
                b"chat:%d" % number
                for number in range(40)
                if (found := await cluster.nodes[str(controller)].locate(b"chat:%d" % number)) is not None
                and found.members[0].node == deaf
            }
            assert kept
            await until(lambda: cluster.nodes[str(controller)].room_records.forgotten == 40 - len(kept))
            await asyncio.sleep(20)
            assert cluster.nodes[str(controller)].room_records.forgotten == 40 - len(kept)

    play(test)


def test_a_room_that_comes_back_keeps_its_hub_though_its_member_gives_no_answer() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=5_000) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            found = [await located(cluster, "b", b"chat:%d" % number) for number in range(40)]
            before = {at.room: (at.hub, at.members[0].node) for at in found}
            await until(lambda: cluster.status()["rooms_with_record"] == 0)
            controller = cluster.controller()
            silent = next(name for name in "abc" if name != controller)
            asks_it = next(name for name in "abc" if name != silent)
            cluster.planes[silent].is_deaf = True
            assert silent in {node for _, node in before.values()}
            for room, (hub, _) in before.items():
                assert (await located(cluster, asks_it, room)).hub == hub

    play(test)


def test_a_room_that_is_pinned_while_it_is_forgotten_keeps_its_pin() -> None:
    """The operator's command arrived before the removal began; its record is written between two attempts of
    the removal."""

    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            to = next(name for name in "abc" if name != before.members[0].node)
            node = cluster.nodes[str(cluster.controller())]
            assigner, coordinator = node._assigner, node._ctx.coordinator
            taken, gate = assigner._confirm, asyncio.Event()
            committed = coordinator.commit

            async def take(name: str, request: rpc.Confirm) -> rpc.Confirmation:
                await gate.wait()
                return await taken(name, request)

            async def commit(expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
                if not gate.is_set():
                    gate.set()
                    await moving
                    raise CoordinatorUnknownError()
                return await committed(expect, writes)

            assigner._confirm = take
            coordinator.commit = commit  # type: ignore[method-assign]
            moving = asyncio.create_task(cluster.nodes["b"].move(b"chat:x", to))
            await asyncio.sleep(0.1)

            async def give_up() -> list[bytes]:
                return [b"chat:x"]

            assert await assigner.writer.forget("chat", before.hub, [b"chat:x"], give_up) == 0
            await asyncio.sleep(1)
            for name in "abc":
                found = cluster.nodes[name]._cache.rooms["chat"].find(b"chat:x")
                assert found == Room(await moving or 0, is_pinned=True)
                assert cluster.planes[name].pinned["chat", b"chat:x"] == found.hub

    play(test)


def test_a_record_stays_where_the_hub_got_another_leader_after_its_room_was_given_up() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            node = cluster.nodes[str(cluster.controller())]
            writer = MemoryCoordinator(cluster.store)

            async def give_up() -> list[bytes]:
                entry = cluster.store.entries[hub_key(before.hub)]
                record = parse(HubRecord, entry.key, entry.value)
                after = msgspec.structs.replace(record, term=record.term + 1)
                await writer.commit({entry.key: entry.revision}, [Put(entry.key, format_of(after))])
                return [b"chat:x"]

            assert await node._assigner.writer.forget("chat", before.hub, [b"chat:x"], give_up) == 0
            assert cluster.status()["rooms_with_record"] == 1
            found = await node._assigner.find(rpc.Find("chat", (b"chat:x",)))
            assert found.hubs == {b"chat:x": before.hub}
            await writer.close()

    play(test)


def test_a_removal_that_a_new_leader_stops_leaves_rooms_of_an_unknown_part_of_a_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lower = next(b"chat:%d" % number for number in range(99) if not hash_of(b"chat:%d" % number) >> 31)
    upper = next(b"chat:%d" % number for number in range(99) if hash_of(b"chat:%d" % number) >> 30 == 3)

    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            controller = str(cluster.controller())
            node = cluster.nodes[controller]
            writer = MemoryCoordinator(cluster.store)
            halves = {"00000000": bucket(1, {lower: 1}), "80000000": bucket(1, {upper: 1})}
            await writer.commit({}, [Put(f"rooms/chat/{start}", value) for start, value in halves.items()])
            await until(lambda: node._cache.rooms["chat"].count == 2)
            # One commit per bucket: the removal of one room fails after a commit that splits the other's bucket.
            monkeypatch.setattr(commits, "OPERATIONS_MAX", 5)
            hold(cluster, controller, "rooms/chat")

            async def commit(expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
                if writes[0].key == "rooms/chat/00000000":
                    await asyncio.sleep(0.05)
                    raise ExpectationError(hub_key(1), 1, 2)
                return await MemoryCoordinator.commit(node._ctx.coordinator, expect, writes)

            async def give_up() -> list[bytes]:
                split = {"80000000": bucket(2, {}), "c0000000": bucket(2, {upper: 1})}
                await writer.commit({}, [Put(f"rooms/chat/{start}", value) for start, value in split.items()])
                return [lower, upper]

            node._ctx.coordinator.commit = commit  # type: ignore[method-assign]
            assert await node._assigner.writer.forget("chat", 1, [lower, upper], give_up) == 0
            assert not node._assigner.writer.forgetting
            await writer.close()

    play(test)


def bucket(depth: int, hubs: dict[bytes, int]) -> bytes:
    return msgspec.msgpack.encode([FORMAT, depth, hubs])


@pytest.mark.parametrize("then", [CoordinatorUnreachableError(), CoordinatorUnknownError()])
def test_while_a_removal_is_in_doubt_no_lookup_is_answered_whatever_fails_then(
    then: CoordinatorError,
) -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            node = cluster.nodes[str(cluster.controller())]
            assigner, coordinator = node._assigner, node._ctx.coordinator
            committed, got = coordinator.commit, coordinator.get
            late: list[tuple[Mapping[str, int], Sequence[Write]]] = []

            async def commit(expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
                late.append((expect, writes))
                raise CoordinatorUnknownError() if len(late) == 1 else then

            async def get(key: str) -> Entry | None:
                raise CoordinatorUnreachableError()

            async def give_up() -> list[bytes]:
                coordinator.commit, coordinator.get = commit, get  # type: ignore[method-assign]
                return [b"chat:x"]

            forgetting = asyncio.create_task(assigner.writer.forget("chat", before.hub, [b"chat:x"], give_up))
            await until(lambda: len(late) > 3)
            coordinator.get = got  # type: ignore[method-assign]
            assert await assigner.find(rpc.Find("chat", (b"chat:x",))) == rpc.Found({}, ())
            await committed(*late[0])
            coordinator.commit = committed  # type: ignore[method-assign]
            assert await forgetting == 1
            assert (await assigner.find(rpc.Find("chat", (b"chat:x",)))).absent == (b"chat:x",)

    play(test)


@pytest.mark.parametrize("is_watched", [True, False])
def test_rooms_of_a_bucket_that_cannot_be_read_wait_and_no_other_rooms(is_watched: bool) -> None:
    lower, new_lower = [name for name in NAMES if not hash_of(name) >> 31][:2]
    upper, new_upper = [name for name in NAMES if hash_of(name) >> 31][:2]

    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            controller = str(cluster.controller())
            node = cluster.nodes[controller]
            writer = MemoryCoordinator(cluster.store)
            hub = (await located(cluster, "a", NAMES[-1])).hub
            halves = {"00000000": bucket(1, {lower: hub}), "80000000": bucket(1, {upper: hub})}
            await writer.commit({}, [Put(f"rooms/chat/{start}", value) for start, value in halves.items()])
            await until(lambda: len(node._cache.rooms["chat"].keys()) == 2)
            if not is_watched:
                hold(cluster, controller, "rooms/chat")
            newer = msgspec.msgpack.encode([FORMAT + 1, "other"])
            await writer.commit({}, [Put("rooms/chat/80000000", newer)])
            await asyncio.sleep(1)
            rooms = (lower, upper, new_lower, new_upper)
            assigned = await node._assigner.assign(rpc.Assign("chat", rooms))
            assert assigned.hubs.keys() == {lower, new_lower} and assigned.refused == {}
            found = await node._assigner.find(rpc.Find("chat", (*rooms, NAMES[-2])))
            assert found.hubs == assigned.hubs
            with pytest.raises(NoControllerError, match="cannot be read"):
                await node._assigner.moves.move(rpc.Move("chat", upper, controller))

            async def give_up() -> list[bytes]:
                return [upper, lower]

            assert await node._assigner.writer.forget("chat", hub, [upper, lower], give_up) == 1
            assert cluster.store.entries["rooms/chat/80000000"].value == newer
            # A value that can be read makes the rooms found again.
            await writer.commit({}, [Put("rooms/chat/80000000", halves["80000000"])])
            found = await node._assigner.find(rpc.Find("chat", (upper,)))
            assert found.hubs == {upper: hub}
            await writer.close()

    play(test)


def test_a_removal_that_was_applied_before_the_hub_got_another_leader_is_known() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            controller = str(cluster.controller())
            node = cluster.nodes[controller]
            coordinator = node._ctx.coordinator
            committed, got, commits_seen = coordinator.commit, coordinator.get, 0

            async def commit(expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
                nonlocal commits_seen
                commits_seen += 1
                if commits_seen == 1:
                    await committed(expect, writes)
                    raise CoordinatorUnknownError()
                coordinator.get = got  # type: ignore[method-assign]
                raise ExpectationError(hub_key(before.hub), 1, 2)

            async def get(key: str) -> Entry | None:
                raise CoordinatorUnreachableError()

            async def give_up() -> list[bytes]:
                hold(cluster, controller, "rooms/chat")
                coordinator.commit, coordinator.get = commit, get  # type: ignore[method-assign]
                return [b"chat:x"]

            assert await node._assigner.writer.forget("chat", before.hub, [b"chat:x"], give_up) == 1
            coordinator.commit = committed  # type: ignore[method-assign]

    play(test)


def test_a_commit_in_doubt_that_is_applied_later_is_in_the_next_answer() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            controller = str(cluster.controller())
            to = next(name for name in "abc" if name != before.members[0].node)
            node = cluster.nodes[controller]
            assigner, coordinator = node._assigner, node._ctx.coordinator
            committed, late = coordinator.commit, list[tuple[Mapping[str, int], Sequence[Write]]]()
            assert (await assigner.find(rpc.Find("chat", (b"chat:x",)))).hubs == {b"chat:x": before.hub}
            hold(cluster, controller, "rooms/chat")

            async def commit(expect: Mapping[str, int], writes: Sequence[Write]) -> dict[str, int]:
                late.append((expect, writes))
                raise CoordinatorUnknownError() if len(late) == 1 else CoordinatorUnreachableError()

            coordinator.commit = commit  # type: ignore[method-assign]
            with pytest.raises(CoordinatorUnreachableError):
                await assigner.moves.move(rpc.Move("chat", b"chat:x", to))
            coordinator.commit = committed  # type: ignore[method-assign]
            await committed(*late[0])
            found = await assigner.find(rpc.Find("chat", (b"chat:x",)))
            assert node._cache.hubs[found.hubs[b"chat:x"]].record.leader == to

    play(test)


def test_a_room_that_is_moved_while_others_of_its_request_are_placed_is_answered_where_it_is() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            to = next(name for name in "abc" if name != before.members[0].node)
            assigner = cluster.nodes[str(cluster.controller())]._assigner
            taken, moved = assigner._confirm, list[rpc.Moved]()

            async def take(name: str, request: rpc.Confirm) -> rpc.Confirmation:
                if any(b"chat:new" in rooms for rooms in request.rooms.values()):
                    moved.append(await assigner.moves.move(rpc.Move("chat", b"chat:x", to)))
                return await taken(name, request)

            assigner._confirm = take
            answer = await assigner.assign(rpc.Assign("chat", (b"chat:x", b"chat:new")))
            assert answer.hubs.keys() == {b"chat:x", b"chat:new"}
            assert answer.hubs[b"chat:x"] == moved[0].hub != before.hub

    play(test)


def test_a_room_that_was_removed_and_made_again_stays_known_when_its_removal_arrives() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            other = next(name for name in "abc" if name != cluster.controller())
            node, assigner = cluster.nodes[other], cluster.nodes[str(cluster.controller())]._assigner
            buckets = node._cache.rooms["chat"]
            await until(lambda: buckets.count)
            hold(cluster, other, "rooms/chat")

            async def give_up() -> list[bytes]:
                return node.directory.give_up("chat", [b"chat:x"])

            assert await assigner.writer.forget("chat", before.hub, [b"chat:x"], give_up) == 1
            removed = cluster.store.entries["rooms/chat/00000000"]
            assert await located(cluster, other, b"chat:x") == before
            node._cache.add_bucket("chat", removed.key, removed.value, removed.revision)
            assert buckets.find(b"chat:x") is None
            assert node.directory.known(TopicRoute(b"chat:x", "chat", 0)) == before.hub

    play(test)


def test_who_is_elected_answers_by_no_record_that_was_changed_before() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            first = str(cluster.controller())
            second = "b" if first == "a" else "a"
            for room in (b"chat:x", b"chat:y"):
                await located(cluster, second, room)
            assigner = cluster.nodes[first]._assigner
            hubs = (await assigner.find(rpc.Find("chat", (b"chat:x", b"chat:y")))).hubs
            hold(cluster, second, "rooms/chat")

            async def give_up() -> list[bytes]:
                return [b"chat:y"]

            assert await assigner.writer.forget("chat", hubs[b"chat:y"], [b"chat:y"], give_up) == 1
            moved = await cluster.nodes[first].move(b"chat:x", first if hubs[b"chat:x"] else second)
            await cluster.kill(first)
            await until(lambda: cluster.controller() == second)
            assigner = cluster.nodes[second]._assigner
            found = await assigner.find(rpc.Find("chat", (b"chat:x", b"chat:y")))
            assert (found.hubs, found.absent) == ({b"chat:x": moved or 0}, (b"chat:y",))
            assert found.revisions == (cluster.store.entries["rooms/chat/00000000"].revision,)
            assert (await assigner.assign(rpc.Assign("chat", (b"chat:y",)))).hubs == {
                b"chat:y": hubs[b"chat:y"]
            }

    play(test)


def test_a_pin_that_comes_after_its_room_was_given_up_counts_at_once() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            leader = before.members[0].node
            directory = cluster.nodes[leader].directory
            assert directory.give_up("chat", [b"chat:x"]) == [b"chat:x"]
            assert directory.known(TopicRoute(b"chat:x", "chat", 0)) is None
            to = next(name for name in "abc" if name != leader)
            hub = await cluster.nodes[to].move(b"chat:x", to)
            await until(lambda: cluster.planes[leader].pinned == {("chat", b"chat:x"): hub})
            assert not directory.is_given_up("chat", b"chat:x")
            assert directory.known(TopicRoute(b"chat:x", "chat", 0)) == hub

    play(test)
