"""The table of all routes, collected from the modules of their handlers, and the OpenAPI document of it."""

from functools import cache
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api import (
    classes,
    clients,
    cluster,
    consumers,
    devices,
    hubs,
    jobs,
    log,
    moves,
    nodes,
    presence,
    publish,
    queries,
    records,
    retained,
    rooms,
    sessions,
    stages,
    streams,
    traces,
)
from hubsub.api.answers import json_answer
from hubsub.api.console import events, files, now
from hubsub.api.openapi import document
from hubsub.api.routes import Route, Routes
from hubsub.api.state import State

routes = Routes()


@routes("GET", "/v1/openapi.json", "This document")
async def openapi(state: State, request: Request) -> Response:
    return json_answer(openapi_document())


@cache
def openapi_document() -> dict[str, Any]:
    return document(ROUTES)


MODULES = (
    *(rooms, presence, streams, traces, moves, publish, clients, sessions, devices, consumers, retained),
    *(hubs, log, records, queries, jobs, stages, files, now, events, cluster, nodes, classes),
)
"""The modules with handlers, in the order of the document."""

ROUTES: tuple[Route, ...] = (*chain.from_iterable(module.routes for module in MODULES), *routes)
