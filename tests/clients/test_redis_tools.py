"""redis-cli and redis-benchmark as Debian ships them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from clients.raw import TIMEOUT_S, encode
from clients.servers import Server

pytestmark = pytest.mark.needs("redis-cli", "redis-benchmark")


def cli(server: Server, *arguments: str, stdin: bytes = b"") -> str:
    """Output of one run of redis-cli."""
    command = ["redis-cli", "-h", server.host, "-p", str(server.port), *arguments]
    run = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=True)
    return run.stdout.decode()


@pytest.mark.parametrize("protocol", [[], ["-3"]], ids=["resp2", "resp3"])
def test_one_command(server: Server, protocol: list[str]) -> None:
    assert cli(server, *protocol, "PING") == "PONG\n"
    assert cli(server, *protocol, "PUBLISH", "nobody", "hello") == "0\n"
    assert cli(server, *protocol, "PUBSUB", "NUMSUB", "x").split() == ["x", "0"]
    assert cli(server, *protocol, "NOSUCH", "a").startswith("ERR unknown command 'NOSUCH'")
    assert "redis_version:" in cli(server, *protocol, "INFO", "server")


def test_commands_from_stdin_with_hints_from_command_docs(server: Server) -> None:
    assert cli(server, stdin=b"PING\nECHO 'two words'\nPUBLISH c x\nQUIT\n").splitlines()[:3] == [
        "PONG",
        "two words",
        "0",
    ]


def test_a_transaction_from_stdin(server: Server) -> None:
    out = cli(server, stdin=b"MULTI\nPUBLISH c 1\nPUBLISH c 2\nEXEC\n")
    assert out.split() == ["OK", "QUEUED", "QUEUED", "0", "0"]


def test_pipe_mode(server: Server) -> None:
    commands = b"".join(encode("PUBLISH", "c", i) for i in range(10_000))
    out = cli(server, "--pipe", stdin=commands)
    assert "errors: 0, replies: 10000" in out


@pytest.fixture(params=[[], ["-3"]], ids=["resp2", "resp3"])
def listening(request: pytest.FixtureRequest, server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """redis-cli, subscribed to the channels `one` and `two`."""
    command = ["redis-cli", "-h", server.host, "-p", str(server.port), *request.param]
    process = subprocess.Popen([*command, "SUBSCRIBE", "one", "two"], stdout=subprocess.PIPE)
    assert process.stdout
    confirmed = [process.stdout.readline().decode().strip() for _ in range(6)]
    assert confirmed == ["subscribe", "one", "1", "subscribe", "two", "2"]
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_subscribe_mode(server: Server, listening: subprocess.Popen[bytes]) -> None:
    assert cli(server, "PUBLISH", "one", "hello") == "1\n"
    assert listening.stdout
    lines = [listening.stdout.readline().decode().strip() for _ in range(3)]
    assert lines == ["message", "one", "hello"]


@pytest.mark.parametrize(
    "command", [["-t", "ping"], ["PUBLISH", "channel", "payload"]], ids=["ping", "publish"]
)
@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_redis_benchmark(server: Server, command: list[str], pipeline: str) -> None:
    base = ["redis-benchmark", "-h", server.host, "-p", str(server.port), "-n", "5000", "-c", "20"]
    run = subprocess.run(
        [*base, "-P", pipeline, "--csv", *command], capture_output=True, timeout=TIMEOUT_S, check=True
    )
    rows = run.stdout.decode().splitlines()
    assert rows[0].startswith('"test","rps"') and len(rows) >= 2, run
    assert b"rror" not in run.stderr, run.stderr
