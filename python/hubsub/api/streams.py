"""GET /v1/rooms/{room}/events: redirects to the listener `ws`, which serves a room's records as server-sent events.

Here each record would need a call into Python. The redirect goes to the same host, to the port of that
listener. Browsers follow it by themselves.
"""

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.routes import Param, Routes
from hubsub.api.state import State
from hubsub.config import split_address
from hubsub.errors import ElsewhereError, NotFoundError

routes = Routes("rooms")


@routes(
    "GET",
    "/v1/rooms/{room}/events",
    "A topic's records as server-sent events: where they are",
    (
        Param("after", "Behind this position; the header Last-Event-ID goes before it."),
        Param("rewind", "So many of the last ones first, or those of a time: 20, 10s."),
        Param("token", "Who asks."),
    ),
    status=307,
    media_type="text/event-stream",
    errors=("not_found", "elsewhere"),
)
async def room_events(state: State, request: Request) -> Response:
    """Raises `ElsewhereError` with the URL, or `NotFoundError` where there is no such listener."""
    address = state.node.addresses.get("ws")
    if address is None:
        raise NotFoundError("this node has no listener for WebSockets, which has them", "ws", "--ws ADDR")
    own = request.url
    host = f"[{own.hostname}]" if ":" in (own.hostname or "") else own.hostname
    query = f"?{own.query}" if own.query else ""
    path = request.scope.get("raw_path", b"").decode("ascii", "replace") or own.path
    url = f"http://{host}:{split_address(address)[1]}{path}{query}"
    raise ElsewhereError("the listener of WebSockets has them", address, "curl -NL", location=url)
