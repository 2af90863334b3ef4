"""The columns of records, for Spark and for Arrow.

The two agree exactly, including nullability and names of map entries: Spark compares the schema of the first
batch with its own and refuses any difference.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hubsub.columns import COLUMNS, RECORD
from hubsub.errors import OptionError
from hubsub.pipeline.options import CAUGHT_UP

if TYPE_CHECKING:
    import pyarrow as pa

_OF_NAME: dict[str, DataType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "binary": BinaryType(),
}
_TYPES = {name: _OF_NAME[kind] for name, kind in RECORD.items()} | {CAUGHT_UP: BooleanType()}


def spark_schema(columns: Iterable[str] = COLUMNS) -> StructType:
    """The schema of these columns, in this order."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def arrow_schema(columns: Iterable[str] = COLUMNS) -> "pa.Schema":
    """The same for Arrow, as Spark requires it."""
    import pyarrow as pa

    types = {
        "int": pa.int32(),
        "bigint": pa.int64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
    }
    return pa.schema([(name, types[_TYPES[name].simpleString()]) for name in columns])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a user-defined schema: any of ours, in any order.

    Raises:
        OptionError: it names another column, or one of ours with another type.
    """
    for field in schema.fields:
        known = _TYPES.get(field.name)
        if known is None:
            raise OptionError("records have no such column", field.name, f"there are {', '.join(COLUMNS)}")
        if field.dataType != known:
            was = f"{field.name} {field.dataType.simpleString()}"
            raise OptionError("a column has another type", was, f"it is {known.simpleString()}")
    return tuple(schema.fieldNames())
