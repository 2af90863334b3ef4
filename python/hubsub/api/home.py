"""Which node has a query or the log of a hub, for what one node must do and what does not fit through a link.

Small requests are asked of that node by the one that they came to (`reach`). Streams of records, and stages, are of any
size: who sends them is told where to.
"""

from starlette.requests import Request

from hubsub.api.state import State
from hubsub.control import own_rooms
from hubsub.control.cluster.homes import Home
from hubsub.errors import ElsewhereError, HubSubError, NodesUnreachableError


def home_of_query(state: State, query: str) -> Home | None:
    """As `own_rooms.elsewhere`, of this node."""
    return own_rooms.elsewhere(query, state.others, state.node.name)


def elsewhere(request: Request, home: Home) -> HubSubError:
    """Tells who asks to ask that node itself."""
    if home.http is None:
        return NodesUnreachableError(value=home.node)
    path, query = target_of(request)
    location = f"http://{home.http}{path}" + (f"?{query}" if query else "")
    return ElsewhereError(value=f"{home.node}, {home.http}", location=location)


def target_of(request: Request) -> tuple[str, str]:
    """Path and query of a request as they came."""
    scope = request.scope
    path = scope.get("raw_path", b"").decode("ascii", "replace") or scope["path"]
    return path, scope["query_string"].decode("ascii", "replace")
