"""Kinds of configuration values: each parses values from TOML, the environment or a flag, and shows them.

A kind takes the value of a source (text, or a TOML value) and returns the value that the program uses, or
raises `Bad` with a reason and a hint. The program uses int milliseconds and int bytes; sources may add units.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_address

TIME_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class Bad(ValueError):
    """A value that its kind refuses."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Secret:
    """A text that neither logs nor a printed configuration show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return HIDDEN


HIDDEN = "***"
"""The replacement of a secret in output."""

SECRET_CHARACTERS_MIN = 16


@dataclass(frozen=True)
class Kind:
    name: str
    """Name in the reference page."""
    parse: Callable[[object], object]
    show: Callable[[object], object] = lambda value: value
    """Converts a value to a TOML type."""


def nearest(name: str, names: list[str]) -> str | None:
    """A hint with the most similar of `names`, or None."""
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else None


def parse_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise Bad("must be a text", 'write it in quotes: "…"')
    if not raw.isprintable():  # Bytes of a flag or variable that are no UTF-8 are not printable either.
        raise Bad("has characters that cannot be shown", "UTF-8 without control characters")
    return raw


def parse_secret(raw: object) -> Secret:
    text = parse_text(raw)
    if len(text) < SECRET_CHARACTERS_MIN:
        hint = f"at least {SECRET_CHARACTERS_MIN} characters, such as `openssl rand -hex 32` makes"
        raise Bad("can be guessed", hint)
    return Secret(text)


def parse_flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    word = raw.lower() if isinstance(raw, str) else ""
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise Bad("must be true or false")


def _number(raw: object, units: dict[str, int], unit_needed: bool, example: str) -> int:
    """A whole number; a text may have a unit after the number."""
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise Bad("must be a number", f"such as {example}")
    if isinstance(raw, int):
        if unit_needed:
            raise Bad("needs a unit", f"such as {example}")
        return raw
    match = re.fullmatch(r"\s*([0-9][0-9_]{0,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*", raw)
    if match is None or (unit_needed and not match[2]):
        raise Bad("must be a number" + (" with a unit" if units else ""), f"such as {example}")
    number, unit = match[1].replace("_", ""), match[2]
    scale = 1 if not unit else next((v for k, v in units.items() if k.lower() == unit.lower()), None)
    if scale is None:
        raise Bad(
            f"has an unknown unit {unit!r}", f"units: {', '.join(units)}" if units else "it takes no unit"
        )
    if "." not in number:
        return int(number) * scale
    if scale == 1:
        raise Bad("must be a whole number", f"such as {example}")
    return round(float(number) * scale)


def parse_duration(raw: object) -> int:
    """Milliseconds; a number without unit is refused."""
    return _number(raw, TIME_UNITS, unit_needed=True, example='"10s" or "7d"')


def parse_millis(raw: object) -> int:
    """Milliseconds; a number without unit is in ms."""
    return _number(raw, TIME_UNITS, unit_needed=False, example='1500 or "10s"')


def parse_size(raw: object) -> int:
    """Bytes; a number without unit is in bytes."""
    return _number(raw, SIZE_UNITS, unit_needed=False, example='65536 or "64MiB"')


def parse_count(raw: object) -> int:
    return _number(raw, {}, unit_needed=False, example="1000")


def within(parse: Callable[[object], int], low: int, high: int) -> Callable[[object], int]:
    """Limits a parser's results to a range.

    Args:
        parse: Parser to wrap.
        low: Smallest allowed result.
        high: Largest allowed result.

    Returns:
        A parser that raises `Bad` outside [low, high].
    """

    def bounded(raw: object) -> int:
        value = parse(raw)
        if not low <= value <= high:
            raise Bad(f"must be between {low} and {high}")
        return value

    return bounded


def cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split_address(text: str) -> tuple[str, int]:
    """Splits `HOST:PORT` or `[V6]:PORT` into host and port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Makes `HOST:PORT`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    host = split_address(address)[0]
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(address: str) -> bool:
    """Whether the address means all addresses of the machine."""
    return split_address(address)[0] in ("0.0.0.0", "::")


def address(port_default: int) -> Kind:
    """A kind for `HOST:PORT`: `:PORT` is loopback, `HOST` gets the default port, and `off` gives None."""

    def parse(raw: object) -> str | None:
        text = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else parse_text(raw)
        if text in ("", "off", "none"):
            return None
        hint = f"such as 127.0.0.1:{port_default}, :{port_default}, or off"
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s/@]*))(?::([0-9]{1,9}))?", text)
        if match is None:
            raise Bad("must be HOST:PORT", hint)
        host, port = match[1] or match[2] or "", match[3]
        if port is None and re.fullmatch("[0-9]{1,9}", host):
            host, port = "", host
        try:
            host.encode("idna")
        except UnicodeError:
            raise Bad("has a host that no machine can have", hint) from None
        if port is not None and int(port) > 65_535:
            raise Bad("has a port above 65535", hint)
        return join_address(host or "127.0.0.1", port_default if port is None else int(port))

    return Kind(f"HOST:PORT or off, default port {port_default}", parse, lambda value: value or "off")


def choice(*names: str) -> Kind:
    def parse(raw: object) -> str:
        if raw in names:
            return str(raw)
        raise Bad("is not known", nearest(str(raw), list(names)) or f"one of {', '.join(names)}")

    return Kind(" | ".join(names), parse)


def parse_words(raw: object) -> tuple[str, ...]:
    """A list of texts, or one text that is split at commas."""
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, list | tuple) and all(isinstance(item, str) for item in raw):
        return tuple(raw)
    raise Bad("must be a list of texts", 'such as ["a", "b"]')


def _show_list(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


TEXT = Kind("text", parse_text)
FLAG = Kind("true | false", parse_flag)
WORDS = Kind("list of text", parse_words, _show_list)
SECRET = Kind(f"text of {SECRET_CHARACTERS_MIN} characters or more", parse_secret, lambda value: HIDDEN)


def count(low: int = 0, high: int = 2**63 - 1) -> Kind:
    return Kind("number", within(parse_count, low, high))


def size(low: int = 0, high: int = 2**63 - 1) -> Kind:
    return Kind("bytes, or a size such as 64MiB", within(parse_size, low, high))


def millis(low: int = 0, high: int = 2**53) -> Kind:
    return Kind("ms, or a time such as 10s", within(parse_millis, low, high))
