"""A view of a healthy cluster; a test changes only the part that it tests."""

from dataclasses import replace
from typing import Any

from hubsub.control.cluster.records import ClassRecord, ControllerRecord, HubRecord, NodeRecord, VotersRecord
from hubsub.control.cluster.view import HubTerm, Peer, ProcessId, Stored, Timing, View

TIMING = Timing()
NOW = 100.0
CONTROLLER_REVISION = 5


def node(name: str, incarnation: int = 1, **fields: Any) -> tuple[str, Stored[NodeRecord]]:
    return name, Stored(NodeRecord(incarnation=incarnation, **fields), 7)


def peer(**fields: Any) -> Peer:
    """A peer that was heard recently, acknowledges the controller, has a leader lease and is ready."""
    return replace(
        Peer(
            heard_s=NOW, acknowledged_s=10.0, acknowledged_until_s=NOW, lease_until_s=NOW + 0.9, is_ready=True
        ),
        **fields,
    )


def hub(leader: str, index: int = 0, **fields: Any) -> Stored[HubRecord]:
    defaults = {"room_class": "chat", "term": 3, "incarnation": 1, "members": (leader,)}
    return Stored(HubRecord(**{"leader": leader, "index": index, **defaults, **fields}), 40 + index)


def view(
    nodes: str = "abc",
    hubs: dict[int, Stored[HubRecord]] | None = None,
    peers: dict[ProcessId, Peer] | None = None,
    **fields: Any,
) -> View:
    """A view with healthy nodes whose names are single letters, `a` as controller, and tables that fit the
    hubs' records."""
    hubs = hubs or {}
    tables: dict[ProcessId, set[HubTerm]] = {(name, 1): set() for name in nodes}
    for number, kept in hubs.items():
        tables.setdefault((kept.record.leader, kept.record.incarnation), set()).add(
            (number, kept.record.term)
        )
    defaults: dict[str, Any] = {
        "controller": Stored(
            ControllerRecord(node="a", incarnation=1, controller_term=2), CONTROLLER_REVISION
        ),
        "now": NOW,
        "timing": TIMING,
        "elected_s": 10.0,
        "nodes": dict(node(name) for name in nodes),
        "classes": {"chat": ClassRecord(version=1, hubs=len(hubs))},
        "voters": Stored(VotersRecord(nodes=tuple(nodes)), 6),
        "tables": {process: frozenset(table) for process, table in tables.items()},
    }
    return View(
        **(defaults | {"hubs": hubs, "peers": {(name, 1): peer() for name in nodes} | (peers or {})} | fields)
    )
