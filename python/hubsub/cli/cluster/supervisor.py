"""Runs nodes as child processes: starts them, prints their output and exit status, stops them.

The supervisor does not know what a node is. `command_for` gives the command, and a node is ready when it
prints a line `{"event":"ready",…}`.

Invariants: only `_reap`, on the loop's thread, waits for children. A signal is sent on that thread only to a
child that was not waited for, so its pid cannot have been reused. When `run` returns, no child lives.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hubsub.cli.cluster.lines import Splitter
from hubsub.cli.cluster.plan import Command, Known
from hubsub.errors import NoSuchNodeError, StartError

START_S = 120.0
"""Time limit for a node to become ready, in seconds: it may have to read a log."""
STOP_S = 30.0
"""Time limit for a node to stop before SIGKILL, in seconds; by default it drains its clients for 5 s."""
LAST_LINES = 8
"""Lines printed again when a node dies, as lines of other nodes may be between them."""

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = (*STOPS, signal.SIGKILL, signal.SIGQUIT, signal.SIGABRT)
"""Signals that end a node; `kill` waits for the end after them."""

Say = Callable[[str, str], None]
"""Takes an output line of a node: its name and the text."""


class Child:
    """A node: its process, if it runs, and its known state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self.addresses: dict[str, str | None] = {}
        """Listener to its bound address, once it was ready."""
        self.is_ready = False
        self.starts = 0
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.ready = asyncio.Event()
        """Set when the node is ready, or has ended before."""
        self.ended = asyncio.Event()
        self.ended.set()
        self.readers: list[asyncio.Task[None]] = []
        self.how = "not started"
        """Exit status as text."""
        self.is_sent_away = False
        """True if its end was requested; its last lines are then not printed again."""

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def state(self) -> str:
        if not self.lives:
            return self.how
        return "ready" if self.is_ready else "starting"

    def row(self) -> dict[str, Any]:
        pid = self.process.pid if self.process is not None and self.lives else None
        return {"name": self.name, "state": self.state, **self.addresses, "pid": pid, "starts": self.starts}


class Supervisor:
    """The nodes of one `hubsub cluster up`.

    Args:
        names: Names of all nodes.
        command_for: Gives a node's command from the addresses of the nodes that have served.
        say: Takes the nodes' output and messages about them.
        exit_on_death: Whether the death of a node ends all.
        kept: Nodes that are members of the cluster already, with their known addresses. They start together,
            since none becomes ready without most of them. The others start after these are ready; without
            any, after the first node.
        on_bound: Takes the addresses of a node each time that it becomes ready.
    """

    def __init__(
        self,
        names: Sequence[str],
        command_for: Callable[[str, Known], Command],
        say: Say,
        exit_on_death: bool = False,
        kept: Known | None = None,
        on_bound: Callable[[str, Mapping[str, str | None]], None] = lambda name, addresses: None,
    ) -> None:
        self.children = {name: Child(name) for name in names}
        self._kept = dict(kept or {})
        self._on_bound = on_bound
        self._command_for = command_for
        self._say = say
        self._exit_on_death = exit_on_death
        self._code: int | None = None
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()
        """Set by a second request to stop: no more waiting."""
        self._is_up = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Starts all nodes, and runs until a signal (128 + its number), or a death that must end all (1).

        Args:
            on_ready: Called once, when all serve.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        # Signals that are ignored at the start, as with nohup, stay ignored.
        heeded = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]
        for number in heeded:
            loop.add_signal_handler(number, self.end, 128 + number)
        starting = asyncio.ensure_future(self._start_all())
        ending = asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not self._end.is_set():
                if starting.result():
                    self._is_up = True
                    on_ready()
                    await ending
                else:
                    self.end(1)
        finally:
            for task in (starting, ending):
                task.cancel()
            await self._stop_all()
            for number in (signal.SIGCHLD, *heeded):
                loop.remove_signal_handler(number)
        assert self._code is not None, "end() sets both"
        return self._code

    def end(self, code: int) -> None:
        """Ends all nodes; a second call ends them at once."""
        if self._end.is_set():
            self._hurry.set()
        else:
            self._code = code
            self._end.set()

    def rows(self) -> list[dict[str, Any]]:
        return [child.row() for child in self.children.values()]

    async def start(self, name: str) -> dict[str, Any]:
        """Starts a node that does not run, and waits until it is ready.

        Raises:
            NoSuchNodeError: there is no such node.
            StartError: it runs already, ended before it was ready, or is not ready in time.
        """
        child = self._child(name)
        if not child.lives:
            await child.ended.wait()  # Print the last lines of the previous process first.
        if child.lives:
            raise StartError("the node runs already", name)
        self._spawn(child)
        try:
            async with asyncio.timeout(START_S):
                await child.ready.wait()
        except TimeoutError:
            raise StartError(f"the node is not ready after {START_S:g} s", name) from None
        if not child.is_ready:
            await child.ended.wait()
            raise StartError("the node ended before it was ready", f"{name}, {child.how}")
        return child.row()

    async def kill(self, name: str, number: int) -> dict[str, Any]:
        """Sends a signal to a node. If the signal ends nodes, waits for the end, at most `STOP_S`.

        Raises:
            NoSuchNodeError: there is no such node.
            StartError: it does not run.
        """
        child = self._child(name)
        row = child.row()
        if not self._signal(child, number):
            raise StartError("the node does not run", name, f"`hubsub cluster start {name}` starts it")
        if number in ENDING:
            child.is_sent_away = True
            await _within(STOP_S, child.ended.wait())
        return row | {"state": child.state}

    # -- one child --

    def _child(self, name: str) -> Child:
        if name not in self.children:
            raise NoSuchNodeError(value=name, hint=f"there are {', '.join(self.children)}")
        return self.children[name]

    def _spawn(self, child: Child) -> None:
        if self._end.is_set():
            raise StartError("the cluster is stopping")
        known = self._kept | {c.name: c.addresses for c in self.children.values() if c.addresses}
        command = self._command_for(child.name, known)
        try:
            child.process = subprocess.Popen(
                command.args,
                env=dict(command.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # The terminal's ctrl-C is for this process, which stops the nodes in its own way.
                start_new_session=True,
            )
        except OSError as error:
            child.how = "not started"
            raise StartError(
                f"the node's program cannot be run ({error.strerror})", command.args[0]
            ) from None
        child.starts += 1
        child.is_ready = child.is_sent_away = False
        child.ready.clear()
        child.ended.clear()
        child.last.clear()
        out, err = child.process.stdout, child.process.stderr
        child.readers = [
            asyncio.ensure_future(self._read(child, out, self._on_out)),
            asyncio.ensure_future(self._read(child, err, self._on_line)),
        ]

    async def _read(self, child: Child, pipe: Any, take: Callable[[Child, str], None]) -> None:
        """Passes every line of a pipe to `take` until the end of the pipe."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        splitter = Splitter()
        try:
            while data := await reader.read(65_536):
                for line in splitter.feed(data):
                    take(child, line)
            for line in splitter.end():
                take(child, line)
        finally:
            transport.close()

    def _on_out(self, child: Child, line: str) -> None:
        """Handles the ready line; prints any other line."""
        ready = _ready(line)
        if ready is None:
            self._on_line(child, line)
            return
        child.addresses = ready
        child.is_ready = True
        child.ready.set()
        try:
            self._on_bound(child.name, ready)
        except OSError as error:
            self._tell(child, f"its addresses are not kept for the next start: {error}")

    def _on_line(self, child: Child, line: str) -> None:
        child.last.append(line)
        self._tell(child, line)

    def _tell(self, child: Child, line: str) -> None:
        try:
            self._say(child.name, line)
        except OSError:
            self.end(1)  # The output cannot be written.

    def _signal(self, child: Child, number: int) -> bool:
        """Sends a signal. Returns whether the child was alive."""
        if child.process is None or child.process.returncode is not None:
            return False
        # Not `send_signal`: that would wait for it too.
        os.kill(child.process.pid, number)
        return True

    # -- ends --

    def _reap(self) -> None:
        """Waits for every child that has ended."""
        for child in self.children.values():
            if child.process is not None and child.lives and child.process.poll() is not None:
                task = asyncio.ensure_future(self._tell_end(child, child.process))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _tell_end(self, child: Child, process: "subprocess.Popen[bytes]") -> None:
        # Its last lines are still in the pipes. Wait at most 1 s: a process that it started may hold them
        # open.
        await asyncio.wait(child.readers, timeout=1.0)
        for reader in child.readers:
            reader.cancel()
        if process.stdin is not None:
            process.stdin.close()
        child.how = how(process.returncode)
        last = list(child.last)
        wanted = self._end.is_set()
        self._tell(child, f"ended: {child.how}")
        if not wanted and not child.is_sent_away:
            for line in last:
                self._tell(child, f"  last: {line}")
        child.ready.set()
        child.ended.set()
        if self._is_up and not wanted:
            if self._exit_on_death:
                self.end(1)
            elif not any(c.lives for c in self.children.values()):
                self._say(
                    child.name, "no node is left; `hubsub cluster start NAME` starts one, ctrl-C ends this"
                )

    async def _start_all(self) -> bool:
        """Starts the existing members or the first node, then the others, which join. Returns whether all serve."""
        first = [name for name in self.children if name in self._kept] or list(self.children)[:1]
        for names in (first, [name for name in self.children if name not in first]):
            started = await asyncio.gather(*map(self.start, names), return_exceptions=True)
            for name, outcome in zip(names, started, strict=True):
                if isinstance(outcome, StartError):
                    self._tell(self.children[name], f"error: {outcome.message}")
                elif isinstance(outcome, BaseException):
                    raise outcome
            if any(isinstance(outcome, StartError) for outcome in started):
                return False
        return True

    async def _stop_all(self) -> None:
        """SIGTERM for all, and SIGKILL for those that do not end in time."""
        self._end.set()
        living = [child for child in self.children.values() if child.lives]
        for child in living:
            self._signal(child, signal.SIGTERM)
            self._signal(child, signal.SIGCONT)  # A paused node handles SIGTERM only after SIGCONT.
        if living:
            gone = asyncio.ensure_future(
                asyncio.wait({asyncio.ensure_future(c.ended.wait()) for c in living})
            )
            hurry = asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait((gone, hurry), timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            for child in living:
                if self._signal(child, signal.SIGKILL):
                    self._tell(child, "does not stop, gets SIGKILL")
            await gone
        await asyncio.gather(*self._tasks)


def how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _ready(line: str) -> dict[str, str | None] | None:
    """The listeners of a ready line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.pop("event", None) != "ready":
        return None
    return {k: v for k, v in value.items() if v is None or isinstance(v, str)}


async def _within(seconds: float, work: Any) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        pass
