"""Raw values of a source as values of their kinds. What is wrong is collected, never raised."""

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
    """A key as a problem names it: who looks for it in a file is told if it stands in the environment."""
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
