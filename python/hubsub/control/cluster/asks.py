"""What control planes ask each other over links: one question, one answer, MessagePack with a name in front.

A question that a later version adds is answered `Sorry` by an older one, as is one that cannot be answered now; who
asked tries again, or tells its client. All questions may be asked twice.
"""

from collections.abc import Mapping

import msgspec

from hubsub.control.cluster.busy import Load
from hubsub.errors import PeerError


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What all have."""


class Assign(Message, frozen=True):
    """To the controller: where rooms are; those that have no place get one."""

    room_class: str
    rooms: tuple[bytes, ...]


class Assigned(Message, frozen=True):
    """Its answer. A room that is in neither is not known there yet: it is asked for again."""

    hubs: Mapping[bytes, int]
    refused: Mapping[bytes, str]
    """Room to the code of an error."""


class Find(Message, frozen=True):
    """To the controller: where rooms are; those that have no place get none."""

    room_class: str
    rooms: tuple[bytes, ...]


class Found(Message, frozen=True):
    """Its answer; as `Assigned`."""

    hubs: Mapping[bytes, int]
    absent: tuple[bytes, ...]
    """Rooms without a place."""


class Take(Message, frozen=True):
    """From the controller to a member of hubs: whether it takes these rooms."""

    rooms: Mapping[int, tuple[bytes, ...]]
    """By hub."""


class Taken(Message, frozen=True):
    refused: tuple[bytes, ...]


class Forget(Message, frozen=True):
    """From the controller to the leader of a hub without a log: which of these rooms nobody uses."""

    room_class: str
    hub: int
    term: int
    rooms: tuple[bytes, ...]
    gives_up: bool
    """Whether it serves those no more: it asks the controller where they are from then on."""


class Unused(Message, frozen=True):
    rooms: tuple[bytes, ...]


class Move(Message, frozen=True):
    """To the controller: pins a room of an ephemeral class to a hub, or takes the pin away."""

    room_class: str
    room: bytes
    to: str | None
    """A hub by its name or id, or a node: one of the hubs that it leads; None: back to where its class's ring has
    it."""


class Moved(Message, frozen=True):
    hub: int | None
    """None: the ring says."""


class Moves(Message, frozen=True):
    """To the controller: what it moved of late."""


class MoveRow(msgspec.Struct, frozen=True, array_like=True):
    """A room that was moved, or was not; or a hub that got another leader."""

    room: bytes | None
    """None: the hub with all its rooms."""
    room_class: str
    before: int | None
    """The hub that had the room; None: the ring had it, or it is a hub that moved."""
    hub: int | None
    """That is to have it, or that moved; None: the ring says."""
    leader: str | None
    why: str
    refused: str | None
    """Why it was not done; None: it was."""
    ago_s: float


class Moving(Message, frozen=True):
    moves: tuple[MoveRow, ...]
    """The latest last."""


class Report(Message, frozen=True):
    """To the controller: what the node did of late."""

    load: Load


class Claim(Message, frozen=True):
    """To the controller: what a process says of the logged hubs that it leads; see `view.Claims`."""

    incarnation: int
    empty: tuple[int, ...]
    sealed: Mapping[int, int]
    kept: Mapping[int, int]


class Noted(Message, frozen=True):
    pass


class Sorry(Message, frozen=True):
    """No answer."""

    code: str
    reason: str
    hint: str | None = None


Asked = Assign | Find | Take | Forget | Move | Moves | Report | Claim
Answer = Assigned | Found | Taken | Unused | Moved | Moving | Noted | Sorry

_asked = msgspec.msgpack.Decoder(Asked)
_answer = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.Encoder().encode


def asked_of(body: bytes) -> Asked | Sorry:
    """The question in a body."""
    try:
        asked: Asked = _asked.decode(body)
        return asked
    except msgspec.MsgspecError as error:
        return Sorry("peer", f"this version does not know the question ({error})")


def answer_of(body: bytes) -> Answer:
    """The answer in a body.

    Raises:
        PeerError: it is none.
    """
    try:
        answer: Answer = _answer.decode(body)
        return answer
    except msgspec.MsgspecError as error:
        raise PeerError("the other node gave an answer that cannot be read", error) from error
