"""Configuration: one table of definitions, read raw, validated once, frozen.

`definitions`, `limits` and `class_keys` are the table, `kinds` parses values, and `matching` validates class patterns.
`resolve` turns the sources into a `Config` (`model`): each value (`raw`), each class (`classes`), then
relations between them (`checks`). `reload` applies a new one to a running node, `variables` checks the other
environment variables, and `render` writes a configuration as text. The rest of the program sees only a
`Config`.
"""

from hubsub.config.class_keys import CLASS_KEYS
from hubsub.config.definitions import CLASSES_MAX, KEYS, LISTENERS, Key
from hubsub.config.kinds import (
    Bad,
    cpus,
    is_loopback,
    is_wildcard,
    join_address,
    parse_duration,
    split_address,
)
from hubsub.config.limits import LIMITS, Limit
from hubsub.config.model import PUBLIC, RESERVED, Config, History, RoomClass
from hubsub.config.reload import Reload, reloaded
from hubsub.config.resolve import load, resolve, room_classes
from hubsub.config.variables import unknown_variables

__all__ = [
    "CLASSES_MAX",
    "CLASS_KEYS",
    "KEYS",
    "LIMITS",
    "LISTENERS",
    "PUBLIC",
    "RESERVED",
    "Bad",
    "Config",
    "History",
    "Key",
    "Limit",
    "Reload",
    "RoomClass",
    "cpus",
    "is_loopback",
    "is_wildcard",
    "join_address",
    "load",
    "parse_duration",
    "reloaded",
    "resolve",
    "room_classes",
    "split_address",
    "unknown_variables",
]
