"""The table of the API: each route once. Routing and the OpenAPI document are both made from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from hubsub.api.reach import Reach
    from hubsub.api.state import State

Handler = Callable[["State", Request], Awaitable[Response]]


@dataclass(frozen=True)
class Param:
    """A query or header parameter."""

    name: str
    doc: str
    kind: str = "string"
    """JSON Schema type."""
    place: str = "query"
    minimum: int | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    """`{name}` is one percent-encoded segment, so a room's `/` is `%2F`."""
    summary: str
    handler: Handler
    params: tuple[Param, ...] = ()
    body: tuple[object, ...] = ()
    """Types that the request's body may have."""
    answer: tuple[object, ...] = ()
    """Types that the answer's body may have; none where it is no JSON of ours."""
    status: int = 200
    media_type: str = "application/json"
    errors: tuple[str, ...] = ()
    """Codes of errors that this route answers beside the ones that all do."""
    tag: str = field(default="node")
    reach: "Reach | None" = None
    """Whom it asks in a cluster; None: this node alone, or what its data plane carries on by itself."""


LIMIT = Param("limit", "Entries of the page; http_page_max bounds it.", "integer", minimum=1)
