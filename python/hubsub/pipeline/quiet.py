"""What Spark's processes on this machine say on stderr, less what every run says and nobody can use.

Left out are the lines with which Java and Spark start, the progress of `transformWithState`'s workers, and the trace
of a worker that wrote on when its reader had enough (`limit`, `show`). Everything else goes through as it came, and
at once, until a signal ends the run: one to all its processes ends Spark too, each of whose parts then tells at length
that the others are gone.
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
"""How long what was said at the end is waited for."""

_NOISE = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector"
    rb"|Warning: Java versions > Java 11 can only operate in restricted mode .*"  # Its sketches; nothing is lost.
    rb"|Using Spark's default log4j profile: \S+"
    rb"|Setting default log level to \"WARN\"\."
    rb"|To adjust logging level use sc\.setLogLevel\(newLevel\)\..*"
    rb"|\S+ \S+ WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\.\.\. .*"
    rb"|(Starting )?Streaming TransformWithStateIn\w+ Python worker.*"
)
_NOISE_HERE = re.compile(
    rb"\S+ \S+ WARN Utils: (Your hostname, \S+ resolves to a loopback|Set SPARK_LOCAL_IP if you need) .*"
)
"""Where all is on this machine, and `connect` binds to loopback."""
_TRACE = b"Traceback (most recent call last):"
_FRAME = re.compile(rb'  File "\S+/pyspark/daemon\.py", line \d+, in \w+')
_READER_GONE = b"BrokenPipeError: "


_hushed = threading.Event()
"""A signal has come."""


def hush() -> None:
    """Leaves out all that Spark and what speaks to it in this process say from now on."""
    _hushed.set()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    threading.excepthook = sys.unraisablehook = _say_nothing
    # Of Spark's accumulators, which print what they die of.
    setattr(socketserver.BaseServer, "handle_error", _say_nothing)  # noqa: B010, a method to mypy


def _say_nothing(*_: object) -> None:
    pass


class Sieve:
    """Takes lines, and passes on those that say something.

    Args:
        out: What takes them.
        here: Whether all of Spark runs on this machine.
    """

    def __init__(self, out: Callable[[bytes], object], here: bool = True) -> None:
        self._out = out
        self._here = here
        self._trace: list[bytes] = []
        """The begin of one that may be of a worker whose reader had enough."""
        self._dropped = False
        """The last line was; an empty one behind it belongs to it."""

    def take(self, line: bytes) -> None:
        """A line with its end."""
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
        """What was held is something else, or nothing comes any more."""
        for line in self._trace:
            self._out(line)
        self._trace, self._dropped = [], False


@contextmanager
def sieved(here: bool) -> Iterator[int]:
    """A descriptor as the stderr of a process that starts in the block; it may outlive it.

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
        thread.join(END_S)  # What it died of comes before what we say of it.
        raise
    except BaseException:
        os.close(writer)
        raise
    else:
        os.close(writer)


def _pump(reader: int, here: bool) -> None:
    sieve = Sieve(_write, here)
    with open(reader, "rb", closefd=False) as lines:
        for line in lines:
            sieve.take(line)
    sieve.end()


def _write(line: bytes) -> None:
    if _hushed.is_set():
        return
    with suppress(OSError):  # Nobody listens; Spark must not wait for that.
        os.write(2, line)


def _drain(thread: threading.Thread, reader: int) -> None:
    until = time.monotonic() + END_S
    while thread.is_alive() and time.monotonic() < until and select.select([reader], [], [], 0)[0]:
        time.sleep(0.01)
