"""Finds the node of a query or of a hub's log, for requests that this node must handle and that do not fit
through a link.

Small requests are forwarded to that node (`reach`). Record streams and stages have any size: their sender is
redirected.
"""

from starlette.requests import Request

from hubsub.api.state import State
from hubsub.control import internal_rooms
from hubsub.control.cluster.log_owners import LogOwner
from hubsub.errors import ElsewhereError, HubSubError, NodesUnreachableError


def home_of_query(state: State, query: str) -> LogOwner | None:
    """As `internal_rooms.other_owner`, of this node."""
    return internal_rooms.other_owner(query, state.others, state.node.name)


def elsewhere(request: Request, home: LogOwner) -> HubSubError:
    if home.http is None:
        return NodesUnreachableError(value=home.node)
    path, query = target_of(request)
    location = f"http://{home.http}{path}" + (f"?{query}" if query else "")
    return ElsewhereError(value=f"{home.node}, {home.http}", location=location)


def target_of(request: Request) -> tuple[str, str]:
    """Path and query string of a request, still encoded."""
    scope = request.scope
    path = scope.get("raw_path", b"").decode("ascii", "replace") or scope["path"]
    return path, scope["query_string"].decode("ascii", "replace")
