"""`hubsub cluster up` with real nodes, and a second terminal beside it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import HUBSUB, environment, hubsub

from hubsub import BlockingClient

pytestmark = pytest.mark.needs("hubsub-core")

CLASSES = '[[class]]\nname = "chat"\nmatch = ["chat:*"]\nplacement = "ring"\nhistory = { messages = 5 }\n'
LOGGED = (
    '[[class]]\nname = "logged"\nmatch = ["log:*"]\ndurability = "durable"\nhistory = { bytes = "64MiB" }\n'
)


class Terminal:
    """A running `hubsub cluster up`; `temporary` is the system directory for temporary files that it uses."""

    def __init__(self, temporary: Path, *args: object) -> None:
        self.temporary = temporary
        command = [*HUBSUB, "cluster", "up", "--base-port", "0", "--shards", "1", "--json", *map(str, args)]
        self.log = temporary / "stderr"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment(TMPDIR=str(temporary)), text=True
            )

    def table(self, nodes: int) -> dict[str, dict[str, Any]]:
        """The nodes by name, after all of them serve."""
        assert self.process.stdout
        rows = [json.loads(self.process.stdout.readline() or "{}") for _ in range(nodes)]
        return {row["name"]: row for row in rows}

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        """`hubsub cluster …` in another terminal."""
        return hubsub("cluster", *args, TMPDIR=str(self.temporary))

    def rows(self, *args: str) -> dict[str, dict[str, Any]]:
        run = self("ps", "--json", *args)
        assert run.returncode == 0, run.stderr
        return {row["name"]: row for row in map(json.loads, run.stdout.splitlines())}


@contextmanager
def terminal(temporary: Path, *args: object) -> Iterator[Terminal]:
    one = Terminal(temporary, *args)
    try:
        yield one
    except BaseException:
        print(one.log.read_text())
        raise
    finally:
        if one.process.poll() is None:
            one.process.terminate()
        one.process.communicate(timeout=60)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_command_starts_nodes_that_serve_and_ctrl_c_ends_them_all(tmp_path: Path) -> None:
    with terminal(tmp_path, "--nodes", 3) as up:
        nodes = up.table(3)
        assert list(nodes) == ["n1", "n2", "n3"]
        for node in nodes.values():
            with BlockingClient(f"redis://{node['redis']}") as client:
                assert client.publish("lobby", "hello") == 0
        url = f"http://{nodes['n1']['http']}"
        seen = hubsub("doctor", "--json", "--url", url, HUBSUB_REDIS=":0", HUBSUB_HTTP="off")
        found = {row["check"]: row["state"] for row in map(json.loads, seen.stdout.splitlines())}
        assert (seen.returncode, found["node n1"], found["seen from n2"]) == (0, "ok", "ok"), seen.stdout
        assert "clock of n2" in found
        data = next(tmp_path.glob("hubsub-cluster-*"))
        assert (data / "n2" / "incarnation").exists()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 130
        assert all(is_gone(node["pid"]) for node in nodes.values()), "none is left behind"
        said = up.log.read_text()
        assert f"data: {data}, removed at the end\n" in said and not data.exists()
        assert "n3 | ended: exit code 0\n" in said and "\x1b" not in said


def test_a_second_terminal_kills_and_starts_nodes_on_their_addresses_and_data(tmp_path: Path) -> None:
    data, classes = tmp_path / "data", tmp_path / "classes.toml"
    classes.write_text(CLASSES)
    # A majority remains after one node is gone.
    with terminal(tmp_path, "--nodes", 3, "--data", data, "--classes", classes) as up:
        before = up.table(3)
        assert up.rows()["n2"] == before["n2"] and before["n2"]["state"] == "ready"
        killed = up("kill", "n2")
        assert killed.stderr == f"n2 (pid {before['n2']['pid']}) got SIGKILL: killed by SIGKILL\n"
        assert is_gone(before["n2"]["pid"])
        assert up.rows("--data", str(data))["n2"]["state"] == "killed by SIGKILL"
        with BlockingClient(f"redis://{before['n1']['redis']}") as client:
            assert client.publish("chat:a", "goes on") == 0, "whoever led it"
        assert up("kill", "n2").stderr.startswith("error: the node does not run: n2\nhint: ")
        started = up("start", "n2")
        assert started.returncode == 0, started.stderr
        after = up.rows()["n2"]
        same = {key: after[key] for key in ("redis", "http", "state")}
        assert same == {key: before["n2"][key] for key in same} and after["pid"] != before["n2"]["pid"]
        assert up("kill", "n1", "--signal", "stop").stderr.endswith(" got SIGSTOP: ready\n")
        assert up("kill", "n1", "-s", "19").returncode == up("kill", "n1", "-s", "CONT").returncode == 0
        strange = up("kill", "n1", "--signal", "HUGS")
        assert strange.returncode == 2 and "no such signal" in strange.stderr
        up.process.terminate()
        assert up.process.wait(60) == 143
    assert (data / "n1" / "incarnation").exists(), "a directory that somebody named stays"


def test_a_cluster_that_was_stopped_starts_again_with_its_records(tmp_path: Path) -> None:
    data, classes = tmp_path / "data", tmp_path / "classes.toml"
    classes.write_text(LOGGED)
    with terminal(tmp_path, "--nodes", 3, "--data", data, "--classes", classes) as up:
        before = up.table(3)
        with BlockingClient(f"redis://{before['n2']['redis']}") as client:
            client.publish("log:a", "durable")
        up.process.terminate()
        assert up.process.wait(60) == 143
    with terminal(tmp_path, "--nodes", 4, "--data", data, "--classes", classes) as up:
        after = up.table(4)
        assert "starts again, where they were: n1, n2, n3\n" in up.log.read_text()
        assert {name: after[name]["redis"] for name in before} == {
            name: row["redis"] for name, row in before.items()
        }
        for node in after.values():
            with BlockingClient(f"redis://{node['redis']}") as client:
                client.publish("log:a", node["name"])
                assert [record.payload for record in client.history("log:a").records][:2] == [
                    b"durable",
                    b"n1",
                ]


def test_nodes_end_with_a_terminal_that_was_killed(tmp_path: Path) -> None:
    with terminal(tmp_path, "--nodes", 1) as up:
        pid = up.table(1)["n1"]["pid"]
        watched = os.pidfd_open(pid)
        try:
            up.process.kill()
            poll = select.poll()
            poll.register(watched, select.POLLIN)
            assert poll.poll(60_000), "the node still runs"
        finally:
            os.close(watched)
        assert up("ps").stderr.startswith("error: no cluster runs here\n")


def test_with_exit_on_death_the_end_of_one_is_the_end_of_all(tmp_path: Path) -> None:
    with terminal(tmp_path, "--nodes", 2, "--exit-on-death") as up:
        nodes = up.table(2)
        assert up("kill", "n1").returncode == 0
        assert up.process.wait(60) == 1
        assert is_gone(nodes["n2"]["pid"])


def test_a_port_that_is_held_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with terminal(tmp_path, "--nodes", 1) as first:
        port = int(first.table(1)["n1"]["http"].rpartition(":")[2])
        run = hubsub("cluster", "up", "--nodes", "1", "--base-port", str(port), TMPDIR=str(tmp_path))
        assert run.returncode == 1 and run.stdout == ""
        assert "n1 | error: the node ended before it was ready: n1, exit code 1\n" in run.stderr
        assert len(list(tmp_path.glob("hubsub-cluster-*"))) == 1


def test_several_clusters_are_told_apart_by_their_data(tmp_path: Path) -> None:
    with (
        terminal(tmp_path, "--nodes", 1, "--data", tmp_path / "a") as a,
        terminal(tmp_path, "--nodes", 1, "--data", tmp_path / "b") as b,
    ):
        pids = [one.table(1)["n1"]["pid"] for one in (a, b)]
        run = a("ps")
        assert run.returncode == 1 and "several clusters run here" in run.stderr
        assert [a.rows("--data", str(tmp_path / name))["n1"]["pid"] for name in "ab"] == pids
        assert "no cluster runs on this directory" in a("ps", "--data", str(tmp_path / "c")).stderr


def test_what_cannot_be_is_told_before_anything_starts(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("shards = 1\n[[class]]\nnome = 'x'\n")
    for args in (["--classes", bad], ["--shards", "none"], ["--coordinator", "etdc://h"], ["--nodes", "0"]):
        run = hubsub("cluster", "up", *args, TMPDIR=str(tmp_path))
        assert run.returncode == 2 and run.stdout == "" and "data:" not in run.stderr, (args, run.stderr)
    assert not list(tmp_path.glob("hubsub-cluster-*"))
