"""The ASGI application: routes requests by the table and is the one place where errors become responses."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from sys import getsizeof
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hubsub.api.answers import error_answer
from hubsub.api.others import Call, Reply
from hubsub.api.params import body, let_go
from hubsub.api.reach import Asked, check_scope, is_of_this_node
from hubsub.api.routes import Route
from hubsub.api.state import State
from hubsub.api.strangers import Strangers
from hubsub.api.strict import SHORT_BYTES
from hubsub.api.table import ROUTES
from hubsub.errors import BadRequestError, HubSubError, MethodNotAllowedError, NotFoundError

log = structlog.get_logger()


class App:
    """Routes on the raw path, segment by segment, so that an encoded `/` stays part of a name."""

    def __init__(self, state: State, routes: Sequence[Route] = ROUTES) -> None:
        self.state = state
        self._strangers = Strangers()
        self._paths: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for route in routes:
            expression = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path)))
            self._paths.setdefault(route.path, (expression, {}))[1][route.method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        head = head_bytes(scope)
        # The listener admitted these bytes when they arrived.
        self.state.request_bytes += head
        try:
            await self._serve(scope, receive, send)
        finally:
            self.state.hold(-head)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request({**scope, "app": self}, receive)
        refused = self._strangers.refused(request.headers, self.state.config)
        try:
            label, answer = (
                await self._answer(request) if refused is None else ("none", error_answer(refused))
            )
        finally:
            let_go(self.state, request)
        self.state.requests[(label, answer.status_code)] += 1
        await answer(scope, receive, send)

    async def called(self, call: Call) -> Reply:
        """Serves a request from another node, for this node only."""
        request = Request(
            {
                "type": "http",
                "method": call.method,
                "path": call.path,
                "raw_path": call.path.encode(),
                "query_string": call.query.encode(),
                "headers": [],
                "app": self,
            },
            _one_body(call.body),
        )
        try:
            label, answer = await self._answer(request)
        finally:
            let_go(self.state, request)
        self.state.requests[(label, answer.status_code)] += 1
        media_type = answer.media_type or "application/json"
        return Reply(answer.status_code, bytes(answer.body), media_type, answer.headers.get("retry-after"))

    async def _answer(self, request: Request) -> tuple[str, Response]:
        """Returns the route's label for the counters, and the response."""
        path = request.scope.get("raw_path", b"").decode("ascii", "replace") or request.scope["path"]
        for label, (expression, methods) in self._paths.items():
            match = expression.fullmatch(path)
            if match is None:
                continue
            method = "GET" if request.method == "HEAD" else request.method
            if method not in methods:
                allow = ", ".join(methods)
                error = MethodNotAllowedError(value=request.method, hint=f"it takes {allow}")
                return label, error_answer(error, {"allow": allow})
            request.scope["path_params"] = match.groupdict()
            return label, await self._handle(methods[method], request)
        return "none", error_answer(
            NotFoundError(value=path[:200], hint="GET /v1/openapi.json lists all paths")
        )

    async def _handle_here(self, route: Route, request: Request) -> Response:
        try:
            return await route.handler(self.state, request)
        except HubSubError as error:
            return error_answer(error)

    async def _handle(self, route: Route, request: Request) -> Response:
        try:
            if route.reach is not None:
                check_scope(request)
            if self.state.others is None or route.reach is None or is_of_this_node(request):
                return await route.handler(self.state, request)
            data = await body(self.state, request)
            again = Request(request.scope, _one_body(data))
            here = partial(self._handle_here, route, again)
            return await route.reach.answer(Asked(self.state, self.state.others, request, data, here))
        except HubSubError as error:
            return error_answer(error)
        except ClientDisconnect:
            return error_answer(BadRequestError("the client went away"))
        except Exception:
            log.exception("request failed", route=route.path, method=route.method)
            return error_answer(HubSubError(hint="the node's log says more"))


def head_bytes(scope: Mapping[str, Any]) -> int:
    """The memory of a request's head beyond `SHORT_BYTES`, in bytes; its path is there in two forms."""
    fields = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
    target = sum(getsizeof(scope.get(part, b"")) for part in ("path", "raw_path", "query_string"))
    return max(0, target + fields - SHORT_BYTES)


def _one_body(data: bytes) -> Receive:
    """A request body that is already complete."""

    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    return receive
