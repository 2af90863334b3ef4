"""Names of a node's internal rooms of queries: `$queries/{query}`, and `$stage/{query}/{attempt}` of each stage.

In a cluster a query has one home, the node that leads the hub of its room. Its stages must be in the hub of
`$stage` with the same index, so that only one node writes to that hub and can count the bytes. The ring maps
names to hubs, so a stage gets the first of the names `attempt`, `attempt~1`, `attempt~2`, … that the ring
maps to that hub.
"""

from typing import Final, Protocol
from urllib.parse import quote

from hubsub.control.cluster.log_owners import LogOwner, LogOwners
from hubsub.errors import HubClosedError, NoStagesError

QUERIES, STAGES = "$queries", "$stage"
"""Classes of these rooms."""

NAMES_MAX: Final = 2_000
"""Most names to try: with 16 hubs all of them miss a given hub once in 10^56."""


class RingPlacement(Protocol):
    """The cluster's placement that is used here."""

    @property
    def log_owners(self) -> LogOwners: ...

    def index_of(self, room: bytes) -> int:
        """The index of a room's hub in the ring of its class."""


def query_room(query: str) -> bytes:
    return f"{QUERIES}/{quote(query, safe='')}".encode()


def stage_room(query: str, attempt: str) -> bytes:
    return f"{STAGES}/{quote(query, safe='')}/{quote(attempt, safe='')}".encode()


def stored_name(query: str, attempt: str, cluster: RingPlacement | None) -> str:
    """The name under which a stage is stored.

    Args:
        query: Query of the stage.
        attempt: As the writer named it.
        cluster: None for a single node: any name will do.

    Raises:
        NoStagesError: the two classes have different numbers of hubs, and none of `$stage` has the query's
            index.
    """
    if cluster is None:
        return attempt
    wanted = cluster.index_of(query_room(query))
    for number in range(NAMES_MAX):
        name = f"{attempt}~{number}" if number else attempt
        if cluster.index_of(stage_room(query, name)) == wanted:
            return name
    raise NoStagesError("no hub for stages belongs to the query's", query)


def has_remote_stages(cluster: RingPlacement, node: str) -> bool:
    """Whether a node has queries whose stages are in another node's hub."""
    owners = cluster.log_owners
    queries = [owner for owner in owners.all() if owner.room_class == QUERIES and owner.node == node]
    stages = [owners.of(STAGES, owner.index) for owner in queries]
    return any(owner is None or owner.node != node for owner in stages)


def other_owner(query: str, cluster: RingPlacement | None, node: str) -> LogOwner | None:
    """The other node that handles a query's batches; None: this one does.

    Args:
        query: Name of the query.
        cluster: None for a single node.
        node: This node's name.

    Raises:
        NoStagesError: no node has stages.
        HubClosedError: the node is not known yet.
    """
    if cluster is None:
        return None
    owners = cluster.log_owners
    if not owners.keeps_log(QUERIES):
        raise NoStagesError("no node of the cluster keeps stages", hint='data = "DIR" gives one a directory')
    owner = owners.of(QUERIES, cluster.index_of(query_room(query)))
    if owner is None:
        raise HubClosedError()
    return None if owner.node == node else owner


def attempt_name(name: str) -> str:
    """The writer's name of a stage."""
    return name.partition("~")[0]
