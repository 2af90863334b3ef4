"""Room classes of a cluster: how they come from files into the coordinator, and what nodes must have alike.

The first node writes what its file says, as version 1. From then on `apply` changes classes, each change with a
higher version, and all nodes act by it at once. A node whose file says something else is refused, or it would seem to
have what it has not; but where a class was applied since, the file is merely old, and the node says so and takes the
cluster's.

A class that is new has patterns, and stands behind those that are there, and before the one that matches all, which is
so from the beginning. One that is *removed* keeps its place and its rooms, and gets no new ones.

Invariants: what decides where rooms are (the number of hubs, durability, placement, the template) stays as the class
began. No room of a class with a log becomes another class's: its records are in one log. A room without a log may, and
begins another life there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from hubsub.config import CLASSES_MAX, Config, RoomClass
from hubsub.control.cluster.commits import Put
from hubsub.control.cluster.records import CLASSES, ClassRecord, ClusterRecord, format_of
from hubsub.errors import ClassChangeError, NoSuchClassError

HUBS: Final = 64
"""Of a class without a log: so many that eight nodes share them evenly, and few enough to move all in a minute."""

LOGGED_HUBS: Final = 16
"""Each has files and memory of its own."""

LIMITS: Final = (
    "frame_bytes_max",
    "pattern_bytes_max",
    "topic_bytes_max",
    "lead_ms",
    "lead_silence_ms",
    "lead_guard_ms",
)
"""What one node takes all others must take: it is forwarded to them. And how long a lead is all must agree on: the
controller waits for the end of leads that others hold."""

DEFAULT: Final = "default"
"""The class of rooms that no other matches; the data plane adds it likewise."""

LAST: Final = 1_000_000
"""Order of the default class."""

CATCH_ALL: Final = LAST - 1
"""Order of a class that matches all: others come before it, also later."""

APPLIED_MAX: Final = 40
"""Classes that are changed at once: one commit, so that rooms meet all of them or none."""

FIRST_VERSION: Final = 1
"""Of a class that came from the first node's file."""


def settings_of(config: Config) -> dict[str, Any]:
    """What all nodes must have alike."""
    return {"hash_tags": config.hash_tags} | {f"limits.{name}": config.limits[name] for name in LIMITS}


def seeds(config: Config) -> dict[str, ClassRecord]:
    """The classes of a configuration, as the first node writes them."""
    own = [cls for cls in config.all_classes if cls not in config.classes]
    # The node's own come before all that a file may match, and stay there whatever is applied later.
    records = {cls.name: record_of(cls, order=i - len(own)) for i, cls in enumerate(own)}
    records |= {cls.name: record_of(cls, order=_order(cls, i)) for i, cls in enumerate(config.classes)}
    last = config.classes[-1] if config.classes else None
    if last is None or last.match or last.room != "topic":
        records.setdefault(DEFAULT, record_of(RoomClass(name=DEFAULT, placement="ring"), order=LAST))
    return records


def _order(cls: RoomClass, order: int) -> int:
    return order if cls.match else CATCH_ALL


def own_seeds(config: Config) -> dict[str, ClassRecord]:
    """Those among them that no file names: a later node with a data directory may be the first to have them."""
    return {
        name: record for name, record in seeds(config).items() if record.order < 0 or record.order == LAST
    }


def record_of(cls: RoomClass, order: int, version: int = FIRST_VERSION) -> ClassRecord:
    """A class as the coordinator keeps it."""
    return ClassRecord(
        version=version,
        hubs=LOGGED_HUBS if cls.is_logged else HUBS,
        members=cls.members,
        durability=cls.durability,
        placement=cls.placement,
        on_partition=cls.on_partition,
        order=order,
        definition=msgspec.to_builtins(cls),
    )


def class_of(record: ClassRecord) -> RoomClass:
    """The class of a record, with the defaults of this version for what an older one did not know."""
    return msgspec.convert(record.definition, RoomClass)


def ordered(classes: Mapping[str, ClassRecord]) -> list[RoomClass]:
    """All classes in order of precedence, without the default class, which the data plane has by itself."""
    names = sorted(classes, key=lambda name: (classes[name].order, name))
    return [class_of(classes[name]) for name in names if classes[name].order != LAST]


def configured(classes: Mapping[str, ClassRecord]) -> tuple[RoomClass, ...]:
    """The cluster's classes as a configuration has them: without the node's own, and without the default one that the
    data plane adds."""
    kept = {name: record for name, record in classes.items() if 0 <= record.order < LAST}
    return tuple(ordered(kept))


def class_key(name: str) -> str:
    return f"{CLASSES}/{name}"


def differences(
    config: Config, cluster: ClusterRecord, classes: Mapping[str, ClassRecord]
) -> tuple[list[str], list[str]]:
    """What of a node's configuration is not the cluster's: what it must not start with, and what it is to know.

    A file without classes takes the cluster's.
    """
    bad, old = [], []
    for name, value in settings_of(config).items():
        there = cluster.settings.get(name, value)
        if there != value:
            bad.append(f"{name}: {value!r} here, {there!r} in the cluster")
    for cls in config.classes:
        record = classes.get(cls.name)
        if record is not None and record.is_removed:
            old.append(f"class {cls.name}: removed from the cluster since, it gets no new rooms")
        elif record is None:
            bad.append(
                f"class {cls.name}: not in the cluster\n  hint: hubsub class apply adds it, then start again"
            )
        elif class_of(record) != cls:
            what = f"class {cls.name}, {', '.join(_fields(cls, class_of(record)))}"
            if record.version == FIRST_VERSION:
                bad.append(f"{what}\n  hint: mend the file, or hubsub class apply changes the cluster's")
            else:
                old.append(f"{what}; it was applied since (version {record.version}), the file is old")
    names = {cls.name for cls in config.classes}
    for name, record in sorted(classes.items()):
        if config.classes and name not in names and 0 <= record.order < LAST and not record.is_removed:
            what = f"class {name}: not in the file, and the cluster has it"
            (bad if record.version == FIRST_VERSION else old).append(what)
    logged = [name for name, record in sorted(classes.items()) if class_of(record).is_logged]
    if logged and config.data is None and "hub" in config.role:
        bad.append(
            f"data: none here, and class {logged[0]} keeps a log\n  hint: give it --data, or --role edge"
        )
    return bad, old


def version_of(classes: Mapping[str, ClassRecord]) -> int:
    """Of all classes together: larger with each change of one of them."""
    return sum(record.version for record in classes.values())


def applied(kept: Mapping[str, ClassRecord], given: Iterable[RoomClass]) -> list[Put]:
    """What is written so that the cluster has these classes; nothing for those that it has.

    Raises:
        ClassChangeError: one would change what must stay, or take rooms of a class with a log, or is new and has no
            patterns, or there would be too many of them.
    """
    puts = []
    behind = max((r.order for r in kept.values() if r.order < CATCH_ALL), default=-1)
    for cls in given:
        record = kept.get(cls.name)
        if record is None:
            if not cls.match:
                raise ClassChangeError(
                    f"class {cls.name} is new and has no `match`: all rooms that no other class matches would be its "
                    "own, for good",
                    hint=f'say which rooms are: match = ["{cls.name}:*"]; another class has all that are left',
                )
            behind = max(behind + 1, 0)
            new = record_of(cls, behind, FIRST_VERSION + 1)
            _check_taken(kept, new.order, f"class {cls.name} is new")
            puts.append(Put(class_key(cls.name), format_of(new)))
            continue
        before = class_of(record)
        if before == cls and not record.is_removed:
            continue
        _check_kept(before, cls)
        if set(before.match) != set(cls.match):
            if not cls.match or not before.match:
                raise ClassChangeError(
                    f"class {cls.name} matches every room, or does not, for good", hint=_MATCH
                )
            if before.is_logged and not set(before.match) <= set(cls.match):
                missing = ", ".join(sorted(set(before.match) - set(cls.match)))
                raise ClassChangeError(
                    f"class {cls.name} has a log, so it keeps its patterns",
                    missing,
                    "patterns may be added; `hubsub class rm` lets it get no new rooms",
                )
            _check_taken(kept, record.order, f"class {cls.name} has other patterns")
        after = record_of(cls, record.order, record.version + 1)
        after = msgspec.structs.replace(after, hubs=record.hubs, rest=record.rest)
        puts.append(Put(class_key(cls.name), format_of(after)))
    added = {put.key.partition("/")[2] for put in puts} - kept.keys()
    count = len(configured(kept)) + len(added)
    if added and count > CLASSES_MAX:
        raise ClassChangeError(
            "the cluster would have too many classes",
            f"{count}, at most {CLASSES_MAX}",
            "one that is removed keeps its place: its rooms go on",
        )
    return puts


def removed(kept: Mapping[str, ClassRecord], name: str) -> Put | None:
    """What is written so that a class gets no new rooms; None: it gets none already.

    Raises:
        NoSuchClassError: there is none, or it is the node's own.
        ClassChangeError: it is the one that matches all.
    """
    record = kept.get(name)
    if record is None or record.order < 0:
        raise NoSuchClassError(value=name, hint="`hubsub class ls` lists them")
    if record.order >= CATCH_ALL:
        raise ClassChangeError("the class of all rooms that no other matches cannot be removed", name)
    if record.is_removed:
        return None
    after = msgspec.structs.replace(record, version=record.version + 1, is_removed=True)
    return Put(class_key(name), format_of(after))


_MATCH: Final = "one class matches all that no other does, and stands behind them"


def _check_kept(before: RoomClass, after: RoomClass) -> None:
    """Raises `ClassChangeError` where what must stay would change."""
    fields = ["durability", "placement", "room"]
    if before.is_logged:
        fields.append("members")
    for field in fields:
        if getattr(before, field) != getattr(after, field):
            raise ClassChangeError(
                f"class {after.name} keeps its {field}",
                f"{getattr(before, field)}, not {getattr(after, field)}",
                "give what shall be otherwise a class of another name",
            )


def _check_taken(kept: Mapping[str, ClassRecord], order: int, what: str) -> None:
    """Raises `ClassChangeError` where rooms may be those of a class with a log."""
    logged = [
        name for name, record in sorted(kept.items()) if record.order > order and class_of(record).is_logged
    ]
    if logged:
        raise ClassChangeError(
            f"{what}, and could match rooms of a class with a log behind it",
            logged[0],
            "their records would not be found; rooms of a class without a log can change theirs",
        )


def _fields(here: RoomClass, there: RoomClass) -> list[str]:
    def show(value: object) -> str:
        return msgspec.json.encode(value).decode()

    return [
        f"{name}: {show(getattr(here, name))} here, {show(getattr(there, name))} in the cluster"
        for name in here.__struct_fields__
        if getattr(here, name) != getattr(there, name)
    ]
