"""Finds hubs that are not at their final nodes. The controller moves a few at a time to a new node, and
between two moves no record shows that more will follow.
"""

from collections.abc import Collection, Mapping
from typing import Any

from hubsub.control.cluster.failover import hub_name
from hubsub.control.cluster.hub_ring import Place, assign


def hubs_away(
    status: Mapping[str, Any], running: Collection[str], classes: Collection[str]
) -> list[Mapping[str, Any]]:
    """Hubs that are not where the ring places them.

    Args:
        status: The cluster as a node sees it (`GET /v1/cluster`).
        running: Names of the nodes that may have hubs, as far as they hold any.
        classes: Classes of the hubs to check: classes without a log, with one member.

    Returns:
        Their entries of `status`, in its order.
    """
    places = [
        Place(node["name"], node["capacity"], node["zone"])
        for node in status["nodes"]
        if "hub" in node["roles"] and node["name"] in running
    ]
    named = {hub["hub"]: hub_name(hub["class"], hub["index"]) for hub in status["hubs"]}
    homes: dict[str, str] = {}
    for room_class in classes:
        names = [named[hub["hub"]] for hub in status["hubs"] if hub["class"] == room_class]
        homes |= {name: members[0] for name, members in assign(places, names).items()}
    return [
        hub
        for hub in status["hubs"]
        if hub["class"] in classes and homes.get(named[hub["hub"]]) != hub["leader"]
    ]
