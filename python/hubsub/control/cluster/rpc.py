"""Requests between control planes over links: one request, one response, MessagePack with the type name first.

An older version answers a request that it does not know with `ErrorResponse`. So does a node that cannot serve
a request now; the sender retries or returns an error to its client. All requests are idempotent.
"""

from collections.abc import Mapping

import msgspec

from hubsub.control.cluster.placement import Load
from hubsub.errors import PeerError


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all requests and responses."""


class Assign(Message, frozen=True):
    """To the controller: look up the hubs of rooms, and place the rooms that have none."""

    room_class: str
    rooms: tuple[bytes, ...]


class Assigned(Message, frozen=True):
    """Response to `Assign`. A room in neither mapping is not known to the controller yet: the sender asks again."""

    hubs: Mapping[bytes, int]
    refused: Mapping[bytes, str]
    """Room to error code."""
    revisions: tuple[int, ...] = ()
    """For each room of `hubs`, in their order: the revision of the bucket that has its record. An older version
    sends none."""


class Find(Message, frozen=True):
    """To the controller: look up the hubs of rooms, without placing any."""

    room_class: str
    rooms: tuple[bytes, ...]


class Found(Message, frozen=True):
    """Response to `Find`. As for `Assigned`, the sender asks again for a room that is in neither field."""

    hubs: Mapping[bytes, int]
    absent: tuple[bytes, ...]
    """Rooms that have no hub."""
    revisions: tuple[int, ...] = ()
    """For each room of `hubs`, as in `Assigned.revisions`."""


class Confirm(Message, frozen=True):
    """From the controller to a member of hubs: asks whether it accepts these rooms."""

    rooms: Mapping[int, tuple[bytes, ...]]
    """Rooms to ask about, by hub."""


class Confirmation(Message, frozen=True):
    refused: tuple[bytes, ...]


class Forget(Message, frozen=True):
    """From the controller to the leader of a hub without a log: asks which of these rooms are unused."""

    room_class: str
    hub: int
    term: int
    rooms: tuple[bytes, ...]
    gives_up: bool
    """Whether the leader stops serving the unused rooms. From then on it asks the controller for their hubs."""


class Unused(Message, frozen=True):
    rooms: tuple[bytes, ...]


class Move(Message, frozen=True):
    """To the controller: pins a room of an ephemeral class to a hub, or removes the pin."""

    room_class: str
    room: bytes
    to: str | None
    """A hub by name or id, or a node: one of the hubs it leads. None: the hub that the ring of its class selects."""


class Moved(Message, frozen=True):
    hub: int | None
    """None: the ring decides."""


class Moves(Message, frozen=True):
    """To the controller: list the recent moves."""


class MoveRow(msgspec.Struct, frozen=True, array_like=True):
    """A completed or refused move of a room, or a leader change of a hub."""

    room: bytes | None
    """None: the whole hub moved."""
    room_class: str
    before: int | None
    """The room's previous hub. None: the ring selected it, or this is the move of a hub."""
    hub: int | None
    """The room's new hub, or the hub that moved. None: the ring decides."""
    leader: str | None
    why: str
    refused: str | None
    """Reason of a refusal. None: the move was done."""
    ago_s: float


class MoveList(Message, frozen=True):
    moves: tuple[MoveRow, ...]
    """In order of time, latest last."""


class Report(Message, frozen=True):
    """To the controller: the node's recent load."""

    load: Load


class Claim(Message, frozen=True):
    """To the controller: state of the logged hubs that a process leads; see `view.Claims`."""

    incarnation: int
    empty: tuple[int, ...]
    sealed: Mapping[int, int]
    retained: Mapping[int, int]


class Acknowledged(Message, frozen=True):
    pass


class ErrorResponse(Message, frozen=True):
    """Error response: the request was not served."""

    code: str
    reason: str
    hint: str | None = None


Request = Assign | Find | Confirm | Forget | Move | Moves | Report | Claim
Response = Assigned | Found | Confirmation | Unused | Moved | MoveList | Acknowledged | ErrorResponse

_asked = msgspec.msgpack.Decoder(Request)
_answer = msgspec.msgpack.Decoder(Response)
encode = msgspec.msgpack.Encoder().encode


def decode_request(body: bytes) -> Request | ErrorResponse:
    """Decodes a request. Returns `ErrorResponse` for one that this version does not know."""
    try:
        asked: Request = _asked.decode(body)
        return asked
    except msgspec.MsgspecError as error:
        return ErrorResponse("peer", f"this version does not know the question ({error})")


def decode_response(body: bytes) -> Response:
    """Decodes a response.

    Raises:
        PeerError: the body is not a response.
    """
    try:
        answer: Response = _answer.decode(body)
        return answer
    except msgspec.MsgspecError as error:
        raise PeerError("the other node gave an answer that cannot be read", error) from error
