"""Batches whose rooms do not take them now: told, tried again by the node, each row once; and a disk that is full."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.servers import Server, hubsub_node, until

from node.home import home
from node.logged import DURABLE, figure
from node.test_disk_full import LIMITS, MOUNT, Disk, namespace
from node.test_stages import Api, arrow, committing

SLOW = DURABLE | {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 1_000}
MEMORY = {"name": "memory", "match": ["memory:*"], "history": {"messages": 100}}
FILLER = "x" * 900


def held(api: Api) -> dict[str, Any] | None:
    """The one batch that is held, if there is one."""
    batches = api.ask("GET", "/v1/queries")[1]["held"]
    assert len(batches) <= 1
    return batches[0] if batches else None


@pytest.fixture
def server(needs: Callable[..., None], tmp_path: Path) -> Iterator[Server]:
    """A node on a disk of 16 MiB."""
    needs("hubsub-core")
    command = [*namespace(), "sh", "-c", MOUNT, str(tmp_path), sys.executable, "-m", "hubsub.testing"]
    limits = LIMITS | {"stage_bytes_max": "4MiB"}
    with hubsub_node(
        2, {"data": str(tmp_path / "data")}, classes=[DURABLE, SLOW, MEMORY], limits=limits, command=command
    ) as server:
        yield server


def test_staging_on_a_full_disk_is_refused_and_nothing_of_it_is_ever_published(
    server: Server, tmp_path: Path
) -> None:
    disk, api = Disk(server, tmp_path), Api(server)
    assert api.stage("before", arrow([("chat:a", "before")])) == (200, {"rows": 1})
    disk.fill()
    rows = [("chat:a", f"{n} {FILLER}") for n in range(1_000)]

    names = (f"full{n}" for n in itertools.count())

    def refused() -> dict[str, Any] | None:
        status, answer = api.stage(next(names), arrow(rows))
        assert status in (200, 507), answer
        return answer if status == 507 else None

    answer = until(refused, "a refusal")
    assert answer["code"] == "disk_full" and "disk is full" in answer["message"]
    assert api.commit(0, "before")[1]["code"] == "disk_full"
    disk.free()
    until(lambda: api.stage("again", arrow(rows))[0] == 200, "room again")
    assert api.commit(0, "before", "again") == (200, {"published": 1_001, "duplicate": False})
    assert api.payloads("chat:a") == ["before", *(payload for _, payload in rows)]


def test_a_move_that_meets_a_full_disk_is_held_and_goes_on_by_itself_when_there_is_room(
    server: Server, tmp_path: Path
) -> None:
    disk, api = Disk(server, tmp_path), Api(server)
    rows = [("chat:a", f"{n} {FILLER}") for n in range(1_000)]
    rows[500] = ("slow:a", "late")
    rows[10::50] = [("memory:a", f"not in a log {n}") for n in range(20)]
    api.stage("a", arrow(rows, 100))
    thread = committing(api, 0, "a")
    # The first chunks are there, and one waits for its late row.
    until(lambda: api.records() >= 2 and api.ask("GET", "/v1/rooms/chat%3Aa")[0] == 200)
    disk.fill()
    batch = until(lambda: held(api), "a batch is held")
    thread.join()
    assert (batch["query"], batch["batch"], batch["rows"], batch["code"]) == ("q", 0, 1_000, "disk_full")
    assert "the disk is full" in batch["reason"] and batch["tries"] >= 1 and batch["next_try_s"] <= 60
    assert figure(server, "hubsub_batches_held") == 1
    assert 'hubsub_query_held{query="q"} 1' in server.get("/metrics").decode()
    assert figure(server, "hubsub_batches_published_total") == 0
    disk.free()
    until(lambda: figure(server, "hubsub_batches_published_total") == 1, "the node has published it")
    assert held(api) is None and figure(server, "hubsub_batches_held") == 0
    assert Counter(api.payloads("chat:a")) == Counter(payload for topic, payload in rows if topic == "chat:a")
    assert api.payloads("slow:a") == ["late"]
    assert api.payloads("memory:a") == [f"not in a log {n}" for n in range(20)], (
        "what is known is not sent again"
    )
    assert api.commit(0, "a") == (200, {"published": 1_000, "duplicate": True})
    assert figure(server, "hubsub_rows_published_total") == 1_000
    assert figure(server, "hubsub_batches_repeated_total") == 1
    assert figure(server, "hubsub_stages") == figure(server, "hubsub_stage_bytes") == 0


def test_stages_that_wait_are_counted(server: Server) -> None:
    api = Api(server)
    api.stage("a", arrow([("chat:a", FILLER)] * 10))
    assert figure(server, "hubsub_stages") == 1
    assert 9_000 < figure(server, "hubsub_stage_bytes") < 20_000
    assert api.commit(0, "a")[0] == 200
    assert figure(server, "hubsub_stages") == figure(server, "hubsub_stage_bytes") == 0


def test_a_node_that_is_stopped_while_a_batch_is_held_ends_cleanly_and_the_next_one_publishes_it(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits: dict[str, Any] = {"rooms_max": 8}
    with home(tmp_path / "data", 1, classes=[DURABLE, MEMORY], limits=limits) as one:
        api = Api(one.server)
        api.stage("a", arrow([(f"memory:{n}", "x") for n in range(20)] + [("chat:a", "x")]))
        assert api.commit(0, "a")[1]["code"] == "too_many_rooms"
        batch = held(api)
        assert batch is not None and batch["code"] == "too_many_rooms"
        one.stop()
        assert "Traceback" not in one.log and "never retrieved" not in one.log
        limits["rooms_max"] = 1_000
        api = Api(one.start())
        assert held(api) is None
        assert api.payloads("memory:19") == api.payloads("chat:a") == ["x"]
        assert api.commit(0, "a") == (200, {"published": 21, "duplicate": True})
