"""The records of a batch, and the state derived from them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hubsub.control.stages import (
    Attempt,
    Move,
    RetainedSpace,
    commit_record,
    committed,
    ended,
    given_up_record,
    in_flight,
    moved,
    plan,
    progress_record,
)
from hubsub.errors import (
    BatchPassedError,
)

MOVE = Move(batch=5, commit=(1, 2), attempts=(Attempt("a", 3, 2, (1, 1)), Attempt("b", 0, 0, (0, 0))))


DONE = MOVE.after(2, []).after(1, [])


def test_a_plan_follows_from_what_the_last_record_says() -> None:
    moving = in_flight(MOVE.after(2, []))
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
    assert (second.attempt, second.chunk, second.turn, second.is_done) == (0, 1, 0, False)
    assert second.after(1, []).is_done


def test_rows_are_numbered_anew_only_if_they_were_never_stored_under_their_numbers() -> None:
    passed = MOVE.after(3, [(1, "disk_full"), (2, "sequence_ahead")])
    assert (passed.left, passed.of, passed.turn, passed.chunk) == ((1, 2), (1, 2), 1, 0)
    stored = passed.after(3, [(2, "log_failed")])
    assert (stored.left, stored.of, stored.turn, stored.chunk) == ((2,), (1, 2), 1, 0)
    unknown = MOVE.after(2, [(0, "log_failed"), (1, "sequence_ahead")])
    assert (unknown.left, unknown.of, unknown.turn, unknown.chunk) == ((0, 1), None, 0, 0)


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
    given_up = ended(given_up_record(in_flight(MOVE.after(2, []))))
    assert given_up is not None and (given_up.published, given_up.rows, given_up.end) == (2, 3, "given up")
    assert ended(given_up_record(in_flight(DONE))) == ended(progress_record(DONE))


def test_chunks_have_producers_of_their_own() -> None:
    other = Move(batch=5, commit=(2, 2), attempts=())
    second = MOVE.after(2, [])
    assert len({m.producer("q") for m in (MOVE, second, other)} | {MOVE.producer("r")}) == 4
    assert MOVE.after(2, [(0, "log_failed")]).producer("q") == MOVE.producer("q")
    assert MOVE.after(2, [(0, "disk_full")]).producer("q") != MOVE.producer("q")


def test_space_is_bounded_behind_the_oldest_batch_that_is_moved() -> None:
    space = RetainedSpace(1_000)
    assert space.has_room(10**9, 100)
    space.hold("q", [950, 990])
    assert space.has_room(50, 100) and not space.has_room(51, 100)
    space.hold_all("r")
    assert not space.has_room(1, 1_000)
    space.free("r")
    space.free("q")
    assert space.has_room(10**9, 100)
