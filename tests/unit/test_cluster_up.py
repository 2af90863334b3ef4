"""`hubsub cluster up` without nodes: start commands, terminal output, child processes that are no nodes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from hubsub.cli import serve as serving
from hubsub.cli.cluster import supervisor as supervising
from hubsub.cli.cluster.kept import Kept
from hubsub.cli.cluster.lines import LINE_BYTES_MAX, Lines, Splitter
from hubsub.cli.cluster.plan import Command, Known, Plan
from hubsub.cli.cluster.supervisor import Supervisor
from hubsub.config import load
from hubsub.errors import DataDirectoryError, NoSuchNodeError, OptionError, StartError


def plan(**more: Any) -> Plan:
    return Plan(**({"nodes": 3, "directory": Path("d"), "secret": "hush", "run": ["hubsub"]} | more))


def flags(command: Command) -> dict[str, str]:
    """`hubsub serve --name value …` by name."""
    args = list(command.args)[2:]
    return dict(zip(args[::2], args[1::2], strict=True))


def test_each_node_has_its_name_directory_and_ten_ports_of_its_own() -> None:
    known: Known = {"n1": {"raft": "127.0.0.1:3224"}}
    first, third = flags(plan().command_for("n1", {})), flags(plan().command_for("n3", known))
    assert first["--node"] == "n1" and first["--data"] == "d/n1"
    assert (first["--redis"], first["--http"], first["--link"]) == (
        "127.0.0.1:3221",
        "127.0.0.1:3220",
        "127.0.0.1:3222",
    )
    assert [third[name] for name in ("--redis", "--http", "--raft", "--mqtt", "--ws")] == [
        f"127.0.0.1:{port}" for port in (3241, 3240, 3244, 1903, 4020)
    ]


def test_a_base_port_moves_all_and_zero_leaves_them_to_the_system() -> None:
    known: Known = {"n1": {"raft": "127.0.0.1:7005"}}
    moved = flags(plan(base_port=7_000).command_for("n2", known))
    names = ("--http", "--redis", "--link", "--redis-cluster", "--mqtt", "--raft", "--ws")
    assert [moved[name] for name in names] == [f"127.0.0.1:{port}" for port in range(7_010, 7_017)]
    assert flags(plan(base_port=0).command_for("n2", known))["--redis"] == "127.0.0.1:0"
    with pytest.raises(OptionError, match="not so many ports"):
        plan(base_port=65_520)


def test_a_node_that_starts_again_has_the_addresses_that_it_had() -> None:
    known: Known = {"n1": {"link": "127.0.0.1:9", "redis": "127.0.0.1:7", "redis_cluster": None}}
    again = flags(plan(base_port=0).command_for("n1", known))
    assert (again["--redis"], again["--link"], again["--redis-cluster"]) == (
        "127.0.0.1:7",
        "127.0.0.1:9",
        "127.0.0.1:0",
    )


def test_the_first_founds_and_the_others_join_where_it_listens() -> None:
    assert "--join" not in flags(plan().command_for("n1", {}))
    assert flags(plan().command_for("n2", {"n1": {"raft": "127.0.0.1:9"}}))["--join"] == "127.0.0.1:9"
    with pytest.raises(StartError, match="has no listener"):
        plan().command_for("n2", {"n1": {"raft": None}})
    outside = flags(plan(coordinator="etcd://h:1").command_for("n2", {}))
    assert outside["--coordinator"] == "etcd://h:1" and not {"--join", "--raft"} & set(outside)


def test_those_of_a_run_before_are_joined_where_they_were() -> None:
    known: Known = {"n1": {"raft": "127.0.0.1:9", "redis": "127.0.0.1:7"}, "n2": {"raft": "127.0.0.1:8"}}
    first, third = (flags(plan(base_port=0).command_for(name, known)) for name in ("n1", "n3"))
    assert (first["--join"], first["--redis"]) == ("127.0.0.1:8", "127.0.0.1:7")
    assert third["--join"] == "127.0.0.1:9,127.0.0.1:8"
    assert "--join" not in flags(plan().command_for("n1", {"n1": {}, "n2": {}})), "its directory says where"


def test_what_a_run_leaves_is_there_for_the_next(tmp_path: Path) -> None:
    names = ["n1", "n2", "n3"]
    run = Kept(tmp_path / "d", names)
    assert run.nodes == {}
    run.note("n1", {"redis": "127.0.0.1:7", "mqtt": None})
    for name in ("n1", "n3"):
        (tmp_path / "d" / name / "coordinator").mkdir(parents=True)
        (tmp_path / "d" / name / "coordinator" / "identity").touch()
    assert Kept(tmp_path / "d", names).nodes == {"n1": {"redis": "127.0.0.1:7", "mqtt": None}, "n3": {}}
    for bad in ("{", "[]", '{"n1": 1}'):
        (tmp_path / "d" / "addresses.json").write_text(bad)
        with pytest.raises(DataDirectoryError, match=r"addresses\.json cannot be read"):
            Kept(tmp_path / "d", names)


def test_the_secret_is_on_no_command_line() -> None:
    command = plan().command_for("n1", {})
    assert command.env["HUBSUB_CLUSTER_SECRET"] == "hush" and "hush" not in str(command.args)


def test_serve_understands_what_it_is_told() -> None:
    known: Known = {"n1": {"raft": "127.0.0.1:9"}}
    serve = typer.main.get_command(serving.app)
    for one in (plan(), plan(coordinator="zookeeper://h:1", base_port=0, shards="2")):
        for name in one.names:
            command = one.command_for(name, known)
            secret = {"HUBSUB_CLUSTER_SECRET": "what all nodes of it know"}
            config = load(None, serve.make_context("serve", list(command.args)[2:]).params, secret)
            assert (config.node, config.data) == (name, f"d/{name}") and config.link
            assert config.join == (() if name == "n1" or one.coordinator else ("127.0.0.1:9",))


def test_the_environment_decides_nothing_that_the_plan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JOIN", "h:1"), ("REDIS", ":1"), ("CONFIG", "f"), ("LOG_LEVEL", "debug")):
        monkeypatch.setenv(f"HUBSUB_{name}", value)
    env = plan().command_for("n1", {}).env
    assert not {"HUBSUB_JOIN", "HUBSUB_REDIS", "HUBSUB_CONFIG"} & set(env)
    assert (env["HUBSUB_LOG_LEVEL"], env["HUBSUB_LOG_FORMAT"]) == ("debug", "text")
    monkeypatch.setenv("HUBSUB_LOG_FORMAT", "json")
    assert plan().command_for("n1", {}).env["HUBSUB_LOG_FORMAT"] == "json"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_are_coloured_on_a_terminal_and_nowhere_else() -> None:
    for out, environ, is_coloured in (
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ):
        lines = Lines(["n1", "n10"], out, environ)
        lines.say("n1", "hello\x1b[2J\tyou")
        shown = out.getvalue()
        assert ("\x1b[36m" in shown) is is_coloured
        assert shown.replace("\x1b[36m", "").replace("\x1b[0m", "") == "n1  | hello\\x1b[2J\tyou\n"


def test_lines_are_whole_however_they_come() -> None:
    splitter = Splitter()
    assert splitter.feed(b"a\nb") == ["a"] and splitter.feed(b"c\r\n") == ["bc"] and splitter.end() == []
    assert splitter.feed(b"\xff\nrest") == ["\\xff"] and splitter.end() == ["rest"]
    assert splitter.feed(b"x" * (LINE_BYTES_MAX + 1)) == ["x" * (LINE_BYTES_MAX + 1)], "memory has a bound"


# -- children --

READY = """print('{"event":"ready","redis":"127.0.0.1:1","link":null}', flush=True)\n"""
GOOD = "import sys\n" + READY + "sys.stdin.read()"
DEAF = (
    "import signal, sys\nsignal.signal(15, lambda *_: print('no', flush=True))\n" + READY + "sys.stdin.read()"
)


class Stage:
    """A supervisor whose children run these programs, and its output."""

    def __init__(
        self, programs: dict[str, str], exit_on_death: bool = False, kept: Known | None = None
    ) -> None:
        self.programs = programs
        self.said: list[tuple[str, str]] = []
        self.known: dict[str, Any] = {}
        self.up = asyncio.Event()
        self.bound: dict[str, Any] = {}
        self.supervisor = Supervisor(
            list(programs),
            self.command_for,
            lambda *line: self.said.append(line),
            exit_on_death,
            kept=kept,
            on_bound=self.bound.__setitem__,
        )

    def command_for(self, name: str, known: Known) -> Command:
        self.known[name] = dict(known)
        return Command([sys.executable, "-c", self.programs[name]], os.environ)

    @property
    def text(self) -> str:
        return "\n".join(f"{name} | {line}" for name, line in self.said)


@asynccontextmanager
async def playing(stage: Stage) -> AsyncIterator[asyncio.Task[int]]:
    """Runs the supervisor until the block ends; waits first until all children are ready."""
    run = asyncio.create_task(stage.supervisor.run(stage.up.set))
    up = asyncio.create_task(stage.up.wait())
    try:
        await asyncio.wait((run, up), return_when=asyncio.FIRST_COMPLETED, timeout=60)
        yield run
    finally:
        up.cancel()
        stage.supervisor.end(0)
        await run


async def test_the_first_is_ready_before_the_others_start_and_a_signal_stops_all() -> None:
    stage = Stage({"n1": GOOD, "n2": GOOD, "n3": GOOD})
    async with playing(stage) as run:
        rows = stage.supervisor.rows()
        assert [row["state"] for row in rows] == ["ready"] * 3 and len({row["pid"] for row in rows}) == 3
        assert stage.known["n1"] == {} and set(stage.known["n2"]) >= {"n1"}
        assert stage.known["n3"]["n1"] == {"redis": "127.0.0.1:1", "link": None}
        os.kill(os.getpid(), signal.SIGTERM)
        assert await run == 143
    assert stage.text.count("ended: killed by SIGTERM") == 3
    assert not any(child.lives for child in stage.supervisor.children.values())


async def test_nodes_of_a_run_before_start_together_and_new_ones_when_they_are_ready(tmp_path: Path) -> None:
    # Neither is ready before both run.
    meets = "import os\nos.mkfifo('{own}')\nwhile not os.path.exists('{other}'): pass\n"
    paths = {name: str(tmp_path / name) for name in ("n1", "n2")}
    one, two = (
        meets.format(own=paths["n1"], other=paths["n2"]),
        meets.format(own=paths["n2"], other=paths["n1"]),
    )
    stage = Stage(
        {"n1": one + GOOD, "n2": two + GOOD, "n3": GOOD}, kept={"n1": {"raft": "127.0.0.1:9"}, "n2": {}}
    )
    async with playing(stage):
        assert [row["state"] for row in stage.supervisor.rows()] == ["ready"] * 3
        assert stage.known["n1"] == {"n1": {"raft": "127.0.0.1:9"}, "n2": {}}
        ready = {"redis": "127.0.0.1:1", "link": None}
        assert stage.known["n3"] == {"n1": ready, "n2": ready}
        assert stage.bound == dict.fromkeys(("n1", "n2", "n3"), ready)


async def test_a_node_that_dies_is_told_with_its_last_lines_while_the_others_go_on() -> None:
    dying = "import sys\n" + READY + "sys.stdin.read(1)\nprint('what a pity', file=sys.stderr)\nsys.exit(7)"
    stage = Stage({"n1": GOOD, "n2": dying})
    async with playing(stage) as run:
        child = stage.supervisor.children["n2"]
        assert child.process and child.process.stdin
        child.process.stdin.close()
        await child.ended.wait()
        assert "n2 | what a pity\nn2 | ended: exit code 7\nn2 |   last: what a pity" in stage.text
        assert [row["state"] for row in stage.supervisor.rows()] == ["ready", "exit code 7"]
        assert not run.done()
        row = await stage.supervisor.start("n2")
        assert (row["state"], row["starts"]) == ("ready", 2)
        told = stage.text.count("  last: ")
        await stage.supervisor.kill("n2", signal.SIGTERM)
        assert stage.text.count("  last: ") == told, "who ends it knows why"


async def test_with_exit_on_death_one_that_dies_ends_all() -> None:
    stage = Stage({"n1": GOOD, "n2": GOOD}, exit_on_death=True)
    async with playing(stage) as run:
        await stage.supervisor.kill("n1", signal.SIGKILL)
        assert await run == 1
    assert "n1 | ended: killed by SIGKILL" in stage.text and "n2 | ended: killed by SIGTERM" in stage.text


@pytest.mark.parametrize("bad", ["import sys; sys.exit('no port')", "no program at all: ("])
async def test_a_node_that_cannot_start_ends_all_and_says_why(bad: str) -> None:
    stage = Stage({"n1": GOOD, "n2": bad})
    async with playing(stage) as run:
        assert await run == 1
    assert (
        not stage.up.is_set()
        and "n2 | error: the node ended before it was ready: n2, exit code 1" in stage.text
    )


async def test_a_node_that_heeds_no_sigterm_is_killed_after_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervising, "STOP_S", 0.2)
    stage = Stage({"n1": DEAF})
    async with playing(stage) as run:
        stage.supervisor.end(130)
        assert await run == 130
    assert "n1 | does not stop, gets SIGKILL\nn1 | ended: killed by SIGKILL" in stage.text


async def test_who_asks_twice_waits_no_longer() -> None:
    stage = Stage({"n1": DEAF})
    async with playing(stage) as run:
        os.kill(os.getpid(), signal.SIGINT)
        while "n1 | no" not in stage.text:  # It has received SIGTERM, and continues.
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        assert await run == 130
    assert "does not stop, gets SIGKILL" in stage.text


async def test_a_node_that_was_paused_stops_too() -> None:
    stage = Stage({"n1": GOOD})
    async with playing(stage) as run:
        await stage.supervisor.kill("n1", signal.SIGSTOP)
        stage.supervisor.end(0)
        assert await run == 0
    assert "killed by SIGTERM" in stage.text


async def test_when_nobody_reads_any_more_all_end() -> None:
    stage = Stage({"n1": GOOD, "n2": GOOD})

    def say(name: str, line: str) -> None:
        raise BrokenPipeError

    stage.supervisor._say = say
    async with playing(stage) as run:
        await stage.supervisor.kill("n2", signal.SIGKILL)
        assert await run == 1
    assert not any(child.lives for child in stage.supervisor.children.values())


async def test_only_nodes_that_run_get_signals_and_only_those_that_do_not_are_started() -> None:
    stage = Stage({"n1": GOOD, "n2": GOOD})
    async with playing(stage):
        with pytest.raises(NoSuchNodeError, match="no such node"):
            await stage.supervisor.kill("n9", signal.SIGKILL)
        with pytest.raises(StartError, match="runs already"):
            await stage.supervisor.start("n1")
        row = await stage.supervisor.kill("n1", signal.SIGKILL)
        assert row["state"] == "killed by SIGKILL" and row["pid"]
        with pytest.raises(StartError, match="does not run"):
            await stage.supervisor.kill("n1", signal.SIGKILL)
