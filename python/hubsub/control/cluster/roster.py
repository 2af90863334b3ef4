"""Who the peers are, as links need it: names of hosts become IP addresses.

Names are looked up again every `AGAIN_S`, and sooner while one is not found: a peer keeps the addresses that it had.
One without addresses may still dial this node.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

import structlog

from hubsub.config import join_address, split_address
from hubsub.control.cluster.plane import Neighbour

AGAIN_S: Final = 30.0
FAILED_S: Final = 1.0

Row = tuple[str, int, Sequence[str], int]
"""As `Links.link_roster` takes it."""

log = structlog.get_logger("hubsub.cluster")


class RosterOf:
    """Gives rosters on, with addresses.

    Args:
        give: Takes all rows.
    """

    def __init__(self, give: Callable[[Sequence[Row]], None]) -> None:
        self._give = give
        self._neighbours: Sequence[Neighbour] = ()
        self._found: dict[str, tuple[str, ...]] = {}
        """Of addresses with names, what they were the last time."""
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def set(self, neighbours: Sequence[Neighbour]) -> None:
        """All of them; links of others end at once."""
        self._neighbours = neighbours
        named = set(self._named())
        self._found = {address: to for address, to in self._found.items() if address in named}
        self._tell()
        if named:
            self._news.set()
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._look_up())

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _named(self) -> list[str]:
        links = (neighbour.addresses.get("link") for neighbour in self._neighbours)
        return [link for link in links if link is not None and not _is_ip(link)]

    def _tell(self) -> None:
        self._give([(n.name, n.incarnation, self._addresses(n), n.shards) for n in self._neighbours])

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
                self._tell()
            for address in set(named) - known.keys():
                log.warning("a node's name has no address", address=address)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if len(known) == len(set(named)) else FAILED_S):
                    await self._news.wait()


async def _addresses_of(address: str) -> tuple[str, ...]:
    parts = parts_of(address)
    if parts is None:
        return ()
    host, port = parts
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # Too long for a name, perhaps.
        return ()
    found = dict.fromkeys(join_address(str(info[4][0]), port) for info in infos)
    return tuple(one for one in found if _is_ip(one))


def parts_of(address: str) -> tuple[str, int] | None:
    """Host and port of what another node's record says; None: it is no address."""
    try:
        host, port = split_address(address)
    except ValueError:
        return None
    return (host, port) if host and 0 < port < 1 << 16 else None


def _is_ip(address: str) -> bool:
    """Whether it is one as links take it, without a scope."""
    parts = parts_of(address)
    try:
        return parts is not None and "%" not in str(ip_address(parts[0]))
    except ValueError:
        return False
