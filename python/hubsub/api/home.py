"""Which node has a query or the log of a hub, for what one node must do and what does not fit through a link.

Small requests are asked of that node by the one that they came to (`reach`). Streams of records, and stages, are of any
size: who sends them is told where to.
"""

from starlette.requests import Request

from hubsub.api.state import State
from hubsub.control.cluster.homes import Home
from hubsub.control.own_rooms import QUERIES, query_room
from hubsub.errors import ElsewhereError, HubClosedError, HubSubError, NodesUnreachableError, NoStagesError


def home_of_query(state: State, query: str) -> Home | None:
    """The other node that does what is done with a query's batches; None: this one.

    Raises:
        NoStagesError: no node keeps any.
        HubClosedError: it is not known yet.
    """
    if state.others is None:
        return None
    homes = state.others.homes
    if not homes.keeps_log(QUERIES):
        raise NoStagesError("no node of the cluster keeps stages", hint='data = "DIR" gives one a directory')
    home = homes.of(QUERIES, state.others.index_of(query_room(query)))
    if home is None:
        raise HubClosedError()
    return None if home.node == state.node.name else home


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
