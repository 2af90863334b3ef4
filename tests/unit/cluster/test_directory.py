"""The directory of rooms: records that the controller makes, pins, waiting lookups, and refusals."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hubsub.control.cluster import directory, rpc
from hubsub.control.cluster.bucket_values import Room, encode_value
from hubsub.control.cluster.directory import WAIT_S, Located
from hubsub.control.cluster.placement import Load
from hubsub.control.cluster.plane import TopicRoute
from hubsub.errors import (
    ClassRemovedError,
    MoveError,
    NoControllerError,
    NoPlaceError,
    RoomCreationRateError,
    TooManyRoomsError,
    TooManyWaitingError,
    TopicLengthError,
)
from unit.cluster.played import Cluster, play, until
from unit.cluster.test_initial_state import hold


async def located(cluster: Cluster, name: str, topic: bytes) -> Located:
    found = await cluster.nodes[name].locate(topic)
    assert found is not None
    return found


def topics(count: int) -> list[bytes]:
    return [b"chat:%d" % i for i in range(count)]


def test_a_room_is_found_at_the_same_members_by_all_nodes_leader_first_with_their_addresses() -> None:
    async def test() -> None:
        async with Cluster(classes=[{"name": "chat", "match": ["chat:*"], "members": 2}]) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            found = await asyncio.gather(*(located(cluster, name, b"chat:x") for name in "abcabc"))
            assert len({(f.hub, f.members[0].node, f.members[1].node) for f in found}) == 1
            hub = next(h for h in cluster.status()["hubs"] if h["hub"] == found[0].hub)
            assert [member.node for member in found[0].members] == hub["members"] and len(hub["members"]) == 2
            leader = found[0].members[0]
            assert leader.addresses == {"redis": f"{leader.node}:3221", "link": f"{leader.node}:3222"}
            assert cluster.status()["rooms_with_record"] == 1

    play(test)


def test_rooms_of_a_ring_class_need_no_record_and_no_controller() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            cluster.store.away = True
            found = [await located(cluster, name, b"game:x") for name in "abc"]
            assert found[0] == found[1] == found[2]
            index = cluster.planes["a"].topic_route(b"game:x").index
            assert next(h for h in cluster.status()["hubs"] if h["hub"] == found[0].hub)["index"] == index
            assert cluster.status()["rooms_with_record"] == 0

    play(test)


def test_who_does_not_ask_for_a_place_makes_no_room() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.settle()
            assert await cluster.nodes["a"].locate(b"chat:x", create=False) is None
            there = await located(cluster, "a", b"chat:x")
            assert await cluster.nodes["a"].locate(b"chat:x", create=False) == there

    play(test)


def test_a_removed_class_gives_no_room_a_place_and_those_that_have_one_are_found() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            there = await located(cluster, "a", b"chat:x")
            await cluster.nodes["b"].remove_class("chat")
            await until(lambda: all(n.class_records["chat"].is_removed for n in cluster.nodes.values()))
            for name in "abc":
                assert await located(cluster, name, b"chat:x") == there
                assert await cluster.nodes[name].directory.look_up(b"chat:x") == there
                with pytest.raises(ClassRemovedError, match="removed"):
                    await located(cluster, name, b"chat:new")
                with pytest.raises(ClassRemovedError, match="removed"):
                    await cluster.nodes[name].directory.look_up(b"chat:new")
            assert cluster.status()["rooms_with_record"] == 1

    play(test)


def test_a_question_finds_a_room_that_its_node_has_not_heard_of_and_makes_none() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            asked = {name: cluster.nodes[name] for name in "abc"}
            for name, node in asked.items():
                assert await node.directory.find(TopicRoute(b"chat:none", "chat", 0)) is None, name
                assert await node.directory.look_up(b"chat:none") is None, name
            assert cluster.status()["rooms_with_record"] == 0
            there = await located(cluster, "a", b"chat:x")
            # No time has passed, so the other nodes are not notified yet.
            assert {
                await node.directory.find(TopicRoute(b"chat:x", "chat", 0)) for node in asked.values()
            } == {there.hub}
            assert [await node.directory.look_up(b"chat:x") for node in asked.values()] == [there] * 3
            # A lookup that creates the room succeeds while a lookup that does not is in flight.
            found, made = await asyncio.gather(
                asked["b"].directory.find(TopicRoute(b"chat:y", "chat", 0)), located(cluster, "b", b"chat:y")
            )
            assert found in (None, made.hub)
            assert await asked["c"].directory.find(TopicRoute(b"chat:y", "chat", 0)) == made.hub

    play(test)


def test_many_rooms_are_made_in_few_commits_and_spread_evenly() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = cluster.store.revision
            names = topics(3_000)
            asked = [located(cluster, "abc"[i % 3], topic) for i, topic in enumerate(names)]
            found = await asyncio.gather(*asked)
            assert cluster.store.revision - before < 60
            nodes = Counter(f.members[0].node for f in found)
            assert max(nodes.values()) - min(nodes.values()) < 100
            assert [await located(cluster, "a", topic) for topic in names] == found
            assert cluster.status()["rooms_with_record"] == 3_000

    play(test)


def test_rooms_go_to_the_nodes_that_report_the_least_load() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            for name, cpu in {"a": 0.9, "b": 0.1, "c": 0.9}.items():
                cluster.planes[name].sample = Load(cpu_share=cpu, rooms=1_000)
            await cluster.settle()
            await asyncio.sleep(5)
            found = await asyncio.gather(*(located(cluster, "c", topic) for topic in topics(50)))
            assert {f.members[0].node for f in found} == {"b"}
            controller = cluster.controller()
            assert controller is not None
            await cluster.kill(controller)
            await cluster.settle(120)
            await asyncio.sleep(5)
            # The next controller knows the loads, too.
            name = next(iter(cluster.nodes))
            later = await located(cluster, name, b"chat:later")
            assert later.members[0].node == ("b" if controller != "b" else later.members[0].node)

    play(test)


def test_rooms_that_a_member_refuses_go_to_the_next() -> None:
    async def test() -> None:
        async with Cluster(rooms_max=10) as cluster:
            await cluster.start(*"abc")
            cluster.planes["a"].sample = Load(rooms=10)
            for name in "bc":
                cluster.planes[name].sample = Load(rooms=4, cpu_share=0.9)
            await cluster.settle()
            await asyncio.sleep(5)
            found = await asyncio.gather(*(located(cluster, "a", topic) for topic in topics(10)))
            assert {f.members[0].node for f in found} == {"b", "c"}

    play(test)


def test_rooms_go_past_a_member_whose_control_plane_hangs() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            controller = cluster.controller()
            deaf, other = (name for name in "abc" if name != controller)
            cluster.planes[deaf].is_deaf = True
            found = await asyncio.gather(*(located(cluster, other, topic) for topic in topics(30)))
            assert deaf not in {f.members[0].node for f in found}
            # It keeps its hubs.
            assert deaf in cluster.led().values()

    play(test)


def test_rooms_that_no_node_takes_are_refused_with_the_reason() -> None:
    async def test() -> None:
        async with Cluster(rooms_max=10) as cluster:
            await cluster.start("a", "b")
            for name in "ab":
                cluster.planes[name].sample = Load(rooms=10)
            await cluster.settle()
            await asyncio.sleep(5)
            with pytest.raises(NoPlaceError, match="no node takes the room now: chat:x"):
                await cluster.nodes["b"].locate(b"chat:x")

    play(test)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"rooms_max": 20}, TooManyRoomsError),
        ({"placed_rooms_class_max": 20}, TooManyRoomsError),
        ({"room_creations_per_second_max": 20}, RoomCreationRateError),
    ],
)
def test_creation_has_a_count_and_a_rate(limits: Mapping[str, int], error: type[Exception]) -> None:
    async def test() -> None:
        async with Cluster(**limits) as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            asked = (cluster.nodes["b"].locate(topic) for topic in topics(30))
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert Counter(type(result) for result in results) == {Located: 20, error: 10}

    play(test)


def test_records_of_rooms_leave_the_store_its_space_and_the_controller_goes_on() -> None:
    async def test() -> None:
        async with Cluster(room_records_bytes_max=4_096) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            results = [
                await asyncio.gather(cluster.nodes["b"].locate(topic), return_exceptions=True)
                for topic in topics(400)
            ]
            made = sum(isinstance(result, Located) for [result] in results)
            assert 0 < made < 400
            assert {type(result) for [result] in results[made:]} == {TooManyRoomsError}
            controller = cluster.controller()
            assert controller is not None
            records = cluster.nodes[controller].room_records
            assert records.size <= records.limits.bytes_max == 4_096
            assert records.refused == {"room_records_bytes_max": 400 - made}
            assert any("room_records_bytes_max" in wrong for wrong in cluster.nodes["b"].status()["wrong"])
            # Placed rooms are still found, and another controller replaces dead leaders.
            await cluster.kill(controller)
            await cluster.settle()
            name = next(name for name in "abc" if name != controller)
            assert {(await located(cluster, name, topic)).members[0].node for topic in topics(20)} <= (
                set("abc") - {controller}
            )
            with pytest.raises(TooManyRoomsError):
                await cluster.nodes[name].locate(b"chat:new")

    play(test)


def test_a_name_that_is_too_long_for_a_record_is_refused_and_no_other_with_it() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            names = [b"chat:" + b"x" * length for length in (4_091, 4_092)]
            asked = (cluster.nodes["b"].locate(name) for name in [*names, b"chat:other"])
            fits, too_long, other = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(fits, Located) and isinstance(other, Located)
            assert isinstance(too_long, TopicLengthError)

    play(test)


# -- waiting --


def test_who_waits_while_there_is_no_controller_is_answered_by_the_next_one() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            controller = cluster.controller()
            assert controller is not None
            other = next(name for name in "abc" if name != controller)
            killing = asyncio.create_task(cluster.kill(controller))
            await asyncio.sleep(0)
            asked_s = cluster.now
            found = await located(cluster, other, b"chat:x")
            assert found.members[0].node != controller
            assert cluster.now - asked_s < 2
            await killing

    play(test)


def test_no_more_rooms_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "WAITING_MAX", 100)

    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            cluster.store.away = True
            asked_s = cluster.now
            asked = (cluster.nodes["b"].locate(topic) for topic in topics(130))
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert Counter(map(type, results)) == {NoControllerError: 100, TooManyWaitingError: 30}
            assert cluster.now - asked_s <= WAIT_S + 0.1
            await asyncio.sleep(2)
            assert cluster.status("b")["rooms_waiting"] == 0

    play(test)


def test_a_room_that_waits_looks_at_the_others_only_when_too_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "WAITING_MAX", 100)

    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            cluster.store.away = True
            waiting = cluster.nodes["b"].directory
            drop, drops = waiting._drop_waited, 0

            def counted() -> None:
                nonlocal drops
                drops += 1
                drop()

            waiting._drop_waited = counted  # type: ignore[method-assign]
            asked = [asyncio.create_task(cluster.nodes["b"].locate(topic)) for topic in topics(130)]
            await asyncio.sleep(0)
            assert waiting.waiting == 100 and drops == 1
            await asyncio.gather(*asked, return_exceptions=True)

    play(test)


def test_a_lookup_that_waits_when_its_node_stops_asks_no_more() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            other = other_than_the_controller(cluster)
            stopped = cluster.nodes[other].directory
            stopped.known = lambda *_: None  # type: ignore[method-assign]
            waiting = asyncio.create_task(located(cluster, other, b"chat:x"))
            await asyncio.sleep(directory.RETRY_S / 2)
            assert stopped.waiting == 0 and not waiting.done()
            await stopped.close()
            with pytest.raises(NoControllerError, match="the node stops"):
                await waiting
            assert stopped._worker is not None and stopped._worker.done()

    play(test)


def test_who_waits_in_vain_is_told_so_and_no_question_stays_open() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            cluster.store.away = True
            waiting = cluster.nodes["b"].directory
            asked = [asyncio.create_task(cluster.nodes["b"].locate(topic)) for topic in topics(3)]
            await asyncio.sleep(1)
            wanted = list(waiting._wanted.values())
            assert len(wanted) == 3
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(result) for result in results] == [NoControllerError] * 3
            await asyncio.sleep(2)
            assert waiting.waiting == 0 and all(each.answer.done() for each in wanted)

    play(test)


@pytest.mark.parametrize("when", ["on its way", "as it is taken"])
def test_an_answer_that_a_removal_overtakes_is_not_taken_and_the_room_is_asked_for_again(when: str) -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            controller = str(cluster.controller())
            other = next(name for name in "abc" if name != controller)
            node, buckets = cluster.nodes[other], cluster.nodes[other]._cache.rooms["chat"]
            release = hold(cluster, other, "rooms/chat")
            before = await located(cluster, controller, b"chat:x")
            ask, questions = node.directory._ask, 0

            async def give_up() -> list[bytes]:
                return [b"chat:x"]

            forget = cluster.nodes[controller]._assigner.writer.forget

            async def asked(request: rpc.Assign | rpc.Find | rpc.Move | rpc.Moves) -> rpc.Response:
                nonlocal questions
                questions += 1
                answer = await ask(request)
                if questions > 1:
                    return answer
                release()
                await asyncio.sleep(0.1)
                assert buckets.find(b"chat:x") == Room(before.hub)
                if when == "on its way":
                    assert await forget("chat", before.hub, [b"chat:x"], give_up) == 1
                    await asyncio.sleep(0.1)
                else:
                    asyncio.get_running_loop().call_soon(removed)
                return answer

            def removed() -> None:
                # It is written again at the revision after the removal, and the controller knows that.
                (key,) = buckets.keys()
                revision = buckets.revision(key)
                hubs: dict[bytes, int | Room] = {b"chat:x": before.hub}
                for name, there, later in ((other, {}, 1), (controller, hubs, 2)):
                    value = encode_value(0, there)
                    cluster.nodes[name]._cache.add_bucket("chat", key, value, revision + later)

            node.directory._ask = asked
            asked_s = cluster.now
            found = await node.directory.find(TopicRoute(b"chat:x", "chat", 0))
            assert questions > 1 and cluster.now - asked_s < 2
            # The first answer was not accepted; the result is that of the second one.
            assert found == (None if when == "on its way" else before.hub)

    play(test)


def count_questions(cluster: Cluster, name: str) -> list[rpc.Assign | rpc.Find | rpc.Move | rpc.Moves]:
    """Returns a list that gets each request of a node to the controller."""
    directory, questions = cluster.nodes[name].directory, list[Any]()
    ask = directory._ask

    async def asked(request: rpc.Assign | rpc.Find | rpc.Move | rpc.Moves) -> rpc.Response:
        questions.append(request)
        return await ask(request)

    directory._ask = asked
    return questions


def other_than_the_controller(cluster: Cluster) -> str:
    return next(name for name in cluster.nodes if name != cluster.controller())


def test_a_node_that_does_not_know_all_records_yet_asks_once_and_takes_the_answer() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            other = other_than_the_controller(cluster)
            cluster.nodes[other]._cache.whole.discard("rooms/chat")
            questions = count_questions(cluster, other)
            found = await located(cluster, other, b"chat:x")
            assert len(questions) == 1
            assert found == await located(cluster, str(cluster.controller()), b"chat:x")

    play(test)


def test_who_gets_an_answer_that_is_not_known_here_asks_again_after_a_pause() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            other = other_than_the_controller(cluster)
            directory = cluster.nodes[other].directory
            directory.known = lambda *_: None  # type: ignore[method-assign]
            questions = count_questions(cluster, other)
            with pytest.raises(NoControllerError):
                await located(cluster, other, b"chat:x")
            assert 3 < len(questions) < 12

    play(test)


def test_who_gave_a_room_up_and_was_answered_learns_that_it_is_removed_later() -> None:
    async def test() -> None:
        async with Cluster(room_record_idle_ms=0) as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"chat:x")
            leader = before.members[0].node
            await until(lambda: cluster.nodes[leader]._cache.rooms["chat"].find(b"chat:x"))
            assert cluster.nodes[leader].directory.give_up("chat", [b"chat:x"]) == [b"chat:x"]
            assert await located(cluster, leader, b"chat:x") == before

            async def give_up() -> list[bytes]:
                return [b"chat:x"]

            controller = cluster.nodes[str(cluster.controller())]
            assert await controller._assigner.writer.forget("chat", before.hub, [b"chat:x"], give_up) == 1
            await until(lambda: not cluster.nodes[leader]._cache.rooms["chat"].count)
            assert cluster.nodes[leader].directory.known(TopicRoute(b"chat:x", "chat", 0)) is None

    play(test)


def test_an_answer_with_a_hub_that_is_not_known_here_is_not_taken() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            other = other_than_the_controller(cluster)
            node = cluster.nodes[other]
            hold(cluster, other, "rooms/chat")
            ask, questions = node.directory._ask, 0

            async def asked(request: rpc.Assign | rpc.Find | rpc.Move | rpc.Moves) -> rpc.Response:
                nonlocal questions
                questions += 1
                assert node._cache.rooms["chat"].hub_of(b"chat:x") is None
                answer = await ask(request)
                if questions == 1 and isinstance(answer, rpc.Assigned):
                    return rpc.Assigned({b"chat:x": 99_999}, {}, answer.revisions)
                return answer

            node.directory._ask = asked
            found = await located(cluster, other, b"chat:x")
            assert questions == 2 and found.hub in node._cache.hubs

    play(test)


@pytest.mark.parametrize("is_made", [True, False])
def test_an_answer_of_an_older_version_states_no_revision_and_is_taken(is_made: bool) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            other = other_than_the_controller(cluster)
            node = cluster.nodes[other]
            ask = node.directory._ask

            async def asked(request: rpc.Assign | rpc.Find | rpc.Move | rpc.Moves) -> rpc.Response:
                name, hubs, rest, _ = msgspec.msgpack.decode(rpc.encode(await ask(request)), strict=False)
                return rpc.decode_response(msgspec.msgpack.encode([name, hubs, rest]))

            node.directory._ask = asked
            if not is_made:
                await located(cluster, str(cluster.controller()), b"chat:x")
            asked_s = cluster.now
            found = await located(cluster, other, b"chat:x")
            assert cluster.now - asked_s < 0.1
            assert found == await located(cluster, str(cluster.controller()), b"chat:x")

    play(test)


# -- moves --


@pytest.mark.parametrize("topic", [b"chat:x", b"game:x"])
def test_a_room_is_moved_to_a_node_and_every_data_plane_is_told(topic: bytes) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", topic)
            to = next(name for name in "abc" if name != before.members[0].node)
            hub = await cluster.nodes["b"].move(topic, to)
            await until(lambda: all(len(plane.pinned) == 1 for plane in cluster.planes.values()))
            for name in "abc":
                after = await located(cluster, name, topic)
                assert (after.hub, after.members[0].node) == (hub, to)
                assert cluster.planes[name].pinned == {(after.room_class, topic): hub}

    play(test)


def test_a_pin_of_a_ring_class_is_taken_away_again() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"game:x")
            to = next(name for name in "abc" if name != before.members[0].node)
            await cluster.nodes["a"].move(b"game:x", to)
            assert await cluster.nodes["c"].move(b"game:x", None) is None
            await until(lambda: not any(plane.pinned for plane in cluster.planes.values()))
            assert await located(cluster, "b", b"game:x") == before

    play(test)


def test_a_room_is_moved_to_a_hub_by_name_or_id_and_any_node_lists_the_moves() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before = await located(cluster, "a", b"game:x")
            hubs = {
                hub: kept.record
                for hub, kept in cluster.nodes["a"]._cache.hubs.items()
                if kept.record.room_class == before.room_class and hub != before.hub
            }
            first, second = sorted(hubs)[:2]
            assert await cluster.nodes["b"].move(b"game:x", str(first)) == first
            name = f"{hubs[second].room_class}-{hubs[second].index}"
            assert await cluster.nodes["c"].move(b"game:x", name) == second
            with pytest.raises(MoveError):
                await cluster.nodes["c"].move(b"game:x", "nobody")
            for node in cluster.nodes.values():
                rows = [row for row in await node.moves() if row.room is not None]
                assert [(row.room, row.before, row.hub) for row in rows] == [
                    (b"game:x", None, first),
                    (b"game:x", first, second),
                    (b"game:x", second, None),
                ]
                assert [row.refused is None for row in rows] == [True, True, False]

    play(test)


def test_what_cannot_be_moved_says_why(tmp_path: Path) -> None:
    logged = {"name": "game", "match": ["game:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    chat = {"name": "chat", "match": ["chat:*"]}

    async def test() -> None:
        async with Cluster(classes=[logged, chat]) as cluster:
            for name in "ab":
                await cluster.start(name, data=str(tmp_path / name))
            await cluster.settle()
            with pytest.raises(MoveError, match="a room with a log"):
                await cluster.nodes["b"].move(b"game:x", "a")
            with pytest.raises(MoveError, match="leads no hub of the room's class: nobody"):
                await cluster.nodes["b"].move(b"chat:x", "nobody")
            with pytest.raises(MoveError, match="must go somewhere"):
                await cluster.nodes["b"].move(b"chat:x", None)

    play(test)
