"""Blocked batches: retried, also after a restart, and given up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from hubsub.control.batches import GivenUp
from hubsub.control.blocked_batches import BlockedBatches
from hubsub.control.stages import (
    BatchState,
)
from hubsub.errors import (
    BatchGivenUpError,
    BatchMovingError,
    BatchNotBlockedError,
    DiskFullError,
    HubSubError,
    QuarantinedError,
    StageCommittedError,
    StageLostError,
)
from unit.fake_rooms import FakeRooms
from unit.stage_writers import OnNode, Ring, found, hold, lose, pieces, settled


@pytest.fixture
def rooms() -> FakeRooms:
    return FakeRooms(random.Random(1))


def test_a_batch_that_is_held_cannot_be_dropped_and_is_finished_before_the_next(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "a", None, pieces(["x1", "y1", "x2"], 2))
        rooms.refuses = {"y": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        with pytest.raises(StageCommittedError):
            await node.abort("q", "a")
        rooms.refuses = {}
        await node.stage("q", "b", None, pieces(["y3"], 1))
        assert await node.commit("q", 1, ["b"]) == (1, False)
        assert await node.commit("q", 1, ["b"]) == (1, True)

    asyncio.run(play())
    assert found(rooms) == ["x1", "x2", "y1", "y3"]


def test_the_node_tries_a_held_batch_again_by_itself(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.blocked_batches.WAIT_S", 0.0)

    async def play() -> None:
        node = OnNode(rooms)
        task = asyncio.create_task(node.retry())
        await node.stage("q", "a", None, pieces(["x1", "y1", "x2"], 2))
        rooms.refuses = {"y": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        await settled(task)
        held = node.blocked.all()["q"]
        assert (held.batch, held.rows) == (0, 3) and held.tries > 1
        rooms.refuses = {}
        await settled(task)
        assert len(node.blocked) == 0 and found(rooms) == ["x1", "x2", "y1"]
        assert await node.commit("q", 0, ["a"]) == (3, True)
        assert node.counts == {"batches_published": 1, "rows_published": 3, "batches_repeated": 1}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())


def test_a_batch_that_is_held_at_a_start_is_tried_again(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.blocked_batches.WAIT_S", 0.0)

    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "a", None, pieces(["x1"], 1))
        rooms.refuses = {"x": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        node = OnNode(rooms)
        await node.resume()
        assert node.blocked.all()["q"].tries == 1
        task = asyncio.create_task(node.retry())
        rooms.refuses = {}
        await settled(task)
        task.cancel()
        assert found(rooms) == ["x1"] and len(node.blocked) == 0

    asyncio.run(play())


def test_what_is_held_at_a_start_in_a_cluster_goes_on_as_its_hub_is_led_again(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.batches.LEADER_WAIT_S", 0.0)

    async def play() -> None:
        await hold(OnNode(rooms), rooms)
        node = OnNode(rooms)
        rooms.refuses, rooms.is_led = {}, False
        task = asyncio.create_task(node.batches.resume_when_leading())
        await settled(task)
        assert len(found(rooms)) == 1 and len(node.blocked) == 0, "nothing is known of it"
        rooms.is_led = True
        await task
        assert found(rooms) == ["x1", "x2", "y1"]

    asyncio.run(play())


def test_what_another_node_has_is_left_to_it(rooms: FakeRooms) -> None:
    async def play() -> None:
        await hold(OnNode(rooms), rooms)
        rooms.refuses = {}
        await OnNode(rooms, Ring(of_queries="other")).batches.resume_when_leading()
        assert len(found(rooms)) == 1

    asyncio.run(play())


def test_what_a_held_batch_stands_on_is_written_again_before_others_push_it_out(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.query_rooms.REMIND_BYTES", 2_000)
    monkeypatch.setattr("hubsub.control.blocked_batches.WAIT_S", 3_600.0)

    async def play() -> None:
        node = OnNode(rooms)
        task = asyncio.create_task(node.retry())
        await node.stage("q", "a", None, pieces(["x1", "y1", "x2", "w1"], 2))
        rooms.refuses = {"y": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        first = len(rooms.journal)
        for n in range(20):
            await node.stage("other", f"b{n}", None, pieces([f"z{n}"], 1))
            await node.commit("other", n, [f"b{n}"])
            await settled(task)
        task.cancel()
        # The log removes its oldest records, except that the ones written here are too few to be lost.
        rooms.journal = [
            entry for n, entry in enumerate(rooms.journal) if n >= first or entry[0] != b"$queries/q"
        ]
        assert 1 <= sum(room == b"$queries/q" for room, _ in rooms.journal) <= 10
        # Blocked again, at a later row.
        rooms.refuses = {"w": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        node = OnNode(rooms)
        rooms.refuses = {}
        await node.resume()
        assert await node.commit("q", 0, ["a"]) == (4, True)

    asyncio.run(play())
    assert sorted(row for row in found(rooms) if row[0] != "z") == ["w1", "x1", "x2", "y1"]


def test_a_lost_stage_is_told_and_keeps_no_space(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms, stage_bytes_max=2_000)
        await node.stage("q", "a", None, pieces(["y1"], 1))
        rooms.refuses = {"y": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        rooms.journal = [entry for entry in rooms.journal if not entry[0].startswith(b"$stage/q/")]
        with pytest.raises(StageLostError):
            await node.commit("q", 0, ["a"])
        for n in range(5):
            await node.stage("other", f"b{n}", None, pieces([f"z{n}" * 100], 1))
            assert await node.commit("other", n, [f"b{n}"]) == (1, False)

    asyncio.run(play())


def test_a_held_batch_that_is_given_up_says_what_is_published_and_the_next_one_goes_on(
    rooms: FakeRooms,
) -> None:
    async def play() -> None:
        node = OnNode(rooms, stage_bytes_max=3_000)
        await hold(node, rooms)
        known = await node.give_up("q", 0)
        assert (known.rows, known.published, len(node.blocked)) == (3, 1, 0)
        assert not rooms._rows(b"$stage/q/a"), "its stages are dropped"
        rooms.refuses = {}
        for now in (node, OnNode(rooms)):  # Also after a restart.
            assert await now.give_up("q", 0) == known, "may be repeated"
            await now.stage("q", "again", None, pieces(["x2", "y1", "x1"], 2))
            with pytest.raises(BatchGivenUpError, match=r"q, batch 0: 1 of 3 rows are published") as raised:
                await now.commit("q", 0, ["again"])
            assert not raised.value.retryable and not rooms._rows(b"$stage/q/again")
        for n in range(10):  # And no space is reserved for it.
            await node.stage("other", f"b{n}", None, pieces([f"z{n}" * 100], 1))
        await node.stage("q", "c", None, pieces(["y3"], 1))
        assert await node.commit("q", 1, ["c"]) == (1, False)
        assert node.counts["batches_given_up"] == 1 and node.counts["rows_given_up"] == 2

    asyncio.run(play())
    assert found(rooms) == ["x1", "y3"]


def test_only_a_batch_that_is_held_is_given_up(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        with pytest.raises(BatchNotBlockedError, match="no batch"):
            await node.give_up("q", 0)
        await node.stage("q", "b", None, pieces(["x1"], 1))
        with pytest.raises(BatchNotBlockedError, match="no batch"):
            await node.give_up("q", 0)
        assert await node.commit("q", 0, ["b"]) == (1, False)
        with pytest.raises(BatchNotBlockedError, match="its last is: published 0"):
            await node.give_up("q", 0)
        await hold(node, rooms, batch=1)
        for batch in (0, 2):
            with pytest.raises(BatchNotBlockedError, match="its last is: blocked 1"):
                await node.give_up("q", batch)
        node.limits["request_timeout_ms"] = 1
        async with node.batches._locked("q"):  # As during a move.
            with pytest.raises(BatchMovingError):
                await node.give_up("q", 1)
        node.limits.clear()
        rooms.refuses = {}
        assert await node.commit("q", 1, ["a"]) == (3, False)

    asyncio.run(play())


def test_what_is_begun_within_the_time_of_a_request_is_done(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await hold(node, rooms)
        node = OnNode(rooms, request_timeout_ms=0)
        note = node.batches._rooms.note

        async def slow(query: str, record: Any) -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
            return await note(query, record)

        monkeypatch.setattr(node.batches._rooms, "note", slow)
        assert await node.give_up("q", 0) == (3, 1)

    asyncio.run(play())


def test_a_batch_whose_stage_or_commit_is_lost_can_be_given_up(rooms: FakeRooms) -> None:
    async def play() -> None:
        for batch, room in enumerate((b"$stage/q/", b"$queries/q")):
            node = OnNode(rooms)
            await hold(node, rooms, batch)
            latest = [row for name, row in rooms.journal if name == b"$queries/q"][-1]
            lose(rooms, room)
            if room == b"$queries/q":
                rooms.journal.append((room, latest))
            rooms.refuses = {}
            for now in (node, OnNode(rooms)):
                await now.resume()
                with pytest.raises(StageLostError, match=f"batch {batch}"):
                    await now.commit("q", batch, ["a"])
                (held,) = now.blocked.all().values()
                assert (held.batch, held.rows, held.code, held.due) == (batch, 3, "stage_lost", None)
                assert held.hint is not None and f"hubsub query give-up q {batch}" in held.hint
            known = await now.give_up("q", batch)
            assert (known.rows, known.published) == (3, 1)

    asyncio.run(play())
    assert found(rooms) == ["x1", "x1"]


def test_what_is_known_of_a_batch_and_not_written_down_counts_as_published(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "a", None, pieces(["x1", "x2", "y1"], 2))
        rooms.refuses = {"y": 1.0}
        note = node.batches._rooms.note

        async def full(query: str, record: Any) -> Any:
            if "at" in record:
                raise DiskFullError()
            return await note(query, record)

        node.batches._rooms.note = full  # type: ignore[method-assign]
        with pytest.raises(DiskFullError):
            await node.commit("q", 0, ["a"])
        assert (await node.give_up("q", 0)).published == 2

    asyncio.run(play())


def test_a_batch_whose_rows_are_published_is_not_lost_when_it_is_given_up(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "a", None, pieces(["x1"], 1))
        note = node.batches._rooms.note

        async def full(query: str, record: Any) -> Any:
            if "done" in record:
                raise DiskFullError()
            return await note(query, record)

        node.batches._rooms.note = full  # type: ignore[method-assign]
        with pytest.raises(DiskFullError):
            await node.commit("q", 0, ["a"])
        node.batches._rooms.note = note  # type: ignore[method-assign]
        assert await node.give_up("q", 0) == (1, 1)
        assert await node.commit("q", 0, ["a"]) == (1, True)
        assert node.counts["batches_given_up"] == 0

    asyncio.run(play())


def test_a_commit_that_waits_for_a_give_up_is_told_of_it(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await hold(node, rooms)
        both = await asyncio.gather(node.give_up("q", 0), node.commit("q", 0, ["a"]), return_exceptions=True)
        assert isinstance(both[0], GivenUp) and isinstance(both[1], BatchGivenUpError)

    asyncio.run(play())


def test_a_query_that_cannot_be_tried_keeps_no_other_from_it(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.blocked_batches.WAIT_S", 0.0)

    async def play() -> None:
        node = OnNode(rooms)
        rooms.refuses = {"x": 1.0, "y": 1.0}
        for query, row in (("bad", "x1"), ("good", "y1")):
            await node.stage(query, "a", None, pieces([row], 1))
            with pytest.raises(HubSubError):
                await node.commit(query, 0, ["a"])
        rooms.refuses = {}
        latest = node.batches._rooms.latest

        async def fails(query: str) -> BatchState | None:
            if query == "bad":
                raise RuntimeError("nobody thought of this")
            return await latest(query)

        monkeypatch.setattr(node.batches._rooms, "latest", fails)
        task = asyncio.create_task(node.retry())
        await settled(task)
        task.cancel()
        assert list(node.blocked.all()) == ["bad"] and node.blocked.all()["bad"].due is not None

    asyncio.run(play())
    assert found(rooms) == ["y1"]


def test_a_held_batch_waits_twice_as_long_after_each_try_up_to_a_minute() -> None:
    now = 100.0
    held = BlockedBatches(lambda: now)
    assert (held.wait_s(), held.due()) == (None, [])
    waits = []
    for _ in range(9):
        one = held.block("q", 4, 10, DiskFullError())
        wait = held.wait_s()
        assert wait is not None and held.due() == []
        waits.append(wait)
        now += wait
        assert held.due() == ["q"]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (one.tries, one.code, held.for_s(one), held.until_s(one)) == (9, "disk_full", sum(waits), 0)
    held.postpone("q", DiskFullError())
    assert held.due() == [] and held.all()["q"].tries == 10
    assert held.block("q", 5, 10, DiskFullError()).tries == 1, "another batch"
    held.unblock("q")
    held.postpone("q", DiskFullError())
    assert len(held) == 0


def test_a_batch_whose_error_does_not_go_away_waits_for_its_commit() -> None:
    held = BlockedBatches(lambda: 0.0)
    one = held.block("q", 4, 10, QuarantinedError())
    assert (one.due, held.wait_s(), held.due(), held.until_s(one)) == (None, None, [], None)
    assert list(held.all()) == ["q"]
