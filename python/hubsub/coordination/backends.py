"""Opens the coordinator of the configuration.

Third-party backends are entry points of the group `hubsub.discovery`, named as the scheme of their URLs. Each
is an async function that takes the URL and returns a `Coordinator`.
"""

import importlib
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points

from hubsub.config import Config
from hubsub.config.kinds import nearest
from hubsub.coordination.base import Coordinator
from hubsub.errors import ConfigError, Problem

ENTRY_POINTS = "hubsub.discovery"

Open = Callable[[str], Awaitable[Coordinator]]

BACKENDS = {"etcd": "etcd", "zookeeper": "zookeeper"}
"""Scheme to module of this package; each has `open_url` and is imported on demand."""

EMBEDDED = "embedded"

EXTRAS = {"httpx2": "etcd", "kazoo": "zookeeper"}
"""Package that a backend needs, to the extra that installs it."""


async def open_coordinator(config: Config) -> Coordinator:
    """Opens the configured coordinator: this node's member of the embedded one, or a connection.

    Args:
        config: Uses `coordinator`; for `embedded` also `node`, `data`, `raft`, `link`, `advertise`, `join`,
            `cluster_secret`.

    Raises:
        ConfigError: the URL cannot be used, or a key is missing.
        StartError: the embedded one cannot start: its files, its listener, or joining; each has its own
            subclass.
        CoordinatorUnreachableError: no server answers.
        CoordinatorRefusedError: wrong password and the like.
    """
    if config.coordinator == EMBEDDED:
        embedded = importlib.import_module("hubsub.coordination.embedded")
        opened: Coordinator = await embedded.open_embedded(config)
        return opened
    return await open_url(config.coordinator)


async def open_url(url: str) -> Coordinator:
    """Connects to the store of a URL such as `etcd://a:2379,b:2379` or `zookeeper://zk/hubsub-test`.

    Raises:
        ConfigError: the URL cannot be used.
        CoordinatorUnreachableError: no server answers.
        CoordinatorRefusedError: wrong password and the like.
    """
    return await _backend(url)(url)


def _backend(url: str) -> Open:
    scheme = url.partition("://")[0]
    if scheme in BACKENDS:
        try:
            module = importlib.import_module(f"hubsub.coordination.{BACKENDS[scheme]}")
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            hint = f"pip install hubsub[{EXTRAS[error.name]}]"
            raise ConfigError(
                [Problem("coordinator", url, f"needs the package {error.name}", hint)]
            ) from None
        built_in: Open = module.open_url
        return built_in
    found = entry_points(group=ENTRY_POINTS, name=scheme)
    if not found:
        known = [*BACKENDS, *entry_points(group=ENTRY_POINTS).names]
        hint = nearest(scheme, known) or f"one of {', '.join(known)}"
        raise ConfigError([Problem("coordinator", url, f"has an unknown scheme {scheme!r}", hint)])
    entry = next(iter(found))
    try:
        plugged_in: Open = entry.load()
    except (ImportError, AttributeError) as error:
        reason = f"its plug-in {entry.value} cannot be loaded: {error}"
        raise ConfigError([Problem("coordinator", url, reason, "install it anew, or take another")]) from None
    return plugged_in
