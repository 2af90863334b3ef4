"""The core's configuration, and helpers that need no running node."""

import os
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hubsub import _native
from hubsub.config import Config, RoomClass

CONFIG_FIELDS = (
    *("node", "shards", "redis", "redis_cluster", "mqtt", "ws", "link", "advertise", "hash_tags"),
    *("mqtt_strict", "mqtt_long_ids", "mqtt_wills_recorded"),
)


class Cluster(NamedTuple):
    """Cluster data for a node's data directory."""

    id: str
    """Id of the cluster; a directory belongs to one cluster for ever."""
    adopts: bool = False
    """Whether hubs that the node numbered by itself become the cluster's; true for the node that bootstraps it."""


def core_config(
    config: Config, incarnation: int, cluster: Cluster | None = None, accepts: bool = True
) -> dict[str, Any]:
    """The configuration in the core's form.

    Args:
        config: The resolved configuration.
        incarnation: Number of this start.
        cluster: The cluster that numbers its hubs; None: the node itself.
        accepts: Whether clients are accepted from the start.
    """
    return {name: getattr(config, name) for name in CONFIG_FIELDS} | {
        "incarnation": incarnation,
        "ws_origins": list(config.ws_origins),
        "hosts": list(config.names),
        "phoenix_topics": list(config.phoenix_topics),
        "accepts": accepts,
        "limits": config.core_limits(),
        "log": _log(config, cluster),
        "inflight_store": _inflight_store(config, cluster),
        "classes": [core_class(cls) for cls in config.all_classes],
    }


def _log(config: Config, cluster: Cluster | None) -> tuple[str, int, tuple[str, bool] | None] | None:
    """Directory of the log, identity of a new one, the cluster that numbers its hubs; None without a data directory."""
    if config.data is None:
        return None
    return str(Path(config.data) / "log"), secrets.randbits(64), cluster


def _inflight_store(config: Config, cluster: Cluster | None) -> tuple[str, ...]:
    """The session store and its location. Nodes of one cluster share the sessions in one server."""
    match config.inflight_store:
        case "log" | "memory" as word:
            return (word,)
        case "disk":
            assert config.data is not None, "the configuration was checked"
            return ("disk", str(Path(config.data) / "sessions.redb"))
        case url:
            return ("redis", url, config.node if cluster is None else cluster.id)


CONTROL_KEYS = ("device_state", "device_actions", "members", "placement", "on_partition")
"""Keys of a class that the control plane alone needs."""


def core_class(cls: RoomClass, is_removed: bool = False) -> dict[str, Any]:
    """A class in the core's form; a removed one gets no new rooms."""
    fields: dict[str, Any] = msgspec.to_builtins(cls)
    for name in CONTROL_KEYS:
        del fields[name]
    return fields | {"room": None if cls.room == "topic" else cls.room, "is_removed": is_removed}


def room_of(config: Config, topic: bytes) -> tuple[bytes, str]:
    """Room of a topic and the name of its class, as the data plane resolves it."""
    return _native.room_of([core_class(cls) for cls in config.all_classes], config.hash_tags, topic)


def log_problem(error: OSError, directory: str | Path | None) -> tuple[str, str | Path | None, str | None]:
    """Splits the core's error about a log into message, directory, and hint.

    Args:
        error: As the core raised it.
        directory: As the operator named it.
    """
    what, _, hint = (error.strerror or str(error)).partition("; hint: ")
    if not hint and what.startswith("manifest.json is damaged"):
        hint = f"stop the node, then `hubsub log repair {directory}` says what can be kept"
    is_named = directory is None or str(directory) in what or "inflight_store" in what
    return what, None if is_named else directory, hint or None


def write_synced(file: Path, text: str) -> None:
    """Replaces a file so that after a power loss it has either the old or the new text."""
    new = file.with_suffix(".new")
    with open(new, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
