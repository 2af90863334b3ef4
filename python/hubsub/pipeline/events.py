"""JSON payloads as typed columns; unreadable payloads are kept apart, with the reason.

Defines payload, field and time in JSON for every job. Nothing is dropped: each input row gives one output
row, with `reason` null if everything could be read.

Invariants: the result of a row depends on that row alone, not on Spark's time zone or its batch; so batch and
streaming agree.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from hubsub.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AHEAD_MAX = timedelta(hours=1)
"""How far an event's time may be after its record's: one device's wrong clock would end every window."""

_PATH = re.compile(r"\$(\.[A-Za-z_][A-Za-z0-9_-]*|\['[^'\\]+'\]|\[[0-9]+\])*")
_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}([.]\d{1,9})?"
_ZONE = r"(Z|[+-]\d{2}:?\d{2})$"
_END = '"hubsub:end"'
"""Appended to a payload to check that it is a single value: Spark's parser ignores what follows the first."""


@dataclass(frozen=True)
class Field:
    """A value of a JSON payload.

    Args:
        path: Its path, such as `$.user.name` or `$.values[0]`.
        type: Its type. `string` takes text, numbers and booleans; `timestamp` takes ISO 8601 (UTC if no zone
            is named) and Unix times in s, ms, µs or ns, distinguished by their size.
        required: Whether a payload without it, or with null there, is bad; else the column is null. Default
            true.
    """

    path: str
    type: Literal["string", "bigint", "double", "boolean", "timestamp"] = "string"
    required: bool = True

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise ConfigError(
                [Problem("path", self.path, "this is no JSON path", "such as $.ts or $.user.name")]
            )


def parsed(
    records: "DataFrame",
    fields: Mapping[str, Field],
    event_time: str | None = None,
    ahead_max: timedelta = AHEAD_MAX,
) -> "DataFrame":
    """Records with the fields of their payloads.

    Input: `payload binary`, `timestamp timestamp`; other columns are kept.
    Output: the input, `event struct<…>` with a column for each field, `event_time timestamp`, `reason
    string`.
    Grain: one row for each row.
    Null: `reason` is null for a good row. In a bad row `event` holds the readable fields, and `event_time` is
    null if unreadable. A null payload is bad.

    Reasons, the first that holds: `no_payload`, `not_utf8`, `not_json` (also two values, or a name twice),
    `missing:FIELD` (also null), `wrong_type:FIELD`, `event_time_ahead`. The field of the event's time is
    called `event_time`.

    Args:
        records: The input.
        fields: Name of the column to the field. Without any, a payload need not be JSON.
        event_time: Path of the event's time in the payload; None takes the record's timestamp.
        ahead_max: How far the event's time may be after the record's; default 1 hour.
    """
    from pyspark.sql import functions as sf

    wanted = dict(fields)
    if event_time is not None:
        wanted["event_time"] = Field(event_time, "timestamp")
    rows = records.withColumn("_json", json_of("payload")) if wanted else records
    columns = {name: _value(sf.col("_json"), field) for name, field in wanted.items()}
    if event_time is None:
        columns["event_time"] = sf.col("timestamp")

    reasons = [
        unreadable("payload", "_json") if wanted else sf.when(sf.col("payload").isNull(), "no_payload")
    ]
    for name, field in wanted.items():
        kind = _kind(sf.col("_json"), field.path)
        absent = kind.isNull() | (kind == "VOID")
        if field.required:
            reasons.append(sf.when(absent, sf.lit(f"missing:{name}")))
        reasons.append(sf.when(~absent & sf.col(f"_values.{name}").isNull(), sf.lit(f"wrong_type:{name}")))
    ahead = sf.lit(ahead_max // timedelta(microseconds=1))
    behind = sf.unix_micros("_values.event_time") - sf.unix_micros("timestamp")
    reasons.append(sf.when(behind > ahead, sf.lit("event_time_ahead")))

    rows = rows.withColumn("_values", sf.struct(*(column.alias(name) for name, column in columns.items())))
    event = sf.struct(*(sf.col(f"_values.{name}").alias(name) for name in fields)) if fields else sf.struct()
    # Does not inspect existing columns: a declarative pipeline does not allow that.
    found = {
        "event": event,
        "event_time": sf.col("_values.event_time"),
        "reason": sf.coalesce(*reasons),
    }
    return rows.withColumns(found).drop("_json", "_values")


def good(rows: "DataFrame") -> "DataFrame":
    """The readable rows of `parsed`, without `reason`. Grain: one row for each of them."""
    return rows.where("reason IS NULL").drop("reason")


def bad(rows: "DataFrame") -> "DataFrame":
    """The unreadable records of `parsed`: the input's columns and `reason`, never null."""
    return rows.where("reason IS NOT NULL").drop("event", "event_time")


def json_of(payload: str) -> "Column":
    """The single JSON value in a binary column, as a variant; null if it is anything else."""
    from pyspark.sql import functions as sf

    text = sf.col(payload).cast("string")
    whole = sf.try_parse_json(
        sf.when(sf.is_valid_utf8(text), sf.concat(sf.lit("["), text, sf.lit(f",{_END}]")))
    )
    is_one = sf.try_variant_get(whole, "$[1]", "string") == sf.lit(_END.strip('"'))
    return sf.when(is_one, sf.try_variant_get(whole, "$[0]", "variant"))


def unreadable(payload: str, json: str) -> "Column":
    """Why a payload has no `json_of`, which is the column `json`; null if it has one."""
    from pyspark.sql import functions as sf

    text = sf.col(payload).cast("string")
    return (
        sf.when(text.isNull(), "no_payload")
        .when(~sf.is_valid_utf8(text), "not_utf8")
        .when(sf.col(json).isNull(), "not_json")
    )


def _kind(json: "Column", path: str) -> "Column":
    """Spark's name of the JSON type at a path: STRING, BIGINT, OBJECT<…>, VOID for null; null if there is none."""
    from pyspark.sql import functions as sf

    return sf.schema_of_variant(sf.try_variant_get(json, path, "variant"))


def _value(json: "Column", field: Field) -> "Column":
    """The value as the field's type, or null."""
    from pyspark.sql import functions as sf

    path = field.path
    kind = _kind(json, field.path)
    if field.type == "timestamp":
        return _time(json, path, kind)
    allowed = {
        "string": ~kind.rlike("^(OBJECT|ARRAY)"),
        "bigint": kind == "BIGINT",
        "double": kind.rlike("^(BIGINT|DECIMAL|DOUBLE|FLOAT)"),
        "boolean": kind == "BOOLEAN",
    }[field.type]
    return sf.when(allowed, sf.try_variant_get(json, path, field.type))


def _time(json: "Column", path: str, kind: "Column") -> "Column":
    """ISO 8601, or a Unix time whose unit follows from its size: 10¹¹ s is the year 5138, 10¹¹ ms is 1973."""
    from pyspark.sql import functions as sf

    text = sf.try_variant_get(json, path, "string")
    text = sf.regexp_replace(text, r"^(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2})(?!:)", "$1:00")
    zoned = (
        sf.when(text.rlike(_TIME + _ZONE), text)
        .when(text.rlike(_TIME + "$"), sf.concat(text, sf.lit("Z")))
        .when(text.rlike(r"^\d{4}-\d{2}-\d{2}$"), sf.concat(text, sf.lit("T00:00:00Z")))
    )
    number = sf.try_variant_get(json, path, "decimal(28,6)")
    size = sf.abs(number)
    micros = (
        sf.when(size < 10**11, number * 10**6)
        .when(size < 10**14, number * 10**3)
        .when(size < 10**17, number)
        .when(size < sf.lit(Decimal(10**20)), number / 10**3)
    )
    is_number = kind.rlike("^(BIGINT|DECIMAL|DOUBLE|FLOAT)")
    return sf.when(kind == "STRING", zoned.try_cast("timestamp")).when(
        is_number, sf.timestamp_micros(sf.floor(micros).cast("bigint"))
    )
