"""Batches through stages: whatever is killed or repeated, each row of each batch is published once."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubsub.control.batches import Batches, GivenUp
from hubsub.control.held import HeldBatches
from hubsub.control.stages import (
    Attempt,
    Latest,
    Move,
    Space,
    commit_record,
    committed,
    ended,
    given_up_record,
    moved,
    on_its_way,
    plan,
    progress_record,
)
from hubsub.control.staging import Staging
from hubsub.errors import (
    BatchGivenUpError,
    BatchMovingError,
    BatchNotHeldError,
    BatchPassedError,
    DiskFullError,
    HubSubError,
    QuarantinedError,
    StageCommittedError,
    StageExistsError,
    StageLostError,
    StagesFullError,
    StagesMissingError,
    StageTooLargeError,
    TooManyStagesError,
)
from unit.fake_rooms import FakeRooms, Killed

LIMITS = {
    "stage_bytes_max": 1 << 30,
    "stage_ms": 3_600_000,
    "http_stage_bytes_max": 1 << 20,
    "http_stages_max": 100,
    "request_timeout_ms": 60_000,
}


async def pieces(rows: Sequence[str], size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(rows), size):
        yield json.dumps(rows[start : start + size]).encode()


class OnNode:
    """What a node has of stages and batches."""

    def __init__(self, rooms: Any, **limits: int) -> None:
        self.limits = limits
        self.stages = Staging(rooms, lambda: LIMITS | limits)
        self.batches = Batches(rooms, self.stages, lambda: LIMITS | limits)
        self.stage, self.commit, self.abort = self.stages.stage, self.batches.commit, self.batches.abort
        self.give_up, self.held = self.batches.give_up, self.batches.held
        self.resume, self.retry, self.counts = self.batches.resume, self.batches.retry, self.batches.counts


class Driver:
    """Spark as far as a sink sees it: tasks, their repeats, and a driver that forgets what it was not told."""

    def __init__(self, rooms: FakeRooms, dice: random.Random) -> None:
        self.rooms = rooms
        self.dice = dice
        self.names = 0
        self.on_node = OnNode(rooms)

    async def run(self, batch: int, rows: Sequence[str]) -> None:
        """A micro-batch, until it is committed and the driver knows it; it may die in between."""
        for _ in range(100):
            attempts = await self.write(rows)
            if attempts is None or self.dice.random() < 0.2:
                continue  # The driver died before the commit.
            if await self.commit(batch, attempts):
                if self.dice.random() < 0.2:
                    continue  # It died before it wrote down that the batch is done.
                return
        raise AssertionError("never done")

    async def write(self, rows: Sequence[str]) -> list[str] | None:
        """Rows in an order of this attempt's own, in tasks of which some fail and are repeated."""
        rows = self.dice.sample(list(rows), len(rows))
        tasks = [rows[n::3] for n in range(3)]
        attempts = []
        for task in tasks:
            while True:
                self.names += 1
                name = f"a{self.names}"
                try:
                    await self.on_node.stage("q", name, None, pieces(task, self.dice.randint(1, 4)))
                except Killed:
                    await self.restart()
                    return None
                except HubSubError as error:
                    assert error.retryable, error
                    self.rooms.refuses_own = 0
                    continue
                if self.dice.random() < 0.8:
                    attempts.append(name)
                    break
        return attempts

    async def commit(self, batch: int, attempts: list[str]) -> bool:
        for _ in range(100):
            try:
                if self.dice.random() < 0.3 and len(self.on_node.held):
                    await self.on_node.batches._resume("q")  # As the node itself does, beside the driver.
                await self.on_node.batches._commit("q", batch, attempts)
                return True
            except Killed:
                await self.restart()
            except StagesMissingError:
                return False
            except HubSubError as error:
                assert error.retryable, error
                self.rooms.refuses_own /= 2
                if self.rooms.refuses_own < 0.1:
                    self.rooms.refuses, self.rooms.refuses_own = {}, 0
        raise AssertionError("never committed")

    async def restart(self) -> None:
        for _ in range(100):
            self.rooms.restart()
            if self.dice.random() < 0.5:
                self.rooms.calls_left = self.dice.randint(0, 20)
            self.on_node = OnNode(self.rooms)
            try:
                await self.on_node.resume()
                return
            except Killed:
                continue


@settings(max_examples=400)
@given(st.integers(0, 2**32))
def test_each_row_of_each_batch_is_published_once_whatever_is_killed_or_repeated(seed: int) -> None:
    dice = random.Random(seed)
    rooms = FakeRooms(dice)

    async def play() -> Counter[str]:
        driver, expected = Driver(rooms, dice), Counter[str]()
        for batch in range(3):
            rows = [f"{dice.choice('xyz')}{batch}-{n}" for n in range(dice.randint(0, 12))]
            expected.update(rows)
            rooms.calls_left = dice.randint(-1, 30)
            rooms.refuses = {hub: dice.choice([0, 0, 0.3]) for hub in "xyz"}
            rooms.refuses_own = dice.choice([0, 0, 0.5])
            await driver.run(batch, rows)
        return expected

    expected = asyncio.run(play())
    found = Counter(row for records in rooms.hubs.values() for _, _, row in records)
    assert found == expected


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_rows_of_one_stage_keep_their_order_in_each_hub_when_nothing_is_refused(seed: int) -> None:
    dice = random.Random(seed)
    rooms = FakeRooms(dice)
    rows = [f"{dice.choice('xy')}{n:03}" for n in range(40)]

    async def play() -> None:
        driver = Driver(rooms, dice)
        await driver.on_node.stage("q", "a", None, pieces(rows, 7))
        rooms.calls_left = dice.randint(1, 12)
        assert await driver.commit(0, ["a"]) or rooms.hubs == {}

    asyncio.run(play())
    for records in rooms.hubs.values():
        assert [row for _, _, row in records] == sorted(row for _, _, row in records)


def run(rooms: FakeRooms, *steps: Any) -> None:
    async def all_of_them() -> None:
        for step in steps:
            await step()

    asyncio.run(all_of_them())


@pytest.fixture
def rooms() -> FakeRooms:
    return FakeRooms(random.Random(1))


def found(rooms: FakeRooms) -> list[str]:
    return sorted(row for records in rooms.hubs.values() for _, _, row in records)


def test_a_repeated_commit_says_so_and_drops_what_it_names(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        assert await node.stage("q", "a", None, pieces(["x1", "y2"], 1)) == 2
        assert await node.commit("q", 3, ["a"]) == (2, False)
        assert await node.commit("q", 3, ["a"]) == (2, True)
        await node.stage("q", "b", None, pieces(["y2", "x1"], 1))
        assert await node.commit("q", 3, ["b"]) == (2, True)
        with pytest.raises(StagesMissingError, match="b"):
            await node.commit("q", 4, ["b"])
        with pytest.raises(BatchPassedError, match="2 < 3"):
            await node.commit("q", 2, [])
        assert await node.commit("q", 9, []) == (0, False)
        assert len(node.stages) == 0

    asyncio.run(play())
    assert found(rooms) == ["x1", "y2"]


def test_stages_that_are_not_whole_are_named_and_nothing_is_published(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "whole", None, pieces(["x1"], 1))
        await node.stage("q", "cut", None, pieces(["x2", "x3"], 1))
        rooms.journal = [entry for entry in rooms.journal if b"x2" not in entry[1].payload]  # type: ignore[union-attr]
        with pytest.raises(StagesMissingError, match=r": cut, never\n") as raised:
            await node.commit("q", 0, ["whole", "cut", "never"])
        assert not raised.value.retryable
        with pytest.raises(StagesMissingError, match="whole"):
            await OnNode(rooms, stage_ms=0).commit("q", 0, ["whole"])
        assert await node.commit("q", 0, ["whole"]) == (1, False)

    asyncio.run(play())
    assert found(rooms) == ["x1"]


def test_a_stage_has_a_name_of_its_own_and_goes_when_it_is_dropped(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "a", None, pieces(["x1"], 1))
        with pytest.raises(StageExistsError):
            await node.stage("q", "a", None, pieces(["x1"], 1))
        await node.abort("q", "a")
        await node.abort("q", "a")
        with pytest.raises(StagesMissingError):
            await node.commit("q", 0, ["a"])

    asyncio.run(play())


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


async def settled(task: asyncio.Task[None]) -> None:
    """Lets a task go as far as it can."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()


def test_the_node_tries_a_held_batch_again_by_itself(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.held.WAIT_S", 0.0)

    async def play() -> None:
        node = OnNode(rooms)
        task = asyncio.create_task(node.retry())
        await node.stage("q", "a", None, pieces(["x1", "y1", "x2"], 2))
        rooms.refuses = {"y": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        await settled(task)
        held = node.held.all()["q"]
        assert (held.batch, held.rows) == (0, 3) and held.tries > 1
        rooms.refuses = {}
        await settled(task)
        assert len(node.held) == 0 and found(rooms) == ["x1", "x2", "y1"]
        assert await node.commit("q", 0, ["a"]) == (3, True)
        assert node.counts == {"batches_published": 1, "rows_published": 3, "batches_repeated": 1}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())


def test_a_batch_that_is_held_at_a_start_is_tried_again(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.held.WAIT_S", 0.0)

    async def play() -> None:
        node = OnNode(rooms)
        await node.stage("q", "a", None, pieces(["x1"], 1))
        rooms.refuses = {"x": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        node = OnNode(rooms)
        await node.resume()
        assert node.held.all()["q"].tries == 1
        task = asyncio.create_task(node.retry())
        rooms.refuses = {}
        await settled(task)
        task.cancel()
        assert found(rooms) == ["x1"] and len(node.held) == 0

    asyncio.run(play())


def test_what_a_held_batch_stands_on_is_written_again_before_others_push_it_out(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.query_rooms.REMIND_BYTES", 2_000)
    monkeypatch.setattr("hubsub.control.held.WAIT_S", 3_600.0)

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
        # The log lets go of its oldest; what is written here is not so much that this would be lost.
        rooms.journal = [
            entry for n, entry in enumerate(rooms.journal) if n >= first or entry[0] != b"$queries/q"
        ]
        assert 1 <= sum(room == b"$queries/q" for room, _ in rooms.journal) <= 10
        # Held once more, further on.
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


# -- giving up --


def lose(rooms: FakeRooms, room: bytes) -> None:
    """A log that was damaged."""
    rooms.journal = [entry for entry in rooms.journal if not entry[0].startswith(room)]


async def hold(node: OnNode, rooms: FakeRooms, batch: int = 0) -> None:
    """A batch of three rows that is held when the first one is published."""
    await node.stage("q", "a", None, pieces(["x1", "y1", "x2"], 2))
    rooms.refuses = {"y": 1.0}
    with pytest.raises(HubSubError):
        await node.commit("q", batch, ["a"])
    rooms.refuses = {"x": 1.0, "y": 1.0}


def test_a_held_batch_that_is_given_up_says_what_is_published_and_the_next_one_goes_on(
    rooms: FakeRooms,
) -> None:
    async def play() -> None:
        node = OnNode(rooms, stage_bytes_max=3_000)
        await hold(node, rooms)
        known = await node.give_up("q", 0)
        assert (known.rows, known.published, len(node.held)) == (3, 1, 0)
        assert not rooms._rows(b"$stage/q/a"), "its stages are dropped"
        rooms.refuses = {}
        for now in (node, OnNode(rooms)):  # Also behind a restart.
            assert await now.give_up("q", 0) == known, "may be repeated"
            await now.stage("q", "again", None, pieces(["x2", "y1", "x1"], 2))
            with pytest.raises(BatchGivenUpError, match=r"q, batch 0: 1 of 3 rows are published") as raised:
                await now.commit("q", 0, ["again"])
            assert not raised.value.retryable and not rooms._rows(b"$stage/q/again")
        for n in range(10):  # And no space is kept for it.
            await node.stage("other", f"b{n}", None, pieces([f"z{n}" * 100], 1))
        await node.stage("q", "c", None, pieces(["y3"], 1))
        assert await node.commit("q", 1, ["c"]) == (1, False)
        assert node.counts["batches_given_up"] == 1 and node.counts["rows_given_up"] == 2

    asyncio.run(play())
    assert found(rooms) == ["x1", "y3"]


def test_only_a_batch_that_is_held_is_given_up(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        with pytest.raises(BatchNotHeldError, match="no batch"):
            await node.give_up("q", 0)
        await node.stage("q", "b", None, pieces(["x1"], 1))
        with pytest.raises(BatchNotHeldError, match="no batch"):
            await node.give_up("q", 0)
        assert await node.commit("q", 0, ["b"]) == (1, False)
        with pytest.raises(BatchNotHeldError, match="its last is: published 0"):
            await node.give_up("q", 0)
        await hold(node, rooms, batch=1)
        for batch in (0, 2):
            with pytest.raises(BatchNotHeldError, match="its last is: held 1"):
                await node.give_up("q", batch)
        node.limits["request_timeout_ms"] = 1
        async with node.batches._locked("q"):  # As while it is being moved.
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
                (held,) = now.held.all().values()
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


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_whatever_is_killed_no_row_is_there_twice_and_a_batch_given_up_has_what_was_said(seed: int) -> None:
    dice = random.Random(seed)
    rooms = FakeRooms(dice)
    said: dict[int, GivenUp] = {}

    async def give_up(driver: Driver, batch: int) -> None:
        for _ in range(100):
            try:
                said[batch] = await driver.on_node.give_up("q", batch)
                return
            except Killed:
                await driver.restart()
            except BatchNotHeldError:
                return
            except HubSubError as error:
                assert error.retryable, error
                rooms.refuses_own = 0
        raise AssertionError("never given up")

    async def play() -> None:
        driver = Driver(rooms, dice)
        for batch in range(3):
            rows = [f"{dice.choice('xyz')}{batch}-{n}" for n in range(6)]
            attempts = None
            while attempts is None:
                attempts = await driver.write(rows)
            rooms.calls_left = dice.randint(-1, 30)
            rooms.refuses = {hub: dice.choice([0, 1.0]) for hub in "xyz"}
            try:
                await driver.on_node.batches._commit("q", batch, attempts)
            except Killed:
                await driver.restart()
            except HubSubError:
                pass
            await give_up(driver, batch)
            rooms.calls_left, rooms.refuses, rooms.refuses_own = -1, {}, 0.0
            try:
                await driver.on_node.commit("q", batch, attempts)
            except BatchGivenUpError:
                assert batch in said
            except StagesMissingError:
                assert batch not in said

    asyncio.run(play())
    found = Counter(row for records in rooms.hubs.values() for _, _, row in records)
    assert set(found.values()) <= {1}
    for batch in range(3):
        there = sum(row[1:].startswith(f"{batch}-") for row in found)
        if batch in said:
            assert said[batch].published <= there <= said[batch].published + 4, "rows of a chunk beyond it"


def test_two_stages_of_one_name_at_once_are_one(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms)
        both = (node.stage("q", "a", None, pieces([row], 1)) for row in ("x1", "x2"))
        done = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in done] == [int, StageExistsError]
        assert await node.commit("q", 0, ["a"]) == (1, False)

    asyncio.run(play())
    assert found(rooms) == ["x1"]


def test_a_query_that_cannot_be_tried_keeps_no_other_from_it(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubsub.control.held.WAIT_S", 0.0)

    async def play() -> None:
        node = OnNode(rooms)
        rooms.refuses = {"x": 1.0, "y": 1.0}
        for query, row in (("bad", "x1"), ("good", "y1")):
            await node.stage(query, "a", None, pieces([row], 1))
            with pytest.raises(HubSubError):
                await node.commit(query, 0, ["a"])
        rooms.refuses = {}
        latest = node.batches._rooms.latest

        async def fails(query: str) -> Latest | None:
            if query == "bad":
                raise RuntimeError("nobody thought of this")
            return await latest(query)

        monkeypatch.setattr(node.batches._rooms, "latest", fails)
        task = asyncio.create_task(node.retry())
        await settled(task)
        task.cancel()
        assert list(node.held.all()) == ["bad"] and node.held.all()["bad"].due is not None

    asyncio.run(play())
    assert found(rooms) == ["y1"]


def test_bounds_are_errors_and_what_came_is_let_go_of(rooms: FakeRooms) -> None:
    async def play() -> None:
        small = OnNode(rooms, http_stage_bytes_max=20)
        with pytest.raises(StageTooLargeError):
            await small.stage("q", "a", None, pieces(["x" * 9, "x" * 9], 1))
        assert len(small.stages) == 0 and not rooms._rows(b"$stage/q/a")
        few = OnNode(rooms, http_stages_max=1)
        await few.stage("q", "b", None, pieces(["x1"], 1))
        with pytest.raises(TooManyStagesError):
            await few.stage("q", "c", None, pieces(["x1"], 1))
        await few.commit("q", 0, ["b"])
        await few.stage("q", "c", None, pieces(["x1"], 1))

    asyncio.run(play())


def test_a_held_batch_keeps_its_rows_from_being_pushed_out(rooms: FakeRooms) -> None:
    async def play() -> None:
        node = OnNode(rooms, stage_bytes_max=2_000)
        for n in range(10):  # Of what is not committed the log may let go.
            await node.stage("q", f"free{n}", None, pieces(["x1"], 1))
        await node.stage("q", "a", None, pieces(["x2"], 1))
        rooms.refuses = {"x": 1.0}
        with pytest.raises(HubSubError):
            await node.commit("q", 0, ["a"])
        with pytest.raises(StagesFullError) as raised:
            for n in range(10):
                await node.stage("q", f"more{n}", None, pieces(["x1"], 1))
        assert raised.value.retryable
        rooms.refuses = {}
        await node.commit("q", 0, ["a"])
        await node.stage("q", "last", None, pieces(["x1"], 1))

    asyncio.run(play())


def test_what_a_commit_names_is_kept_while_it_is_looked_for(
    rooms: FakeRooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        node = OnNode(rooms, stage_bytes_max=2_000)
        await node.stage("q", "a", None, pieces(["x1"], 1))
        find = node.stages.find

        async def beside(query: str, names: Sequence[str]) -> list[Attempt]:
            with pytest.raises(StagesFullError):
                for n in range(10):
                    await node.stage("other", f"b{n}", None, pieces(["y1"], 1))
            return await find(query, names)

        monkeypatch.setattr(node.stages, "find", beside)
        with pytest.raises(StagesMissingError):
            await node.commit("q", 0, ["a", "never"])
        monkeypatch.undo()
        await node.stage(
            "other", "after", None, pieces(["y1"], 1)
        )  # A batch that is not there keeps nothing.
        assert await node.commit("q", 0, ["a"]) == (1, False)

    asyncio.run(play())


# -- decisions --


def test_a_held_batch_waits_twice_as_long_after_each_try_up_to_a_minute() -> None:
    now = 100.0
    held = HeldBatches(lambda: now)
    assert (held.wait_s(), held.due()) == (None, [])
    waits = []
    for _ in range(9):
        one = held.hold("q", 4, 10, DiskFullError())
        wait = held.wait_s()
        assert wait is not None and held.due() == []
        waits.append(wait)
        now += wait
        assert held.due() == ["q"]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (one.tries, one.code, held.for_s(one), held.until_s(one)) == (9, "disk_full", sum(waits), 0)
    held.postpone("q", DiskFullError())
    assert held.due() == [] and held.all()["q"].tries == 10
    assert held.hold("q", 5, 10, DiskFullError()).tries == 1, "another batch"
    held.free("q")
    held.postpone("q", DiskFullError())
    assert len(held) == 0


def test_a_batch_whose_error_does_not_go_away_waits_for_its_commit() -> None:
    held = HeldBatches(lambda: 0.0)
    one = held.hold("q", 4, 10, QuarantinedError())
    assert (one.due, held.wait_s(), held.due(), held.until_s(one)) == (None, None, [], None)
    assert list(held.all()) == ["q"]


MOVE = Move(batch=5, commit=(1, 2), attempts=(Attempt("a", 3, 2, (1, 1)), Attempt("b", 0, 0, (0, 0))))

DONE = MOVE.after(2, []).after(1, [])


def test_a_plan_follows_from_what_the_last_record_says() -> None:
    moving = on_its_way(MOVE.after(2, []))
    done, given_up = ended(progress_record(DONE)), ended(given_up_record(moving))
    assert done is not None and given_up is not None and ended(progress_record(MOVE)) is None
    assert [plan(None, 7), plan(done, 5), plan(done, 7)] == ["begin", "repeated", "begin"]
    assert [plan(moving, 5), plan(moving, 6)] == ["finish", "finish, then begin"]
    assert [plan(given_up, 5), plan(given_up, 7)] == ["given up", "begin"]
    lost = replace(moving, move=None)
    assert [plan(lost, 5), plan(lost, 6)] == ["finish", "finish, then begin"]
    for latest in (done, moving, given_up, lost):
        with pytest.raises(BatchPassedError):
            plan(latest, 4)


def test_a_move_ends_behind_its_last_chunk() -> None:
    second = MOVE.after(2, [])
    assert (second.attempt, second.chunk, second.next, second.is_done) == (0, 1, 1, False)
    assert second.after(1, []).is_done


def test_a_row_has_another_number_only_if_it_was_never_stored_under_its_own() -> None:
    passed = MOVE.after(2, [(0, "disk_full"), (1, "sequence_too_old")])
    assert (passed.left, passed.next, passed.chunk) == ((0, 1), 3, 0)
    unknown = MOVE.after(2, [(0, "log_failed"), (1, "sequence_passed")])
    assert (unknown.left, unknown.next, unknown.chunk) == ((0, 1), 1, 0)


def test_records_read_back_as_what_they_were_written_from() -> None:
    record = json.loads(json.dumps(commit_record(5, MOVE.attempts)))
    assert committed(record, (1, 2)) == MOVE
    for move in (MOVE.after(2, []), MOVE.after(2, [(1, "disk_full")])):
        assert moved(json.loads(json.dumps(progress_record(move))), MOVE) == move
    assert progress_record(DONE) == {"batch": 5, "done": 3}


def test_what_is_published_is_counted_row_by_row() -> None:
    part = MOVE.after(2, [(1, "disk_full")])
    again = part.after(2, [(1, "log_failed")])
    assert [move.published for move in (MOVE, part, again, again.after(2, []), DONE)] == [0, 1, 1, 2, 3]


def test_a_batch_that_is_given_up_with_no_row_left_is_published() -> None:
    given_up = ended(given_up_record(on_its_way(MOVE.after(2, []))))
    assert given_up is not None and (given_up.published, given_up.rows, given_up.end) == (2, 3, "given up")
    assert ended(given_up_record(on_its_way(DONE))) == ended(progress_record(DONE))


def test_chunks_have_producers_of_their_own() -> None:
    other = Move(batch=5, commit=(2, 2), attempts=())
    second = MOVE.after(2, [])
    assert len({m.producer("q") for m in (MOVE, second, other)} | {MOVE.producer("r")}) == 4
    assert MOVE.after(2, [(0, "disk_full")]).producer("q") == MOVE.producer("q")


def test_space_is_bounded_behind_the_oldest_batch_that_is_moved() -> None:
    space = Space(1_000)
    assert space.has_room(10**9, 100)
    space.hold("q", [950, 990])
    assert space.has_room(50, 100) and not space.has_room(51, 100)
    space.hold_all("r")
    assert not space.has_room(1, 1_000)
    space.free("r")
    space.free("q")
    assert space.has_room(10**9, 100)
