"""Applies a reloaded configuration to a running node.

The definitions mark the keys and limits that can change at run time; room classes cannot. All others keep
their old value until the next start, so the outcome is the configuration in force.
"""

from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hubsub.config.definitions import KEYS
from hubsub.config.limits import LIMITS
from hubsub.config.model import Config


class Reload(NamedTuple):
    config: Config
    """The configuration in force from now on."""
    limits: dict[str, int]
    """New values of the limits that change, by name."""
    next_start: list[str]
    """Keys whose new value takes effect at the next start, by name in the file."""


def reloaded(old: Config, new: Config) -> Reload:
    """Merges a newly read configuration into the one in force."""
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
