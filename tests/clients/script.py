"""Scripts of commands on several connections, and the server's replies.

A script file holds scripts, each headed by `== name` and optionally `[resp2]` or `[resp3]` (else it runs in
both). A line is one step of one connection, which is opened at its first use:

    a> SUBSCRIBE x y     send a command, read its replies (one; for a (un)subscribe with
                         arguments: one per argument)
    a>3 PING             send a command, read 3 frames (0: none)
    a| PING\\r\\n         send these raw bytes, read one frame; `a|2` two
    a<2                  read 2 frames that another step caused
    a.                   the server closes now; read everything that it still sent

`=> mask` after a step names the differences that are allowed (see MASKS). An argument in double quotes has
Python's escapes; `{x*300}` is 300 times x. At the end each open connection sends QUIT and is read to its end,
so an excess frame is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clients.raw import Connection, Frame, encode

_LINE = re.compile(r"(?P<who>\w+)(?P<verb>[>|<.])(?P<count>\d*) ?(?P<rest>.*?) ?(?:=> (?P<mask>\w+))?$")
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_REPEAT = re.compile(r"\{([^{}*]+)\*(\d+)\}")
_PER_ARGUMENT = {f"{p}{v}SUBSCRIBE" for p in ("", "P", "S") for v in ("", "UN")}


@dataclass(frozen=True)
class Step:
    """One line. `data` is sent, then `count` frames are read; None: all until the end."""

    line: str
    who: str
    data: bytes
    count: int | None
    mask: str | None


@dataclass(frozen=True)
class Script:
    """A named list of steps, and the protocols in which it is valid."""

    name: str
    protocols: tuple[int, ...]
    steps: tuple[Step, ...]


def _unescape(text: str) -> bytes:
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")


def _repeat(text: str) -> str:
    return _REPEAT.sub(lambda m: m[1] * int(m[2]), text)


def _step(line: str) -> Step:
    match = _LINE.match(line)
    assert match, f"not a step: {line}"
    who, verb, rest = match["who"], match["verb"], _repeat(match["rest"])
    count: int | None = int(match["count"] or 1)
    data = b""
    if verb == ">":
        words = [_unescape(m[1]) if m[2] is None else m[2].encode() for m in _TOKEN.finditer(rest)]
        data = encode(*words)
        if not match["count"] and words[0].decode().upper() in _PER_ARGUMENT:
            count = max(1, len(words) - 1)
    elif verb == "|":
        data = _unescape(rest)
    elif verb == ".":
        count = None
    return Step(line, who, data, count, match["mask"])


def load(path: Path) -> list[Script]:
    """The scripts of a file, in order."""
    scripts: list[Script] = []
    for block in re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]:
        head, _, body = block.partition("\n")
        name, _, only = head.partition("[")
        protocols = {"": (2, 3), "resp2]": (2,), "resp3]": (3,)}[only.strip()]
        lines = [line.strip() for line in body.splitlines()]
        steps = tuple(_step(line) for line in lines if line and not line.startswith("#"))
        scripts.append(Script(name.strip().replace(" ", "_"), protocols, steps))
    return scripts


Transcript = list[tuple[str, list[Frame]]]


def run(script: Script, resp: int, host: str, port: int) -> Transcript:
    """Runs a script; returns each step's line with its frames, masked."""
    open_: dict[str, Connection] = {}
    transcript: Transcript = []
    try:
        for step in script.steps:
            if step.who not in open_:
                open_[step.who] = Connection(host, port, resp)
            connection = open_[step.who]
            try:
                if step.data:
                    connection.send(step.data)
                if step.count is None:
                    frames = connection.read_to_end()
                    open_.pop(step.who).close()
                else:
                    frames = connection.read_many(step.count)
            except (TimeoutError, EOFError, ConnectionError) as e:
                raise AssertionError(f"{script.name} at `{step.line}`: {e!r}") from e
            transcript.append((step.line, MASKS[step.mask](frames) if step.mask else frames))
        for who, connection in open_.items():
            connection.command("QUIT")
            transcript.append((f"{who} at the end", connection.read_to_end()))
    finally:
        for connection in open_.values():
            connection.close()
    return transcript


# Allowed differences between two correct servers.


def _hello(frames: list[Frame]) -> list[Frame]:
    """HELLO: version and id differ between servers."""
    (frame,) = frames
    assert isinstance(frame.value, tuple), frame
    items = list(frame.value)
    for i in range(0, len(items), 2):
        if items[i].value in (b"version", b"id"):
            items[i + 1] = Frame(items[i + 1].kind, b"*")
    return [Frame(frame.kind, tuple(items))]


_CLIENT_KEYS = ("name", "flags", "db", "sub", "psub", "multi", "cmd", "user", "resp")


def _clients(frames: list[Frame]) -> list[Frame]:
    """CLIENT LIST and INFO: only the fields that describe a client, without numbers."""
    (frame,) = frames
    assert isinstance(frame.value, bytes), frame
    lines = []
    for line in frame.value.decode().split("\n"):
        fields = dict(field.split("=", 1) for field in line.removeprefix("txt:").split(" ") if field)
        lines.append(" ".join(f"{key}={fields.get(key)}" for key in _CLIENT_KEYS) if fields else "")
    return [Frame(frame.kind, "\n".join(lines).encode())]


def _set(frames: list[Frame]) -> list[Frame]:
    """Frames in unspecified order: those of several patterns for one record."""
    return sorted(frames, key=repr)


def _sorted(frames: list[Frame]) -> list[Frame]:
    """Arrays whose order is irrelevant."""
    return [
        Frame(f.kind, tuple(sorted(f.value, key=repr))) if isinstance(f.value, tuple) else f for f in frames
    ]


def _unsubscribed(frames: list[Frame]) -> list[Frame]:
    """UNSUBSCRIBE of all: the names come in any order, the counts decrease in order."""
    names = sorted((f.value[1] for f in frames if isinstance(f.value, tuple)), key=repr)
    return [
        Frame(f.kind, (f.value[0], name, *f.value[2:])) if isinstance(f.value, tuple) else f
        for f, name in zip(frames, names, strict=True)
    ]


def _number(frames: list[Frame]) -> list[Frame]:
    """Replaces an integer by `*`."""
    return [Frame(f.kind, b"*" if f.kind == ":" else f.value) for f in frames]


def _shape(frames: list[Frame]) -> list[Frame]:
    """Only the frames' kinds and, of arrays, their items' kinds."""

    def shape(frame: Frame) -> Frame:
        if isinstance(frame.value, tuple):
            return Frame(frame.kind, tuple(shape(item) for item in frame.value))
        return Frame(frame.kind, None)

    return [shape(f) for f in frames]


def _commands(frames: list[Frame]) -> list[Frame]:
    """COMMAND INFO: only each command's name and arity."""
    (frame,) = frames
    assert isinstance(frame.value, tuple), frame
    rows = [Frame(f.kind, f.value[:2]) if isinstance(f.value, tuple) else f for f in frame.value]
    return [Frame(frame.kind, tuple(rows))]


def _kind(frames: list[Frame]) -> list[Frame]:
    """Only the frames' kinds."""
    return [Frame(f.kind, None) for f in frames]


MASKS: dict[str, Callable[[list[Frame]], list[Frame]]] = {
    "hello": _hello,
    "clients": _clients,
    "set": _set,
    "sorted": _sorted,
    "unsubscribed": _unsubscribed,
    "number": _number,
    "shape": _shape,
    "commands": _commands,
    "kind": _kind,
}
