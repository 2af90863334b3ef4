"""A new controller before it has seen all writes of its predecessor."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hubsub.control.cluster.bucket_values import encode_value, hash_of
from hubsub.control.cluster.records import HubRecord, format_of, hub_key, node_key, parse
from hubsub.coordination import Delete, Put
from hubsub.coordination.memory import MemoryCoordinator
from unit.cluster.played import Cluster, play, until


def hold(cluster: Cluster, name: str, directory: str) -> Callable[[], None]:
    """Withholds the changes of a node's watch of a directory until the returned function is called."""
    mine = {id(watch) for watch in cluster.coordinators[name]._watches}
    watch: Any = next(w for w in cluster.store._watches if id(w) in mine and w.directory == directory)
    given = {name: getattr(watch, name) for name in ("whole", "put", "delete")}
    held: list[tuple[str, Any]] = []
    for name in given:
        setattr(watch, name, lambda what, name=name: held.append((name, what)))

    def release() -> None:
        for name, give in given.items():
            setattr(watch, name, give)
        for name, what in held:
            given[name](what)

    return release


@pytest.mark.parametrize("behind", ["hubs", "nodes"])
def test_who_is_elected_grants_and_writes_nothing_before_it_has_what_was_written_before(behind: str) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.start("e", "f", role="edge")
            await cluster.settle()
            first = cluster.controller()
            assert first is not None
            second = "b" if first == "a" else "a"
            release = hold(cluster, second, behind)
            writer = MemoryCoordinator(cluster.store)
            if behind == "hubs":
                entry = cluster.store.entries[hub_key(7)]
                record = parse(HubRecord, entry.key, entry.value)
                after = msgspec.structs.replace(record, term=record.term + 1)
                await writer.commit({entry.key: entry.revision}, [Put(entry.key, format_of(after))])
            else:
                await writer.commit({}, [Delete(node_key("f"))])
            await cluster.kill(first)
            plane, known = cluster.planes[second], cluster.nodes[second]._controller
            await until(lambda: known._term is not None)
            written = {key: e.revision for key, e in cluster.store.entries.items() if "hubs/" in key}
            for _ in range(100):
                await asyncio.sleep(0.05)
                assert plane.controller_term is None and not cluster.nodes[second].is_controller
            assert written == {k: e.revision for k, e in cluster.store.entries.items() if "hubs/" in k}
            release()
            await until(lambda: cluster.nodes[second].is_controller and plane.controller_term is not None)

    play(test)


def test_a_node_that_leaves_before_it_was_seen_holds_up_no_new_controller() -> None:
    """A watch reports only the latest state, so it does not report a node that came and left in between."""

    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            first = cluster.controller()
            assert first is not None
            second = "b" if first == "a" else "a"
            release = hold(cluster, second, "nodes")
            writer = MemoryCoordinator(cluster.store)
            like = cluster.store.entries[node_key(second)]
            await writer.commit({}, [Put(node_key("x"), like.value)])
            await cluster.kill(first)
            known = cluster.nodes[second]._controller
            await until(lambda: known._term is not None and known._term.initial is not None)
            await writer.commit({}, [Delete(node_key("x"))])
            release()
            await until(lambda: cluster.nodes[second].is_controller)

    play(test)


def test_what_a_node_cannot_open_is_wrong_with_it() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.settle()
            cluster.planes["a"].open_errors = {7: "another hub has this id"}
            assert "hub 7 cannot be opened here: another hub has this id" in cluster.status("a")["wrong"]

    play(test)


def test_a_room_whose_bucket_is_half_known_is_asked_for_again_and_others_are_placed_meanwhile() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.settle()
            names = [b"chat:%d" % i for i in range(100)]
            low = next(name for name in names if hash_of(name) < 1 << 31)
            high = next(name for name in names if hash_of(name) >= 1 << 31)
            writer = MemoryCoordinator(cluster.store)

            async def bucket(start: int) -> None:
                value = encode_value(1, {})
                await writer.commit({}, [Put(f"rooms/chat/{start:08x}", value)])

            # The upper half of a split, which a watch may report first.
            await bucket(1 << 31)
            waits = asyncio.create_task(cluster.nodes["a"].locate(low))
            await asyncio.sleep(1)
            assert await cluster.nodes["a"].locate(high) is not None
            assert not waits.done()
            await bucket(0)
            asked_s = cluster.now
            assert await waits is not None
            assert cluster.now - asked_s < 2

    play(test)


def test_a_batch_that_fails_in_an_unforeseen_way_is_answered_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.settle()
            assigner = cluster.nodes["a"]._assigner
            placed, failures = assigner._place, iter([RuntimeError("broken")])

            async def once(room_class: str, names: list[bytes]) -> dict[bytes, int]:
                for failure in failures:
                    raise failure
                return await placed(room_class, names)

            monkeypatch.setattr(assigner, "_place", once)
            begun_s = cluster.now
            assert await cluster.nodes["a"].locate(b"chat:x") is not None
            assert cluster.now - begun_s < 2

    play(test)


def test_a_node_whose_coordinator_has_failed_hands_its_mandate_over_and_stands_no_more() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            failed = cluster.controller()
            assert failed is not None
            cluster.coordinators[failed].failed = "its disk is full"
            cluster.part(failed)
            await until(lambda: cluster.controller() not in (None, failed))
            assert (
                "the coordinator of this node has failed: its disk is full" in cluster.status(failed)["wrong"]
            )
            others = set("abc") - {failed}
            await cluster.kill(*others)
            cluster.part(failed, False)
            await asyncio.sleep(20)
            assert cluster.controller() is None

    play(test)
