"""Response of `GET /v1/log`: the identity of the log and its hubs, at one moment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A hub that has a log. Offsets count from 1."""

    id: int
    name: str
    earliest: int
    """Offset of its oldest record, or of the next one."""
    end: int
    """First offset that is not committed: the end of a read."""
    bytes: int = 0
    first_timestamp_us: int | None = None
    """Of its oldest record in a segment; None without one."""
    servers: tuple[str, ...] = ()
    """`HOST:PORT` of the HTTP listeners that serve it, leader first."""

    @classmethod
    def decode(cls, row: Mapping[str, Any]) -> Self:
        return cls(
            id=row["hub"],
            name=row["name"],
            earliest=row["earliest"],
            end=row["committed_until"],
            bytes=row["bytes"],
            first_timestamp_us=row["first_timestamp_us"],
            servers=tuple(row["servers"]),
        )

    @property
    def row_bytes(self) -> float:
        """Average bytes of a record of this hub; 1 if unknown."""
        return max(self.bytes / (self.end - self.earliest), 1.0) if self.end > self.earliest else 1.0


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Hubs of one log, by id."""

    log: str
    """Identity of the log: offsets mean nothing in another. Empty: there is none, and no hub."""
    hubs: Mapping[int, Hub]
    ephemeral: tuple[str, ...] = ()
    """Requested classes that have no log."""

    @classmethod
    def decode(cls, body: Mapping[str, Any]) -> Self:
        hubs = (Hub.decode(row) for row in body["hubs"])
        return cls(
            log=body["log"] or "", hubs={hub.id: hub for hub in hubs}, ephemeral=tuple(body["ephemeral"])
        )

    def find(self, name: str) -> Hub | None:
        return next((hub for hub in self.hubs.values() if name in (str(hub.id), hub.name)), None)

    @staticmethod
    def join(listings: Iterable["Listing"]) -> "Listing":
        """Combines the listings of a request that was split; there is at least one."""
        first, *more = listings
        hubs, ephemeral = dict(first.hubs), dict.fromkeys(first.ephemeral)
        for listing in more:
            hubs |= listing.hubs
            ephemeral |= dict.fromkeys(listing.ephemeral)
        return Listing(log=first.log, hubs=dict(sorted(hubs.items())), ephemeral=tuple(ephemeral))
