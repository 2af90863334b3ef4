"""Nodes as forks of one process: they are what a new process would be, as far as their owner can see."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hubsub.testing import Node, forks

pytestmark = [
    pytest.mark.needs("hubsub-core"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux"),
]

WAIT_S = 60


def run(tmp_path: Path, code: str, *args: str, **env: str) -> forks.Fork:
    program = tmp_path / "program.py"
    program.write_text(code)
    return forks.fork(str(program), args, 2, env)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_the_exit_code_is_that_of_a_process(tmp_path: Path, code: str, exit_code: int) -> None:
    fork = run(tmp_path, code)
    assert (fork.wait(WAIT_S), fork.wait(), fork.poll(), fork.returncode) == (exit_code,) * 4


def test_a_program_has_its_arguments_environment_directory_and_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import os, sys\nprint(sys.argv[1:], dict(os.environ), os.getcwd(), sys.stdin.readline())"
    fork = run(tmp_path, code, "a", "b", ONE="1")
    fork.stdin.write(b"line\n")
    fork.stdin.flush()
    assert fork.stdout.read().decode() == f"['a', 'b'] {{'ONE': '1'}} {tmp_path} line\n\n"


def test_a_running_fork_keeps_no_stream_of_another_open(tmp_path: Path) -> None:
    first = run(tmp_path, "import sys; sys.stdin.read()")
    second = run(tmp_path, "import sys; sys.stdin.read()")
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0)
    first.stdin.close()
    assert first.stdout.read() == b""
    assert (first.wait(WAIT_S), second.poll()) == (0, None)
    second.kill()
    assert second.wait(WAIT_S) == -signal.SIGKILL
    second.terminate()  # It has ended: nothing happens.


def test_a_program_that_is_a_fork_has_pythons_handlers_of_signals(tmp_path: Path) -> None:
    code = "import signal\nprint([signal.getsignal(n) for n in (2, 15, 17)], signal.set_wakeup_fd(-1))"
    expected = f"[{signal.default_int_handler}, {signal.SIG_DFL!r}, {signal.SIG_DFL!r}] -1\n"
    assert run(tmp_path, code).stdout.read().decode() == expected


def test_what_only_a_new_process_can_have_is_no_fork(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        run(tmp_path, "", "x" * forks.ORDER_MAX)
    assert run(tmp_path, "").wait(WAIT_S) == 0
    with Node() as node:
        assert isinstance(node.process, forks.Fork)
    with Node(env={"PYTHONUTF8": "1"}) as node:
        assert isinstance(node.process, subprocess.Popen)


def test_descriptors_do_not_add_up(tmp_path: Path) -> None:
    run(tmp_path, "").wait(WAIT_S)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        fork = run(tmp_path, "")
        fork.wait(WAIT_S)
        fork.stdin.close()
        fork.stdout.close()
        del fork
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_caller_with_other_limits_gets_a_new_process_with_them(tmp_path: Path) -> None:
    program = tmp_path / "limits.py"
    program.write_text("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with pytest.raises(OSError, match="other surroundings"):
            run(tmp_path, "")
        process = forks.start(str(program), (), 2, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(process, subprocess.Popen)
    out, _ = process.communicate(timeout=WAIT_S)
    assert out.decode() == f"({soft - 1}, {hard})\n"


def test_an_order_that_cannot_be_followed_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    before = run(tmp_path, "import os; print(os.getppid())").stdout.read()
    orders = forks._orders(os.getpid())
    for descriptors in ([], [2], [2] * 3):
        socket.send_fds(orders, [b"{}"], descriptors)
        assert orders.recv(64) == b"0"
    assert run(tmp_path, "import os; print(os.getppid())").stdout.read() == before


def test_a_fork_that_is_waited_for_can_be_ended_by_another_thread(tmp_path: Path) -> None:
    fork = run(tmp_path, "import sys; sys.stdin.read()")
    with ThreadPoolExecutor() as pool:
        codes = [pool.submit(fork.wait) for _ in range(4)]
        fork.kill()
        assert [code.result(WAIT_S) for code in codes] == [-signal.SIGKILL] * 4


def test_where_the_process_that_forks_is_killed_its_forks_end_and_another_one_follows(tmp_path: Path) -> None:
    fork = run(tmp_path, "import os, sys; print(os.getppid(), flush=True); sys.stdin.read()")
    os.kill(int(fork.stdout.readline()), signal.SIGKILL)
    assert fork.wait(WAIT_S) == -signal.SIGKILL
    with pytest.raises(OSError):
        run(tmp_path, "")
    assert run(tmp_path, "").wait(WAIT_S) == 0


def test_a_forked_test_process_has_a_process_of_its_own_that_forks(tmp_path: Path) -> None:
    run(tmp_path, "").wait(WAIT_S)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        parent = "import os; print(os.getppid())"
        mine, theirs = run(tmp_path, parent).stdout.read(), pool.apply(parent_of_a_fork, (tmp_path,))
    assert mine != theirs


def parent_of_a_fork(tmp_path: Path) -> bytes:
    return run(tmp_path, "import os; print(os.getppid())").stdout.read()
