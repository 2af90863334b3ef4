"""Batches through stages: whatever is killed or repeated, each row of each batch is published once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubsub.control.batches import GivenUp
from hubsub.control.stages import (
    Attempt,
)
from hubsub.errors import (
    BatchGivenUpError,
    BatchNotBlockedError,
    BatchPassedError,
    HubSubError,
    StageExistsError,
    StagesFullError,
    StagesMissingError,
    StageTooLargeError,
    TooManyStagesError,
)
from unit.fake_rooms import FakeRooms, Killed
from unit.stage_writers import Driver, OnNode, found, pieces


@pytest.fixture
def rooms() -> FakeRooms:
    return FakeRooms(random.Random(1))


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
def test_rows_of_one_stage_keep_their_order_in_each_room_whatever_is_refused_or_killed(seed: int) -> None:
    dice = random.Random(seed)
    rooms = FakeRooms(dice)
    rows = [f"{dice.choice('xy')}{n:03}" for n in range(40)]

    async def play() -> None:
        driver = Driver(rooms, dice)
        await driver.on_node.stage("q", "a", None, pieces(rows, 7))
        rooms.calls_left = dice.randint(1, 12)
        rooms.refuses = {hub: dice.choice([0, 0.3]) for hub in "xy"}
        assert await driver.commit(0, ["a"]) or rooms.hubs == {}

    asyncio.run(play())
    for records in rooms.hubs.values():
        assert [row for _, _, row in records] == sorted(row for _, _, row in records)


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
            except BatchNotBlockedError:
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
        for n in range(10):  # The log may remove uncommitted stages.
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
        # A batch that does not exist reserves no space.
        await node.stage("other", "after", None, pieces(["y1"], 1))
        assert await node.commit("q", 0, ["a"]) == (1, False)

    asyncio.run(play())
