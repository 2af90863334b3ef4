"""Parses `[[class]]` tables as room classes: each key by its definition, then relations within a class."""

from collections.abc import Callable, Mapping
from typing import Any

from hubsub.config.class_keys import CLASS_KEYS
from hubsub.config.definitions import CLASSES_MAX
from hubsub.config.kinds import Bad, Kind, count, parse_duration, size, within
from hubsub.config.matching import (
    check_action_topic,
    check_device,
    check_share_strategy,
    check_state_topic,
    parse_pattern,
    parse_template,
    strange_room,
)
from hubsub.config.model import OWN, RESERVED, History, RoomClass
from hubsub.config.raw import parse, table_of, unknown
from hubsub.errors import Problem

CLASS_NAME_BYTES_MAX = 255
"""The name is a part of the coordinator's keys, whose length is limited."""

HISTORY_BYTES_MIN = 1_024
"""A record in memory takes up to a few hundred bytes without its payload; less would retain no record."""


def room_classes_of(problems: list[Problem], raw: object) -> list[RoomClass]:
    tables = table_of(problems, "class", raw, list)
    if len(tables) > CLASSES_MAX:
        problems.append(Problem("class", len(tables), f"there may be at most {CLASSES_MAX} classes"))
        return []
    classes: list[RoomClass] = []
    for index, table in enumerate(tables):
        cls = _class(problems, index, table_of(problems, "class", table, dict))
        if cls is not None:
            if cls.name in (c.name for c in classes):
                problems.append(Problem(f"class {cls.name}", None, "has the name of a class before it"))
            classes.append(cls)
    return classes


def _class(problems: list[Problem], index: int, table: Mapping[str, Any]) -> RoomClass | None:
    before = len(problems)
    name = table.get("name")
    where = f"class {name}" if isinstance(name, str) and name else f"class number {index + 1}"

    def add(key: str, value: object, reason: str, hint: str | None = None) -> None:
        problems.append(Problem(f"{where}, {key}", value, reason, hint))

    def check(key: str, checked: Callable[..., None], *values: object) -> None:
        try:
            checked(*values)
        except Bad as bad:
            add(key, values[-1], bad.reason, bad.hint)

    if where != f"class {name}":
        add("name", name, "must be a text that is not empty")
    elif isinstance(name, str) and name.startswith(RESERVED):
        add("name", name, f"begins with {RESERVED}, as the node's own classes do")
    elif isinstance(name, str) and (" " in name or "/" in name or len(name.encode()) > CLASS_NAME_BYTES_MAX):
        what = f"must have no space, no / and at most {CLASS_NAME_BYTES_MAX} bytes"
        add("name", name, what, "names of hubs and keys of the coordinator are made of it")
    unknown(problems, table, [key.name for key in CLASS_KEYS], f"{where}, ")
    values: dict[str, Any] = {}
    for key in CLASS_KEYS:
        raw = table.get(key.name, key.default)
        values[key.name] = None if raw is None else parse(problems, f"{where}, {key.name}", key.kind, raw)
    history: History | None = values["history"]
    if history is not None:
        history = values["history"] = _history(problems, f"{where}, history", history)
    is_logged = values["durability"] in ("replicated", "durable")
    if is_logged and (history is None or history.bytes == 0):
        what, hint = (
            "needs `history.bytes`, the size of its log",
            'such as history = { bytes = "1GiB", age = "7d" }',
        )
        add("durability", values["durability"], what, hint)
    if history is not None and history.archive_wait:
        _archive_wait(problems, f"{where}, history.archive_wait", history, is_logged)
    if is_logged and values["idle_ms"]:
        what = "is for rooms without a log: those with one leave memory by themselves"
        hint = "history.age says how long records are kept, and a room without records is forgotten"
        add("idle_ms", values["idle_ms"], what, hint)
    if values["on_gap"] is None:
        values["on_gap"] = "disconnect" if is_logged else "continue"
    if values["on_slow"] is None:
        values["on_slow"] = "disconnect" if history is None else "catch-up"
    elif values["on_slow"] == "catch-up" and history is None:
        add("on_slow", "catch-up", "needs a `history` to catch up from")
    if values["device"] is not None:
        check("device", check_device, values["device"])
    for topic, checked in (("device_state", check_state_topic), ("device_actions", check_action_topic)):
        if values[topic] is not None and len(problems) == before:
            check(topic, checked, values["device"], values[topic])
    check("share_strategy", check_share_strategy, values["share_strategy"])
    _names(problems, where, values)
    return RoomClass(**values) if len(problems) == before else None


def _history(problems: list[Problem], where: str, raw: object) -> History | None:
    if not isinstance(raw, dict):
        problems.append(Problem(where, raw, "must be a table", 'such as { messages = 1000, age = "7d" }'))
        return None
    kinds = {
        "messages": count(1, 2**53),
        "bytes": size(HISTORY_BYTES_MIN, 2**53),
        "age": Kind("time", within(parse_duration, 1, 2**53)),
        "archive_wait": size(1, 2**53),
    }
    unknown(problems, raw, list(kinds), f"{where}.")
    values = {k: parse(problems, f"{where}.{k}", kind, raw[k]) or 0 for k, kind in kinds.items() if k in raw}
    if "messages" not in raw and "bytes" not in raw:
        problems.append(Problem(where, raw, "needs `messages` or `bytes`", "memory must have a bound"))
    return History(age_ms=values.pop("age", 0), **values)


def _archive_wait(problems: list[Problem], where: str, history: History, is_logged: bool) -> None:
    if not is_logged:
        what, hint = "is for classes with a log", 'durability = "durable"; others are kept in memory only'
        problems.append(Problem(where, history.archive_wait, what, hint))
    elif history.archive_wait < history.bytes:
        what = f"must not be below history.bytes ({history.bytes})"
        hint = "it is all that a hub may have: what is kept anyway, and what waits for the archive"
        problems.append(Problem(where, history.archive_wait, what, hint))


def _names(problems: list[Problem], where: str, values: Mapping[str, Any]) -> None:
    """Checks that patterns and template are valid, and that the class matches the rooms of its template."""
    patterns, room = values["match"], values["room"]
    if patterns is None or room is None:
        return
    before = len(problems)
    own = [t for t in (*patterns, room) if t.removeprefix("mqtt:").removeprefix("glob:").startswith(OWN)]
    problems.extend(Problem(where, text, "names rooms that are the node's own") for text in own)
    for pattern in patterns:
        try:
            parse_pattern(pattern)
        except Bad as bad:
            problems.append(Problem(f"{where}, match", pattern, bad.reason, bad.hint))
    try:
        template = parse_template(room)
    except Bad as bad:
        problems.append(Problem(f"{where}, room", room, bad.reason, bad.hint))
        return
    if template is None or not patterns or len(problems) > before:
        return
    strange = strange_room(patterns, template)
    if strange is not None:
        topic, made = strange
        reason = f"makes of topic {topic!r} the room {made!r}, which this class does not match"
        problems.append(Problem(f"{where}, room", room, reason, f"add a pattern that matches {made!r}"))
