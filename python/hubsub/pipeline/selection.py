"""Selects the records of a read: a plain value, and the equivalent parameters of a request.

All conditions must hold. Names are text as names.py writes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self, TypeVar
from urllib.parse import quote

from hubsub.pipeline.options import SourceOptions

NAMES_BYTES_MAX = 16 << 10
"""Names in a request, in its encoded form: servers and proxies accept heads of 64 KiB, some of 32."""

OFFSET_END = 2**63

_T = TypeVar("_T", str, int)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Records of these hubs, offsets, rooms, topics, devices and times."""

    hub_first: int = 0
    hub_end: int = 2**32
    hubs: frozenset[int] | None = None
    """Only these; None: all."""
    first: int = 1
    """First offset of the range."""
    end: int = OFFSET_END
    """First offset after the range."""
    rooms: frozenset[str] | None = None
    """Any of these; None: all."""
    room_prefix: str | None = ""
    """None: no room can match."""
    room_pattern: str | None = None
    topics: frozenset[str] | None = None
    topic_prefix: str | None = ""
    topic_filters: tuple[str, ...] = ()
    """Any of these; none: all."""
    devices: frozenset[str] | None = None
    since_us: int | None = None
    until_us: int | None = None
    """First timestamp after the range."""

    @classmethod
    def of(cls, options: SourceOptions) -> Self:
        return cls(
            rooms=frozenset(options.subscribe) if options.subscribe else None,
            room_pattern=options.subscribe_pattern,
            topic_filters=options.topic_filter,
            since_us=options.starting_timestamp_us,
            until_us=options.ending_timestamp_us,
        )

    @property
    def nothing(self) -> bool:
        return (
            self.rooms == frozenset()
            or self.topics == frozenset()
            or self.devices == frozenset()
            or self.room_prefix is None
            or self.topic_prefix is None
            or self.first >= self.end
            or (self.since_us is not None and self.until_us is not None and self.since_us >= self.until_us)
        )

    def has_hub(self, hub: int) -> bool:
        return self.hub_first <= hub < self.hub_end and (self.hubs is None or hub in self.hubs)

    # Each of these is this selection and one condition more.

    def with_hubs(self, hubs: Iterable[int]) -> Self:
        return replace(self, hubs=_both(self.hubs, frozenset(hubs)))

    def with_hub_range(self, first: int, end: int) -> Self:
        return replace(self, hub_first=max(self.hub_first, first), hub_end=min(self.hub_end, end))

    def with_offsets(self, first: int, end: int) -> Self:
        return replace(self, first=max(self.first, first), end=min(self.end, end))

    def with_times(self, since_us: int | None, until_us: int | None) -> Self:
        since = max((t for t in (self.since_us, since_us) if t is not None), default=None)
        until = min((t for t in (self.until_us, until_us) if t is not None), default=None)
        return replace(self, since_us=since, until_us=until)

    def with_rooms(self, rooms: Iterable[str]) -> Self:
        return replace(self, rooms=_both(self.rooms, frozenset(rooms)))

    def with_topics(self, topics: Iterable[str]) -> Self:
        return replace(self, topics=_both(self.topics, frozenset(topics)))

    def with_devices(self, devices: Iterable[str]) -> Self:
        return replace(self, devices=_both(self.devices, frozenset(devices)))

    def with_room_prefix(self, prefix: str) -> Self:
        return replace(self, room_prefix=_longer(self.room_prefix, prefix))

    def with_topic_prefix(self, prefix: str) -> Self:
        return replace(self, topic_prefix=_longer(self.topic_prefix, prefix))

    @property
    def rooms_here(self) -> frozenset[str] | None:
        """Rooms that the reader has to select itself, because their names are too many for a request."""
        return None if self.rooms is None or fits(self.rooms) else self.rooms

    def params(self) -> list[tuple[str, str]]:
        """Parameters for `GET /v1/hubs/{hub}/records`, apart from offsets."""
        params: list[tuple[str, str]] = []
        if self.rooms_here is None:
            params += [("room", room) for room in sorted(self.rooms or ())]
        params += [("room_prefix", self.room_prefix)] if self.room_prefix else []
        params += [("room_pattern", self.room_pattern)] if self.room_pattern else []
        params += [("topic", topic) for topic in sorted(self.topics or ())]
        params += [("topic_prefix", self.topic_prefix)] if self.topic_prefix else []
        params += [("topic_filter", filter_) for filter_ in self.topic_filters]
        params += [("device", device) for device in sorted(self.devices or ())]
        params += [("since_us", str(self.since_us))] if self.since_us is not None else []
        params += [("until_us", str(self.until_us))] if self.until_us is not None else []
        return params


def fits(names: Iterable[str]) -> bool:
    return sum(map(_cost, names)) <= NAMES_BYTES_MAX


def slices(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Splits names into parts that are short enough for a request; a single name always passes."""
    parts: list[list[str]] = [[]]
    room = NAMES_BYTES_MAX
    for name in names:
        room -= _cost(name)
        if room < 0 and parts[-1]:
            parts.append([])
            room = NAMES_BYTES_MAX - _cost(name)
        parts[-1].append(name)
    return [tuple(part) for part in parts]


def _cost(name: str) -> int:
    return len(quote(name, safe="")) + len("&room=")


def _both(one: frozenset[_T] | None, other: frozenset[_T]) -> frozenset[_T]:
    return other if one is None else one & other


def _longer(one: str | None, other: str) -> str | None:
    """The prefix that has both; None if no name can have both."""
    if one is None or other.startswith(one):
        return None if one is None else other
    return one if one.startswith(other) else None
