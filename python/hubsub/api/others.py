"""The API of one node, asked by another: requests and answers as bytes, and who carries them.

Owned here: the form of both. What is asked of other nodes is decided in `reach`; links carry it.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hubsub.control.cluster.homes import Homes

ONLY = "scope=node"
"""In the query of each request that one node asks another: the answer is of that node alone."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A request, as one node asks another."""

    method: str
    path: str
    """As it was sent: percent-encoded."""
    query: str
    body: bytes = b""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """Its answer."""

    status: int
    body: bytes
    media_type: str = "application/json"
    retry_after: str | None = None


class Others(Protocol):
    """The other nodes of the cluster."""

    @property
    def homes(self) -> Homes:
        """Which of all nodes, this one too, has the log of which hub."""

    def names(self) -> Sequence[str]:
        """All that are registered, without this one."""

    async def ask(self, node: str, body: bytes) -> bytes:
        """What the API of another node answers to an encoded `Call`: a `Reply`.

        Raises:
            HubSubError: it did not answer in time, or cannot be asked now.
        """

    async def holder(self, room: bytes, create: bool) -> str | None:
        """The node that leads a room's hub; None: this one.

        Args:
            room: Its name.
            create: Whether a room without a place gets one.

        Raises:
            HubSubError: it is not known.
        """

    async def hub_of(self, room: bytes) -> int | None:
        """The hub that a room is in, which the data plane knows then; None: it has no place yet, and gets none.

        Raises:
            HubSubError: it is not known.
        """

    def index_of(self, room: bytes) -> int:
        """The index that the ring of a room's class has for it."""


encode = msgspec.msgpack.Encoder().encode
call_of = msgspec.msgpack.Decoder(Call).decode
reply_of = msgspec.msgpack.Decoder(Reply).decode
