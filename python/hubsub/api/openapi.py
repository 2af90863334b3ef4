"""The OpenAPI 3.1 document, generated from the table of routes and the structs of the schema."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from hubsub.api.jobs import JOBS
from hubsub.api.routes import ATTEMPT, I64_MAX, U64_MAX, Param, Route
from hubsub.api.schema import RULES, ErrorBody
from hubsub.errors import BY_CODE
from hubsub.version import VERSION

GENERAL_ERRORS = ("bad_request", "too_busy", "timed_out", "stopping", "internal")
"""Error codes that every route under /v1 may return."""

PATH = {
    "id": Param("id", "", "integer", minimum=0, maximum=U64_MAX),
    "batch": Param("batch", "", "integer", minimum=0, maximum=I64_MAX),
    "attempt": Param("attempt", "", pattern=ATTEMPT),
    "job": Param("job", "", choices=JOBS),
}
"""Path parameters that are not an arbitrary name."""

OTHER: dict[str, dict[str, Any]] = {
    "application/json": {"type": "object"},
    # The fields of each event.
    "text/event-stream": {"type": "object"},
}
"""Schemas of responses that are neither a struct nor plain text."""

SCOPE = Param("scope", "`node`: this node alone answers; without it, the cluster.", choices=("node",))
"""Query parameter of the routes that ask other nodes."""


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document as plain JSON types."""
    types = {_key(t): t for r in routes for t in (*r.body, *r.answer)} | {"ErrorBody": ErrorBody}
    schemas, components = msgspec.json.schema_components(
        types.values(), ref_template="#/components/schemas/{name}"
    )
    for name, rule in RULES.items():
        components[name] = {**components[name], "allOf": [rule]}
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HubSub",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done"}
    if route.answer:
        answer["content"] = {"application/json": {"schema": _schema(route.answer, by_type)}}
    elif route.status != 204:
        answer["content"] = {route.media_type: {"schema": OTHER.get(route.media_type, {"type": "string"})}}
    reach = () if route.reach is None else (SCOPE,)
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_params(route.path), *(_param(p) for p in (*route.params, *reach))],
        "responses": {str(route.status): answer, **_errors(route, by_type["ErrorBody"])},
    }
    if route.method == "PUT" and route.answer:
        operation["responses"]["201"] = {**answer, "description": "Made"}
    if route.body:
        content = {"application/json": {"schema": _schema(route.body, by_type)}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.body_type:
        operation["requestBody"] = {"required": True, "content": {route.body_type: {"schema": {}}}}
    return operation


def _errors(route: Route, schema: dict[str, Any]) -> dict[str, Any]:
    codes = (*route.errors, *GENERAL_ERRORS, *(() if route.reach is None else ("nodes_unreachable",)))
    statuses: dict[str, list[str]] = {}
    for code in codes:
        statuses.setdefault(str(BY_CODE[code].status), []).append(code)
    content = {"application/json": {"schema": schema}}
    return {
        status: {"description": ", ".join(dict.fromkeys(names)), "content": content}
        for status, names in sorted(statuses.items())
    }


def _path_params(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "Percent-encoded bytes, a / as %2F.",
            "schema": PATH.get(name, Param(name, "", min_length=1)).schema,
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _param(param: Param) -> dict[str, Any]:
    return {
        "name": param.name,
        "in": param.place,
        "required": param.required,
        "description": param.doc,
        "schema": param.schema,
    }


def _schema(types: Sequence[object], by_type: dict[str, Any]) -> dict[str, Any]:
    schemas = [by_type[_key(kind)] for kind in types]
    return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]


def _key(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else repr(kind)
