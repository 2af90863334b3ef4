"""Types of the routes, which are beside their handlers. Routing and the OpenAPI document are derived from them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    """Type name in JSON Schema."""
    place: str = "query"
    minimum: int | None = None
    maximum: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str = ""
    """Expression that the whole value must match, valid in both Python and ECMAScript; empty for any value. """
    choices: tuple[str, ...] = ()
    required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        bounds = {
            "minimum": self.minimum,
            "maximum": self.maximum,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "pattern": f"^{self.pattern}$" if self.pattern else None,
            "enum": list(self.choices) or None,
        }
        return {"type": self.kind} | {name: bound for name, bound in bounds.items() if bound is not None}


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
    """Possible types of the request body."""
    answer: tuple[object, ...] = ()
    """Possible types of the response body; empty if it is not our JSON."""
    status: int = 200
    media_type: str = "application/json"
    body_type: str = ""
    """Media type of a request body that is not our JSON; empty where there is none."""
    errors: tuple[str, ...] = ()
    """Error codes of this route besides the general ones."""
    tag: str = field(default="node")
    reach: "Reach | None" = None
    """Nodes it asks in a cluster. None: this node alone, or the data plane forwards by itself."""


class Routes(list[Route]):
    """The routes of a module; each is added beside its handler.

    Args:
        tag: Tag of the routes in the OpenAPI document, unless a route has its own.
    """

    def __init__(self, tag: str = "node") -> None:
        super().__init__()
        self._tag = tag

    def __call__(
        self, method: str, path: str, summary: str, params: tuple[Param, ...] = (), **fields: Any
    ) -> Callable[[Handler], Handler]:
        """Decorates the handler of a route; the arguments are the fields of `Route`."""

        def add(handler: Handler) -> Handler:
            self.append(Route(method, path, summary, handler, params, **{"tag": self._tag, **fields}))
            return handler

        return add


U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
I64_MAX = 2**63 - 1


def digits(most: int) -> str:
    """A regular expression for the numbers from 0 to `most`, without leading zeros.

    >>> digits(123)
    '(0|[1-9][0-9]{0,1}|1[0-1][0-9]{1}|12[0-2]|123)'
    """
    text = str(most)
    parts = ["0"] + ([f"[1-9][0-9]{{0,{len(text) - 2}}}"] if len(text) > 1 else [])
    for place, digit in enumerate(text):
        low, high = int(place == 0), int(digit) - 1
        left = len(text) - place - 1
        if high >= low:
            first = f"{low}" if high == low else f"[{low}-{high}]"
            parts.append(text[:place] + first + (f"[0-9]{{{left}}}" if left else ""))
    return f"({'|'.join([*parts, text])})"


POSITION = f"{digits(U64_MAX)}-{digits(U64_MAX)}"
"""Expression of a position, EPOCH-SEQ."""

ATTEMPT = r"[A-Za-z0-9._-]{1,100}"
"""Expression of the name of an attempt at a batch."""

KEY_CHARACTERS_MAX = 255


def key_of(what: str) -> Param:
    """The header that makes a request repeatable with only one effect, described by `what`."""
    doc = f"The same key gets the same answer, and {what}; of another topic it is another key."
    return Param("Idempotency-Key", doc, place="header", min_length=1, max_length=KEY_CHARACTERS_MAX)


NODE = Param("node", "Name of the node that has it; without it, the one that is asked.")
LIMIT = Param("limit", "Entries of the page; http_page_max bounds it.", "integer", minimum=1)
