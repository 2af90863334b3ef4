"""Hubs with a log as an operator sees them, also when a disk fails or is damaged."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import command_line
import pytest
from clients.raw import Frame
from clients.servers import Server, until

from node.logged import DURABLE, QUIET, REPLICATED, figure, files, history, hubs, manifest, numbers, publish

Start = Callable[..., Server]

FAILED = Frame("-", b"ERR the log has failed, the outcome is unknown")
LOST = Frame("-", b"ERR the log of this room is damaged and quarantined")


def hubsub(server: Server, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the command-line program against this node."""
    assert server.node
    return command_line.hubsub(*args, HUBSUB_URL=server.node.http_url)


def ready(server: Server) -> tuple[int, dict[str, Any]]:
    """Status and body of /readyz."""
    try:
        return 200, json.loads(server.get("/readyz"))
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def fail_writes(server: Server, data: Path) -> None:
    """From now on the system refuses writes after the first MiB of a file, as a failing disk would.

    It waits until the reserve has its full length: a reserve that cannot grow means a full disk.
    """
    reserve = data / "log" / "reserve"
    until(lambda: reserve.exists() and reserve.stat().st_size >= 64 << 20)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))


def settled(server: Server, rooms: int) -> list[dict[str, Any]]:
    """The hubs, after their segments hold records of `rooms` rooms and all are synced."""

    def found() -> list[dict[str, Any]]:
        listed = hubs(server)
        is_synced = all(hub["synced"] == hub["latest"] for hub in listed)
        return listed if is_synced and sum(hub["rooms"] for hub in listed) == rooms else []

    return until(found)


def test_offsets_of_hubs_count_their_records_and_go_on_after_a_restart(start: Start, data: Path) -> None:
    for life in (1, 2):
        server = start(2, classes=[DURABLE, REPLICATED], config={"data": str(data)}, limits=QUIET)
        with server.connect() as connection:
            for room in range(10):
                publish(connection, f"chat:{room}", range(10))
                publish(connection, f"fast:{room}", range(20))
        listed = settled(server, 20)
        assert [(hub["name"], hub["shard"]) for hub in listed] == [
            ("chat-0", 0),
            ("chat-1", 1),
            ("fast-0", 0),
            ("fast-1", 1),
        ]
        for name, said in (("chat", 100), ("fast", 200)):
            mine = [hub for hub in listed if hub["class"] == name]
            assert sum(hub["latest"] for hub in mine) == life * said
            assert sum(hub["committed"] for hub in mine) == life * said
            assert sum(hub["rooms"] for hub in mine) == 10
            assert {hub["earliest"] for hub in mine} == {1} and {hub["state"] for hub in mine} == {"open"}
            assert all(hub["first_timestamp_us"] <= hub["last_timestamp_us"] for hub in mine)
        room = json.loads(server.get("/v1/rooms/chat:3"))
        hub = json.loads(server.get(f"/v1/hubs/{room['hub']}"))
        assert (hub["class"], hub["shard"]) == ("chat", room["shard"])
        assert figure(server, "hubsub_log_records_total") == 300
        assert figure(server, "hubsub_log_sync_seconds_count") == figure(server, "hubsub_log_syncs_total") > 0
        assert server.node and server.node.stop() == 0


def test_a_room_names_its_hub_also_when_the_shards_are_fewer_than_before(start: Start, data: Path) -> None:
    def rooms_by_hub(shards: int) -> dict[str, str]:
        server = start(shards, classes=[DURABLE], config={"data": str(data)})
        with server.connect() as connection:
            for room in range(30):
                publish(connection, f"chat:{room}", range(1))
        assert server.node
        listed = json.loads(server.get("/v1/rooms?limit=100"))["rooms"]
        server.node.stop()
        return {room["name"]: room["hub"] for room in listed}

    before = rooms_by_hub(4)
    assert set(before.values()) == {"chat-0", "chat-1", "chat-2", "chat-3"}
    assert rooms_by_hub(1) == before


def test_retention_moves_the_earliest_offset(start: Start, data: Path) -> None:
    small = DURABLE | {"history": {"bytes": "200KiB"}}
    limits = {"log_segment_bytes": "64KiB", "log_checkpoint_bytes": "64KiB", "log_tail_bytes_max": 1_000}
    server = start(1, classes=[small], config={"data": str(data)}, limits=limits)
    with server.connect() as connection:
        publish(connection, "chat:a", range(2000), 1000)
        until(lambda: hubs(server)[0]["earliest"] > 1500)
        (hub,) = hubs(server)
        assert hub["latest"] == 2000 and hub["first_timestamp_us"] <= hub["last_timestamp_us"]
        until(lambda: figure(server, "hubsub_log_segments_retired_total") >= 20)
        kept = numbers(connection, "chat:a")
        assert kept == list(range(hubs(server)[0]["earliest"] - 1, 2000))


def test_the_command_line_lists_and_shows_hubs(start: Start, data: Path) -> None:
    server = start(2, classes=[DURABLE], config={"data": str(data)})
    with server.connect() as connection:
        publish(connection, "chat:a", range(10))
    listed = hubsub(server, "hub", "ls")
    assert listed.returncode == 0 and listed.stderr == ""
    head, *rows = listed.stdout.splitlines()
    assert head.split()[:3] == ["name", "state", "rooms"]
    assert [row.split()[:2] for row in rows] == [["chat-0", "open"], ["chat-1", "open"]]
    objects = [json.loads(line) for line in hubsub(server, "hub", "ls", "--json").stdout.splitlines()]
    assert [hub["id"] for hub in objects] == [1, 2]
    first = hubsub(server, "hub", "ls", "--limit", "1")
    assert len(first.stdout.splitlines()) == 2 and "more behind 1" in first.stderr
    assert "chat-1" in hubsub(server, "hub", "ls", "--after", "1", "--class", "chat").stdout
    by_name, by_id = (hubsub(server, "hub", "show", hub, "--json") for hub in ("chat-1", "2"))
    assert json.loads(by_name.stdout)["id"] == json.loads(by_id.stdout)["id"] == 2
    assert server.node
    report = Request(server.node.http_url + "/v1/queries/q", b'{"offsets": {"1": 1, "2": 1}}', method="PUT")
    with urlopen(report) as answer:
        assert answer.status == 204
    shown = hubsub(server, "hub", "show", "chat-0").stdout
    behind = hubs(server)[0]["committed"]
    assert "durability" in shown and f"read to 1, {behind} behind" in shown
    gone = hubsub(server, "hub", "show", "chat-7")
    assert gone.returncode == 1 and "no such hub: chat-7" in gone.stderr
    assert "hint: `hubsub hub ls` lists those with a log" in gone.stderr
    strange = hubsub(server, "hub", "ls", "--class", "nope")
    assert (strange.returncode, strange.stdout) == (1, "")
    assert strange.stderr == "error: no such class: nope\nhint: the classes are chat, default\n"


def test_the_command_line_says_that_a_room_is_not_there_and_in_its_own_words(
    start: Start, data: Path
) -> None:
    server = start(2, classes=[DURABLE], config={"data": str(data)})
    for args in (("show",), ("history",), ("delete",), ("history", "--count", "3")):
        run = hubsub(server, "room", args[0], "chat:none", *args[1:])
        assert (
            (run.returncode, run.stdout) == (1, "") and "no such room: chat:none" in run.stderr
        ) or args == ("delete",)
        assert "hint: `hubsub room ls` lists them" in run.stderr
        assert not re.search("GET|PUT|create=", run.stderr), run.stderr
    run = hubsub(server, "node", "show", "none")
    assert (run.returncode, run.stderr.splitlines()[1]) == (1, "hint: `hubsub node ls` lists them")
    assert hubsub(server, "room", "create", "chat:new").returncode == 0
    run = hubsub(server, "room", "history", "chat:new")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "there are no records\n")
    with server.connect() as connection:
        publish(connection, "chat:new", range(1))
    run = hubsub(server, "room", "history", "chat:new", "--topic", "other")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "there are no such records\n")
    run = hubsub(server, "room", "history", "chat:new")
    assert (run.returncode, run.stderr) == (0, "") and len(run.stdout.splitlines()) == 1


def test_an_end_by_signal_is_a_clean_one(start: Start, data: Path) -> None:
    """A replicated room keeps its epoch only if the previous run ended cleanly."""
    epochs = set()
    for _ in range(3):
        server = start(2, classes=[REPLICATED], config={"data": str(data)})
        with server.connect() as connection:
            publish(connection, "fast:a", range(10))
            epochs |= {position.partition("-")[0] for position, _ in history(connection, "fast:a")}
        assert server.node and server.node.stop() == 0
        assert manifest(data)["clean"] is not None
    assert len(epochs) == 1


def test_a_failed_write_ends_acknowledgements_loudly_and_nothing_else(start: Start, data: Path) -> None:
    server = start(2, classes=[DURABLE], config={"data": str(data)})
    assert server.node
    with server.connect() as connection, server.connect(3) as subscriber:
        subscriber.ask("SUBSCRIBE", "plain")
        assert set(publish(connection, "chat:a", range(100))) == {Frame(":", b"0")}
        fail_writes(server, data)
        replies = publish(connection, "chat:a", range(100, 3000), 1000)
        acknowledged = replies.index(FAILED)
        assert acknowledged < 2900 and set(replies[acknowledged:]) == {FAILED}, "none behind the first"
        assert set(publish(connection, "chat:b", range(3))) == {FAILED}, "in any room"
        assert publish(connection, "plain", range(1)) == [Frame(":", b"1")]
        assert subscriber.read().plain()[1] == b"plain"  # type: ignore[index]
        assert numbers(connection, "chat:a") == list(range(100 + acknowledged))

    status, body = ready(server)
    assert (status, body["code"]) == (503, "log_failed") and "File too large" in body["message"]
    assert {hub["state"] for hub in hubs(server)} == {"failed"}
    assert all("File too large" in hub["reason"] for hub in hubs(server))
    assert figure(server, "hubsub_log_state") == 1
    assert 'hubsub_log_state{state="failed"} 1' in server.get("/metrics").decode()
    assert server.log_line("log has failed", "File too large")
    listed, seen = hubsub(server, "hub", "ls"), hubsub(server, "doctor", "--json")
    assert "chat-0 is failed: " in listed.stderr and "File too large" in listed.stderr
    node = next(row for row in map(json.loads, seen.stdout.splitlines()) if row["check"] == "node")
    assert (node["state"], seen.returncode) == ("bad", 1) and "File too large" in node["found"]
    assert server.node.stop() == 1, "who watches the process learns of it"

    server = start(2, classes=[DURABLE], config={"data": str(data)})
    assert ready(server)[0] == 200
    with server.connect() as connection:
        kept = numbers(connection, "chat:a")
        assert kept[: 100 + acknowledged] == list(range(100 + acknowledged))
        assert kept == list(range(len(kept))), "what comes behind was sent, if it is there"
        assert set(publish(connection, "chat:a", range(3))) == {Frame(":", b"0")}


def test_a_log_that_failed_still_answers_from_disk(start: Start, data: Path) -> None:
    limits = {"log_tail_bytes_max": 20_000, "log_segment_bytes": "4MiB", "log_checkpoint_ms": 50}
    server = start(1, classes=[DURABLE], config={"data": str(data)}, limits=limits)
    with server.connect() as connection:
        publish(connection, "chat:old", range(100), 1000)
        publish(connection, "chat:new", range(2000), 1000)
        until(lambda: manifest(data)["hubs"][0]["next"] == 2101, "all of it is in segments")
        fail_writes(server, data)
        assert FAILED in publish(connection, "chat:new", range(2000, 2100), 1000)
        assert numbers(connection, "chat:old") == list(range(100))
        assert ready(server)[0] == 503


def test_what_a_failed_log_lacks_is_refused_at_once(start: Start, data: Path) -> None:
    """A replicated record is acknowledged before it is on disk; once it has left memory, reads are
    refused."""
    limits = {"log_tail_bytes_max": 1_000, "log_journal_bytes": "4MiB"}
    server = start(1, classes=[REPLICATED], config={"data": str(data)}, limits=limits)
    with server.connect() as connection:
        old = 0

        def is_prepared() -> bool:
            """Publishes a record; whether the journal's next file and the one after it exist."""
            nonlocal old
            publish(connection, "fast:old", range(old, old + 1))
            old += 1
            return sum(files(data, "journal/*").values()) == 12 << 20

        until(is_prepared)
        server.get("/v1/hubs/fast-0/records")  # It reads only segments, so all records are in them.
        fail_writes(server, data)
        replies: list[Frame] = []

        def has_failed() -> bool:
            replies.extend(publish(connection, "fast:new", range(1000), 1000))
            return FAILED in replies

        until(has_failed)
        acknowledged = replies.index(FAILED)
        (hub,) = hubs(server)
        assert hub["synced"] < hub["committed"] == old + acknowledged
        began = time.monotonic()
        assert connection.call("HUBSUB", "HISTORY", "fast:new", "COUNT", 3000) == FAILED
        assert time.monotonic() - began < 4, "no reader waits for what will not come"
        assert numbers(connection, "fast:old") == list(range(old))
    assert figure(server, "hubsub_log_reads_failed_total") == 1


def test_a_damaged_hub_is_named_and_the_others_go_on(start: Start, data: Path) -> None:
    server = start(2, classes=[DURABLE], config={"data": str(data)})
    with server.connect() as connection:
        for room in range(20):
            publish(connection, f"chat:{room}", range(10))
    rooms = {room["name"]: room["hub"] for room in json.loads(server.get("/v1/rooms?limit=50"))["rooms"]}
    assert set(rooms.values()) == {"chat-0", "chat-1"}
    assert server.node
    server.node.stop()
    (name,) = files(data, "hubs/1/*.segment")
    os.truncate(data / "log" / "hubs" / "1" / name, 100)

    server = start(2, classes=[DURABLE], config={"data": str(data)})
    lost, whole = hubs(server)
    assert (lost["state"], whole["state"]) == ("quarantined", "open") and name in lost["reason"]
    assert lost["rooms"] is None and whole["rooms"] > 0
    status, body = ready(server)
    assert (status, body["log"]) == (200, "open"), "other rooms are served"
    assert "hub chat-0 is quarantined" in body["reasons"][0] and name in body["reasons"][0]
    assert figure(server, "hubsub_hub_quarantined") == 1
    with server.connect() as connection:
        for room, hub in rooms.items():
            expected = LOST if hub == "chat-0" else Frame(":", b"0")
            assert publish(connection, room, range(10, 11)) == [expected]
            if hub == "chat-1":
                assert numbers(connection, room) == list(range(11))
                continue
            assert connection.call("HUBSUB", "HISTORY", room) == LOST, "not empty"
            assert connection.call("HUBSUB", "SUBSCRIBE", room, "LAST", 1) == LOST
            with pytest.raises(urllib.error.HTTPError, match="503"):
                server.get(f"/v1/rooms/{room}/history")
    seen = hubsub(server, "doctor", "--json")
    assert seen.returncode == 1 and "chat-0 is quarantined" in seen.stdout
    listed = hubsub(server, "hub", "ls")
    assert listed.returncode == 0 and "chat-0 is quarantined" in listed.stderr


def test_damage_that_a_read_finds_is_seen_and_what_is_whole_goes_on(start: Start, data: Path) -> None:
    limits = {"log_segment_bytes": "64KiB", "log_tail_bytes_max": "64KiB"}
    server = start(1, classes=[DURABLE], config={"data": str(data)}, limits=limits)
    with server.connect() as connection:
        publish(connection, "chat:a", range(1000), 1000)
        until(lambda: hubs(server)[0]["bytes"] >= 1_000_000, "all of it is in segments")
        path = sorted(data.glob("log/hubs/1/*.segment"))[2]
        with open(path, "r+b") as segment:
            segment.seek(path.stat().st_size // 2)
            segment.write(b"\xff\x00")
        assert ready(server) == (200, {"status": "ready", "log": "open", "reasons": []}), "nobody has read it"
        assert connection.call("HUBSUB", "HISTORY", "chat:a", "COUNT", 1000) == LOST
        (hub,) = hubs(server)
        assert hub["state"] == "damaged" and hub["reason"] == hub["damaged"]
        assert f"{path.name} is damaged at byte " in hub["damaged"]
        status, body = ready(server)
        assert (status, body["log"]) == (200, "open")
        assert body["reasons"] == [f"hub chat-0 is damaged: {hub['damaged']}"], "once"
        assert figure(server, "hubsub_hub_damaged") == 1 and figure(server, "hubsub_hub_quarantined") == 0
        listed = hubsub(server, "hub", "ls")
        assert "chat-0 is damaged: " in listed.stderr and path.name in listed.stderr
        assert publish(connection, "chat:a", range(1000, 1001)) == [Frame(":", b"0")]
        assert [n for _, n in history(connection, "chat:a", 10)] == list(range(991, 1001)), "the end is whole"
        epoch = history(connection, "chat:a", 1)[0][0].split("-")[0]
    address = ("--server", f"redis://{server.host}:{server.port}")
    rewound = hubsub(server, "sub", "chat:a", "--rewind", "1001", *address)
    assert rewound.returncode == 1
    assert "damaged and quarantined" in rewound.stderr and "hubsub log verify" in rewound.stderr
    # The two bytes belong to one record or to two.
    resumed = hubsub(server, "sub", "chat:a", "--resume", f"{epoch}-0", "--count", "999", *address)
    assert resumed.returncode == 0 and resumed.stderr.count("gap in chat:a: from ") == 1
    seen = [int(line.split()[1]) for line in resumed.stdout.splitlines()]
    assert len(seen) == 999 and seen == sorted(set(seen)) and seen[-1] >= 999, "what is behind it came"


def test_changed_rules_over_a_damaged_log_are_refused_with_what_to_do(start: Start, data: Path) -> None:
    limits = {"log_segment_bytes": "64KiB"}
    server = start(1, classes=[DURABLE], config={"data": str(data)}, limits=limits)
    with server.connect() as connection:
        publish(connection, "chat:a", range(200), 1000)
        until(lambda: hubs(server)[0]["bytes"] >= 200_000, "all of it is in segments")
    assert server.node
    server.node.stop()
    path = sorted(data.glob("log/hubs/1/*.segment"))[1]
    with open(path, "r+b") as segment:
        segment.seek(path.stat().st_size // 2)
        segment.write(b"\xff\x00")
    (data / "log/hubs/1/names").unlink()

    from hubsub.errors import StartError

    with pytest.raises(StartError) as refused:
        start(
            1, classes=[{**DURABLE, "match": ["chat:*", "room:*"]}], config={"data": str(data)}, limits=limits
        )
    assert path.name in str(refused.value) and "hint: start with the rules of before" in str(refused.value)
    start(1, classes=[DURABLE], config={"data": str(data)}, limits=limits)
