"""Pushes Spark's filters down as conditions that the node can check. Pure.

A pushed filter has exactly Spark's meaning; a filter that is pushed in part is also returned, and Spark
checks it again. Names in a request denote bytes, in Spark they are text: a name is pushed only where the
two agree.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from hubsub.columns import COLUMNS
from hubsub.names import bytes_of, text_of
from hubsub.pipeline.options import timestamp_us
from hubsub.pipeline.selection import OFFSET_END, Selection, fits

_Range = tuple[int, int]
_ALL = (-OFFSET_END, OFFSET_END)


def push(selection: Selection, filters: Iterable[Filter]) -> tuple[Selection, list[Filter]]:
    """Adds filters to a selection.

    Returns:
        The selection, and the filters that Spark must still check: the same objects, since Spark compares
        them by identity.
    """
    rest: list[Filter] = []
    for filter_ in filters:
        narrowed, whole = _one(selection, filter_)
        selection = narrowed or selection
        if not whole:
            rest.append(filter_)
    return selection, rest


def _one(selection: Selection, filter_: Filter) -> tuple[Selection | None, bool]:
    """The narrowed selection, if any; and whether it covers the whole filter."""
    path = getattr(filter_, "attribute", None)
    if path is None or len(path) != 1 or path[0] not in COLUMNS:
        return None, False
    column = path[0]
    if isinstance(filter_, IsNotNull):
        return None, column != "device"  # No other column is ever null.
    if column in ("room", "topic", "device"):
        return _name(selection, column, filter_)
    if column in ("hub", "offset"):
        return _number(selection, column, filter_)
    if column == "timestamp":
        return _timestamp(selection, filter_)
    return None, False


def _name(selection: Selection, column: str, filter_: Filter) -> tuple[Selection | None, bool]:
    if isinstance(filter_, StringStartsWith) and column != "device":
        # A percent sign may begin an escape that continues after the prefix.
        if "%" in filter_.value or not fits([filter_.value]):
            return None, False
        by_prefix = selection.with_room_prefix if column == "room" else selection.with_topic_prefix
        return by_prefix(filter_.value), True
    values = _values(filter_, str)
    if values is None:
        return None, False
    # A text that is not the canonical form of a name matches nothing in Spark, and would be another name in a
    # request.
    names = {value for value in values if text_of(bytes_of(value)) == value}
    if not fits(names):
        return None, False
    by_name = {"room": selection.with_rooms, "topic": selection.with_topics, "device": selection.with_devices}
    return by_name[column](names), True


def _number(selection: Selection, column: str, filter_: Filter) -> tuple[Selection | None, bool]:
    values = _values(filter_, int)
    if values is not None and column == "hub":
        return selection.with_hubs(values), True
    if values is not None:
        bounds = (min(values), max(values) + 1) if values else (0, 0)
        return selection.with_offsets(*bounds), len(set(values)) <= 1
    found = _range(filter_, lambda value: value if type(value) is int else None)
    if found is None:
        return None, False
    return (selection.with_hub_range if column == "hub" else selection.with_offsets)(*found), True


def _timestamp(selection: Selection, filter_: Filter) -> tuple[Selection | None, bool]:
    values = _values(filter_, datetime)
    if values is not None:
        moments = [_moment(value) for value in values]
        if not moments or None in moments:
            return None, False
        known = [moment for moment in moments if moment is not None]
        return selection.with_times(min(known), max(known) + 1), len(set(known)) == 1
    found = _range(filter_, _moment)
    if found is None:
        return None, False
    since, until = found
    return selection.with_times(
        None if since == _ALL[0] else since, None if until == _ALL[1] else until
    ), True


def _moment(value: object) -> int | None:
    """Microseconds of unix time; None for one without a zone, which depends on the session's."""
    return timestamp_us(value) if isinstance(value, datetime) and value.tzinfo is not None else None


def _values(filter_: Filter, kind: type) -> list[Any] | None:
    """The values that an equality or IN allows; None if it is neither, or a value is of another kind."""
    if isinstance(filter_, In):
        values = [value for value in filter_.value if value is not None]  # Nothing equals NULL.
    elif isinstance(filter_, EqualTo | EqualNullSafe):
        values = [filter_.value]
    else:
        return None
    alike = all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    return values if alike else None


def _range(filter_: Filter, read: Callable[[Any], int | None]) -> _Range | None:
    """First and end of the range that a comparison allows."""
    if not isinstance(filter_, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value = read(filter_.value)
    if value is None:
        return None
    if isinstance(filter_, GreaterThan):
        return value + 1, _ALL[1]
    if isinstance(filter_, GreaterThanOrEqual):
        return value, _ALL[1]
    return _ALL[0], value if isinstance(filter_, LessThan) else value + 1
