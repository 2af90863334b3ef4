"""/v1/hubs: the hubs that have a log, their offsets and contents."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.log_schema import Hub, HubPage
from hubsub.api.merges import limit_of, page_of
from hubsub.api.params import number, path_name
from hubsub.api.reach import AtHub, Gathered
from hubsub.api.routes import LIMIT, Param, Routes
from hubsub.api.state import State
from hubsub.config import RESERVED
from hubsub.errors import NoSuchClassError, NoSuchHubError
from hubsub.names import text_of
from hubsub.node import status
from hubsub.node.status import Log

routes = Routes("hubs")


def merge_hubs(state: State, request: Request, pages: Sequence[HubPage]) -> HubPage:
    """Sorted by hub id."""
    all_of = [hub for page in pages for hub in page.hubs]
    ends = [page.hubs[-1].id for page in pages if page.next is not None]
    shown, goes_on = page_of(limit_of(state, request), all_of, lambda hub: hub.id, ends)
    return HubPage(hubs=shown, next=shown[-1].id if goes_on else None)


@routes(
    "GET",
    "/v1/hubs",
    "Hubs that have a log, by id",
    (
        Param("class", "Of this class only; without it, of all but the node's own."),
        Param(
            "after",
            "Hubs behind this id: the `next` of the page before.",
            "integer",
            minimum=0,
        ),
        LIMIT,
    ),
    answer=(HubPage,),
    errors=("no_such_class",),
    reach=Gathered(HubPage, merge_hubs, of_homes=True),
)
async def list_hubs(state: State, request: Request) -> Response:
    limit = number(request, "limit", 100, state.limits["http_page_max"])
    after = number(request, "after", 0, 2**64, low=0)
    wanted = request.query_params.get("class")
    hubs = hub_list(state)
    names = dict.fromkeys([*(cls.name for cls in state.classes), *(hub.room_class for hub in hubs)])
    if wanted is not None and wanted not in names:
        shown = [name for name in names if not name.startswith(RESERVED)]
        raise NoSuchClassError(value=wanted, hint=f"the classes are {', '.join(shown)}")
    # Hubs of internal classes are shown only if the class is requested.
    hubs = [
        hub
        for hub in hubs
        if hub.id > after
        and (not hub.room_class.startswith(RESERVED) if wanted is None else hub.room_class == wanted)
    ]
    page = hubs[:limit]
    return json_answer(HubPage(hubs=page, next=page[-1].id if len(hubs) > limit else None))


@routes(
    "GET", "/v1/hubs/{hub}", "A hub, by its name or id", answer=(Hub,), errors=("no_such_hub",), reach=AtHub()
)
async def show_hub(state: State, request: Request) -> Response:
    wanted = text_of(path_name(request, "hub"))
    hub = find_hub(state, wanted)
    if hub is None:
        hint = "GET /v1/hubs lists those with a log; others are in memory only"
        raise NoSuchHubError(value=wanted, hint=hint)
    return json_answer(hub)


def find_hub(state: State, wanted: str) -> Hub | None:
    return next((hub for hub in hub_list(state) if wanted in (hub.name, str(hub.id))), None)


def hub_list(state: State) -> list[Hub]:
    """All logged hubs of this node, by id."""
    log = state.node.log()
    return [_hub(row, state.node.name) for row in log.hubs] if log else []


def hub_troubles(log: Log) -> list[str]:
    """Descriptions of the damaged and quarantined hubs of a log."""
    troubles = []
    for hub in log.hubs:
        if hub.state == "quarantined":
            troubles.append(f"hub {hub.name} is quarantined: {hub.reason}")
        elif hub.damaged:
            troubles.append(f"hub {hub.name} is damaged: {hub.damaged}")
    return troubles


def _hub(row: status.Hub, leader: str) -> Hub:
    fields = {field: getattr(row, field) for field in status.HubState.__struct_fields__}
    rooms = None if row.state == "quarantined" else row.rooms
    return Hub(**fields, name=row.name, leader=leader, rooms=rooms)
