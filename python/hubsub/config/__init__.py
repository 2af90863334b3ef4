"""Configuration: one table of definitions, read raw, validated once, frozen.

`definitions` and `limits` are the table, `kinds` how values are read, `matching` what class patterns must fulfil.
`resolve` turns the sources into a `Config` (`model`): by value (`raw`), by class (`classes`), then together (`checks`).
`reload` says what of a new one a running node takes over, `variables` knows the rest of the environment, `render`
writes it all out again.
The rest of the program sees a `Config` alone.
"""

from hubsub.config.definitions import CLASS_KEYS, CLASSES_MAX, KEYS, LISTENERS, Key
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
