"""The keys of a `[[class]]` table, read from `hubsub/tables/classes.toml`, which defines all of them."""

from typing import Any, Final, Literal

import msgspec

from hubsub.config.kinds import FLAG, TEXT, WORDS, Kind, choice, count, millis, parse_size, size
from hubsub.config.limits import rows


class ClassKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of a `[[class]]` table; the fields are explained in the file."""

    name: str
    doc: str
    kind_name: Literal["text", "words", "flag", "choice", "count", "size", "ms", "history"] = msgspec.field(
        name="kind", default="text"
    )
    default: str | int | bool | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 2**63 - 1

    @property
    def kind(self) -> Kind:
        match self.kind_name:
            case "choice":
                return choice(*self.choices)
            case "count" | "size" | "ms":
                return {"count": count, "size": size, "ms": millis}[self.kind_name](self.low, self.high)
            case "history":
                return Kind("table of messages, bytes, age, archive_wait", lambda raw: raw)
        return {"text": TEXT, "words": WORDS, "flag": FLAG}[self.kind_name]


def _key(row: dict[str, Any]) -> ClassKey:
    if row.get("kind") == "size":
        row["default"] = parse_size(row["default"])
    return msgspec.convert(row, ClassKey)


CLASS_KEYS: Final = tuple(_key(row) for row in rows("classes"))
"""All keys, in the order of the reference page."""
