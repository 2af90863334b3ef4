"""`State.others` over links: calls the APIs of other nodes by scatter-gather requests between control planes.

Invariant: only the node that a request was sent to answers it (`scope=node`), so that no request is forwarded
in a loop.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from hubsub.api.answers import error_answer
from hubsub.api.app import App
from hubsub.api.others import Reply, call_of, encode
from hubsub.control.cluster.core_plane import API, CorePlane
from hubsub.control.cluster.log_owners import LogOwners
from hubsub.control.cluster.node import ClusterNode
from hubsub.control.cluster.plane import RPC_BYTES_MAX
from hubsub.errors import HubSubError, NodesUnreachableError, NoSuchRoomError, PeerError
from hubsub.names import text_of

ANSWER_S: Final = 10.0
"""Time limit for another node's reply, in seconds: above `request_timeout_ms`; a client waits for all nodes."""


class Linked:
    """Access to the other nodes of a cluster.

    Args:
        cluster: Registered nodes and locations of rooms.
        plane: Carries requests between nodes.
        app: Answers requests of other nodes.
    """

    def __init__(self, cluster: ClusterNode, plane: CorePlane, app: App) -> None:
        self._cluster = cluster
        self._plane = plane
        self._app = app
        plane.serve(API, self._answer)

    @property
    def log_owners(self) -> LogOwners:
        return self._cluster.log_owners

    def names(self) -> Sequence[str]:
        return [name for name in self._cluster.nodes if name != self._cluster.name]

    async def ask(self, node: str, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._plane.ask_part(API, node, body)
        except TimeoutError:
            raise PeerError("the other node gave no answer in time", node) from None

    async def holder(self, room: bytes, create: bool) -> str | None:
        located = await self._cluster.locate(room, create)
        if located is None:
            hint = "a first subscriber makes it, a first record where its class keeps a history, or POST"
            raise NoSuchRoomError(value=text_of(room), hint=hint)
        if not located.members:
            raise NodesUnreachableError("the nodes of the room are not there", text_of(room))
        leader = located.members[0].node
        return None if leader == self._cluster.name else leader

    async def hub_of(self, room: bytes) -> int | None:
        located = await self._cluster.locate(room, create=False)
        if located is None:
            return None
        if not self.log_owners.is_ring(located.room_class):
            self._plane.pins(located.room_class, {located.room: located.hub})
        return located.hub

    def index_of(self, room: bytes) -> int:
        return self._plane.topic_route(room).index

    async def _answer(self, node: str, body: bytes) -> bytes:
        try:
            reply = await self._app.called(call_of(body))
        except msgspec.MsgspecError as error:
            reply = _refused(PeerError(f"this version cannot read the question ({error})", node))
        encoded = encode(reply)
        if len(encoded) <= RPC_BYTES_MAX:
            return encoded
        size = f"{len(encoded)} bytes, at most {RPC_BYTES_MAX}"
        return encode(
            _refused(PeerError("the answer is too long for a link", size, "ask for less, by `limit`"))
        )


def _refused(error: HubSubError) -> Reply:
    answer = error_answer(error)
    return Reply(answer.status_code, bytes(answer.body))
