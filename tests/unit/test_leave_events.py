"""Leave events for members of a process that is gone, derived from the records of the room."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, cast

import pytest

from hubsub.control import leave_events
from hubsub.control.leave_events import ROWS_PAGE, record_leaves, run_of
from hubsub.errors import HubSubError
from hubsub.node import Failed, HistoryRow, Node

ROOM = b"$stats/presence/lobby"
HERE, GONE = run_of("here", 7), run_of("gone", 7)


class Log:
    """A fake node: one room whose first records were removed by retention."""

    def __init__(self, records: list[dict[str, Any]], first_seq: int = 1, refuses: int = 0) -> None:
        self.rows = [
            HistoryRow(3, seq, seq * 1_000, ROOM, "", json.dumps(record).encode(), {})
            for seq, record in enumerate(records, first_seq)
        ]
        self.first_seq, self.refuses = first_seq, refuses
        self.said: list[dict[str, Any]] = []

    async def history(
        self, room: bytes, count: int, after: tuple[int, int] | None = None, *, as_node: bool
    ) -> tuple[bool, list[HistoryRow]]:
        assert room == ROOM and as_node and 0 < count <= ROWS_PAGE
        if after is None:
            return True, self.rows[-count:]
        if after[1] < self.first_seq - 1:
            return False, []
        return True, [row for row in self.rows if row.seq > after[1]][:count]

    async def publish(self, items: list[Any], *, as_node: bool) -> list[Any]:
        assert as_node and len(items) <= ROWS_PAGE
        if self.refuses:
            self.refuses -= 1
            return [Failed("disk_full", "the disk is full")]
        self.said += [json.loads(item.payload) for item in items]
        return [None] * len(items)


def record(kind: str, number: int, run: str = GONE) -> dict[str, Any]:
    return {"kind": kind, "user": f"user {number}", "room": "lobby", "ts": 5, "ref": f"{run}.{number:x}"}


async def left(log: Log, at_us: int = 0) -> list[str]:
    await record_leaves(cast(Node, log), ROOM, lambda: frozenset({HERE}), at_us)
    return [row["user"] for row in log.said]


async def test_who_came_and_did_not_leave_with_a_process_that_is_gone_is_said_to_have_left() -> None:
    log = Log(
        [
            record("join", 1),
            record("join", 2),
            record("leave", 1),
            record("join", 3, HERE),
            record("join", 2),
            record("join", 4),
        ]
    )
    assert await left(log, at_us=9_000_000) == ["user 2", "user 4"]
    assert log.said[0] == record("leave", 2) | {"ts": 9_000, "why": "node_gone"}


async def test_nobody_left_before_the_latest_record() -> None:
    log = Log([record("join", 1), record("join", 2, HERE)])
    await left(log)
    assert [row["ts"] for row in log.said] == [2]


async def test_nobody_is_said_to_have_left_twice() -> None:
    log = Log([record("join", 1)])
    await left(log)
    again = Log([record("join", 1), *log.said])
    assert await left(again) == []


@pytest.mark.parametrize("first_seq", [1, 2, 700, 5_000])
async def test_all_records_are_read_that_retention_has_left(first_seq: int) -> None:
    count = 3 * ROWS_PAGE + 17
    log = Log([record("join", number) for number in range(count)], first_seq)
    assert await left(log) == [f"user {number}" for number in range(count)]


async def test_what_the_log_does_not_take_is_an_error() -> None:
    log = Log([record("join", 1)], refuses=1)
    with pytest.raises(HubSubError):
        await left(log)
    assert await left(log) == ["user 1"]


async def test_a_room_that_cannot_be_read_now_is_tried_again() -> None:
    log = Log([record("join", 1)], refuses=1)
    for is_done in (False, True):
        tried = leave_events._try_record(cast(Node, log), ROOM, lambda: frozenset({HERE}), None)
        assert await tried is is_done


@pytest.mark.parametrize("seed", range(200))
async def test_whoever_dies_and_whatever_fails_each_that_came_has_left_and_nobody_who_is_there(
    seed: int,
) -> None:
    dice = random.Random(seed)
    runs, alive, there = ["1", "2", "3"], {"1", "2", "3"}, dict[str, str]()
    log, numbers = Log([]), itertools.count(1)

    def add(kind: str, ref: str) -> None:
        for _ in range(dice.choice([1, 1, 2])):
            row = {"kind": kind, "user": "ann", "ref": ref}
            log.rows.append(HistoryRow(3, len(log.rows) + 1, 0, ROOM, "", json.dumps(row).encode(), {}))

    async def look() -> None:
        """Repeats until it succeeds, with a log that refuses some records or all."""
        while True:
            log.said, log.refuses = [], dice.choice([0, 0, 1])
            try:
                await record_leaves(cast(Node, log), ROOM, lambda: frozenset(alive), 0)
            except HubSubError:
                continue
            finally:
                for row in log.said:
                    assert row["ref"].partition(".")[0] not in alive
                    add("leave", row["ref"])
            return

    for _ in range(60):
        match dice.randrange(6):
            case 0 | 1 if alive:
                ref = f"{dice.choice(sorted(alive))}.{next(numbers)}"
                there[ref] = ref.partition(".")[0]
                add("join", ref)
            case 2 | 3 if here := [ref for ref, run in there.items() if run in alive]:
                ref = dice.choice(here)
                del there[ref]
                add("leave", ref)
            case 4 if alive:
                alive.discard(dice.choice(sorted(alive)))
            case _:
                alive.add(f"{len(runs) + 1}")
                runs.append(f"{len(runs) + 1}")
                await look()
    await look()
    records = [json.loads(row.payload) for row in log.rows]
    went = {row["ref"] for row in records if row["kind"] == "leave"}
    open_refs = {row["ref"] for row in records if row["kind"] == "join"} - went
    assert open_refs == {ref for ref, run in there.items() if run in alive}


async def test_a_damaged_record_is_passed_over() -> None:
    log = Log([record("join", 1), record("join", 2), record("leave", 1)])
    for row in (b"{", b"[1]", b'{"kind":"join"}', b"\xff"):
        log.rows.append(HistoryRow(3, len(log.rows) + 1, 1_000, ROOM, "", row, {}))
    assert await left(log) == ["user 2"]
