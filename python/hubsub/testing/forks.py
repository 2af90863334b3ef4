"""Starts nodes as forks of a process that has imported their modules: 0.2 s of processor time each, not 0.8.

`start` runs `main` as a process, once, and sends it orders over a socket: a JSON object and four descriptors. That
process forks, answers with the fork's process id and a handle of it, and writes the fork's exit code to the fourth
descriptor. It ends when its socket closes: with the process that called `start`. Where that is impossible, or a fork
would have other namespaces or limits than its caller, `start` starts a new process.

A fork differs from a new process in what only the start of an interpreter decides: its seed of hashes is that of its
siblings, and it ends without Python's finalization. With `HUBSUB_TESTING_FRESH=1` all are new processes.
"""

import atexit
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
ANSWER_S = 30.0
"""Time limit of an answer, in seconds; the first one waits for the imports."""
POLL_MS_MAX = 2**31 - 1
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that may reach a whole group of processes; the process that forks ignores them, its forks do not."""

_lock = threading.Lock()


class Fork:
    """A process as `start` returns it: the part of `subprocess.Popen` that a node's owner needs."""

    def __init__(self, pid: int, handle: int, stdin: IO[bytes], stdout: IO[bytes], report: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        # The process id may be another process's as soon as this one has ended; its handle cannot.
        self._handle: IO[bytes] = open(handle, "rb", buffering=0)  # noqa: SIM115
        self._report = report
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._handle.close()
        self._report.close()

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
        if self.returncode is None and not _readable(self._report, timeout):
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        with self._lock:
            if self.returncode is None:
                code = self._report.read(CODE_BYTES)
                if not code:  # The process that forks has been killed.
                    self._signal(signal.SIGKILL)
                    _readable(self._handle, ANSWER_S)
                self.returncode = int.from_bytes(code, signed=True) if code else -signal.SIGKILL
            return self.returncode

    def send_signal(self, sig: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            self._signal(sig)

    def _signal(self, sig: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # It has just ended.
            signal.pidfd_send_signal(self._handle.fileno(), sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Fork | subprocess.Popen[bytes]


def start(
    program: str, args: Sequence[str], stderr: int, env: Mapping[str, str], *, fresh: bool = False
) -> Process:
    """Runs a Python program with pipes for its input and output.

    Args:
        program: A module, as after `python -m`, or the path of a file.
        args: Its arguments.
        stderr: Descriptor of its stderr.
        env: Its environment. In a fork, Python's own variables have no effect.
        fresh: Whether it has to be a new process.
    """
    if not fresh and not os.environ.get("HUBSUB_TESTING_FRESH"):
        with contextlib.suppress(OSError):
            return fork(program, args, stderr, env)
    run = [sys.executable, *([program] if program.endswith(".py") else ["-m", program]), *args]
    return subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env)


def fork(program: str, args: Sequence[str], stderr: int, env: Mapping[str, str]) -> Fork:
    """As `start`, and always a fork.

    Raises:
        OSError: it cannot be forked.
    """
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        raise OSError("this system has no handles of processes")
    if _surroundings() != _AT_IMPORT:
        raise OSError("a fork would be in other surroundings")
    order = {"program": program, "args": [*args], "env": dict(env), "cwd": str(Path.cwd())}
    data = json.dumps(order).encode()
    if len(data) > ORDER_MAX:
        raise OSError(f"the order is too long: {len(data)} bytes")
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        stdin, their_in = _pipe(ours, theirs, "wb")
        stdout, their_out = _pipe(ours, theirs, "rb")
        report, their_report = _pipe(ours, theirs, "rb")
        with _lock:
            orders = _orders(os.getpid())
            try:
                socket.send_fds(orders, [data], [their_in, their_out, stderr, their_report])
                answer, handles, _, _ = socket.recv_fds(orders, 64, 1, socket.MSG_CMSG_CLOEXEC)
            except BaseException:  # Its next answer would be to this order.
                _orders.cache_clear()
                orders.close()
                raise
        if not handles:
            raise OSError("it cannot be forked")
        ours.pop_all()
    return Fork(int(answer), handles[0], stdin, stdout, report)


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack, mode: str) -> tuple[IO[bytes], int]:
    """A pipe: our end in a mode, and the descriptor of the other end; each is closed with its stack."""
    read, write = os.pipe()
    mine, other = (write, read) if mode == "wb" else (read, write)
    theirs.callback(os.close, other)
    return ours.enter_context(open(mine, mode)), other


def _readable(end: IO[bytes], timeout: float | None) -> bool:
    """Waits until a descriptor is readable or closed at its other end; false: not in time."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(None if timeout is None else min(max(timeout, 0) * 1_000, POLL_MS_MAX)))


def _surroundings() -> tuple[object, ...]:
    """Namespaces and limits of this thread: a new process inherits them, a fork has those of its parent."""
    spaces = [Path(f"/proc/thread-self/ns/{kind}").readlink() for kind in ("mnt", "net")]
    limits = [
        resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")
    ]
    return (*spaces, *limits, *sorted(os.sched_getaffinity(0)))


_AT_IMPORT = _surroundings() if sys.platform == "linux" else ()


@functools.cache
def _orders(owner: int) -> socket.socket:
    """Starts the process that forks for a process; the socket to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(ANSWER_S)
    with theirs:
        number = theirs.fileno()
        # `hubsub doctor` knows nodes by the last argument.
        command = [sys.executable, "-c", f"from {__name__} import main; main({number})", "hubsub.testing"]
        process = subprocess.Popen(
            command, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
    atexit.register(_end, owner, ours, process)
    return ours


def _end(owner: int, orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Ends a process that forks, at the end of its owner."""
    if os.getpid() == owner:
        orders.close()
        try:
            process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _forget() -> None:
    """In a process that was forked from this one."""
    global _lock
    _lock = threading.Lock()
    _orders.cache_clear()


os.register_at_fork(after_in_child=_forget)


# -- the process that forks --


def main(number: int) -> None:
    """Forks until the socket with this number closes."""
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # The forks' garbage collection leaves these pages shared.
    handlers = {sig: signal.getsignal(sig) for sig in HEARD}
    for sig in HEARD:
        signal.signal(sig, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.chdir("/")
    reports: dict[int, int] = {}
    with socket.socket(fileno=number) as orders:
        while True:
            readable, _, _ = select.select([number, woken], [], [])
            if woken in readable:
                os.read(woken, 4_096)
                _report(reports)
            if number in readable:
                order, descriptors, _, _ = socket.recv_fds(orders, ORDER_MAX, 4)
                if not order:
                    return
                try:
                    _fork(orders, order, descriptors, handlers, reports)
                except OSError:
                    with contextlib.suppress(OSError):  # Its owner may have ended.
                        orders.send(b"0")
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)


def _fork(
    orders: socket.socket,
    order: bytes,
    descriptors: Sequence[int],
    handlers: Mapping[signal.Signals, Any],
    reports: dict[int, int],
) -> None:
    """Forks for an order, and answers it.

    Raises:
        OSError: it was not forked.
    """
    if len(descriptors) != 4:
        raise OSError("an order has four descriptors")
    *standard, report = descriptors
    kept = os.dup(report)
    # A signal that comes before the fork has its handlers waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    try:
        pid = os.fork() or _become(order, standard, handlers)
    except OSError:
        os.close(kept)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    reports[pid] = kept
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise
    try:
        socket.send_fds(orders, [str(pid).encode()], [handle])
    finally:
        os.close(handle)


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


def _become(order: bytes, standard: Sequence[int], handlers: Mapping[signal.Signals, Any]) -> NoReturn:
    """Runs an order's program in this fork, and exits."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for sig, handler in handlers.items():
            signal.signal(sig, handler)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        for descriptor in [int(link.name) for link in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):  # One was the listing's.
                os.close(descriptor) if descriptor > 2 else None
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        _run(json.loads(order))
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


def _run(order: Mapping[str, Any]) -> None:
    program = order["program"]
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    sys.argv = [program, *order["args"]]
    if program.endswith(".py"):
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path[0] = order["cwd"]
        runpy.run_module(program, run_name="__main__")
