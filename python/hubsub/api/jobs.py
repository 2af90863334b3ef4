"""/v1/jobs: the latest rows that data pipelines report, for live display.

A report becomes a record of the durable room `$stats/job/JOB`, which anybody may read; this module stores
nothing.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.log_schema import JobTable
from hubsub.api.params import body, decode
from hubsub.api.routes import Routes
from hubsub.api.state import State
from hubsub.config.model import PUBLIC
from hubsub.errors import BadRequestError, NotLoggedError, refusal
from hubsub.node import Failed, Item

ROOMS = f"{PUBLIC}/job/"

JOBS = ("archive", "devices", "replay", "sessions")
"""Jobs that report a table. `activity` reports windows, to other rooms."""

routes = Routes("log")


@routes(
    "PUT",
    "/v1/jobs/{job}",
    "Tells the latest rows of a job, to who reads the room `$stats/job/JOB`",
    body=(JobTable,),
    status=204,
    errors=("body_too_large", "not_logged", "disk_full", "log_failed", "timed_out", "hub_closed"),
)
async def tell_table(state: State, request: Request) -> Response:
    job = request.path_params["job"]
    if job not in JOBS:
        raise BadRequestError("no such job tells a table", job, f"one of {', '.join(JOBS)}")
    table = decode(await body(state, request), JobTable)
    if any(len(row) != len(table.columns) for row in table.rows) or table.keys > len(table.columns):
        raise BadRequestError("each row has a value for each column, and keys are columns", job)
    room = f"{ROOMS}{job}".encode()
    if state.node.log_hub_of(room)[0] != PUBLIC:
        raise NotLoggedError("no node keeps what jobs tell", hint='data = "DIR" gives one a directory')
    for result in await state.node.publish([Item(room, msgspec.json.encode(table), {}, "")], as_node=True):
        if isinstance(result, Failed):
            raise refusal(*result)
    return Response(status_code=204)
