"""Merges the lists of all nodes into one response, for `Gathered`.

The function `merge_…` of a list is beside its handler. It takes the state of the answering node, the request
and one list per node, and returns one list in the order that the route documents, cut to the `limit` of the
request.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from hubsub.api.params import number
from hubsub.api.state import State

T = TypeVar("T")


def limit_of(state: State, request: Request) -> int:
    return number(request, "limit", 100, state.limits["http_page_max"])


def page_of(
    limit: int, rows: Iterable[T], key: Callable[[T], Any], ends: Sequence[Any]
) -> tuple[list[T], bool]:
    """The first rows of all pages in order, and whether there are more.

    Each page has the first rows of its node. Rows after the end of the shortest truncated page are not
    completely known; that page alone has as many rows as requested.
    """
    known = sorted((row for row in rows if not ends or key(row) <= min(ends)), key=key)
    return known[:limit], bool(ends) or len(known) > limit
