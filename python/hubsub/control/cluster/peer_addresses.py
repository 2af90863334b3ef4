"""Resolves peers' host names to the IP addresses that links need.

Names are resolved again every `REFRESH_S`, and after `RETRY_S` while one fails: a peer keeps its previous
addresses. A peer without addresses may still dial this node.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Final

import structlog

from hubsub.config import join_address, split_address
from hubsub.control.cluster.plane import Neighbour
from hubsub.coordination.tasks import end, wait_set

REFRESH_S: Final = 30.0
RETRY_S: Final = 1.0

Row = tuple[str, int, Sequence[str], int]
"""A peer, as passed to `Links.link_roster`."""

log = structlog.get_logger("hubsub.cluster")


class PeerAddresses:
    """Passes rosters on, with resolved addresses.

    Args:
        give: Takes all rows.
    """

    def __init__(self, give: Callable[[Sequence[Row]], None]) -> None:
        self._set_roster = give
        self._neighbours: Sequence[Neighbour] = ()
        self._found: dict[str, tuple[str, ...]] = {}
        """Latest resolved addresses, by address with a host name."""
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def set(self, neighbours: Sequence[Neighbour]) -> None:
        """Sets all peers; links with others end at once."""
        self._neighbours = neighbours
        named = set(self._named())
        self._found = {address: to for address, to in self._found.items() if address in named}
        self._publish()
        if named:
            self._news.set()
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._look_up())

    async def close(self) -> None:
        await end(self._worker)

    def _named(self) -> list[str]:
        links = (neighbour.addresses.get("link") for neighbour in self._neighbours)
        return [link for link in links if link is not None and not _is_ip(link)]

    def _publish(self) -> None:
        self._set_roster([(n.name, n.incarnation, self._addresses(n), n.shards) for n in self._neighbours])

    def _addresses(self, neighbour: Neighbour) -> tuple[str, ...]:
        link = neighbour.addresses.get("link")
        if link is None:
            return ()
        return (link,) if _is_ip(link) else self._found.get(link, ())

    async def _look_up(self) -> None:
        while named := self._named():
            self._news.clear()
            found = await asyncio.gather(*map(_addresses_of, named))
            known = {address: to for address, to in zip(named, found, strict=True) if to}
            if any(self._found.get(address) != to for address, to in known.items()):
                self._found |= known
                self._publish()
            for address in set(named) - known.keys():
                log.warning("a node's name has no address", address=address)
            await wait_set(self._news, REFRESH_S if len(known) == len(set(named)) else RETRY_S)


async def _addresses_of(address: str) -> tuple[str, ...]:
    parts = host_port(address)
    if parts is None:
        return ()
    host, port = parts
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # `UnicodeError`: for example a label that is too long.
        return ()
    found = dict.fromkeys(join_address(str(info[4][0]), port) for info in infos)
    return tuple(one for one in found if _is_ip(one))


def host_port(address: str) -> tuple[str, int] | None:
    """Splits an address from a node's record into host and port; None: it is no address."""
    try:
        host, port = split_address(address)
    except ValueError:
        return None
    return (host, port) if host and 0 < port < 1 << 16 else None


def _is_ip(address: str) -> bool:
    """Whether the host is an IP address without a scope, as links need it."""
    parts = host_port(address)
    try:
        return parts is not None and "%" not in str(ip_address(parts[0]))
    except ValueError:
        return False
