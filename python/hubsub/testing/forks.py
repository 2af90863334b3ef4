"""Starts nodes as forks of one process that has imported their modules: 0.2 s of processor time each, not 0.8.

`start` runs this module as a process, once, and sends it orders over a socket: a JSON object and four descriptors.
The process forks, answers with the fork's process id, and writes the fork's exit code to the fourth descriptor. It
ends when its socket closes: with the process that called `start`. Linux only.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

MODULES = ("hubsub._core", "hubsub.api.server", "hubsub.cli.serve", "hubsub.node", "uvicorn")
"""Imported before the first fork; they start no thread."""
ORDER_MAX = 1 << 17
"""Most bytes of an order."""
CODE_BYTES = 4

_lock = threading.Lock()


class Fork:
    """A process as `start` returns it: the part of `subprocess.Popen` that a node's owner needs."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], report: int) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._report = report
        # The process id may be another process's as soon as this one has ended.
        self._handle: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Args:
            timeout: In seconds; None: without end.

        Raises:
            subprocess.TimeoutExpired: it runs still.
        """
        if self.returncode is not None:
            return self.returncode
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1_000):
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        code = os.read(self._report, CODE_BYTES)
        # Without a report, the process that forks has been killed, and its forks' ends are nobody's.
        self.returncode = int.from_bytes(code, signed=True) if code else -signal.SIGKILL
        os.close(self._report)
        if self._handle is not None:
            os.close(self._handle)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None and self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(program: str, args: Sequence[str], stderr: int, env: Mapping[str, str]) -> Fork:
    """Runs a Python program as a fork, with pipes for its input and output.

    Args:
        program: A module, as after `python -m`, or the path of a file.
        args: Its arguments.
        stderr: Descriptor of its stderr.
        env: Its environment. Variables that only a new process reads, such as Python's own, have no effect.

    Raises:
        OSError: it cannot be forked, or this thread has other namespaces or resource limits than the process
            that forks.
    """
    order = {"program": program, "args": [*args], "env": dict(env), "cwd": str(Path.cwd())}
    pipes = [os.pipe() for _ in range(3)]
    (theirs_in, ours_in), (ours_out, theirs_out), (ours_code, theirs_code) = pipes
    try:
        with _lock:
            orders, surroundings = _orders()
            if surroundings != _surroundings():
                raise OSError("a fork would be in other surroundings")
            socket.send_fds(
                orders, [json.dumps(order).encode()], [theirs_in, theirs_out, stderr, theirs_code]
            )
            pid = int(orders.recv(64) or 0)
        if not pid:
            raise OSError("the process that forks has ended")
    except OSError:
        for ours in (ours_in, ours_out, ours_code):
            os.close(ours)
        raise
    finally:
        for theirs in (theirs_in, theirs_out, theirs_code):
            os.close(theirs)
    return Fork(pid, open(ours_in, "wb"), open(ours_out, "rb"), ours_code)


def _surroundings() -> tuple[object, ...]:
    """Namespaces and resource limits of this thread: a new process inherits them, a fork does not."""
    spaces = [Path(f"/proc/thread-self/ns/{kind}").readlink() for kind in ("mnt", "net")]
    limits = [
        resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")
    ]
    return (*spaces, *limits)


@functools.cache
def _orders() -> tuple[socket.socket, tuple[object, ...]]:
    """Starts the process that forks; returns the socket to it, and its surroundings."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-c", f"from {__name__} import main; main({number})"]
        subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return ours, _surroundings()


def main(number: int) -> None:
    """Forks until the socket with this number closes."""
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # The forks' garbage collection leaves these pages shared.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to all; the owner of a node ends it.
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reports: dict[int, int] = {}
    with socket.socket(fileno=number) as orders:
        while True:
            readable, _, _ = select.select([number, woken], [], [])
            if woken in readable:
                os.read(woken, 4_096)
                _report(reports)
            if number not in readable:
                continue
            order, descriptors, _, _ = socket.recv_fds(orders, ORDER_MAX, 4)
            if not order:
                return
            *standard, report = descriptors
            pid = os.fork()
            if pid == 0:
                _become(json.loads(order), standard)
            for descriptor in standard:
                os.close(descriptor)
            reports[pid] = report
            orders.send(str(pid).encode())


def _report(reports: dict[int, int]) -> None:
    """Reports the exit codes of ended forks."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        report = reports.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(report, os.waitstatus_to_exitcode(status).to_bytes(CODE_BYTES, signed=True))
        os.close(report)


def _become(order: dict[str, Any], standard: Sequence[int]) -> NoReturn:
    """Runs the order's program in this fork, and exits."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        time.tzset()
        program = order["program"]
        sys.argv = [program, *order["args"]]
        if program.endswith(".py"):
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__")
        code = 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            code = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # Without the interpreter's finalization, a quarter of a node's end.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
