"""The named limits of the table `[limits]`, read from `hubsub/tables/limits.toml`, which defines all of them.

`definitions` has the other keys.
"""

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final, Literal

import msgspec

from hubsub.config.kinds import Kind, count, millis, parse_size, size


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named limit of the table `[limits]`; the fields are explained in the file."""

    name: str
    doc: str
    default: int
    low: int = 0
    high: int = 2**53
    owner: Literal["core", "control"] = "core"
    reload: bool = True
    memory_percent: int = 0
    is_parted: bool = False

    @property
    def kind(self) -> Kind:
        if self.name.endswith(("_ms", "_ms_min", "_ms_max")):
            return millis(self.low, self.high)
        return (size if "bytes" in self.name else count)(self.low, self.high)

    @property
    def env(self) -> str:
        return f"HUBSUB_LIMITS_{self.name.upper()}"


def rows(table: str) -> Iterator[dict[str, Any]]:
    """The entries of a file of `hubsub/tables`, each with its `name`."""
    for name, row in tomllib.loads((files("hubsub") / "tables" / f"{table}.toml").read_text("utf-8")).items():
        yield {"name": name} | row


def _limit(row: dict[str, Any]) -> Limit:
    for bound in ("default", "low", "high"):
        if isinstance(row.get(bound), str):
            row[bound] = parse_size(row[bound])
    return msgspec.convert(row, Limit)


LIMITS: Final = tuple(_limit(row) for row in rows("limits"))
"""All limits, in the order of the reference page."""

LIMIT: Final[Mapping[str, Limit]] = {limit.name: limit for limit in LIMITS}
"""Each limit by its name."""
