"""Source, sink and jobs with tasks in other processes: executors of a cluster, the Spark Connect server.

`everywhere.py` has run there; each test checks one part of its results. Over Spark Connect, `make test` runs source,
sink and one job, and `make soak` all jobs.
"""

from __future__ import annotations

import json
from collections import Counter

import pandas as pd
import pytest

from hubsub.pipeline.archive import open_table
from pipeline.programs import EVENTS, USERS, Ends, Left

PAYLOADS = Counter(json.dumps(one) for one in EVENTS)
ROOMS = Counter(one["room"] for one in EVENTS)


@pytest.fixture(params=["cluster", "connect"])
def place(places: Ends, request: pytest.FixtureRequest) -> Left:
    return places()[request.param]


of_jobs = pytest.mark.parametrize(
    "place", ["cluster", pytest.param("connect", marks=pytest.mark.soak)], indirect=True
)


def table(place: Left, name: str) -> pd.DataFrame:
    return pd.read_parquet(place.directory / name)


def published(place: Left, what: str, *rooms: str) -> Counter[str]:
    return Counter(place.published(*(f"{place.name}:{what}:{room}" for room in rooms)))


def test_batch_and_stream_read_all_records_once(place: Left) -> None:
    told = json.loads(place.out.splitlines()[-1])
    assert told == {"rooms": ROOMS, "streamed": [len(EVENTS), len(EVENTS)]}


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_the_sink_publishes_each_row_once(place: Left, kind: str) -> None:
    assert published(place, kind, "0", "1", "2") == PAYLOADS


@of_jobs
def test_activity_counts_each_message(place: Left) -> None:
    windows = table(place, "activity/out")
    windows = windows.sort_values("batch_id").drop_duplicates(["room", "window_start"], keep="last")
    assert windows.groupby("room").messages.sum().to_dict() == ROOMS
    assert (place.directory / "plot.png").exists()


@of_jobs
def test_activity_tells_each_room_its_windows_under_its_query(place: Left) -> None:
    rows = [json.loads(payload) for payload in place.published(*(f"$stats/room/{room}" for room in ROOMS))]
    mine = [row for row in rows if row["query"] == f"{place.name}:activity"]
    assert {row["room"]: row["messages"] for row in mine} == ROOMS
    versions = Counter((row["room"], row["window_start"], row["messages"]) for row in mine)
    assert set(versions.values()) == {1}


def test_the_archive_has_each_record_once(place: Left) -> None:
    _, files = open_table(str(place.directory / "archive" / "out")).contents()
    rows = pd.concat([table(place, f"archive/out/{file.path}") for file in files])
    assert Counter(payload.decode() for payload in rows.payload) == PAYLOADS


@of_jobs
def test_devices_have_their_latest_value(place: Left) -> None:
    state = table(place, "devices/out/state")
    assert dict(zip(state.device, state.value, strict=True)) == {str(n): str(15 + n) for n in range(5)}


@of_jobs
def test_sessions_are_closed_by_their_leaves(place: Left) -> None:
    sessions = table(place, "sessions/out/sessions")
    assert sorted(sessions.user) == sorted(f"user-{n}" for n in range(USERS))
    assert set(zip(sessions.opened_by, sessions.closed_by, sessions.messages, strict=True)) == {
        ("join", "leave", 1)
    }
    assert set(sessions.duration_s) == {2.0}


@of_jobs
def test_a_replay_publishes_each_archived_record_once(place: Left) -> None:
    assert published(place, "replay", *(f"chat:{n}" for n in range(4))) == PAYLOADS
