"""The console's pages: the files of `static`, read once. Nothing else of the disk can be asked for.

They ask nobody but the node that they come from, and run no script but these files: the policy below has browsers hold
that.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.state import State
from hubsub.errors import NotFoundError

STATIC: Final = Path(__file__).parent / "static"

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files with another ending are not served."""

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class File(NamedTuple):
    """A file as it is answered."""

    body: bytes
    media_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    """All files by their path below `static`."""
    return {
        str(path.relative_to(STATIC)): File(
            body := path.read_bytes(), TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        )
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in TYPES
    }


async def index(state: State, request: Request) -> Response:
    return _answer(request, "index.html")


async def file(state: State, request: Request) -> Response:
    return _answer(request, request.path_params["file"])


async def file_in_folder(state: State, request: Request) -> Response:
    return _answer(request, "{folder}/{file}".format(**request.path_params))


def _answer(request: Request, path: str) -> Response:
    found = files().get(path)
    if found is None:
        raise NotFoundError(value=path[:200], hint="the console is at /")
    headers = {**HEADERS, "etag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)
