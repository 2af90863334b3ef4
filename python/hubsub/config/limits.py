"""The named limits of the table `[limits]`, read from `hubsub/tables/limits.toml`, which defines all of them.

`definitions` has the other keys.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, Literal

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


def _read() -> dict[str, Limit]:
    table = tomllib.loads((files("hubsub") / "tables" / "limits.toml").read_text("utf-8"))
    for name, row in table.items():
        row["name"] = name
        for bound in ("default", "low", "high"):
            if isinstance(row.get(bound), str):
                row[bound] = parse_size(row[bound])
    return msgspec.convert(table, dict[str, Limit])


LIMIT: Final[Mapping[str, Limit]] = _read()
"""Each limit by its name."""

LIMITS: Final = tuple(LIMIT.values())
"""All limits, in the order of the reference page."""
