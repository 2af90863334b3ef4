"""Filters the stderr of Spark's processes on this machine: drops lines that every run prints and that are useless.

It drops the start-up lines of Java and Spark, the progress of `transformWithState`'s workers, and the trace
of a worker whose reader stopped early (`limit`, `show`). Everything else passes unchanged and at once, until
a signal ends the run: a signal to all its processes ends Spark too, each of whose parts then reports the loss
of the others at length.
"""

import atexit
import logging
import os
import re
import select
import socketserver
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

END_S = 1.0
"""How long to wait for the last lines, in seconds."""

_NOISE = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector"
    # Its sketches; nothing is lost.
    rb"|Warning: Java versions > Java 11 can only operate in restricted mode .*"
    rb"|Using Spark's default log4j profile: \S+"
    rb"|Setting default log level to \"WARN\"\."
    rb"|To adjust logging level use sc\.setLogLevel\(newLevel\)\..*"
    rb"|\S+ \S+ WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\.\.\. .*"
    rb"|(Starting )?Streaming TransformWithStateIn\w+ Python worker.*"
)
_NOISE_HERE = re.compile(
    rb"\S+ \S+ WARN Utils: (Your hostname, \S+ resolves to a loopback|Set SPARK_LOCAL_IP if you need) .*"
)
"""If everything is on this machine, and `connect` binds to loopback."""
_TRACE = b"Traceback (most recent call last):"
_FRAME = re.compile(rb'  File "\S+/pyspark/daemon\.py", line \d+, in \w+')
_READER_GONE = b"BrokenPipeError: "


_hushed = threading.Event()
"""Set after a signal."""


def silence_spark() -> None:
    """Drops all further output of Spark and of its clients in this process."""
    _hushed.set()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    threading.excepthook = sys.unraisablehook = _ignore
    # Of Spark's accumulators, which print the error that ends them.
    setattr(socketserver.BaseServer, "handle_error", _ignore)  # noqa: B010, a method to mypy


def _ignore(*_: object) -> None:
    pass


class StderrFilter:
    """Filters lines.

    Args:
        out: Takes the lines that pass.
        here: Whether all of Spark runs on this machine.
    """

    def __init__(self, out: Callable[[bytes], object], here: bool = True) -> None:
        self._out = out
        self._here = here
        self._trace: list[bytes] = []
        """The beginning of a trace that may come from a worker whose reader stopped early."""
        self._dropped = False
        """The last line was dropped; an empty one after it belongs to it."""

    def take(self, line: bytes) -> None:
        """Takes a line with its end."""
        text = line.rstrip()
        if self._trace and text.startswith(_READER_GONE) and len(self._trace) > 1:
            self._trace = []
        elif text == _TRACE or (self._trace and _FRAME.fullmatch(text)):
            if text == _TRACE:
                self.end()
            self._trace.append(line)
        elif _NOISE.fullmatch(text) or (self._here and _NOISE_HERE.fullmatch(text)):
            self._dropped = True
        elif text or not self._dropped:
            self.end()
            self._out(line)

    def end(self) -> None:
        """Passes the held lines: they are another trace, or the output has ended."""
        for line in self._trace:
            self._out(line)
        self._trace, self._dropped = [], False


@contextmanager
def filtered_stderr(here: bool) -> Iterator[int]:
    """A descriptor for the stderr of a process that starts in the block; it may outlive it.

    Args:
        here: Whether all of Spark runs on this machine.
    """
    reader, writer = os.pipe()
    thread = threading.Thread(target=_pump, args=(reader, here), name="hubsub-stderr", daemon=True)
    thread.start()
    atexit.register(_drain, thread, reader)
    try:
        yield writer
    except Exception:
        os.close(writer)
        thread.join(END_S)  # The process's last lines come before our own message.
        raise
    except BaseException:
        os.close(writer)
        raise
    else:
        os.close(writer)


def _pump(reader: int, here: bool) -> None:
    sieve = StderrFilter(_write, here)
    with open(reader, "rb", closefd=False) as lines:
        for line in lines:
            sieve.take(line)
    sieve.end()


def _write(line: bytes) -> None:
    if _hushed.is_set():
        return
    with suppress(OSError):  # Spark must not wait if stderr is closed.
        os.write(2, line)


def _drain(thread: threading.Thread, reader: int) -> None:
    until = time.monotonic() + END_S
    while thread.is_alive() and time.monotonic() < until and select.select([reader], [], [], 0)[0]:
        time.sleep(0.01)
