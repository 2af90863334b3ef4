"""The chat page's own server: the files of `static`, and `/demo.json`, which lists the rooms and nodes.

The page uses the console's style sheet. It connects to the nodes; this server takes no part in the chat.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hubsub.api.console.files import STATIC as CONSOLE
from hubsub.api.server import LoopServer
from hubsub.api.static import Pages
from hubsub.errors import NotFoundError

STATIC: Final = Path(__file__).parent / "static"

PAGES: Final = Pages(STATIC, asks="ws://127.0.0.1:*", also=(CONSOLE / "look.css",))

CONNECTIONS_MAX = 64
"""Limit of simultaneous connections; one more gets 503."""


class Page:
    """Serves the page on a free port of this machine while its context is open.

    Args:
        facts: Returns the content of `/demo.json`; called for each request.
    """

    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
        self._facts = facts
        self._socket = socket.create_server(("127.0.0.1", 0))
        host, port = self._socket.getsockname()
        self.url = f"http://{host}:{port}"
        """The origin of the page, known before it is served."""

    async def __aenter__(self) -> "Page":
        self._server = LoopServer(
            uvicorn.Config(
                self._app(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX + 1,
                timeout_graceful_shutdown=1,
            )
        )
        self._task = asyncio.ensure_future(self._server.serve([self._socket]))
        await self._server.serving.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task
        self._socket.close()

    def _app(self) -> Starlette:
        async def facts(_: Request) -> Response:
            return JSONResponse(self._facts(), headers={"cache-control": "no-store"})

        async def file(request: Request) -> Response:
            return PAGES.answer(request, request.path_params["path"])

        async def none(_: Request, error: Exception) -> Response:
            return PlainTextResponse(f"{error}\n", 404)

        routes = [Route("/demo.json", facts), Route("/{path:path}", file)]
        return Starlette(routes=routes, exception_handlers={NotFoundError: none})
