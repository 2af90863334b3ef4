"""Redis's replies are the reference: each script runs on redis-server and on HubSub, and the replies are the
same bytes, except for the differences in `MASKS` and `DIFFERENCES`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from clients.raw import Connection, Frame
from clients.script import Script, Transcript, load, run
from clients.servers import Server

SCRIPTS = [
    pytest.param(script, resp, id=f"{path.stem}-{script.name}-resp{resp}")
    for path in sorted(Path(__file__).with_name("scripts").glob("*.txt"))
    for script in load(path)
    for resp in script.protocols
]


def _error(text: str) -> list[Frame]:
    return [Frame("-", text.encode())]


_OK = [Frame("+", b"OK")]
_SETINFO = "CLIENT SETINFO exists since Redis 7.2"
_NO_TOUCH = "CLIENT NO-TOUCH exists since Redis 7.2"

_REPLY_FIRST = "since Redis 7.2 a reply precedes what its command pushes to the client itself"


def _push(kind: str, *rest: str) -> Frame:
    return Frame(">", tuple(Frame("$", text.encode()) for text in (kind, *rest)))


def _count(number: int) -> Frame:
    return Frame(":", str(number).encode())


def _heard(payload: str) -> list[Frame]:
    """The frames that a subscriber of `self` and of `s*` gets."""
    return [_push("message", "self", payload), _push("pmessage", "s*", "self", payload)]


# HubSub replies as Redis 7.4 does; the oracle may be Redis 7.0. Line → HubSub's reply, and the reason.
DIFFERENCES: dict[str, tuple[list[Frame], str]] = {
    "a> CLIENT SETINFO LIB-NAME redis-py": (_OK, _SETINFO),
    "a> CLIENT SETINFO lib-ver 1.2.3": (_OK, _SETINFO),
    'a> CLIENT SETINFO LIB-NAME "with space"': (
        _error("ERR LIB-NAME cannot contain spaces, newlines or special characters."),
        _SETINFO,
    ),
    "a> CLIENT SETINFO NOSUCH x": (_error("ERR Unrecognized option 'NOSUCH'"), _SETINFO),
    "a> CLIENT SETINFO LIB-NAME": (
        _error("ERR wrong number of arguments for 'client|setinfo' command"),
        _SETINFO,
    ),
    "a> CLIENT SETINFO": (_error("ERR wrong number of arguments for 'client|setinfo' command"), _SETINFO),
    "a> CLIENT NO-TOUCH ON": (_OK, _NO_TOUCH),
    "a>3 PUBLISH self me": ([_count(2), *_heard("me")], _REPLY_FIRST),
    "a>2 SPUBLISH self me": ([_count(1), _push("smessage", "self", "me")], _REPLY_FIRST),
    "a>4 exec": (
        [Frame("*", (_count(2), _count(1))), *_heard("5"), _push("smessage", "self", "6")],
        _REPLY_FIRST,
    ),
    "a> CLIENT NO-TOUCH maybe": (_error("ERR syntax error"), _NO_TOUCH),
}


@cache
def _oracle_says(script: Script, resp: int, host: str, port: int) -> Transcript:
    return run(script, resp, host, port)


@pytest.mark.parametrize(("script", "resp"), SCRIPTS)
def test_redis_itself_answers_each_script_the_same_twice(script: Script, resp: int, oracle: Server) -> None:
    """A script with a random outcome would prove nothing about HubSub."""
    first = _oracle_says(script, resp, oracle.host, oracle.port)
    assert run(script, resp, oracle.host, oracle.port) == first


@pytest.mark.parametrize(("script", "resp"), SCRIPTS)
def test_hubsub_answers_as_redis_does(script: Script, resp: int, oracle: Server, hubsub: Server) -> None:
    expected = [
        (line, DIFFERENCES[line][0] if line in DIFFERENCES else frames)
        for line, frames in _oracle_says(script, resp, oracle.host, oracle.port)
    ]
    answered = run(script, resp, hubsub.host, hubsub.port)
    wrong = [
        f"{line}\n   Redis:  {theirs}\n   HubSub: {ours}"
        for (line, theirs), (_, ours) in zip(expected, answered, strict=True)
        if ours != theirs
    ]
    assert not wrong, "\n".join(wrong)


def test_each_difference_names_a_line_of_a_script() -> None:
    lines = {step.line for param in SCRIPTS for step in param.values[0].steps}  # type: ignore[union-attr]
    assert set(DIFFERENCES) <= lines


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def connection(request: pytest.FixtureRequest, hubsub: Server) -> Iterator[Connection]:
    """A connection to HubSub in either protocol."""
    with hubsub.connect(request.param) as connection:
        yield connection


def test_commands_on_keys_are_unknown(connection: Connection) -> None:
    for command in ("GET", "SET", "DEL", "EXPIRE", "HSET", "LPUSH", "XADD", "EVAL", "KEYS", "SCAN"):
        reply = connection.call(command, "key", "value")
        text = f"ERR unknown command '{command}', with args beginning with: 'key' 'value' "
        assert reply == Frame("-", text.encode())


def test_a_command_on_a_key_aborts_its_transaction(connection: Connection) -> None:
    assert connection.call("MULTI") == Frame("+", b"OK")
    assert connection.call("SET", "a", "b").kind == "-"
    aborted = b"EXECABORT Transaction discarded because of previous errors."
    assert connection.call("EXEC") == Frame("-", aborted)


def test_the_log_hints_once_that_keys_are_not_kept(hubsub: Server) -> None:
    with hubsub.connect() as connection:
        for _ in range(3):
            connection.call("GET", "key")
    hubsub.log_line("carries messages")
    assert len(hubsub.log_lines("carries messages")) == 1


def test_info_is_what_clients_look_for(connection: Connection) -> None:
    text = connection.ask("INFO")
    assert isinstance(text, bytes)
    fields = dict(line.split(b":", 1) for line in text.split(b"\r\n") if b":" in line)
    assert fields[b"redis_version"] == b"7.4.0"
    assert fields[b"loading"] == b"0"
    assert fields[b"redis_mode"] == b"standalone"
    assert fields[b"role"] == b"master"
    assert b"hubsub_version" in fields
    assert int(fields[b"process_id"]) > 0
    assert int(fields[b"connected_clients"]) >= 1


def test_hello_names_a_redis_of_7_4(connection: Connection) -> None:
    reply = connection.ask("HELLO")
    assert isinstance(reply, list)
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    assert list(fields) == [b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"]
    assert fields[b"version"] == b"7.4.0"
    assert fields[b"id"] == connection.ask("CLIENT", "ID")


def test_setinfo_shows_in_client_info_and_survives_reset(connection: Connection) -> None:
    connection.call("CLIENT", "SETINFO", "LIB-NAME", "redis-py")
    connection.call("CLIENT", "SETINFO", "LIB-VER", "8.1.0")
    connection.call("CLIENT", "SETNAME", "me")
    assert connection.call("RESET") == Frame("+", b"RESET")
    info = connection.ask("CLIENT", "INFO")
    assert isinstance(info, bytes)
    assert b" lib-name=redis-py " in info and b" lib-ver=8.1.0" in info and b" name= " in info
