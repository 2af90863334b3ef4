"""/v1/classes: room classes, and changes to them while the nodes of a cluster run."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.params import body, decode, path_name
from hubsub.api.routes import Routes
from hubsub.api.schema import AppliedClasses, ClassList, ClassOnNode, RoomClass
from hubsub.api.state import State
from hubsub.config import RoomClass as Configured
from hubsub.config import room_classes
from hubsub.control.cluster.classes import version_of
from hubsub.control.cluster.node import ClusterNode
from hubsub.errors import BadRequestError, ConfigError, NoClusterError, NoSuchClassError
from hubsub.names import text_of

routes = Routes()
CLASS_ERRORS = (
    "class_change",
    "no_cluster",
    "no_controller",
    "expectation_failed",
    "coordinator_unreachable",
    "coordinator_unknown",
)


@routes("GET", "/v1/classes", "Room classes in order of precedence", answer=(ClassList,))
async def list_classes(state: State, request: Request) -> Response:
    cluster = state.cluster
    nodes = [] if cluster is None else [ClassOnNode(*row) for row in sorted(cluster.class_versions().items())]
    return json_answer(
        ClassList(
            classes=[_class(state, cls) for cls in state.classes],
            version=None if cluster is None else version_of(cluster.class_records),
            nodes=nodes,
        )
    )


@routes("GET", "/v1/classes/{class}", "A room class", answer=(RoomClass,), errors=("no_such_class",))
async def show_class(state: State, request: Request) -> Response:
    wanted = text_of(path_name(request, "class"))
    found = [cls for cls in state.classes if cls.name == wanted]
    if not found:
        raise NoSuchClassError(value=wanted, hint="GET /v1/classes lists them")
    return json_answer(_class(state, found[0]))


@routes(
    "POST",
    "/v1/classes",
    "Makes classes what is given, on all nodes of the cluster while they run; others stay",
    body=(list[dict[str, Any]],),
    answer=(AppliedClasses,),
    errors=(*CLASS_ERRORS, "body_too_large"),
)
async def apply_classes(state: State, request: Request) -> Response:
    """Applies the classes of the body, which has the form of `[[class]]` in a file; other classes stay."""
    cluster, tables = _cluster(state), decode(await body(state, request), list[dict[str, object]])
    try:
        given = room_classes(tables, state.config)
    except ConfigError as error:
        raise BadRequestError("the classes cannot be used", "; ".join(map(str, error.problems))) from None
    changed = await cluster.apply(given)
    return json_answer(AppliedClasses(changed=changed))


@routes(
    "DELETE",
    "/v1/classes/{class}",
    "Lets a class get no new rooms; those that it has go on",
    status=204,
    errors=(*CLASS_ERRORS, "no_such_class"),
)
async def remove_class(state: State, request: Request) -> Response:
    await _cluster(state).remove_class(text_of(path_name(request, "class")))
    return Response(status_code=204)


def _cluster(state: State) -> ClusterNode:
    if state.cluster is None:
        raise NoClusterError(
            hint="classes of a node alone stand in its configuration; a start takes them over"
        )
    return state.cluster


def _class(state: State, cls: Configured) -> RoomClass:
    record = None if state.cluster is None else state.cluster.class_records.get(cls.name)
    fields = {name: getattr(cls, name) for name in Configured.__struct_fields__}
    fields["version"] = None if record is None else record.version
    fields["state"] = "removed" if record is not None and record.is_removed else "in_force"
    fields["hubs"] = None if record is None else record.hubs
    return msgspec.convert(fields, RoomClass, from_attributes=True)
