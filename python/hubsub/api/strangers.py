"""Pages of strangers: what a browser may ask for a page that this node does not serve, which is nothing.

A page may send requests to a listener that its own machine alone can reach, also where it cannot read the answers; and
it reads them if its owner turns the page's name to this node's address (DNS rebinding). The data plane judges the
listener `ws` likewise (`crates/hubsub-node/src/pages.rs`, docs/adr/0018-a-page-is-known-by-its-origin.md).
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
"""Ends of names that nobody can register."""

LOG_S: Final = 1.0
"""Between two log lines of refusals."""

SHOWN: Final = 200
"""Characters of what was said that are shown."""


class Strangers:
    """Says who is one."""

    def __init__(self) -> None:
        self._silent_until_s = 0.0

    def refused(self, headers: Headers, config: Config) -> NotAllowedError | None:
        """Why a request is not served, if it is not."""
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
    """Whether no page of a stranger's can call a node so: by an address, a name that nobody can register, or its own.

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
    """Whether a page is of this listener, or of one in front of it that has such a name."""
    try:
        page = urlsplit(origin)
        name = page.hostname
    except ValueError:
        return False
    is_here = host is not None and page.netloc.lower() == host.lower()
    return name is not None and (is_here or name in [known.lower() for known in names])
