"""Origin check: refuses requests that a browser sends for a web page that this node does not serve.

A page may send requests to a listener that only its own machine can reach, even if it cannot read the
responses. It can read them if its owner resolves the page's name to this node's address (DNS rebinding). The
data plane checks the listener `ws` in the same way (`crates/hubsub-node/src/io/origin_check.rs`,
docs/adr/0018-a-page-is-known-by-its-origin.md).
"""

import time
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers

from hubsub.config import Config
from hubsub.errors import NotAllowedError

log = structlog.get_logger()

NOBODYS: Final = (".localhost", ".local", ".internal")
"""Suffixes of names that nobody can register."""

LOG_S: Final = 1.0
"""Minimum seconds between two log lines of refusals."""

SHOWN: Final = 200
"""Characters of a refused value that are shown."""


class Strangers:
    """Checks the origin of requests and logs refusals."""

    def __init__(self) -> None:
        self._silent_until_s = 0.0

    def refused(self, headers: Headers, config: Config) -> NotAllowedError | None:
        """The error for a refused request; None if it may be served."""
        host, origin = headers.get("host"), headers.get("origin")
        if origin is not None and not _is_own(origin, host, config.hosts):
            self._note(origin=origin[:SHOWN])
            return NotAllowedError("pages of this origin are not welcome", origin[:SHOWN], "hosts")
        if host is not None and not is_called(host, config.names):
            self._note(host=host[:SHOWN])
            return NotAllowedError("this is no name of the node", host[:SHOWN], "hosts")
        return None

    def _note(self, **who: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + LOG_S
            log.warning("page refused", hint="hosts", **who)


def is_called(host: str, names: Sequence[str]) -> bool:
    """Whether no foreign page can have this host name: it is an address, a name that nobody can register, or
    the node's own.

    Args:
        host: As in `Host`, with or without a port.
        names: The node's own; `*` is any.
    """
    name, colon, port = host.rpartition(":")
    name = (name if colon and (not port or port.isdigit()) else host).rstrip(".").lower()
    if "." not in name and not name.startswith("["):
        return True
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        own = [known.lower() for known in names]
        return name.endswith(NOBODYS) or name in own or "*" in own
    return True


def _is_own(origin: str, host: str | None, names: Sequence[str]) -> bool:
    """Whether the page comes from this listener, or from a proxy in front of it that has one of the names."""
    try:
        page = urlsplit(origin)
        name = page.hostname
    except ValueError:
        return False
    is_here = host is not None and page.netloc.lower() == host.lower()
    return name is not None and (is_here or name in [known.lower() for known in names])
