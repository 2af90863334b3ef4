"""Sessions of room members, computed from the nodes' presence records: docs/presence.md."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from clients.mqtt import Wire
from clients.phoenix import Page
from clients.roster import UPDATE, member
from clients.servers import until
from cluster.cluster import Cluster

from hubsub.pipeline import events
from hubsub.pipeline.sessions import FIELDS, moves, sessions
from pipeline.frames import table

LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
TALK = {"name": "talk", "match": ["talk:*"], "presence": "all", "presence_records": True, "placement": "ring"}
KEYS = ["room", "user", "start"]


class People:
    """Users who join and leave rooms of a cluster. Each call waits until the node has recorded its event."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.recorded = 0

    def heard(self, room: str) -> list[dict[str, Any]]:
        path = f"/v1/rooms/{quote(f'$stats/presence/{room}', safe='')}/history?limit=1000"
        status, answer = self.cluster.get("a", path)
        return [json.loads(row["payload"]) for row in answer["records"]] if status == 200 else []

    def wait(self, room: str, user: str, kind: str, count: int = 1) -> None:
        def is_there() -> bool:
            rows = [row for row in self.heard(room) if (row["user"], row["kind"]) == (user, kind)]
            return len(rows) >= count

        until(is_there, f"{kind} of {user} in {room}")

    def come(self, node: str, room: str, user: str, count: int = 1) -> Page:
        page = Page(self.cluster.nodes[node].ws)
        page.join(room, {"presence": member(user)})
        self.wait(room, user, "join", count)
        return page

    def go(self, page: Page | Wire, room: str, user: str, count: int = 1) -> None:
        page.close()
        self.wait(room, user, "leave", count)


def now() -> datetime:
    return datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1_000, UTC)


def visits(cluster: Cluster) -> Iterator[tuple[str, str, datetime, datetime, datetime, datetime]]:
    """Yields (room, user, earliest join, latest join, earliest leave, latest leave) per visit; one user
    stays. Node `c` is killed and restarted."""
    people, a = People(cluster), "talk:a"
    begin = now()
    one = people.come("a", a, "ann")
    came = now()
    one.push(a, UPDATE, {"away": True})
    bob_from = now()
    people.come("c", a, "bob")
    bob_came = now()
    people.come("c", "talk:alone", "eve")
    two = people.come("b", a, "ann", 2)
    people.go(one, a, "ann")
    truck_from = now()
    truck = Wire(cluster.nodes["b"].mqtt)
    truck.connect("truck")
    truck.subscribe((a, 0))
    people.wait(a, "truck", "join")
    truck_came = now()
    people.go(truck, a, "truck")
    yield a, "truck", truck_from, truck_came, truck_came, now()
    two.push(a, UPDATE, {"away": False})
    went = now()
    people.go(two, a, "ann", 2)
    yield a, "ann", begin, came, went, now()
    for count in (1, 2):
        carl_from = now()
        carl = people.come("b", a, "carl", count)
        carl_came = now()
        people.go(carl, a, "carl", count)
        yield a, "carl", carl_from, carl_came, carl_came, now()
    people.come("a", a, "dora")
    killed = now()
    cluster.kill("c")
    cluster.start("c")
    cluster.settled()
    people.wait(a, "bob", "leave")
    people.wait("talk:alone", "eve", "leave")
    yield a, "bob", bob_from, bob_came, killed, now()
    yield "talk:alone", "eve", bob_came, killed, killed, now()


def test_sessions_of_pages_and_devices_are_those_that_were_whoever_died(
    needs: Callable[..., None], tmp_path: Path, spark: Any, pipeline: Callable[..., Any]
) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path / "cluster", classes=[TALK], config=LISTENERS) as cluster:
        cluster.settled()
        was = sorted(visits(cluster))
        servers = ",".join(each["http"] for each in cluster.addresses.values())
        places = ("--checkpoint", tmp_path / "checkpoint", "--out", tmp_path / "out")
        presence = ("--pattern", "$stats/presence/#", "--timeout", "1 day")
        pipeline("sessions", "--once", "--servers", servers, *presence, *places)
        options = {"servers": servers, "subscribePattern": "$stats/presence/#"}
        rows = spark.read.format("hubsub").options(**options).load()
        parsed = events.good(events.parsed(rows, FIELDS, "$.ts"))
        batch = table(sessions(moves(parsed), timedelta(days=1), now=now())).sort_values(KEYS)

    found = pd.read_parquet(tmp_path / "out" / "sessions").sort_values(KEYS)
    assert [(row.room, row.user) for row in found.itertuples()] == [(room, user) for room, user, *_ in was]
    for row, (*_, came_from, came_to, went_from, went_to) in zip(found.itertuples(), was, strict=True):
        assert came_from <= row.start <= came_to and went_from <= row.end <= went_to, row
        assert (row.opened_by, row.closed_by, row.messages) == ("join", "leave", 0), row
    is_open = batch["closed_by"] == "open"
    assert list(batch[is_open]["user"]) == ["dora"]
    columns = [*KEYS, "end", "closed_by"]
    assert batch[~is_open][columns].values.tolist() == found[columns].values.tolist()
