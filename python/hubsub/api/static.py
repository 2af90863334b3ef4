"""Static pages of the package: the files of a folder, read once. No other file can be requested."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from hubsub.errors import NotFoundError

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by suffix. Files with another suffix are not served."""


class File(NamedTuple):
    """A file, ready to be sent."""

    body: bytes
    media_type: str
    etag: str


class Pages:
    """The pages of a folder. Their content security policy allows only scripts from these files and
    connections to this node.

    Args:
        folder: Folder of the files.
        index: File that is served for the empty path.
        asks: Further targets of the policy's `connect-src`.
        also: Files of other folders, served by their names.
    """

    def __init__(
        self, folder: Path, index: str = "index.html", asks: str = "", also: Sequence[Path] = ()
    ) -> None:
        self.folder, self._index, self._also = folder, index, also
        connects = f"; connect-src 'self' {asks}" if asks else ""
        self._headers = {
            "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors 'none'; object-src 'none'{connects}",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    @cached_property
    def files(self) -> dict[str, File]:
        """All files by their path below the folder, or their name."""
        own = {str(path.relative_to(self.folder)): path for path in sorted(self.folder.rglob("*"))}
        return {
            name: File(
                body := path.read_bytes(), TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            )
            for name, path in (own | {path.name: path for path in self._also}).items()
            if path.suffix in TYPES
        }

    def answer(self, request: Request, path: str = "") -> Response:
        """Response with the file, or 304 if the browser has it.

        Raises:
            NotFoundError: there is no such file.
        """
        found = self.files.get(path or self._index)
        if found is None:
            raise NotFoundError(value=path[:200], hint="the page is at /")
        headers = {**self._headers, "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, headers=headers, media_type=found.media_type)
