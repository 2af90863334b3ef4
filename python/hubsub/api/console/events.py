"""GET /v1/console/events: the console's data as server-sent events.

An event is named after its part (`nodes`, `cluster`, `hubs`, `moves`, `queries`, and `tail` of a room);
`watch` and `schema` define its data. A part is sent when it has changed. A listener that does not read an
event within `console_slow_ms` is disconnected; the page reconnects by itself.
"""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hubsub.api.console.board import Board
from hubsub.api.console.tail import follow
from hubsub.api.console.watch import Ask, Watch
from hubsub.api.params import check_length, name
from hubsub.api.routes import Param, Routes
from hubsub.api.state import State
from hubsub.errors import StoppingError

MEDIA_TYPE = "text/event-stream"

RETRY_MS = 1_000
"""Reconnect delay sent to the page, in ms."""

routes = Routes("console")


@routes(
    "GET",
    "/v1/console/events",
    "What the console is drawn from, as server-sent events, about one a second",
    (Param("room", "Also this room, and what comes to the end of its history.", min_length=1),),
    media_type=MEDIA_TYPE,
    errors=("topic_length",),
)
async def events(state: State, request: Request) -> Response:
    """Raises `TooBusyError` above `console_listeners_max`."""
    if state.stopping:
        raise StoppingError()
    room = name(request, "room")
    if room is not None:
        check_length(room, state.limits["topic_bytes_max"])
    ask: Ask = request.app.called
    if state.console is None:
        state.console = Watch(state, ask, lambda: time.time_ns() // 1_000_000)
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    state.console.admit()
    return _EventStream(state, state.console, ask, room)


class _EventStream(Response):
    """Streams events until the listener disconnects."""

    def __init__(self, state: State, watch: Watch, ask: Ask, room: bytes | None) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._state, self._watch, self._ask, self._room = state, watch, ask, room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watch.listener() as board:
            sending = asyncio.ensure_future(self._send(send, board))
            tasks = [sending, asyncio.ensure_future(_gone(receive))]
            if self._room is not None:
                tail = follow(self._room, self._ask, lambda: self._state.all_classes, board)
                tasks.append(asyncio.ensure_future(tail))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and not sending.result():
                    scope["state"]["close_connection"](True)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send, board: Board) -> bool:
        """Sends events until the node stops. Returns False if the listener was too slow."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = b"retry: %d\n\n" % RETRY_MS
        while body:
            try:
                async with asyncio.timeout(self._state.limits["console_slow_ms"] / 1_000):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except TimeoutError:
                self._watch.slow_closed += 1
                return False
            parts = await board.take()
            body = b"".join(
                b"event: %s\ndata: %s\n\n" % (part.encode(), data) for part, data in parts.items()
            )
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
