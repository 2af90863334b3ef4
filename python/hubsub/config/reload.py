"""What a reload takes over, and what holds until the next start.

The definitions say which keys and limits can change while running; room
classes cannot. What cannot keeps its old value, so the outcome is what the
node really runs with.
"""

from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hubsub.config.definitions import KEYS
from hubsub.config.limits import LIMITS
from hubsub.config.model import Config


class Reload(NamedTuple):
    """The outcome of a reload."""

    config: Config
    """In force from now on."""
    limits: dict[str, int]
    """The limits that change, with their new values."""
    next_start: list[str]
    """What differs and takes effect at the next start, by its place in the file."""


def reloaded(old: Config, new: Config) -> Reload:
    """The configuration in force after `new` was read while `old` was in force."""
    kept_keys = {key.name: getattr(old, key.name) for key in KEYS if not key.reload}
    kept_limits = {limit.name: old.limits[limit.name] for limit in LIMITS if not limit.reload}
    limits = {**new.limits, **kept_limits}
    next_start = [name for name, value in kept_keys.items() if getattr(new, name) != value]
    next_start += [f"limits.{name}" for name, value in kept_limits.items() if new.limits[name] != value]
    if new.classes != old.classes:
        next_start.append("class")
    config = msgspec.structs.replace(new, limits=MappingProxyType(limits), classes=old.classes, **kept_keys)
    changed = {name: value for name, value in limits.items() if value != old.limits[name]}
    return Reload(config, changed, next_start)
