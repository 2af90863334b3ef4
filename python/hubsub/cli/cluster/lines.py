"""Lines of many nodes in one terminal: each begins with its node's name, in that node's colour."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

COLOURS = (36, 33, 35, 32, 34, 31)
"""SGR codes, in turn: cyan, yellow, magenta, green, blue, red."""

LINE_BYTES_MAX = 65_536
"""A longer line comes in parts."""


class Lines:
    """Where the lines go.

    Args:
        names: Of all that write; the longest sets the column.
        out: Default: stderr, for what the nodes say is for people.
        environ: Default: the process's; NO_COLOR in it, with any value, means none (no-color.org).
    """

    def __init__(
        self, names: Sequence[str], out: TextIO | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._out = out or sys.stderr
        environ = os.environ if environ is None else environ
        width = max(map(len, names))
        coloured = self._out.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._heads = {
            name: f"\x1b[{COLOURS[i % len(COLOURS)]}m{name:<{width}} |\x1b[0m"
            if coloured
            else f"{name:<{width}} |"
            for i, name in enumerate(names)
        }

    def say(self, name: str, line: str) -> None:
        """A line of a node. Control characters, but for tabs, are shown and not obeyed."""
        shown = "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line)
        print(f"{self._heads[name]} {shown}", file=self._out, flush=True)


class Splitter:
    """Bytes in, whole lines out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are whole now; those of a pipe that has ended with `end`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="backslashreplace").rstrip("\r") for line in lines]

    def end(self) -> list[str]:
        """What stood behind the last end of line."""
        return self.feed(b"\n") if self._rest else []
