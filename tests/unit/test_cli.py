"""The command line, as far as it needs no node."""

import contextlib
import errno
import gzip
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import HUBSUB, hubsub

from hubsub import BlockingClient
from hubsub.cli import COMMANDS, usage
from hubsub.cli.common import fitting, print_rows, shown
from hubsub.cli.demo import events, reports
from hubsub.cli.doctor import Finding, _data
from hubsub.cli.pub import BATCH, read, record_of
from hubsub.cli.top import COLUMNS, view
from hubsub.config import Config, resolve
from hubsub.errors import ClientError, without_secrets


def test_help_lists_every_command_without_loading_one() -> None:
    code = "import sys; sys.argv[1:] = ['--help']\nimport hubsub.cli\ntry: hubsub.cli.main()\nexcept SystemExit: pass\n"
    code += "print('typer' in sys.modules or 'msgspec' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == usage() + "\nFalse\n"
    assert all(f"  {name} " in usage() for name in COMMANDS)


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"bench"}))
def test_every_command_has_its_help(command: str) -> None:
    run = hubsub(command, "--help")
    assert run.returncode == 0 and f"hubsub {command}" in run.stdout, run.stderr


def test_an_unknown_command_names_the_nearest_one() -> None:
    run = hubsub("rooms")
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr == "error: no such command: rooms\nhint: did you mean 'room'?\n"


def test_an_unreachable_node_is_a_sentence_and_no_traceback() -> None:
    run = hubsub("room", "ls", "--url", "http://127.0.0.1:1")
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert run.stderr.startswith("error: no node answers (Connection refused): http://127.0.0.1:1\nhint: ")


def test_an_unknown_host_is_called_so() -> None:
    run = hubsub("pub", "a", "b", "-s", "redis://nobody.invalid:1")
    assert run.returncode == 1 and "Unknown error" not in run.stderr
    assert run.stderr.startswith("error: no server can be reached (") and "nobody.invalid:1" in run.stderr


def test_shards_that_are_no_number_hint_at_auto() -> None:
    assert "hint: such as 4, or auto" in hubsub("serve", "--shards", "many").stderr


@pytest.mark.parametrize(
    "args",
    [
        ("room", "ls", "--url", "http://[::1"),
        ("room", "ls", "--url", "http://h:port"),
        ("room", "ls", "--url", "http://a..b:1"),
        ("pub", "-s", "a..b:1", "t", "x"),
        ("pub", "-s", "redis://[::1", "t", "x"),
        ("sub", "t", "--rewind", "9" * 5_000),
        ("serve", "--redis", "²"),
        ("serve", "--redis", ":" + "9" * 5_000),
        ("serve", "--http", "a..b:1", "--insecure-open"),
        ("serve", "--limit", "rooms_max=" + "9" * 5_000),
        ("serve", "--node", "\udcff"),
        ("bench", "capacity", "--out", "/"),
    ],
)
def test_a_wrong_argument_is_a_sentence_and_no_traceback(args: tuple[str, ...]) -> None:
    run = hubsub(*args, HUBSUB_LOAD="/bin/false")
    assert run.returncode in (1, 2) and run.stderr and "Traceback" not in run.stderr, run.stderr


@pytest.mark.parametrize("args", [("--help",), ("config", "reference"), ("demo", "generate")])
def test_a_reader_that_is_gone_or_a_full_disk_is_no_traceback(args: tuple[str, ...]) -> None:
    command = [*HUBSUB, *args]
    gone, out = os.pipe()
    os.close(gone)
    run = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(out)
    assert (run.returncode, run.stderr) == (1, "")
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (1, "error: No space left on device\n")


def test_what_the_terminal_cannot_show_is_escaped() -> None:
    run = hubsub("demo", "generate", "--events", "50", PYTHONIOENCODING="ascii")
    assert run.returncode == 0 and "\\u65e5" in run.stdout, run.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_a_code_that_says_so(number: signal.Signals, code: int) -> None:
    command = [*HUBSUB, "demo", "generate", "--events", "100000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.readline()
        run.send_signal(number)
        assert run.stdout.read() is not None
        assert (run.wait(60), run.stderr.read()) == (code, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_sub_and_a_pub_that_waits_for_lines(
    number: signal.Signals, code: int, redis_server: tuple[str, int]
) -> None:
    server = "{}:{}".format(*redis_server)
    commands = [("sub", "demo", "-s", server), ("pub", "--from", "-", "-s", server)]
    pipe = subprocess.PIPE
    for args in commands:
        command = [*HUBSUB, *args]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as run:
            assert run.stdout is not None and run.stderr is not None and run.stdin is not None
            if args[0] == "sub":
                assert run.stderr.readline() == b"subscribed to demo\n"
            else:
                # A whole batch is published, so it runs and reads on.
                with BlockingClient(f"redis://{server}") as client, client.subscribe("demo") as records:
                    run.stdin.write(b'{"topic": "demo", "payload": "x"}\n' * BATCH)
                    run.stdin.flush()
                    assert all(records.get(timeout_s=30) for _ in range(BATCH))
            run.send_signal(number)
            assert (run.wait(60), run.stdout.read()) == (code, b"")
            said = run.stderr.read()
            if args[0] == "sub":
                assert said == b""
            else:  # The last answers may have been on their way.
                assert re.match(rb"the first \d+ records are acknowledged.*; --skip \d+ goes on behind", said)


def test_pub_says_how_to_go_on_behind_what_was_acknowledged_and_does(
    tmp_path: Path, redis_server: tuple[str, int]
) -> None:
    server, file = "{}:{}".format(*redis_server), tmp_path / "lines.jsonl"
    good = [json.dumps({"topic": "demo", "payload": str(n)}) for n in range(BATCH + 5)]
    file.write_text("\n".join([*good[:BATCH], "no JSON", *good[BATCH:]]))
    run = hubsub("pub", "--from", str(file), "-s", server)
    said, error, _ = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (1, "")
    assert said == f"the first {BATCH} records are acknowledged; --skip {BATCH} goes on behind them"
    assert error.startswith(f"error: line {BATCH + 1} is no JSON")
    file.write_text("\n".join(good))
    with BlockingClient(f"redis://{server}") as client, client.subscribe("demo") as records:
        run = hubsub("pub", "--from", str(file), "--skip", str(BATCH), "-s", server)
        assert (run.returncode, run.stderr) == (0, "published 5 records, 5 deliveries\n")
        got = [records.get(timeout_s=30) for _ in range(5)]
    assert [record and record.payload for record in got] == [b"%d" % n for n in range(BATCH, BATCH + 5)]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("sub", "a*", "-p", "--resume", "1-1"), "--rewind and --resume go with topics"),
        (("sub", "a*", "-p", "--rewind", "3"), "--rewind and --resume go with topics"),
        (("sub", "a", "--resume", "foo"), "--resume: a position has the form EPOCH-SEQ: foo"),
        (("sub", "a", "b", "--resume", "1-1"), "2 topics and 1 positions"),
        (("sub", "a", "--resume", "1-1", "--resume", "1-2"), "1 topics and 2 positions"),
        (("sub", "a", "--resume", "1-1", "--rewind", "1"), "give --rewind or --resume, not both"),
        (("pub", "a", "b", "--skip", "1"), "--skip goes with --from FILE"),
    ],
)
def test_options_used_wrongly_are_named_as_they_were_given(args: tuple[str, ...], words: str) -> None:
    run = hubsub(*args, "-s", "127.0.0.1:1", COLUMNS="300")
    assert (run.returncode, run.stdout) == (2, "") and words in run.stderr, run.stderr
    assert "resume=" not in run.stderr and "since_ms" not in run.stderr


def test_an_interrupt_that_is_ignored_from_the_start_stays_so(redis_server: tuple[str, int]) -> None:
    server = "{}:{}".format(*redis_server)
    ignore = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [
        sys.executable,
        "-c",
        ignore,
        sys.executable,
        "-m",
        "hubsub",
        "sub",
        "demo",
        "-n",
        "1",
        "-s",
        server,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stderr is not None
        run.stderr.readline()
        run.send_signal(signal.SIGINT)
        assert hubsub("pub", "demo", "x", "-s", server).stdout == "1\n"
        assert run.communicate(timeout=60)[0] == b"demo: x\n"
        assert run.returncode == 0


def test_bad_configuration_stops_the_start_with_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('redis = "0.0.0.0"\nnoed = "x"\n')
    run = hubsub("serve", "--config", str(file), "--limit", "rooms_max=many")
    assert run.returncode == 2 and run.stdout == ""
    for text in ("redis: ", "'0.0.0.0:3221'", "did you mean 'node'?", "limits.rooms_max"):
        assert text in run.stderr


def test_config_check_and_show_read_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[[class]]\nname = "a"\nhistory = { messages = 5 }\n')
    assert "1 class, " in hubsub("config", "check", str(file)).stderr
    run = hubsub("config", "show", "--json", HUBSUB_CONFIG=str(file), HUBSUB_REDIS=":7")
    table = json.loads(run.stdout)
    assert table["redis"] == "127.0.0.1:7" and table["sources"]["redis"] == "environment"
    assert table["class"][0]["history"] == {"messages": 5}


def test_a_file_that_needs_a_data_directory_is_checked_with_one(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[[class]]\nname = "a"\ndurability = "durable"\nhistory = { bytes = "1GiB" }\n')
    run = hubsub("config", "check", str(file))
    assert run.returncode == 2 and run.stderr.startswith(f"error: bad configuration ({file}), 1 to mend:\n")
    assert 'hint: a directory of this node alone: data = "DIR", or --data DIR\n' in run.stderr
    run = hubsub("config", "check", str(file), "--data", str(tmp_path))
    assert run.returncode == 0 and "the configuration is sound: 1 class" in run.stderr
    run = hubsub("config", "show", str(file), "--json", "--data", str(tmp_path))
    assert json.loads(run.stdout)["data"] == str(tmp_path)
    run = hubsub("doctor", "--json", "--config", str(file))
    rows = {row["check"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert (run.returncode, rows["configuration"]["hint"]) == (1, f"hubsub config check {file}")
    file.write_text('redis = "127.0.0.1:0"\nhttp = "off"\n' + file.read_text())
    run = hubsub("doctor", "--json", "-c", str(file), "--data", str(tmp_path / "x"))
    rows = {row["check"]: row for row in map(json.loads, run.stdout.splitlines())}
    assert rows["data"]["found"].startswith(f"{tmp_path / 'x'}, ") and "node" not in rows


def test_config_check_warns_of_an_unknown_variable_and_goes_on() -> None:
    run = hubsub("config", "check", HUBSUB_SHARD="2")
    warning, hint, sound = run.stderr.splitlines()
    assert run.returncode == 0 and sound.startswith("the configuration is sound")
    assert (warning, hint) == (
        "warning: this variable means nothing: HUBSUB_SHARD",
        "hint: did you mean 'HUBSUB_SHARDS'?",
    )


def test_the_sample_configuration_is_sound_and_makes_the_rooms_of_the_readme_durable(
    repository: Path,
) -> None:
    run = hubsub("config", "show", str(repository / "sample" / "hubsub.toml"), "--json")
    shown = json.loads(run.stdout)
    assert [made["match"] for made in shown["class"]] == [["chat:*"], ["devices/#"]]
    assert all(made["durability"] == "durable" and made["history"]["bytes"] for made in shown["class"])
    assert f"/{shown['data']}/" in (repository / ".gitignore").read_text().splitlines(), "it is no source"


def doctor(config: Path, *args: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code of `hubsub doctor` with a configuration, and its checks by name."""
    run = hubsub("doctor", "--json", *args, HUBSUB_CONFIG=str(config))
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    return run.returncode, {row["check"]: row for row in rows}


def test_doctor_looks_at_the_data_directory(tmp_path: Path) -> None:
    config = tmp_path / "hubsub.toml"
    chat = (
        '[[class]]\nname = "chat"\nmatch = ["chat:*"]\ndurability = "durable"\nhistory = { bytes = "1GiB" }\n'
    )
    head = 'redis = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
    config.write_text(f'{head}data = "{tmp_path / "new" / "data"}"\n{chat}')
    code, checks = doctor(config)
    assert (code, checks["data"]["state"]) == (0, "ok") and "free" in checks["data"]["found"]
    config.write_text(config.read_text() + f"[limits]\nlog_reserve_bytes = {2**53}\n")
    code, checks = doctor(config)
    assert (code, checks["data"]["state"]) == (1, "bad") and "log_reserve_bytes" in checks["data"]["hint"]
    config.write_text(f'{head}data = "{config}/data"\n{chat}')
    code, checks = doctor(config)
    assert (code, checks["data"]["state"]) == (1, "bad") and "cannot be written" in checks["data"]["found"]


def logged(**limits: int) -> Config:
    cls = {"name": "chat", "durability": "durable", "history": {"bytes": "1GiB"}}
    return resolve({"class": [cls], "data": "d", "limits": limits}, {}, {})


def test_doctor_says_what_a_log_still_needs_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib, log = 1 << 20, tmp_path / "log"
    config = logged(log_reserve_bytes=8 * mib, log_journal_bytes=2 * mib)

    def with_free(free: int) -> Finding:
        disk = os.statvfs_result((4096, 1, 10**9, free, free, 1, 1, 1, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: disk)
        return _data(config, tmp_path)

    assert with_free(15 * mib).state == "ok"
    bad = with_free(15 * mib - 1)
    assert bad.state == "bad" and "9 MiB for its reserve (log_reserve_bytes and 1 MiB)" in bad.hint
    assert "6 MiB for its journals (3 × log_journal_bytes)" in bad.hint
    (log / "journal").mkdir(parents=True)
    journals = [log / "journal" / f"0000000{n}.journal" for n in (1, 2, 3)]
    # As a start that found no room left it.
    journals[0].write_bytes(b"")
    assert with_free(15 * mib).state == "ok" and with_free(15 * mib - 1).state == "bad"
    for journal in journals[:2]:
        journal.write_bytes(bytes(2 * mib))
    assert with_free(11 * mib - 1).state == "bad", "the third is made with the first record"
    journals[2].write_bytes(bytes(2 * mib))
    with open(log / "reserve", "wb") as reserve:
        reserve.truncate(5 * mib)
    assert with_free(4 * mib).state == "ok"
    bad = with_free(4 * mib - 1)
    assert bad.state == "bad" and "needs 4 MiB for its reserve" in bad.hint and "journals" not in bad.hint


@pytest.mark.parametrize("hidden", ["", "log/reserve", "log/journal"])
def test_doctor_tells_of_a_directory_that_it_may_not_look_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    real = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path) == str(tmp_path / hidden):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    found = _data(logged(), tmp_path)
    assert (found.state, found.found) == ("bad", f"{tmp_path / hidden} cannot be read (Permission denied)")
    assert "permissions" in found.hint


def test_doctor_asks_the_node_that_it_is_given(tmp_path: Path) -> None:
    config = tmp_path / "hubsub.toml"
    config.write_text('redis = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n')
    code, checks = doctor(config, "--url", "http://127.0.0.1:1")
    assert (code, checks["node"]["state"]) == (1, "bad") and "no node answers" in checks["node"]["found"]
    with http_server(200, b'{"status": "fine"}') as url:
        code, checks = doctor(config, "--url", url)
    assert (code, checks["node"]["state"]) == (1, "bad") and "not from HubSub" in checks["node"]["found"]


def test_the_generator_gives_the_same_events_for_the_same_seed() -> None:
    first, again = list(events(500, 20, 50, seed=4)), list(events(500, 20, 50, seed=4))
    assert first == again != list(events(500, 20, 50, seed=5))
    assert [e["n"] for e in first] == list(range(500))
    assert {tuple(e) for e in first} == {("n", "room", "user", "ts", "kind", "text")}
    sizes = sorted(
        (sum(e["room"] == room for e in first) for room in {e["room"] for e in first}), reverse=True
    )
    assert len(sizes) <= 20 and sizes[0] > 3 * sizes[-1]


def test_generated_people_come_speak_and_go_in_the_order_of_time() -> None:
    log = list(events(5_000, 30, 200))
    assert [e["ts"] for e in log] == sorted(e["ts"] for e in log)
    kinds = Counter(e["kind"] for e in log)
    assert kinds["message"] > 4_000 and kinds["join"] > kinds["leave"] > 100 and kinds["action"] > 100
    joined: Counter[tuple[str, str]] = Counter()
    unseen = 0
    for event in log:
        who = event["room"], event["user"]
        joined[who] += event["kind"] == "join"
        unseen += joined[who] == 0
    assert 0 < unseen < 500, "those that were there before the log began, and no others, speak without a join"


def test_generated_devices_report_once_a_minute_each_in_its_turn() -> None:
    first = list(reports(600, 10, seed=4))
    assert first == list(reports(600, 10, seed=4)) != list(reports(600, 10, seed=5))
    of_one = [report for report in first if report["device"] == "thermostat-03"]
    assert [report["ts"][11:] for report in of_one[:3]] == ["00:00:18Z", "00:01:18Z", "00:02:18Z"]
    assert len(of_one) == 60 and all(5 < report["temperature"] < 30 for report in first)
    for before, after in itertools.pairwise(of_one):
        if before["state"] == "heating":
            assert after["temperature"] > before["temperature"] - 0.2
    assert {report["state"] for report in reports(5_000, 10)} == {"idle", "heating", "fault"}
    run = hubsub("demo", "generate", "--events", "3", "--devices", "2")
    topics = [json.loads(line)["topic"] for line in run.stdout.splitlines()]
    assert topics == [f"devices/thermostat-{n}/state" for n in ("00", "01", "00")]


def test_generated_lines_are_what_pub_takes(tmp_path: Path) -> None:
    run = hubsub("demo", "generate", "--events", "50")
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(run.stdout)
    packed.write_bytes(gzip.compress(run.stdout.encode()))
    records = list(read(plain))
    assert records == list(read(packed)) and len(records) == 50
    topic, payload = records[7]
    event = json.loads(payload)
    assert event["room"].encode() == topic and event["n"] == 7


def test_a_line_becomes_topic_and_payload() -> None:
    assert record_of(b'{"topic": "a", "payload": "x"}', 1) == (b"a", b"x")
    assert record_of(b'{"topic": "a%FF", "payload_base64": "/w=="}', 1) == (b"a\xff", b"\xff")
    assert record_of(b'{"topic": "a", "payload": {"b": [1]}}', 1) == (b"a", b'{"b":[1]}')
    assert record_of(b'{"room": "a", "text": "x"}\n', 1) == (b"a", b'{"room": "a", "text": "x"}')


@pytest.mark.parametrize(
    "line",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"topic": 3}',
        b'{"topic": "a", "payload_base64": "?"}',
        b'{"topic": "\\ud800", "payload": "x"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_record_names_its_number(line: bytes) -> None:
    with pytest.raises(ClientError, match="line 12 "):
        record_of(line, 12)


def test_a_damaged_packed_file_is_told(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"topic": "a", "payload": "x"}\n' * 1_000))
    for at in range(11, 40):
        file = tmp_path / "a.jsonl.gz"
        file.write_bytes(packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :])
        with pytest.raises(ClientError):
            list(read(file))


def test_pub_needs_a_message_or_a_file() -> None:
    for args in ((), ("topic",), ("topic", "x", "--from", "-")):
        assert hubsub("pub", *args).returncode == 2
    run = hubsub("pub", "--from", "/no/such/file", "-s", "127.0.0.1:1")
    assert run.returncode == 1 and "Traceback" not in run.stderr


def test_pub_and_sub_work_over_redis(redis_server: tuple[str, int]) -> None:
    server = "{}:{}".format(*redis_server)
    command = [*HUBSUB, "sub", "demo:*", "-p", "--json", "-n", "2", "-s", server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sub:
        assert sub.stderr is not None and sub.stdout is not None
        assert sub.stderr.readline() == "subscribed to demo:*\n"
        assert hubsub("pub", "demo:a", "héllo", "-s", server).stdout == "1\n"
        lines = '{"topic": "demo:b", "payload_base64": "/w=="}\n'
        assert (
            "published 1 records, 1 deliveries"
            in hubsub("pub", "--from", "-", "-s", server, stdin=lines).stderr
        )
        first, second = map(json.loads, sub.stdout)
        assert first == {"topic": "demo:a", "pattern": "demo:*", "payload": "héllo"}
        assert second == {"topic": "demo:b", "pattern": "demo:*", "payload_base64": "/w=="}
        assert sub.wait(30) == 0


def test_a_narrow_terminal_gets_the_first_columns_and_the_one_to_keep() -> None:
    assert fitting([5, 5, 5], 19) == [0, 1, 2]
    assert fitting([5, 5, 5], 18) == [0, 1]
    assert fitting([5, 5, 5], 18, keep=2) == [0, 2]
    assert fitting([5, 5, 5], 3) == [0]


def test_a_terminal_gets_the_column_that_is_sorted_by(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_rows(
        [{"id": 1, "first": 2, "second": 3, "third": 4}], ("id", "first", "second", "third"), False, "third"
    )
    out, left_out = capsys.readouterr()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert [line.split() for line in plain.splitlines()] == [["id", "first", "third"], ["1", "2", "4"]]
    assert left_out == "too narrow for second; --json has all\n"


@pytest.mark.parametrize("width", [20, 80, 1000])
def test_top_shows_the_columns_that_fit_and_whole_heads(width: int) -> None:
    from io import StringIO

    from rich.console import Console

    shard = dict.fromkeys(COLUMNS.values(), 10)
    stat = {"name": "n", "version": "1", "uptime_s": 1.0, "shards": [shard]}
    look = {"at": 1.0, "url": "u", "stat": stat, "clients": [], "rooms": []}
    later = {**look, "at": 2.0, "stat": {**stat, "shards": [dict.fromkeys(shard, 10_000_020)]}}
    out = StringIO()
    Console(file=out, width=width).print(view(later, look, width))
    (head,) = [line for line in out.getvalue().splitlines() if line.startswith("shard")]
    assert "…" not in head and "clients" in head
    assert ("slow closed/s" in head) == (width == 1000)
    assert ("routing" in head) == (width >= 80)
    if width == 1000:
        assert "10,000,010" in out.getvalue() and " 1%" in out.getvalue()


def test_top_to_a_pipe_prints_one_look_and_ends() -> None:
    stat = {"name": "n1", "version": "1", "uptime_s": 1.0, "shards": [], "clients": [], "rooms": []}
    with http_server(200, json.dumps(stat).encode()) as url:
        run = hubsub("top", "--interval", "0.2", "--url", url)
    assert (run.returncode, run.stderr, run.stdout.count("n1  http://")) == (0, "", 1)


@contextlib.contextmanager
def http_server(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server that answers every GET so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


FIELDS = ("rooms", "hubs", "clients", "nodes", "classes", "records", "recovered")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"{}"),
        (200, b""),
        (200, b"[]"),
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, json.dumps(dict.fromkeys(FIELDS, 5)).encode()),
        (200, json.dumps({field: ["x"] for field in FIELDS}).encode()),
        (404, b'{"error": "not found"}'),
        (500, b'{"code": [], "message": "x"}'),
        (500, b"[]"),
    ],
)
def test_an_answer_of_another_http_server_is_called_so(status: int, body: bytes) -> None:
    with http_server(status, body) as url:
        for command, *args in (
            ("room", "ls"),
            ("room", "history", "r"),
            ("client", "ls"),
            ("hub", "ls"),
            ("node", "ls"),
            ("node", "show"),
            ("class", "ls"),
            ("top", "--once"),
        ):
            app = import_module(COMMANDS[command][0]).app
            with pytest.raises(ClientError, match="the answer is not from HubSub") as caught:
                app([*args, "--url", url], standalone_mode=False)
            assert caught.value.value == url and "Redis address" in str(caught.value.hint)


def test_an_answer_of_another_http_server_is_a_sentence_and_no_traceback() -> None:
    with http_server(200, b'{"nodes": []}') as url:
        run = hubsub("node", "show", "--url", url.replace("://", "://user:hush@"))
    assert run.returncode == 1 and "Traceback" not in run.stderr
    first = f"error: the answer is not from HubSub, it has 0 nodes: {url.replace('://', '://***@')}"
    assert run.stderr.startswith(first + "\nhint: "), run.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("pub", "-s", "rediss://user:hush@h:1", "t", "x"),
        ("pub", "-s", "redis://user:hush@h:1/3", "t", "x"),
        ("pub", "-s", "redis://user:hush@h:port", "t", "x"),
        ("pub", "-s", "redis://:hu/sh@127.0.0.1:1", "t", "x"),
        ("pub", "-s", "redis://:hush@127.0.0.1:1", "t", "x"),
        ("sub", "-s", "x:hush@h/3", "t"),
        ("room", "ls", "--url", "https://user:hush@h:1"),
        ("room", "ls", "--url", "http://user:hush@127.0.0.1:1"),
        ("room", "ls", "--url", "http://user:hush@h:port"),
        ("serve", "--redis", "redis://user:hush@127.0.0.1:1"),
        ("serve", "--coordinator", "etdc://user:hush@127.0.0.1:1"),
        ("bench", "w1", "--target", "http://user:hush@h:1"),
        ("bench", "w1", "--target", "redis://user:hush@127.0.0.1:1"),
    ],
)
def test_an_error_about_a_url_keeps_its_password_to_itself(args: tuple[str, ...]) -> None:
    run = hubsub(*args, HUBSUB_LOAD="/bin/false")
    assert run.returncode in (1, 2) and run.stderr.startswith("error: "), run.stderr
    assert "hush" not in run.stderr + run.stdout and "hu/sh" not in run.stderr


def test_what_is_shown_of_a_url_has_no_secrets() -> None:
    assert without_secrets("redis://u:p@a:1,b:2") == "redis://***@a:1,b:2"
    assert without_secrets("u:p:/@x@a/3") == "***@a/3"
    assert without_secrets("redis://127.0.0.1:1") == "redis://127.0.0.1:1"


@pytest.mark.parametrize("connections", ["999", "0", "-1"])
def test_capacity_refuses_too_few_connections_for_a_figure(connections: str) -> None:
    run = hubsub("bench", "capacity", "--connections", connections, HUBSUB_LOAD="/bin/false")
    assert run.returncode == 2 and "Traceback" not in run.stderr
    assert f"--connections {connections} is too few" in run.stderr and "1,000" in run.stderr


def test_capacity_takes_as_many_connections_as_a_figure_needs() -> None:
    run = hubsub("bench", "capacity", "--connections", "1000", HUBSUB_LOAD="/bin/false")
    assert run.returncode == 1 and "too few" not in run.stderr


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert shown("a\x1b[2Jb") == "a\\x1b[2Jb"
