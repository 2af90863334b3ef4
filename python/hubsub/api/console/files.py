"""The console's pages: the files of `static`. They send requests only to the node that served them."""

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.routes import Routes
from hubsub.api.state import State
from hubsub.api.static import Pages

STATIC: Final = Path(__file__).parent / "static"

PAGES: Final = Pages(STATIC)

routes = Routes("console")


@routes("GET", "/", "The console: a page for browsers", media_type="text/html")
async def index(state: State, request: Request) -> Response:
    return PAGES.answer(request)


@routes("GET", "/console/{file}", "A file of the console", media_type="text/plain", errors=("not_found",))
async def file(state: State, request: Request) -> Response:
    return PAGES.answer(request, request.path_params["file"])


@routes(
    "GET", "/console/{folder}/{file}", "A file of the console", media_type="text/plain", errors=("not_found",)
)
async def file_in_folder(state: State, request: Request) -> Response:
    return PAGES.answer(request, "{folder}/{file}".format(**request.path_params))
