"""The columns of records, as a log is read: in the order of every response, with the name of their type in Spark.

`scripts/tables.py` writes the Rust enum `Column` from it.
"""

from typing import Final

RECORD: Final = {
    "hub": "int",  # Its id.
    "term": "bigint",  # Of the hub's configuration.
    "offset": "bigint",  # Place in the hub's log.
    "room": "string",  # Name as text, escaped as `hubsub.names` does.
    "epoch": "bigint",  # Of the room.
    "seq": "bigint",  # Place in the epoch.
    "topic": "string",  # As text, like the room.
    "timestamp": "timestamp",  # In µs since 1970, UTC.
    "publisher": "string",
    "device": "string",  # As text; null if the class has no device template, or the topic does not match it.
    "headers": "map<string,string>",
    "payload": "binary",
}

COLUMNS: Final = tuple(RECORD)
