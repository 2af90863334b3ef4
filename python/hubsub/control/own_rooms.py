"""Names of the rooms that a node keeps of queries: `$queries/{query}`, and `$stage/{query}/{attempt}` of each stage.

In a cluster a query has one home, the node that leads the hub of its room, and its stages are to be in the hub of
`$stage` with the same index: so all that is written into that hub is written by one node, which can count it. The ring
puts a stage there under the first of the names `attempt`, `attempt~1`, `attempt~2`, … that it has there.
"""

from typing import Final, Protocol
from urllib.parse import quote

from hubsub.control.cluster.homes import Home, Homes
from hubsub.errors import HubClosedError, NoStagesError

QUERIES, STAGES = "$queries", "$stage"
"""Their classes."""

NAMES_MAX: Final = 2_000
"""Names that are tried: of 16 hubs one is missed by all of them once in 10^56."""


class Rings(Protocol):
    """What is known of the cluster."""

    @property
    def homes(self) -> Homes: ...

    def index_of(self, room: bytes) -> int:
        """The index that the ring of a room's class has for it."""


def query_room(query: str) -> bytes:
    return f"{QUERIES}/{quote(query, safe='')}".encode()


def stage_room(query: str, attempt: str) -> bytes:
    return f"{STAGES}/{quote(query, safe='')}/{quote(attempt, safe='')}".encode()


def placed(query: str, attempt: str, cluster: Rings | None) -> str:
    """The name that a stage is kept under.

    Args:
        query: Of the stage.
        attempt: As the writer named it.
        cluster: None: the node is alone, and any name will do.

    Raises:
        NoStagesError: the two classes have different numbers of hubs, and none of `$stage` has the query's index.
    """
    if cluster is None:
        return attempt
    wanted = cluster.index_of(query_room(query))
    for number in range(NAMES_MAX):
        name = f"{attempt}~{number}" if number else attempt
        if cluster.index_of(stage_room(query, name)) == wanted:
            return name
    raise NoStagesError("no hub for stages belongs to the query's", query)


def are_apart(cluster: Rings, node: str) -> bool:
    """Whether a node has queries whose stages are in another node's hub."""
    homes = cluster.homes
    queries = [home for home in homes.all() if home.room_class == QUERIES and home.node == node]
    stages = [homes.of(STAGES, home.index) for home in queries]
    return any(home is None or home.node != node for home in stages)


def elsewhere(query: str, cluster: Rings | None, node: str) -> Home | None:
    """The other node that does what is done with a query's batches; None: this one does.

    Args:
        query: Which.
        cluster: None: the node is alone.
        node: This one's name.

    Raises:
        NoStagesError: no node keeps any.
        HubClosedError: it is not known yet.
    """
    if cluster is None:
        return None
    homes = cluster.homes
    if not homes.keeps_log(QUERIES):
        raise NoStagesError("no node of the cluster keeps stages", hint='data = "DIR" gives one a directory')
    home = homes.of(QUERIES, cluster.index_of(query_room(query)))
    if home is None:
        raise HubClosedError()
    return None if home.node == node else home


def named(name: str) -> str:
    """As the writer named it."""
    return name.partition("~")[0]
