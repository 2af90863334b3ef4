"""Spark's filters as conditions that the node checks."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

from hubsub.pipeline.options import SourceOptions
from hubsub.pipeline.pushdown import push
from hubsub.pipeline.selection import NAMES_BYTES_MAX, Selection, fits, slices

ROOM, TOPIC, OFFSET, HUB, TIME = ("room",), ("topic",), ("offset",), ("hub",), ("timestamp",)
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 5, UTC)
MOMENT_US = 1_700_000_000_000_005


@pytest.mark.parametrize(
    ("filters", "params"),
    [
        ([EqualTo(ROOM, "lobby")], [("room", "lobby")]),
        ([In(ROOM, ("b", "a"))], [("room", "a"), ("room", "b")]),
        ([In(ROOM, ("a", "b")), In(ROOM, ("b", "c"))], [("room", "b")]),
        ([StringStartsWith(ROOM, "ch"), StringStartsWith(ROOM, "chat:")], [("room_prefix", "chat:")]),
        ([EqualTo(TOPIC, "t"), StringStartsWith(TOPIC, "u")], [("topic", "t"), ("topic_prefix", "u")]),
        ([In(("device",), ("d2", "d1"))], [("device", "d1"), ("device", "d2")]),
        ([GreaterThanOrEqual(TIME, MOMENT)], [("since_us", str(MOMENT_US))]),
        ([GreaterThan(TIME, MOMENT)], [("since_us", str(MOMENT_US + 1))]),
        ([LessThan(TIME, MOMENT)], [("until_us", str(MOMENT_US))]),
        ([LessThanOrEqual(TIME, MOMENT)], [("until_us", str(MOMENT_US + 1))]),
        ([EqualTo(TIME, MOMENT)], [("since_us", str(MOMENT_US)), ("until_us", str(MOMENT_US + 1))]),
        ([IsNotNull(ROOM), IsNotNull(("payload",))], []),
    ],
)
def test_what_the_node_can_check_is_pushed_whole(
    filters: list[Filter], params: list[tuple[str, str]]
) -> None:
    selection, rest = push(Selection(), filters)
    assert selection.params() == params and rest == [] and not selection.nothing


def test_bounds_of_offsets_and_hubs_are_kept_for_planning() -> None:
    filters = [
        GreaterThan(OFFSET, 10),
        LessThanOrEqual(OFFSET, 20),
        GreaterThanOrEqual(HUB, 2),
        In(HUB, (1, 2, 3)),
    ]
    selection, rest = push(Selection(), filters)
    assert (selection.first, selection.end, rest) == (11, 21, [])
    assert [hub for hub in range(6) if selection.has_hub(hub)] == [2, 3]


def test_what_is_pushed_in_part_comes_back_as_the_same_object() -> None:
    filters = [In(OFFSET, (3, 9)), In(TIME, (MOMENT, MOMENT + timedelta(seconds=1))), EqualTo(OFFSET, 5)]
    selection, rest = push(Selection(), filters)
    assert (selection.first, selection.end) == (5, 6)
    assert selection.since_us == MOMENT_US and selection.until_us == MOMENT_US + 1_000_001
    assert [id(f) for f in rest] == [id(f) for f in filters[:2]]


@pytest.mark.parametrize(
    "filter_",
    [
        Not(EqualTo(ROOM, "a")),
        StringEndsWith(ROOM, "a"),
        StringStartsWith(ROOM, "100%"),  # May begin an escape.
        EqualTo(("seq",), 3),
        EqualTo(("publisher",), "a"),
        EqualTo(("headers", "event"), "a"),
        EqualTo(ROOM, None),
        EqualTo(TIME, MOMENT.replace(tzinfo=None)),
        EqualTo(OFFSET, True),
        GreaterThan(ROOM, "a"),
        IsNotNull(("device",)),
        StringStartsWith(("device",), "d"),
        EqualTo(("device",), None),
        In(ROOM, tuple(f"room-{n}" for n in range(10_000))),  # Too long for a request.
    ],
)
def test_what_the_node_cannot_check_is_left_to_spark(filter_: Filter) -> None:
    selection, rest = push(Selection(), [filter_])
    assert selection == Selection() and rest == [filter_]


def test_a_text_that_no_name_is_written_as_matches_nothing() -> None:
    """`%41` in a request would be the room `A`; in Spark no record has that text."""
    selection, rest = push(Selection(), [EqualTo(ROOM, "%41")])
    assert selection.nothing and rest == []
    selection, _ = push(Selection(), [EqualTo(ROOM, "a%FF")])
    assert selection.params() == [("room", "a%FF")]


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(ROOM, "a"), EqualTo(ROOM, "b")],
        [StringStartsWith(ROOM, "a"), StringStartsWith(ROOM, "b")],
        [GreaterThan(OFFSET, 5), LessThan(OFFSET, 5)],
        [GreaterThan(TIME, MOMENT), LessThan(TIME, MOMENT)],
        [In(OFFSET, ())],
    ],
)
def test_filters_that_contradict_each_other_ask_nobody(filters: list[Filter]) -> None:
    assert push(Selection(), filters)[0].nothing


def test_filters_narrow_what_options_ask_for() -> None:
    options = SourceOptions.parse({"subscribe": "a,b", "startingTimestamp": "1", "topicFilter": "x/#"})
    selection, _ = push(Selection.of(options), [In(ROOM, ("b", "c")), GreaterThan(TIME, MOMENT)])
    assert selection.params() == [("room", "b"), ("topic_filter", "x/#"), ("since_us", str(MOMENT_US + 1))]


def test_more_rooms_than_a_request_holds_are_picked_out_by_the_reader() -> None:
    rooms = [f"room-{n}" for n in range(10_000)]
    selection = Selection.of(SourceOptions.parse({"subscribe": ",".join(rooms)}))
    assert selection.params() == [] and selection.rooms_here == frozenset(rooms)
    parts = slices(rooms)
    assert [name for part in parts for name in part] == rooms and all(map(fits, parts))
    assert slices([]) == [()] and slices(["x" * NAMES_BYTES_MAX, "y"]) == [("x" * NAMES_BYTES_MAX,), ("y",)]
