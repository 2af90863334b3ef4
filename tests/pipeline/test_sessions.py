"""Sessions in batch and streaming, compared with the same rules in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from hubsub.pipeline import events
from hubsub.pipeline.sessions import FIELDS, concurrency, moves, sessions, streamed, unknown_events
from pipeline.frames import Row, chat, drained, frame, pieces, recorded, records, same, stream, table, utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMEOUT = timedelta(minutes=30)
KEYS = ["room", "user", "start", "end", "opened_by", "closed_by"]
COLUMNS = ["room", "user", "start", "end", "last_seen", "duration_s", "messages", "opened_by", "closed_by"]


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def did(kind: str, minutes: float, ref: str | None = None, user: str = "ann", room: str = "lobby") -> Row:
    return {"kind": kind, "user": user, "room": room, "ts": at(minutes).isoformat(), "ref": ref}


def read(rows: DataFrame) -> DataFrame:
    return moves(events.good(events.parsed(rows, FIELDS, "$.ts", ahead_max=timedelta(days=36500))))


def of_rooms(spark: SparkSession, log: list[Row], **options: Any) -> dict[str, list[tuple[Any, ...]]]:
    """(start, end, messages, opened_by, closed_by) of each session, by room; times in minutes after noon."""
    out = table(sessions(read(frame(spark, records(log))), TIMEOUT, **options)).sort_values("start")
    found = defaultdict(list)
    for row in out.to_dict("records"):
        start, end = (
            moment and (moment - NOON) / timedelta(minutes=1) for moment in (row["start"], row["end"])
        )
        found[row["room"]].append((start, end, row["messages"], row["opened_by"], row["closed_by"]))
    return dict(found)


def of(spark: SparkSession, log: list[Row], **options: Any) -> list[tuple[Any, ...]]:
    """As `of_rooms`, for events in a single room."""
    (found,) = of_rooms(spark, log, **options).values()
    return found


def directly(log: Iterable[Row]) -> pd.DataFrame:
    """Computes the sessions without Spark: one pass over each user's events."""
    of_user: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for event in log:
        of_user[event["room"], event["user"]].append(event)
    found = [
        {"room": room, "user": user, "duration_s": (row["end"] - row["start"]) / timedelta(seconds=1)} | row
        for (room, user), mine in of_user.items()
        for row in of_one(mine)
    ]
    return pd.DataFrame(found, columns=COLUMNS, dtype=object)


def of_one(events: list[Row]) -> Iterator[Row]:
    """The sessions of one user in one room."""
    latest = datetime.min.replace(tzinfo=UTC)
    session: Row | None = None
    there: list[str] = []
    for event in events:
        now = latest = max(latest, datetime.fromisoformat(event["ts"]))
        if session and now - session["last_seen"] > TIMEOUT:
            yield session | {"end": session["last_seen"] + TIMEOUT, "closed_by": "timeout"}
            session, there = None, []
        ref = event.get("ref")
        if event["kind"] == "leave":
            there = [one for one in there if one != ref]
            if session and there:
                session["last_seen"] = now
            elif session:
                yield session | {"last_seen": now, "end": now, "closed_by": "leave"}
            session = session if there else None
            continue
        comes_anew = event["kind"] == "join" and ref is None
        if event["kind"] == "join" and ref is not None:
            there.append(ref)
        if session and comes_anew:
            yield session | {"end": now, "closed_by": "join"}
        if not session or comes_anew:
            by = "join" if event["kind"] == "join" else "message"
            session = {"start": now, "messages": 0, "opened_by": by}
        session["last_seen"] = now
        session["messages"] += event["kind"] != "join"
    if session:
        yield session | {"end": session["last_seen"] + TIMEOUT, "closed_by": "timeout"}


RULES: dict[str, tuple[list[Row], list[tuple[Any, ...]]]] = {
    "join and leave": (
        [did("join", 0), did("message", 1), did("action", 2), did("leave", 5)],
        [(0, 5, 2, "join", "leave")],
    ),
    "no leave": ([did("join", 0), did("message", 1)], [(0, 31, 1, "join", "timeout")]),
    "ended by the next join": (
        [did("join", 0), did("message", 5), did("join", 9), did("leave", 10)],
        [(0, 9, 1, "join", "join"), (9, 10, 0, "join", "leave")],
    ),
    "timed out before the next join": (
        [did("join", 0), did("join", 31)],
        [(0, 30, 0, "join", "timeout"), (31, 61, 0, "join", "timeout")],
    ),
    "a message at the very end of the time-out keeps it": (
        [did("join", 0), did("message", 30), did("message", 60.5)],
        [(0, 60, 1, "join", "timeout"), (60.5, 90.5, 1, "message", "timeout")],
    ),
    "a message opens one": ([did("message", 3)], [(3, 33, 1, "message", "timeout")]),
    "a leave without a session is none": ([did("leave", 3)], []),
    "a leave after the time-out is none": (
        [did("join", 0), did("leave", 40), did("leave", 41), did("message", 42)],
        [(0, 30, 0, "join", "timeout"), (42, 72, 1, "message", "timeout")],
    ),
    "a clock that jumps back stands still": (
        [did("join", 10), did("message", 4), did("leave", 2)],
        [(10, 10, 1, "join", "leave")],
    ),
    "of two pages the last one to leave ends it": (
        [
            did("join", 0, "a"),
            did("join", 2, "b"),
            did("leave", 3, "a"),
            did("message", 4),
            did("leave", 6, "b"),
        ],
        [(0, 6, 1, "join", "leave")],
    ),
    "what is said twice does no harm": (
        [did(*one) for one in (("join", 0, "a"), ("join", 1, "a"), ("join", 2, "b"), ("leave", 3, "a"))]
        + [did("leave", 4, "a"), did("leave", 8, "b"), did("leave", 9, "b"), did("leave", 9, "a")],
        [(0, 8, 0, "join", "leave")],
    ),
    "a leave of one whose join is not known": (
        [
            did("join", 0, "a"),
            did("leave", 1, "b"),
            did("leave", 2, "a"),
            did("message", 3),
            did("leave", 4, "c"),
        ],
        [(0, 2, 0, "join", "leave"), (3, 4, 1, "message", "leave")],
    ),
    "silence puts all pages out": (
        [
            did("join", 0, "a"),
            did("join", 1, "b"),
            did("leave", 32, "a"),
            did("join", 33, "c"),
            did("leave", 34, "c"),
        ],
        [(0, 31, 0, "join", "timeout"), (33, 34, 0, "join", "leave")],
    ),
    "a join without a ref ends one with refs, and no leave ends it before they left": (
        [did("join", 0, "a"), did("join", 5), did("leave", 6), did("leave", 7, "a")],
        [(0, 5, 0, "join", "join"), (5, 7, 0, "join", "leave")],
    ),
    "also after a leave": (
        [did("join", 10), did("leave", 12), did("message", 4)],
        [(10, 12, 0, "join", "leave"), (12, 42, 1, "message", "timeout")],
    ),
}
"""Events of one user and their expected sessions: start and end in minutes after noon, messages, opened_by
and closed_by."""


@pytest.fixture(scope="module")
def by_rule(spark: SparkSession) -> dict[str, list[tuple[Any, ...]]]:
    """The sessions of all rules from one query; each rule has a room of its own."""
    return of_rooms(spark, [event | {"room": rule} for rule, (log, _) in RULES.items() for event in log])


@pytest.mark.parametrize("rule", RULES)
def test_a_session_opens_and_ends_by_the_rules(by_rule: dict[str, list[tuple[Any, ...]]], rule: str) -> None:
    log, expected = RULES[rule]
    assert by_rule.get(rule, []) == expected
    assert len(directly(log)) == len(expected)


def test_a_session_that_may_go_on_is_open_at_the_time_given(spark: SparkSession) -> None:
    log = [did("join", 0), did("message", 5)]
    assert of(spark, log, now=at(34.999)) == [(0, None, 1, "join", "open")]
    assert of(spark, log, now=at(35)) == [(0, 35, 1, "join", "timeout")]


@pytest.mark.parametrize(("behind_us", "given"), [(0, 1), (1, 0), (999, 0), (1_000, 0), (-1, 1)])
def test_a_stream_gives_a_session_once_the_watermark_is_at_its_end(
    spark: SparkSession, tmp_path: Path, behind_us: int, given: int
) -> None:
    """As `sessions` does with the watermark as its current time."""
    log = [did("join", 0), did("leave", 90, room="elsewhere")]  # This leave opens and closes no session.
    log[0]["ts"] = (at(60 - 30) + timedelta(microseconds=behind_us)).isoformat()
    rows = records(log)
    out = streamed(read(stream(spark, [rows], tmp_path / "in")), TIMEOUT, "30 minutes")
    found = drained(out, tmp_path / "checkpoint")
    assert [row["closed_by"] for row in found] == ["timeout"] * given
    (batch,) = sessions(read(frame(spark, rows)), TIMEOUT, now=at(60)).collect()
    assert batch.closed_by == ("timeout" if given else "open")


def test_an_epoch_that_is_smaller_but_later_comes_after(spark: SparkSession) -> None:
    log = [did("join", 0), did("leave", 1), did("join", 2), did("leave", 3)]
    rows = records(log, epochs=lambda room, n: 9 if n < 2 else 4)
    out = table(sessions(read(frame(spark, rows)), TIMEOUT))
    assert sorted(out["start"]) == [at(0), at(2)]


def with_pages(log: list[Row]) -> list[Row]:
    """The same users; most of them use several pages."""
    dice = random.Random(2)
    return [event | {"ref": dice.choice([None, "a", "a", "b", "c"])} for event in log]


@pytest.mark.parametrize("source", ["seeded", "recorded", "pages"])
def test_batch_equals_a_direct_computation(spark: SparkSession, repository: Path, source: str) -> None:
    log = recorded(repository, 3_000) if source == "recorded" else chat(3_000, users=60)
    log = with_pages(log) if source == "pages" else log
    expected = directly(log)
    assert set(expected["closed_by"]) == {"leave", "join", "timeout"}
    same(table(sessions(read(frame(spark, records(log))), TIMEOUT)), expected, KEYS)


def test_streaming_equals_batch_wherever_the_batches_end(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(1)
    log = [*chat(400, rooms=3, users=8), *with_pages(chat(400, seed=2, rooms=3, users=8))]
    for event in log[400:]:
        event["room"] += " of pages"
    for event in log:  # The senders' clocks differ.
        event["ts"] = (
            datetime.fromisoformat(event["ts"]) - timedelta(seconds=dice.randrange(300))
        ).isoformat()
    rows = records(log)
    # One much later event moves the watermark past all timeouts.
    last = did("leave", 60 * 24 * 1000, room="elsewhere")
    source = stream(spark, [*pieces(rows, 4), records([last], hubs=1)], tmp_path / "in")
    got = drained(streamed(read(source), TIMEOUT, "1 hour"), tmp_path / "checkpoint")
    same(utc(pd.DataFrame(got, columns=COLUMNS, dtype=object)), directly(log), KEYS)


def test_sessions_open_across_a_restart_are_given_once(spark: SparkSession, tmp_path: Path) -> None:
    log = [did("join", 0), did("message", 10), did("leave", 20)]
    rows = records(log)
    out = streamed(read(stream(spark, [rows[:1]], tmp_path / "in")), TIMEOUT)
    assert drained(out, tmp_path / "checkpoint") == []
    out = streamed(read(stream(spark, [rows[1:]], tmp_path / "in")), TIMEOUT)
    (session,) = drained(out, tmp_path / "checkpoint")
    assert (session["messages"], session["opened_by"], session["closed_by"]) == (1, "join", "leave")


def test_unknown_kinds_and_missing_fields_are_dead_letters(spark: SparkSession) -> None:
    log: list[Any] = [
        did("join", 0),
        did("dance", 1),
        {"kind": "join", "ts": at(0).isoformat()},
        {"user": "ann", "ts": at(0).isoformat()},
        {"kind": "join", "user": "ann"},
        {"kind": None, "user": "ann", "ts": at(0).isoformat()},
    ]
    rows = events.parsed(frame(spark, records(log)), FIELDS, "$.ts")
    letters = events.bad(rows).unionByName(unknown_events(events.good(rows)))
    assert sorted(row.reason for row in letters.collect()) == [
        "missing:event_time",
        "missing:kind",
        "missing:kind",
        "missing:user",
        "unknown_kind",
    ]
    assert moves(events.good(rows)).count() == 1


def test_the_room_of_the_payload_goes_before_that_of_the_record(spark: SparkSession) -> None:
    log = [did("join", 0, room="inner"), {"kind": "join", "user": "ann", "ts": at(0).isoformat()}]
    rows = read(frame(spark, records(log, room="outer")))
    assert sorted(row.room for row in rows.collect()) == ["inner", "outer"]


# -- concurrency --


def peaks_directly(found: pd.DataFrame) -> dict[tuple[str, datetime], tuple[int, int]]:
    """Sessions and peak of each room and hour, counted at every instant of a join."""
    peaks: dict[tuple[str, datetime], tuple[int, int]] = {}
    hour = timedelta(hours=1)
    for room, mine in found.groupby("room"):
        spans = [(row.start, row.end) for row in mine.itertuples()]
        first = min(start for start, _ in spans).replace(minute=0, second=0, microsecond=0)
        for n in range(int((max(end for _, end in spans) - first) / hour) + 1):
            begin = first + n * hour

            def holds(span: tuple[datetime, datetime], instant: datetime) -> bool:
                return span[0] <= instant < span[1] or span[0] == instant == span[1]

            touching = [s for s in spans if s[0] < begin + hour and (s[1] > begin or s[0] == s[1] >= begin)]
            if touching:
                instants = {max(start, begin) for start, _ in touching}
                peaks[room, begin] = (
                    len(touching),
                    max(sum(holds(span, instant) for span in touching) for instant in instants),
                )
    return peaks


def test_peaks_equal_a_direct_computation(spark: SparkSession, repository: Path) -> None:
    log = [*chat(2_000, rooms=5, users=40), *recorded(repository, 1_000)]
    found = sessions(read(frame(spark, records(log))), TIMEOUT)
    got = {
        (row["room"], row["hour"]): (row["sessions"], row["peak"])
        for row in table(concurrency(found)).to_dict("records")
    }
    assert got == peaks_directly(directly(log))


def test_one_who_stays_for_hours_counts_in_each_and_one_who_goes_as_another_comes_makes_no_two(
    spark: SparkSession,
) -> None:
    schema = "room string, start timestamp, end timestamp, last_seen timestamp"
    rows = [
        {"room": "a", "start": at(0), "end": at(150), "last_seen": at(150)},
        {"room": "a", "start": at(150), "end": at(155), "last_seen": at(155)},
        {"room": "a", "start": at(160), "end": at(160), "last_seen": at(160)},
        {"room": "b", "start": at(10), "end": None, "last_seen": at(20)},
    ]
    out = table(concurrency(frame(spark, rows, schema)))
    got = {(row["room"], row["hour"]): (row["sessions"], row["peak"]) for row in out.to_dict("records")}
    assert got == {
        ("a", at(0)): (1, 1),
        ("a", at(60)): (1, 1),
        ("a", at(120)): (3, 1),
        ("b", at(0)): (1, 1),
    }
