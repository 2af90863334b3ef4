"""/v1/log: the log and its hubs that match a request, on any node (docs/protocol/records.md).

A reader that plans a read sends one request. In a cluster the node that receives it finds the hubs and asks
their nodes for the offsets.

Invariant: no matching hub is left out, since a reader would take that for the hub's end. If the data of a hub
is missing, the request fails and the error names the hub's node.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.hubs import hub_list
from hubsub.api.log_schema import LoggedHub, LogInfo
from hubsub.api.reach import Asked
from hubsub.api.routes import Param, Routes
from hubsub.api.state import State
from hubsub.config import PUBLIC, RESERVED, RoomClass
from hubsub.config.matching import may_overlap
from hubsub.errors import BadRequestError, NodesUnreachableError, NoSuchClassError, NotAllowedError
from hubsub.names import bytes_of


class Hub(Protocol):
    """The fields of a hub that decide whether it matches a request."""

    @property
    def id(self) -> int: ...
    @property
    def room_class(self) -> str: ...


routes = Routes("log")


class AtHomes:
    """Collects the matching hubs from the nodes that lead them."""

    async def answer(self, asked: Asked) -> Response:
        state, homes = asked.state, asked.others.log_owners
        wanted, ephemeral = await _wanted(state, asked.request, homes.all())
        of_nodes: dict[str, list[str]] = {}
        for home in homes.all():
            if home.id in wanted:
                of_nodes.setdefault(home.node, []).append(str(home.id))
        found = _told(state, asked.request, set(map(int, of_nodes.pop(state.node.name, ()))))
        there = of_nodes.keys() & set(asked.others.names())
        asks = (asked.part(node, f"hubs={','.join(of_nodes[node])}") for node in there)
        for reply in await asyncio.gather(*asks):
            if reply is not None and reply.status < 400:
                found += msgspec.json.decode(reply.body, type=LogInfo).hubs
        hubs = {hub.hub: hub for hub in found}
        # A node may be up and not report its hub: it has just started and still opens the log.
        away = {home.node for home in homes.all() if home.id in wanted and home.id not in hubs}
        if away:
            what = "hubs that are asked for are away with their nodes"
            raise NodesUnreachableError(what, ", ".join(sorted(away)))
        return json_answer(LogInfo(log=homes.log, hubs=[hubs[n] for n in sorted(hubs)], ephemeral=ephemeral))


@routes(
    "GET",
    "/v1/log",
    "The log: its identity, and the hubs that have what is asked for",
    (
        Param("subscribe", "Hubs of these rooms: names with commas between, or given more than once."),
        Param(
            "subscribePattern",
            "Hubs that may have rooms which match: a glob, or an MQTT filter. Of the node's own rooms only "
            "`$stats/…`, and by patterns that begin with `$`.",
        ),
        Param("class", "Of this class only."),
        Param(
            "hubs",
            "These, by id with commas between, and nothing else.",
            pattern="[0-9]{1,10}(,[0-9]{1,10})*",
        ),
    ),
    answer=(LogInfo,),
    errors=("no_such_class", "not_allowed"),
    reach=AtHomes(),
)
async def show_log(state: State, request: Request) -> Response:
    """Answers for this node only: all matching hubs, or the hubs that another node requests by id."""
    wanted, ephemeral = await _wanted(state, request, hub_list(state))
    return json_answer(LogInfo(log=state.log, hubs=_told(state, request, wanted), ephemeral=ephemeral))


def check_readable(room_class: str) -> None:
    """Raises NotAllowedError for the node's internal classes."""
    if room_class.startswith(RESERVED) and room_class != PUBLIC:
        hint = f"of the node's own rooms only {PUBLIC}/… may be read"
        raise NotAllowedError(value=room_class, hint=hint)


def _told(state: State, request: Request, wanted: set[int]) -> list[LoggedHub]:
    """Those of the wanted hubs that this node has."""
    server = state.node_ref(request).http
    return [
        LoggedHub(
            **{name: getattr(hub, name) for name in LoggedHub.__struct_fields__ if hasattr(hub, name)},
            hub=hub.id,
            committed_until=hub.committed + 1,
            servers=[server] if server else [],
        )
        for hub in hub_list(state)
        if hub.id in wanted
    ]


async def _wanted(state: State, request: Request, hubs: Sequence[Hub]) -> tuple[set[int], list[str]]:
    """Ids of the hubs that match the request, and the requested classes that have no log."""
    query = request.query_params
    if "hubs" in query:
        return _numbers(query["hubs"]) & {hub.id for hub in hubs}, []
    named, pattern = query.get("class"), query.get("subscribePattern")
    # One internal class is readable, if the request names it.
    public = [cls for cls in state.all_classes if cls.name == PUBLIC]
    classes = {cls.name: cls for cls in (*public, *state.classes) if named in (None, cls.name)}
    if not classes:
        names_of_all = ", ".join(cls.name for cls in state.classes)
        raise NoSuchClassError(value=named, hint=f"the classes are {names_of_all}")
    wanted: set[int] = set()
    unlogged: set[str] = set()
    rooms = [bytes_of(room) for text in query.getlist("subscribe") for room in text.split(",")]
    for room in rooms:
        name, hub = await _hub_of(state, room)
        check_readable(name)
        if hub is not None:
            wanted.add(hub)
        elif name in classes and not classes[name].is_logged:
            unlogged.add(name)
    if pattern is not None or not rooms:
        matching = [cls for cls in classes.values() if _may_match(cls, pattern, named)]
        logged = {cls.name for cls in matching if cls.is_logged}
        wanted |= {hub.id for hub in hubs if hub.room_class in logged}
        unlogged |= {cls.name for cls in matching if not cls.is_logged}
    of_classes = {hub.id for hub in hubs if hub.room_class in classes}
    return wanted & of_classes, [name for name in classes if name in unlogged]


def _numbers(text: str) -> set[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in parts):
        raise BadRequestError("hubs must be ids with commas between", text[:100])
    return set(map(int, parts))


async def _hub_of(state: State, room: bytes) -> tuple[str, int | None]:
    """Class of a room, and the hub that logs its records; None if there is none, or the room does not exist yet."""
    name, hub = state.node.log_hub_of(room)
    if state.others is not None:
        hub = await state.others.hub_of(room) if state.others.log_owners.keeps_log(name) else None
    return name, hub


def _may_match(cls: RoomClass, pattern: str | None, named: str | None) -> bool:
    """Whether a pattern, or a missing pattern, can match rooms of a class. Internal classes match only if named."""
    begins = (pattern or "").removeprefix("glob:").removeprefix("mqtt:")
    if cls.name.startswith(RESERVED) and cls.name != named and not begins.startswith(RESERVED):
        return False
    return pattern is None or not cls.match or any(may_overlap(of_class, pattern) for of_class in cls.match)
