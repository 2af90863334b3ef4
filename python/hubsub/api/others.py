"""Calls of one node's API by another node: encoding of requests and replies, and the interface of the transport.

`reach` decides which nodes are asked; links carry the calls.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from hubsub.control.cluster.log_owners import LogOwners

ONLY = "scope=node"
"""Query of each request between nodes: only the receiving node answers."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A request from one node to another."""

    method: str
    path: str
    """Percent-encoded, as received from the client."""
    query: str
    body: bytes = b""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """Reply to a `Call`."""

    status: int
    body: bytes
    media_type: str = "application/json"
    retry_after: str | None = None


class Others(Protocol):
    """The other nodes of the cluster."""

    @property
    def log_owners(self) -> LogOwners:
        """Log owners: which node has the log of which hub, this node included."""

    def names(self) -> Sequence[str]:
        """Names of all registered nodes except this one."""

    async def ask(self, node: str, body: bytes) -> bytes:
        """Sends an encoded `Call` to another node and returns its encoded `Reply`.

        Raises:
            HubSubError: the node did not answer in time, or cannot be reached now.
        """

    async def holder(self, room: bytes, create: bool) -> str | None:
        """The node that leads a room's hub; None if it is this node.

        Args:
            room: Name of the room.
            create: Whether to place a room that has no place yet.

        Raises:
            HubSubError: the leader is not known.
        """

    async def hub_of(self, room: bytes) -> int | None:
        """The hub of a room, which it also registers in the data plane. None if the room has no place; none is created.

        Raises:
            HubSubError: the hub is not known.
        """

    def index_of(self, room: bytes) -> int:
        """The index of a room's hub in the ring of its class."""


encode = msgspec.msgpack.Encoder().encode
call_of = msgspec.msgpack.Decoder(Call).decode
reply_of = msgspec.msgpack.Decoder(Reply).decode
