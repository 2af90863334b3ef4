"""Start and end of a read: converts options and checkpoints to offsets by hub. Pure.

The offset of a stream, which Spark stores in its checkpoint, is `{"log": identity, "query": name, "hubs":
{hub: offset}}`: the first offset of each hub that is not read yet. A hub that was created after the query is
also in `born`, with its start offset, so that a repeated batch reads the same. The identity refuses a
checkpoint of another log.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from hubsub.errors import OffsetsLostError, OffsetUnknownError, OptionError, OtherLogError, PipelineError
from hubsub.pipeline.listing import Hub, Listing
from hubsub.pipeline.options import Start

OffsetAt = Callable[[Hub, int], int]
"""First offset of a hub whose timestamp is not before a moment in microseconds, or its end."""

GO_ON = "failOnDataLoss=false goes on with what is there"


@dataclass(frozen=True, kw_only=True)
class StreamOffset:
    """Progress of a query."""

    log: str
    query: str
    hubs: Mapping[int, int]
    born: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """The form that Spark stores: keys of JSON are text."""
        body: dict[str, Any] = {"log": self.log, "query": self.query, "hubs": _texts(self.hubs)}
        return body | ({"born": _texts(self.born)} if self.born else {})

    @classmethod
    def decode(cls, body: Mapping[str, Any]) -> Self:
        try:
            return cls(
                log=body["log"],
                query=body["query"],
                hubs=_numbers(body["hubs"]),
                born=_numbers(body.get("born", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            hint = "its checkpoint is not one of this source; choose another checkpointLocation"
            raise PipelineError("the query's offset cannot be read", body, hint) from None

    def check_log(self, log: str) -> None:
        """Raises OtherLogError if the offsets are of another log."""
        if self.log != log:
            raise OtherLogError(
                "the query's checkpoint is of another log",
                f"{self.log}, the servers have {log}",
                "ask the servers that it was made with, or begin anew with another checkpointLocation",
            )


def resolve(
    listing: Listing,
    start: Start | None,
    default: Literal["earliest", "latest"],
    *,
    fail_on_data_loss: bool,
) -> dict[int, int]:
    """Offsets by hub of `startingOffsets` or `endingOffsets`.

    Args:
        listing: The hubs.
        start: The option; None: the default.
        default: For hubs that the option leaves out.
        fail_on_data_loss: Whether a missing offset is an error; else the nearest is taken.

    Raises:
        OptionError: offsets name a hub that does not exist.
        OffsetsLostError, OffsetUnknownError: an offset is gone, or does not exist yet.
    """
    start = default if start is None else start
    given = start if isinstance(start, Mapping) else {}
    word = default if isinstance(start, Mapping) else start
    offsets = {hub.id: hub.earliest if word == "earliest" else hub.end for hub in listing.hubs.values()}
    for name, offset in given.items():
        hub = listing.find(name)
        if hub is None:
            there = ", ".join(str(hub.id) for hub in listing.hubs.values()) or "none"
            raise OptionError("offsets name a hub that the read does not have", name, f"there are {there}")
        if offset < 0:
            offsets[hub.id] = hub.earliest if offset == -2 else hub.end
        else:
            offsets[hub.id] = checked(hub, max(offset, 1), fail_on_data_loss)
    return offsets


def offset_of(hub: Hub, timestamp_us: int, offset_at: OffsetAt) -> int:
    """The first offset of a hub whose timestamp is not before a moment; asks the node only if necessary.

    The listing's timestamps ignore records that are still in memory.

    Args:
        hub: The hub.
        timestamp_us: The moment, µs since 1970.
        offset_at: Asks the node.
    """
    if hub.earliest == hub.end or (hub.first_timestamp_us or 0) >= timestamp_us:
        return hub.earliest
    return offset_at(hub, timestamp_us)


def checked(hub: Hub, offset: int, fail_on_data_loss: bool) -> int:
    """A stored offset, if the hub has it; else the nearest, if loss is allowed.

    Args:
        hub: The hub.
        offset: The stored offset.
        fail_on_data_loss: Whether a missing offset is an error.

    Raises:
        OffsetsLostError, OffsetUnknownError: the offset is gone, or does not exist yet.
    """
    if hub.earliest <= offset <= hub.end:
        return offset
    if not fail_on_data_loss:
        return min(max(offset, hub.earliest), hub.end)
    if offset < hub.earliest:
        raise lost(hub.name, offset, hub.earliest)
    raise OffsetUnknownError(
        f"hub {hub.name} ends before the offset to read from",
        f"{offset}, it ends at {hub.end}",
        f"records that were read are gone from its log; {GO_ON}",
    )


def lost(name: str, first: int, end: int) -> OffsetsLostError:
    """Error for missing offsets.

    Args:
        name: Name of the hub.
        first: First missing offset.
        end: First offset after the gap.
    """
    return OffsetsLostError(
        f"records of hub {name} are gone",
        f"offsets {first} to {end - 1}",
        f"its history is shorter than the read needs; {GO_ON}",
        hub=name,
        first=first,
        end=end,
    )


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(hub): offset for hub, offset in sorted(offsets.items())}


def _numbers(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(hub): int(offset) for hub, offset in offsets.items()}
