"""`hubsub pub` and `hubsub sub` without a HubSub node."""

import gzip
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HUBSUB, hubsub

from hubsub import BlockingClient
from hubsub.cli.pub import BATCH, read, record_of
from hubsub.errors import ClientError


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
                # A whole batch is published, so the command is running and continues to read.
                with BlockingClient(f"redis://{server}") as client, client.subscribe("demo") as records:
                    run.stdin.write(b'{"topic": "demo", "payload": "x"}\n' * BATCH)
                    run.stdin.flush()
                    assert all(records.get(timeout_s=30) for _ in range(BATCH))
            run.send_signal(number)
            assert (run.wait(60), run.stdout.read()) == (code, b"")
            said = run.stderr.read()
            if args[0] == "sub":
                assert said == b""
            else:  # The last replies may have been in flight.
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
