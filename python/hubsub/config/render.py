"""A configuration as text: TOML for `hubsub config show` and test nodes, Markdown for the reference page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hubsub.config.class_keys import CLASS_KEYS
from hubsub.config.definitions import KEYS, Key
from hubsub.config.kinds import SIZE_UNITS, TIME_UNITS
from hubsub.config.limits import LIMITS
from hubsub.config.memory import SHARES
from hubsub.config.model import Config, RoomClass


def toml(table: Mapping[str, Any]) -> str:
    """Writes a mapping of TOML types as a TOML document, without None values."""
    lines = _lines({k: v for k, v in table.items() if not _is_table(v)})
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(name)}]", *_lines(value)]
        elif _is_table(value):
            for row in value:
                lines += ["", f"[[{_key(name)}]]", *_lines(row)]
    return "\n".join(lines).lstrip("\n") + "\n"


def show(config: Config) -> str:
    """Writes a configuration as TOML with each value's source. Parsing it restores all values but secrets."""
    lines: list[str] = []
    tables: dict[str, list[str]] = {}
    for key in KEYS:
        name = key.in_file.partition(".")[2] if key.table else key.name
        into = tables.setdefault(key.table, []) if key.table else lines
        value = key.kind.show(getattr(config, key.name))
        if key.is_secret:
            if getattr(config, key.name) is not None:
                into.append(f"{f'# {name} is set, and not shown':<48} # {config.sources[key.name]}")
        elif value is not None:
            # A value with a hidden part is commented out: it would be parsed as another value.
            mark = "# " if _hides(value, getattr(config, key.name)) else ""
            into.append(f"{f'{mark}{name} = {_value(value)}':<48} # {config.sources[key.name]}")
    for table, rows in tables.items():
        lines += ["", f"[{table}]", *rows]
    lines += ["", "[limits]"]
    for limit in LIMITS:
        line = f"{limit.name} = {config.limits[limit.name]}"
        lines.append(f"{line:<48} # {config.sources[f'limits.{limit.name}']}")
    for cls in config.classes:
        lines += ["", "[[class]]", *_lines(class_table(cls))]
    return "\n".join(lines) + "\n"


def plain(config: Config) -> dict[str, Any]:
    """The resolved configuration in JSON types, with the sources."""
    table: dict[str, Any] = {key.name: _shown(key, getattr(config, key.name)) for key in KEYS}
    table["limits"] = dict(config.limits)
    table["class"] = [class_table(cls) for cls in config.classes]
    table["sources"] = dict(config.sources)
    return table


def _shown(key: Key, value: object) -> object:
    shown = value if value is None else key.kind.show(value)
    return shown if key.is_secret or _hides(shown, value) else value


def _hides(shown: object, value: object) -> bool:
    """Whether the shown text hides a part of the value."""
    return isinstance(value, str) and shown != value


def class_table(cls: RoomClass) -> dict[str, Any]:
    table: dict[str, Any] = msgspec.to_builtins(cls)
    # It is not a key of `[[class]]`.
    del table["keeps_latest"]
    if cls.history is not None:
        limits = {"messages": cls.history.messages, "bytes": cls.history.bytes}
        limits["archive_wait"] = cls.history.archive_wait
        table["history"] = {k: v for k, v in limits.items() if v}
        if cls.history.age_ms:
            table["history"]["age"] = f"{cls.history.age_ms}ms"
    return table


def reference() -> str:
    """Renders the page docs/reference/config.md."""
    out = [
        "# Configuration",
        "",
        "Written from the definitions by `make fix`; change the files of `python/hubsub/tables` instead.",
        "",
        "A value comes from, first found: the flag, the environment, the file (`--config FILE` or `HUBSUB_CONFIG`),",
        "the default. Every flag of `hubsub serve` is a key of the file. `hubsub config check` reports all that is",
        "wrong at once, `hubsub config show` prints each value with its source. A `HUBSUB_…` variable that means",
        "nothing is a warning, at the start and of `hubsub config check`.",
        "",
        f"Times take the units {', '.join(TIME_UNITS)}; sizes {', '.join(SIZE_UNITS)}.",
        "",
        "## Keys",
        "",
        *_rows(
            ("key", "flag", "environment", "value", "default", "meaning"),
            (
                (
                    f"`{key.in_file}`",
                    "" if key.is_secret else f"`{key.flag}`",
                    f"`{key.env}`",
                    key.kind.name,
                    _default(key.default),
                    key.doc + (" Taken over on SIGHUP." if key.reload else ""),
                )
                for key in KEYS
            ),
        ),
        "",
        "## `[limits]`",
        "",
        "As flag: `--limit NAME=VALUE`; in the environment: `HUBSUB_LIMITS_NAME`. Taken over on SIGHUP, but for those",
        "marked *at start*. What a connection is set up with (`handshake_ms`, `tcp_…`, `http_connections_max`) holds",
        "for connections made from then on.",
        "",
        *_rows(
            ("limit", "value", "default", "meaning"),
            (
                (
                    f"`{limit.name}`",
                    limit.kind.name,
                    _default(limit.default) + _share(limit.name),
                    limit.doc + ("" if limit.reload else " *At start.*"),
                )
                for limit in LIMITS
            ),
        ),
        "",
        "## `[[class]]`",
        "",
        "A room has the first class that matches its name and keeps it for life; a default class behind all others",
        "matches every name and remembers nothing.",
        "",
        *_rows(
            ("key", "value", "default", "meaning"),
            ((f"`{key.name}`", key.kind.name, _default(key.default), key.doc) for key in CLASS_KEYS),
        ),
    ]
    return "\n".join(out) + "\n"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def _default(value: object) -> str:
    return "" if value is None or value == () else f"`{_value(value)}`"


def _share(limit: str) -> str:
    """The maximum of a pool's limit that is not set, as text."""
    if limit not in SHARES:
        return ""
    percent, is_parted = SHARES[limit]
    return f"; at most {percent} % of `memory`" + (", parted among shards" if is_parted else "")


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)
    )


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None]


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _text(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return _text(str(value))


def _text(text: str) -> str:
    """A TOML basic string: JSON's escapes, and DEL, which TOML requires to be escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
