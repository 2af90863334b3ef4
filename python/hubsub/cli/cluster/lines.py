"""Output lines of many nodes in one terminal: each begins with its node's name, in that node's colour."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

COLOURS = (36, 33, 35, 32, 34, 31)
"""SGR codes, in turn: cyan, yellow, magenta, green, blue, red."""

LINE_BYTES_MAX = 65_536
"""A longer line is split."""


class Lines:
    """Formats and prints the lines of all nodes.

    Args:
        names: Names of all nodes; the longest sets the column width.
        out: Default: stderr, as the output of the nodes is for people.
        environ: Default: the process's; NO_COLOR in it, with any value, disables colours (no-color.org).
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
        """Prints a line of a node. Control characters except tabs are shown as escapes."""
        shown = "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line)
        print(f"{self._heads[name]} {shown}", file=self._out, flush=True)


class Splitter:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that are complete now. Call `end` after the end of the pipe."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="backslashreplace").rstrip("\r") for line in lines]

    def end(self) -> list[str]:
        """Returns the bytes after the last line break as a line."""
        return self.feed(b"\n") if self._rest else []
