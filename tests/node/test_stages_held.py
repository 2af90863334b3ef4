"""Batches whose rooms do not accept them now: reported, retried by the node, each row published once; and a
full disk."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import pytest
from clients.servers import Server, hubsub_node, until

from node.home import home
from node.logged import DURABLE, figure
from node.test_disk_full import LIMITS, MOUNT, Disk, namespace
from node.test_stages import Api, arrow, committing

SLOW = DURABLE | {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 10_000}
MEMORY = {"name": "memory", "match": ["memory:*"], "history": {"messages": 100}}
FILLER = "x" * 900


def held(api: Api) -> dict[str, Any] | None:
    """The one blocked batch, if there is one."""
    batches = api.ask("GET", "/v1/queries")[1]["blocked"]
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
    # The first chunks are published, and one waits for its late row.
    until(lambda: api.records() >= 2 and api.ask("GET", "/v1/rooms/chat%3Aa")[0] == 200)
    disk.fill()
    batch = until(lambda: held(api), "a batch is held")
    thread.join()
    assert (batch["query"], batch["batch"], batch["rows"], batch["code"]) == ("q", 0, 1_000, "disk_full")
    assert "the disk is full" in batch["reason"] and batch["tries"] >= 1 and batch["next_try_s"] <= 60
    assert figure(server, "hubsub_batches_blocked") == 1
    assert 'hubsub_query_blocked{query="q"} 1' in server.get("/metrics").decode()
    assert figure(server, "hubsub_batches_published_total") == 0
    disk.free()
    until(lambda: figure(server, "hubsub_batches_published_total") == 1, "the node has published it")
    assert held(api) is None and figure(server, "hubsub_batches_blocked") == 0
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


# -- batches that are given up --


def hubsub(api: Api, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the command-line program against this node."""
    return command_line.hubsub(*args, HUBSUB_URL=f"http://{api.address}")


def published(api: Api) -> int:
    """Number of rows of `memory:0` to `memory:19` that are in their rooms."""
    rooms = [row["name"] for row in api.ask("GET", "/v1/rooms?match=memory:*&limit=100")[1]["rooms"]]
    return sum(len(api.payloads(room)) for room in rooms)


def test_a_held_batch_is_given_up_from_the_command_line_and_its_query_goes_on(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    with home(tmp_path / "data", 1, classes=[DURABLE, MEMORY], limits={"rooms_max": 8}) as one:
        api = Api(one.server)
        refused = hubsub(api, "query", "give-up", "q", "7")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == (
            "error: the batch is not blocked: q, batch 7; its last is: no batch\n"
            "hint: `hubsub query ls` lists those that are\n"
        )
        api.stage("a", arrow([(f"memory:{n}", "x") for n in range(20)]))
        assert api.commit(7, "a")[1]["code"] == "too_many_rooms"
        assert api.ask("DELETE", "/v1/queries/q/batches/6")[1]["code"] == "batch_not_blocked"
        listed = hubsub(api, "query", "ls")
        assert listed.stdout.splitlines()[1].split() == ["q", *"-" * 5, "7", "20", "too_many_rooms"]
        assert "batch 7 of q is blocked for" in listed.stderr and "tried again in" in listed.stderr
        as_json = json.loads(hubsub(api, "query", "ls", "--json").stdout)
        assert (as_json["query"], as_json["lag"], as_json["blocked"]["batch"]) == ("q", None, 7)
        done = hubsub(api, "query", "give-up", "q", "7")
        there = published(api)
        assert done.returncode == 0 and 0 < there < 20
        known = {"rows": 20, "published": there, "given_up": 20 - there}
        assert {key: int(value) for key, value in map(str.split, done.stdout.splitlines())} == known
        assert held(api) is None
        assert figure(one.server, "hubsub_batches_given_up_total") == 1
        assert figure(one.server, "hubsub_rows_given_up_total") == 20 - there
        assert figure(one.server, "hubsub_batches_blocked") == figure(one.server, "hubsub_stages") == 0
        api = Api(one.restart(kills=True))
        assert api.ask("DELETE", "/v1/queries/q/batches/7") == (200, known), "may be repeated"
        status, answer = api.commit(7, "a")
        assert (status, answer["code"]) == (409, "batch_given_up")
        assert f"q, batch 7: {there} of 20 rows are published" in answer["message"]
        api.stage("b", arrow([("chat:a", "next")]))
        assert api.commit(8, "b") == (200, {"published": 1, "duplicate": False})
        assert api.ask("DELETE", "/v1/queries/q/batches/8")[1]["code"] == "batch_not_blocked"


def test_a_batch_that_meets_a_limit_lowered_behind_its_commit_waits_for_the_limit(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits: dict[str, Any] = {"rooms_max": 8}
    classes = [DURABLE, MEMORY]
    with home(tmp_path / "data", 1, classes=classes, limits=limits) as one:
        api = Api(one.server)
        api.stage("a", arrow([(f"memory:{n}", "x" * 200) for n in range(20)]))
        assert api.commit(0, "a")[1]["code"] == "too_many_rooms"
        limits["rooms_max"] = 1_000
        classes[1] = MEMORY | {"payload_bytes_max": 100}
        api = Api(one.restart())
        batch = held(api)
        assert batch and (batch["code"], batch["next_try_s"]) == ("payload_length", None)
        status, answer = api.commit(0, "a")
        assert (status, answer["code"], answer["hint"]) == (413, "payload_length", batch["hint"])
        assert "raise it again" in batch["hint"] and "or `hubsub query give-up q 0`" in batch["hint"]
        classes[1] = MEMORY
        api = Api(one.restart())
        assert api.commit(0, "a") == (200, {"published": 20, "duplicate": True})
        assert api.payloads("memory:19") == ["x" * 200]


def test_a_batch_whose_stage_is_lost_is_given_up(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    limits: dict[str, Any] = {"rooms_max": 8, "log_segment_bytes": "64KiB", "log_checkpoint_bytes": "64KiB"}
    with home(tmp_path / "data", 1, classes=[DURABLE, MEMORY], limits=limits) as one:
        api = Api(one.server)
        api.stage("a", arrow([(f"memory:{n % 20}", FILLER) for n in range(1_000)], 100))
        assert api.commit(0, "a")[1]["code"] == "too_many_rooms"
        one.stop()
        (log,) = (
            path.parent for path in tmp_path.glob("data/log/hubs/*/hub.json") if "$stage" in path.read_text()
        )
        for path in log.glob("*[12].*"):
            path.unlink()
        limits["rooms_max"] = 1_000
        api = Api(one.start())
        batch = held(api)
        assert batch and batch["code"] == "quarantined" and "or `hubsub query give-up q 0`" in batch["hint"]
        one.stop()
        assert command_line.hubsub("log", "repair", tmp_path / "data", "--accept-loss").returncode == 0
        api = Api(one.start())
        batch = held(api)
        assert batch and (batch["code"], batch["next_try_s"]) == ("stage_lost", None)
        assert "`hubsub query give-up q 0` lets the query go on" in batch["hint"]
        status, answer = api.commit(0, "a")
        assert (status, answer["code"]) == (500, "stage_lost")
        status, answer = api.ask("DELETE", "/v1/queries/q/batches/0")
        assert (status, answer["rows"]) == (200, 1_000) and answer["published"] < 1_000
        api.stage("b", arrow([("chat:a", "next")]))
        assert api.commit(1, "b") == (200, {"published": 1, "duplicate": False})


def test_rows_of_a_room_keep_their_order_although_some_are_refused(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    """The room creation limit refuses most rows of a chunk; these are retried."""
    needs("hubsub-core")
    limits = {"room_creations_per_second_max": 4}
    rows = [(f"chat:{n % 12}", f"{n:04}") for n in range(1_200)]
    with home(tmp_path / "data", 2, classes=[DURABLE], limits=limits) as one:
        api = Api(one.server)
        assert api.stage("a1", arrow(rows))[0] == 200

        def is_published() -> bool:
            status, answer = api.commit(0, "a1")
            assert status == 200 or answer["code"] == "room_creation_rate", answer
            return status == 200

        until(is_published, "all rows")
        for room in range(12):
            assert api.payloads(f"chat:{room}") == [
                payload for topic, payload in rows if topic == f"chat:{room}"
            ]
