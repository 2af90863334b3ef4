"""Parses raw values of a source by their kinds. Problems are collected, never raised."""

from collections.abc import Mapping
from typing import Any

from hubsub.config.kinds import HIDDEN, Bad, Kind, nearest
from hubsub.config.model import Source
from hubsub.errors import Problem


def parse(problems: list[Problem], name: str, kind: Kind, raw: object, is_secret: bool = False) -> Any:
    try:
        return kind.parse(raw)
    except Bad as bad:
        problems.append(Problem(name, HIDDEN if is_secret else raw, bad.reason, bad.hint))
        return None


def named(name: str, env: str, sources: Mapping[str, Source], in_file: str | None = None) -> str:
    """The key's name in a problem, with its environment variable if the value came from there.

    Args:
        name: Key, or `limits.NAME`.
        env: Environment variable of the key.
        sources: Source of each key.
        in_file: Name of the key in a file; default: `name`.
    """
    return f"{in_file or name}, from {env}" if sources[name] == "environment" else in_file or name


def unknown(problems: list[Problem], table: Mapping[str, Any], names: list[str], prefix: str) -> None:
    strange = [name for name in table if name not in names]
    problems.extend(Problem(prefix + name, None, "is no key", nearest(name, names)) for name in strange)


def table_of(problems: list[Problem], name: str, raw: object, kind: type) -> Any:
    if isinstance(raw, kind):
        return raw
    problems.append(
        Problem(name, raw, "must be a table", f"write [{name}]" if kind is dict else f"write [[{name}]]")
    )
    return kind()
