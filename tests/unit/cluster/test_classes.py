"""Allowed and refused changes of a cluster's classes."""

from __future__ import annotations

from typing import Any

import pytest

from hubsub.config import CLASSES_MAX, Config, RoomClass, resolve
from hubsub.control.cluster.classes import (
    APPLIED_MAX,
    CATCH_ALL,
    LAST,
    applied,
    class_of,
    configured,
    differences,
    removed,
    seeds,
    settings_of,
    version_of,
)
from hubsub.control.cluster.records import ClassRecord, ClusterRecord, parse
from hubsub.errors import ClassChangeError, NoSuchClassError

CHAT: dict[str, Any] = {"name": "chat", "match": ["chat:*"]}
LOGGED: dict[str, Any] = {
    "name": "log",
    "match": ["log:*"],
    "durability": "durable",
    "history": {"bytes": "64MiB"},
}
ALL: dict[str, Any] = {"name": "all", "placement": "ring"}


def config(*classes: dict[str, Any]) -> Config:
    return resolve({"class": list(classes), "data": "data"}, {}, {})


def given(*classes: dict[str, Any]) -> tuple[RoomClass, ...]:
    return config(*classes).classes


def after(kept: dict[str, ClassRecord], *classes: dict[str, Any]) -> dict[str, ClassRecord]:
    puts = applied(kept, given(*classes))
    return kept | {put.key.partition("/")[2]: parse(ClassRecord, put.key, put.value) for put in puts}


def order(kept: dict[str, ClassRecord]) -> list[str]:
    return [cls.name for cls in configured(kept)]


def test_a_new_class_stands_behind_the_others_and_before_the_one_that_matches_all() -> None:
    for first in ((CHAT, LOGGED), (CHAT, LOGGED, ALL)):
        kept = seeds(config(*first))
        now = after(kept, {"name": "iot", "match": ["iot/#"]}, {"name": "news", "match": ["news:*"]})
        assert order(now) == ["chat", "log", "iot", "news", *(["all"] if ALL in first else [])]
        assert (now["iot"].version, now["chat"].version) == (2, 1) and version_of(now) > version_of(kept)
        assert applied(now, given({"name": "iot", "match": ["iot/#"]})) == []
    assert seeds(config(CHAT))["default"].order == LAST and seeds(config(ALL))["all"].order == CATCH_ALL


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({**CHAT, "placement": "ring"}, "class chat keeps its placement"),
        ({**CHAT, **LOGGED, "name": "chat"}, "class chat keeps its durability"),
        ({**CHAT, "room": "chat/+", "match": ["chat:*", "chat/#"]}, "class chat keeps its room"),
        ({**LOGGED, "members": 3}, "class log keeps its members"),
        ({**LOGGED, "match": ["other:*"]}, "has a log, so it keeps its patterns"),
        ({**CHAT, "match": ["chat:*", "log:*"]}, "class with a log behind it"),
        ({"name": "chat"}, "matches every room, or does not"),
        ({"name": "second"}, "class second is new and has no `match`"),
    ],
)
def test_what_would_lose_records_or_rooms_is_refused_whole(changed: dict[str, Any], says: str) -> None:
    kept = seeds(config(CHAT, LOGGED, ALL))
    with pytest.raises(ClassChangeError, match=says):
        # No change is applied if one of them is refused.
        applied(kept, given({**ALL, "on_slow": "drop-oldest"}, changed))


def test_a_forgotten_pattern_takes_no_rooms_from_the_default_class_which_may_change_itself() -> None:
    kept = seeds(config(CHAT))
    with pytest.raises(ClassChangeError, match="all rooms that no other class matches") as refused:
        applied(kept, given({**LOGGED, "name": "forgot", "match": []}))
    assert 'match = ["forgot:*"]' in str(refused.value.hint)
    now = after(kept, {"name": "default", "placement": "ring", "on_slow": "drop-oldest"})
    assert (now["default"].order, class_of(now["default"]).on_slow) == (LAST, "drop-oldest")
    assert class_of(after(seeds(config(ALL)), {**ALL, "on_slow": "drop-oldest"})["all"]).match == ()


def test_there_are_no_more_classes_than_one_node_may_have_however_many_files_are_applied() -> None:
    kept = seeds(config(CHAT))
    many = [{"name": f"c{number}", "match": [f"c{number}:*"]} for number in range(1, CLASSES_MAX)]
    for at in range(0, len(many), APPLIED_MAX):
        kept = after(kept, *many[at : at + APPLIED_MAX])
    with pytest.raises(ClassChangeError, match="too many classes") as refused:
        applied(kept, given({"name": "more", "match": ["more:*"]}))
    assert refused.value.value == f"{CLASSES_MAX + 1}, at most {CLASSES_MAX}"
    assert len(applied(kept, given({**CHAT, "on_slow": "drop-oldest"}))) == 1, (
        "those that are there still change"
    )


def test_before_a_class_of_all_rooms_with_a_log_no_class_is_new() -> None:
    kept = seeds(config(CHAT, {**LOGGED, "name": "all", "match": []}))
    with pytest.raises(ClassChangeError, match="class iot is new, and could match rooms"):
        applied(kept, given({"name": "iot", "match": ["iot/#"]}))


def test_patterns_of_a_class_with_a_log_may_become_more_and_limits_change() -> None:
    kept = seeds(config(CHAT, LOGGED, ALL))
    now = after(kept, {**LOGGED, "match": ["log:*", "audit:*"], "history": {"bytes": "128MiB"}})
    cls = class_of(now["log"])
    assert cls.match == ("log:*", "audit:*") and cls.history is not None and cls.history.bytes == 128 << 20
    assert now["log"].hubs == kept["log"].hubs and now["log"].order == kept["log"].order


def test_a_class_that_is_removed_keeps_its_place_and_comes_back_by_being_applied() -> None:
    kept = seeds(config(CHAT, LOGGED))
    put = removed(kept, "log")
    assert put is not None
    now = kept | {"log": parse(ClassRecord, put.key, put.value)}
    assert now["log"].is_removed and now["log"].version == 2 and order(now) == ["chat", "log"]
    assert removed(now, "log") is None
    cluster = ClusterRecord(id="x", settings=settings_of(config(CHAT, LOGGED)))
    bad, old = differences(config(CHAT, LOGGED), cluster, now)
    assert not bad and old == ["class log: removed from the cluster since, it gets no new rooms"]
    assert differences(config(CHAT), cluster, now) == ([], [])
    again = after(now, LOGGED)
    assert not again["log"].is_removed and again["log"].version == 3
    with pytest.raises(NoSuchClassError):
        removed(kept, "$stage")
    with pytest.raises(NoSuchClassError):
        removed(kept, "none")
    with pytest.raises(ClassChangeError, match="no other matches"):
        removed(kept, "default")
