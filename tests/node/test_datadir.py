"""The log of a stopped node is verified, shown and repaired; and what keeps a node from starting."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.raw import Connection
from command_line import HUBSUB, hubsub

from hubsub.errors import StartError
from hubsub.testing import Node
from node.home import CHAT
from node.logged import QUIET

pytestmark = pytest.mark.needs("hubsub-core")

SMALL = {"log_segment_bytes": 65_536, "log_journal_bytes": 65_536, "log_checkpoint_ms": 1, **QUIET}
RECORDS = 400
PAYLOAD = "x" * 1_000

Start = Callable[..., Node]


def asked(*args: object) -> tuple[int, Any]:
    """Exit code and JSON of a command with `--json`."""
    run = hubsub(*args, "--json")
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout)


def shown(data: Path, *args: object) -> list[dict[str, Any]]:
    run = hubsub("log", "show", data, *args, "--json")
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture
def node(make_node: Start, tmp_path: Path) -> Callable[[], Node]:
    """Starts a node on the test's data directory, with one hub."""

    def start() -> Node:
        config = {"data": str(tmp_path / "data"), "shards": 1}
        return make_node(classes=[CHAT], limits=SMALL, config=config)

    return start


@pytest.fixture
def data(node: Callable[[], Node], tmp_path: Path) -> Path:
    """A data directory with `RECORDS` records in two rooms, in several segments."""
    running = node()
    with Connection(*running.redis) as client:
        for i in range(RECORDS):
            assert client.ask("PUBLISH", f"chat:{i % 2}", f"{i}:{PAYLOAD}") == 0
    assert running.stop() == 0
    return tmp_path / "data"


def segments(data: Path) -> list[Path]:
    return sorted(data.glob("log/hubs/1/*.segment"))


def flip(file: Path, at: int) -> None:
    with open(file, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


def contents(data: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in data.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def wipe_journals(data: Path) -> None:
    """Removes old frames after the new ones of a reused journal, which could restore what a test removes."""
    for path in data.glob("log/journal/*"):
        with open(path, "r+b") as f:
            f.seek(64)
            f.write(bytes(path.stat().st_size - 64))


def test_a_whole_log_is_verified_and_shown_and_nothing_changes(data: Path) -> None:
    before = contents(data)
    code, found = asked("log", "verify", data)
    hub, *own = found["hubs"]
    assert [row["class"] for row in own] == ["$consumer", "$queries", "$queue", "$stage", "$stats", "$system"]
    assert (code, found["problems"], hub["class"], hub["records"], hub["earliest"]) == (
        0,
        [],
        "chat",
        RECORDS,
        1,
    )
    assert (hub["next"], hub["segments"] > 3, hub["bytes"] > RECORDS * 1_000) == (RECORDS + 1, True, True)
    assert asked("log", "verify", data / "log") == (code, found)
    run = hubsub("log", "verify", data)
    assert (run.returncode, run.stdout.split()[:4]) == (0, ["hub", "class", "segments", "records"])

    all_of_it = shown(data, "--hub", 1)
    assert [r["offset"] for r in all_of_it] == list(range(1, RECORDS + 1))
    assert [r["payload"].partition(":")[0] for r in all_of_it] == [str(i) for i in range(RECORDS)]
    first = all_of_it[0]
    assert (first["room"], first["topic"], first["seq"], first["kind"]) == ("chat:0", "chat:0", 1, "message")
    assert first["position"] == f"{first['epoch']}-1" and first["payload_base64"] is None
    assert (first["producer"], first["sequence"]) == (None, None), "nobody numbered it"
    some = shown(data, "--room", "chat:1", "--from", 100, "--count", 3)
    assert [(r["offset"], r["room"]) for r in some] == [(100, "chat:1"), (102, "chat:1"), (104, "chat:1")]
    lines = hubsub("log", "show", data, "--hub", 1, "-n", 2).stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith("1/1  20") and f"  0:{PAYLOAD}" in lines[0]

    (manifest,) = shown(data)
    assert (manifest["format"], manifest["clean"], manifest["hubs"][0]["next"]) == (1, True, RECORDS + 1)
    text = hubsub("log", "show", data).stdout
    assert "continuous_from  1\n" in text and f"log         {data / 'log'}\n" in text
    assert asked("log", "repair", data, "--accept-loss")[1]["problems"] == []
    assert contents(data) == before


def test_records_that_only_the_journal_has_are_shown(node: Callable[[], Node], tmp_path: Path) -> None:
    config = {"data": str(tmp_path / "data"), "shards": 1}
    with Node(classes=[CHAT], config=config) as running:
        with Connection(*running.redis) as client:
            for i in range(20):
                client.ask("PUBLISH", "chat:r", f"{i}\xff".encode("latin-1"))
        running.stop(9)
    records = shown(tmp_path / "data", "--hub", 1)
    assert [r["offset"] for r in records] == list(range(1, 21))
    assert records[3]["payload"] is None and records[3]["payload_base64"] == "M/8="
    code, found = asked("log", "verify", tmp_path / "data")
    assert (code, found["journal_records"], found["hubs"][0]["next"]) == (0, 20, 21)


def test_a_reader_of_show_may_go_away(data: Path) -> None:
    command = [*HUBSUB, "log", "show", str(data), "--hub", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 1


def test_a_directory_in_use_is_refused(node: Callable[[], Node], tmp_path: Path) -> None:
    running = node()
    for command in (["verify"], ["show"], ["show", "--hub", "1"], ["repair"], ["repair", "--accept-loss"]):
        run = hubsub("log", command[0], tmp_path / "data", *command[1:])
        assert run.returncode == 1 and run.stdout == ""
        assert run.stderr.startswith("error: a node uses the data directory: "), run.stderr
        assert run.stderr.endswith("hint: stop it first\n")
    with Connection(*running.redis) as client:
        assert client.ask("PUBLISH", "chat:r", "still there") == 0


def test_what_is_no_data_directory_is_named_and_left_alone(tmp_path: Path) -> None:
    run = hubsub("log", "verify", tmp_path / "none")
    assert (run.returncode, run.stderr) == (1, f"error: there is no such directory: {tmp_path / 'none'}\n")
    run = hubsub("log", "repair", tmp_path, "--accept-loss")
    assert run.returncode == 1 and f"error: the directory has no log: {tmp_path}\nhint: " in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args", [("show", "--hub", "8"), ("repair", "--hub", "8"), ("repair", "--hub", "8", "--accept-loss")]
)
def test_an_unknown_hub_is_named(data: Path, args: tuple[str, ...]) -> None:
    run = hubsub("log", args[0], data, "--hub", 8, *args[1:])
    assert run.returncode == 1 and f"error: there is no hub 8: {data}\n" in run.stderr


def test_two_nodes_cannot_share_a_log_also_by_another_name(
    node: Callable[[], Node], make_node: Start, tmp_path: Path
) -> None:
    node()
    other = tmp_path / "other"
    other.mkdir()
    (other / "log").symlink_to(tmp_path / "data" / "log")
    with pytest.raises(StartError, match="another node uses the data directory"):
        make_node(classes=[CHAT], config={"data": str(other), "shards": 1})
    with pytest.raises(StartError, match="another node uses this data directory"):
        make_node(classes=[CHAT], config={"data": str(tmp_path / "data"), "shards": 1})


def test_a_newer_format_is_refused_with_both_versions_named(data: Path, node: Callable[[], Node]) -> None:
    manifest = data / "log" / "manifest.json"
    line = manifest.read_text().splitlines()[0].replace('"format":1,', '"format":7,')
    manifest.write_text(f"{line}\n{crc32c(line.encode()):08x}\n")
    before = contents(data)
    told = "manifest.json has format 7, this version reads formats up to 1"
    with pytest.raises(StartError, match=told):
        node()
    for command in (["verify"], ["show"], ["repair", "--accept-loss"]):
        run = hubsub("log", command[0], data, *command[1:])
        assert (run.returncode, run.stderr) == (1, f"error: {told}: {data}\n")
    kept = {path: files for path, files in contents(data).items() if path.parts[-2] != data.name}
    assert kept == {path: before[path] for path in kept}


def test_a_clock_that_jumps_back_between_two_starts_makes_no_time_fall(
    data: Path, node: Callable[[], Node]
) -> None:
    # The last record gets tomorrow's timestamp: at the next start the clock has jumped back.
    tomorrow_us = (time.time_ns() // 1_000) + 86_400_000_000
    last = shown(data, "--from", RECORDS, "--hub", 1)[0]
    file = segments(data)[-1]
    content = bytearray(file.read_bytes())
    at = content.rindex(struct.pack("<Q", last["timestamp_us"])) - 72
    (length,) = struct.unpack_from("<I", content, at)
    struct.pack_into("<Q", content, at + 72, tomorrow_us)
    struct.pack_into("<I", content, at + 4, crc32c(bytes(content[at + 8 : at + 8 + length])))
    file.write_bytes(content)
    assert asked("log", "verify", data)[0] == 0

    running = node()
    with Connection(*running.redis) as client:
        for _ in range(5):
            client.ask("PUBLISH", "chat:1", "later")
        history = client.ask("HUBSUB", "HISTORY", "chat:1", "COUNT", 6)
    assert isinstance(history, list)
    times = [row[1] for row in history]
    assert times == sorted(times) and times[0] == tomorrow_us // 1_000
    running.stop()
    stamps = [r["timestamp_us"] for r in shown(data, "--hub", 1)]
    assert stamps == sorted(stamps) and stamps[-1] >= tomorrow_us


def test_a_damaged_log_is_told_dry_run_and_repaired_and_old_positions_are_not_recovered(
    data: Path, node: Callable[[], Node]
) -> None:
    wipe_journals(data)
    damaged = segments(data)[1]
    flip(damaged, 30_000)
    broken = damaged.read_bytes()
    before = contents(data)
    all_of_it = {r["offset"]: r for r in shown(data, "--hub", 1, "--count", 10)}
    run = hubsub("log", "verify", data)
    assert run.returncode == 1 and f"{damaged.name} is damaged at byte" in run.stdout
    assert run.stderr.startswith("hint: `hubsub log repair ")
    run = hubsub("log", "show", data, "--hub", 1, "--json")
    assert run.returncode == 1 and "problem: " in run.stderr

    code, plan = asked("log", "repair", data)
    (hub,) = plan["hubs"]
    ((first, last),) = hub["lost"]
    assert (code, plan["done"], first, hub["kept"]) == (1, False, last, RECORDS - 1)
    assert hub["set_aside"] == [f"hubs/1/{damaged.name}"]
    text = hubsub("log", "repair", data)
    assert f"  loses offset {first}\n" in text.stdout and f"becomes {damaged.name}.damaged\n" in text.stdout
    assert text.returncode == 1 and text.stderr == "nothing was changed; --accept-loss does it\n"
    assert contents(data) == before

    run = hubsub("log", "repair", data, "--accept-loss")
    assert run.returncode == 0 and run.stdout.endswith("done, and verified: the log is whole\n"), run.stdout
    assert damaged.with_name(damaged.name + ".damaged").read_bytes() == broken
    code, found = asked("log", "verify", data)
    assert (code, found["hubs"][0]["lost"]) == (0, [[first, first]])
    kept = [r["offset"] for r in shown(data, "--hub", 1)]
    assert kept == [offset for offset in range(1, RECORDS + 1) if offset != first]

    running = node()
    with Connection(*running.redis) as client:
        # Records before and after the loss remain in history; no position maps across the loss.
        lost_room, other = ("chat:0", "chat:1") if first % 2 else ("chat:1", "chat:0")
        for room, count in ((lost_room, RECORDS // 2 - 1), (other, RECORDS // 2)):
            history = client.ask("HUBSUB", "HISTORY", room, "COUNT", 1_000)
            assert isinstance(history, list) and len(history) == count
            assert len(history) == count
            oldest = history[0][0]
            assert oldest.endswith(b"-1")
            told = client.call("HUBSUB", "HISTORY", room, "AFTER", oldest).plain()
            assert "NOTRECOVERED" in str(told)
        position = all_of_it[1]["position"]
        subscribed = client.ask("HUBSUB", "SUBSCRIBE", "chat:0", "FROM", position)
        assert isinstance(subscribed, list) and subscribed[4] == 0
    with Connection(*running.redis) as client:
        client.ask("PUBLISH", "chat:0", "on")
    running.stop()
    on = shown(data, "--hub", 1, "--from", RECORDS + 1)
    assert [(r["offset"], r["seq"], r["payload"]) for r in on] == [(RECORDS + 1, 1, "on")]
    assert on[0]["epoch"] != all_of_it[1]["epoch"]
    assert asked("log", "verify", data)[0] == 0


def test_a_hub_that_a_start_has_quarantined_is_brought_back(data: Path, node: Callable[[], Node]) -> None:
    segments(data)[0].unlink()
    running = node()
    with Connection(*running.redis) as client:
        assert "quarantined" in str(client.call("PUBLISH", "chat:0", "no").plain())
    running.stop()
    assert "is quarantined" in asked("log", "verify", data)[1]["problems"][0]
    code, done = asked("log", "repair", data, "--hub", 1, "--accept-loss")
    assert (code, done["left"]) == (0, [])
    running = node()
    with Connection(*running.redis) as client:
        assert client.ask("PUBLISH", "chat:0", "yes") == 0
        history = client.ask("HUBSUB", "HISTORY", "chat:0", "COUNT", 1)
    assert isinstance(history, list) and history[0][4] == b"yes"


def test_a_damaged_manifest_is_told_with_its_directory_and_what_to_do(
    data: Path, node: Callable[[], Node]
) -> None:
    flip(data / "log" / "manifest.json", 20)
    told = f"manifest.json is damaged at byte 0: its checksum is of other bytes: {data}\n"
    hint = f"hint: stop the node, then `hubsub log repair {data}` says what can be kept"
    with pytest.raises(StartError) as caught:
        node()
    assert told + hint in str(caught.value)
    for command in (["verify"], ["show"]):
        run = hubsub("log", *command, data)
        assert (run.returncode, run.stdout, run.stderr) == (1, "", f"error: {told}{hint}\n")
    assert asked("log", "repair", data, "--accept-loss")[0] == 0


def test_a_problem_is_told_once_also_of_a_hub_that_is_quarantined(
    data: Path, node: Callable[[], Node]
) -> None:
    wipe_journals(data)
    missing = segments(data)[0]
    missing.unlink()
    node().stop()
    (problem,) = asked("log", "repair", data)[1]["problems"]
    assert problem.startswith("hub 1 (chat): it is quarantined: ") and missing.name in problem


@pytest.mark.parametrize(
    ("text", "classes"),
    [(b"", [CHAT]), (b"\xff\n", []), (b"4294967295\n", [CHAT])],
    ids=["empty", "no text", "too high"],
)
def test_a_damaged_incarnation_ends_the_start_and_a_repair_puts_it_aside(
    make_node: Start, tmp_path: Path, text: bytes, classes: list[dict[str, Any]]
) -> None:
    data = tmp_path / "data"
    config = {"data": str(data), "shards": 1}
    make_node(classes=classes, limits=SMALL, config=config).stop()
    file = data / "incarnation"
    earlier = int(file.read_text())
    file.write_bytes(text)
    with pytest.raises(
        StartError, match=r"(?s)incarnation file is damaged.*hubsub log repair .* --accept-loss"
    ):
        make_node(classes=classes, limits=SMALL, config=config)
    run = hubsub("log", "repair", data)
    assert run.returncode == 1 and "incarnation is damaged: it becomes incarnation.damaged" in run.stderr
    assert file.read_bytes() == text
    run = hubsub("log", "repair", data, "--accept-loss")
    assert run.returncode == 0, run.stderr
    assert (data / "incarnation.damaged").read_bytes() == text
    make_node(classes=classes, limits=SMALL, config=config).stop()
    assert int(file.read_text()) > earlier


def test_a_whole_hub_has_nothing_to_repair_and_the_damaged_one_is_named(
    make_node: Start, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    running = make_node(classes=[CHAT], limits=SMALL, config={"data": str(data), "shards": 2})
    with Connection(*running.redis) as client:
        for i in range(200):
            client.ask("PUBLISH", f"chat:{i % 20}", f"{i}:{PAYLOAD}")
    assert running.stop() == 0
    wipe_journals(data)
    flip(segments(data)[0], 3_000)
    before = contents(data)
    for args in ([], ["--accept-loss"]):
        run = hubsub("log", "repair", data, "--hub", 2, *args)
        assert run.returncode == 1 and run.stdout.startswith("problem: hub 1 (chat): hubs/1/")
        assert run.stderr.startswith("hub 2 has nothing to repair, nothing was done"), run.stderr
        assert {p: f for p, f in contents(data).items() if p.name != "lock"} == {
            p: f for p, f in before.items() if p.name != "lock"
        }
    assert hubsub("log", "repair", data, "--hub", 1, "--accept-loss").returncode == 0


def test_a_lost_manifest_is_made_again_or_refused(
    data: Path, node: Callable[[], Node], tmp_path: Path
) -> None:
    (data / "log" / "manifest.json").unlink()
    with pytest.raises(StartError, match="no manifest"):
        node()
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    code, done = asked("log", "repair", data, "--accept-loss")
    assert (code, done["manifest"], done["hubs"][0]["kept"]) == (0, "it is missing", RECORDS)
    running = node()
    with Connection(*running.redis) as client:
        history = client.ask("HUBSUB", "HISTORY", "chat:1", "COUNT", 1_000)
    assert isinstance(history, list) and len(history) == RECORDS // 2

    (copy / "log" / "hubs" / "1" / "hub.json").unlink()
    before = contents(copy)
    run = hubsub("log", "repair", copy, "--accept-loss")
    assert run.returncode == 1 and "hint: bring manifest.json back from a copy" in run.stderr
    assert {path: file for path, file in contents(copy).items() if path.name != "lock"} == {
        path: file for path, file in before.items() if path.name != "lock"
    }
