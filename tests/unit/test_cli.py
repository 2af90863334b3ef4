"""The command line without a node: help, wrong arguments, output, answers of servers that are not HubSub."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from command_line import HUBSUB, hubsub

from hubsub.cli import COMMANDS, usage
from hubsub.cli.common import fitting, print_fields, print_rows, shown
from hubsub.cli.nodes import silent
from hubsub.errors import ClientError, NoClusterError, without_secrets

from .http_server import http_server


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


def test_the_benchmark_without_its_package_is_a_sentence() -> None:
    code = "import sys; sys.modules['hubsub_bench'] = None; sys.argv = ['hubsub', 'bench']\n"
    code += "from hubsub.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stdout == ""
    assert (
        run.stderr == "error: the benchmark is not installed: hubsub-bench\nhint: make bench, in a checkout\n"
    )


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


def test_fields_of_an_object_in_an_object_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": "7", "connection": {"node": "a", "connected_s": 1.23456}, "headers": {}, "left": None}
    print_fields(row, False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    told = [["id", "7"], ["connection.node", "a"], ["connection.connected_s", "1.2"], ["headers", "-"]]
    assert lines == [*told, ["left", "-"]]
    print_fields(row, True)
    assert json.loads(capsys.readouterr().out) == row


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


FIELDS = ("rooms", "hubs", "clients", "devices", "actions", "nodes", "classes", "records", "recovered")


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
            ("device", "ls"),
            ("device", "actions", "7"),
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


def test_a_list_of_words_is_shown_as_words() -> None:
    assert shown(["edge", "hub"]) == "edge, hub" and shown([]) == "-" and shown([1]) == "[1]"


def test_nodes_that_do_not_answer_are_listed_as_the_others_know_them() -> None:
    def node(name: str, state: str) -> dict[str, Any]:
        common = {"roles": ["hub"], "zone": None, "hubs_led": 3, "version": "1"}
        return {"name": name, "state": state, "addresses": {"redis": "h:1"}, **common}

    class Answers:
        def get(self, path: str) -> dict[str, Any]:
            assert path == "/v1/cluster"
            hubs = [{"leader": "gone"}, {"leader": "gone"}, {"leader": "a"}]
            nodes = [node("a", "up"), node("b", "dead")]
            return {"nodes": nodes, "voters": {"nodes": ["a", "b", "gone"]}, "hubs": hubs}

    class Alone:
        def get(self, path: str) -> dict[str, Any]:
            raise NoClusterError

    dead, gone = silent(Answers(), {"a"})  # type: ignore[arg-type]
    assert dead["state"] == "dead" and (dead["redis"], dead["http"], dead["hubs_led"]) == ("h:1", None, 3)
    assert gone == {"name": "gone", "state": "not registered", "hubs_led": 2}
    assert list(silent(Alone(), {"a"})) == []  # type: ignore[arg-type]
