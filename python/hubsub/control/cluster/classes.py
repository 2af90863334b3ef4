"""Room classes of a cluster: how configuration files define them in the coordinator, and which settings all
nodes must share.

The first node writes the classes of its file, as version 1. From then on `apply` changes classes, each change
with a higher version, and all nodes use it at once. A node whose file differs is refused, because it would
seem to have settings that it has not. If the class was applied since, the file is only out of date: the node
logs this and uses the cluster's class.

A new class has patterns, and ranks after the existing ones but before the one that matches all, which exists
from the beginning. A *removed* class keeps its rank and its rooms, and gets no new rooms.

Invariants: the settings that decide where rooms are (the number of hubs, durability, placement, the template)
never change. No room of a class with a log changes its class: its records are in one log. A room without a
log may, and begins a new epoch there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from hubsub.config import CLASSES_MAX, Config, RoomClass
from hubsub.control.cluster.commits import Put
from hubsub.control.cluster.records import CLASSES, ClassRecord, ClusterRecord, format_of
from hubsub.errors import ClassChangeError, NoSuchClassError

HUBS: Final = 64
"""Hubs of a class without a log: enough that eight nodes share them evenly, and few enough to move all in a minute."""

LOGGED_HUBS: Final = 16
"""Hubs of a class with a log: each has files and memory of its own."""

LIMITS: Final = (
    "frame_bytes_max",
    "pattern_bytes_max",
    "topic_bytes_max",
    "leader_lease_ms",
    "leader_silence_ms",
    "leader_guard_ms",
)
"""Limits that all nodes must share. A frame that one node accepts is forwarded to the others, so they must
accept it. The duration of a leader lease must agree because the controller waits for leases that others hold
to end."""

DEFAULT: Final = "default"
"""Class of rooms that no other class matches; the data plane adds the same one."""

LAST: Final = 1_000_000
"""Order of the default class."""

CATCH_ALL: Final = LAST - 1
"""Order of a class that matches all: other classes precede it, also ones that are added later."""

APPLIED_MAX: Final = 40
"""Maximum number of classes changed at once: they are one commit, so that rooms see all changes or none."""

FIRST_VERSION: Final = 1
"""Version of a class that came from the first node's file."""


def settings_of(config: Config) -> dict[str, Any]:
    """Settings that must be equal on all nodes."""
    return {"hash_tags": config.hash_tags} | {f"limits.{name}": config.limits[name] for name in LIMITS}


def seeds(config: Config) -> dict[str, ClassRecord]:
    """The classes of a configuration, as the first node writes them."""
    own = [cls for cls in config.all_classes if cls not in config.classes]
    # Internal classes precede every class that a file may define, and stay there whatever is applied later.
    records = {cls.name: record_of(cls, order=i - len(own)) for i, cls in enumerate(own)}
    records |= {cls.name: record_of(cls, order=_order(cls, i)) for i, cls in enumerate(config.classes)}
    last = config.classes[-1] if config.classes else None
    if last is None or last.match or last.room != "topic":
        records.setdefault(DEFAULT, record_of(RoomClass(name=DEFAULT, placement="ring"), order=LAST))
    return records


def _order(cls: RoomClass, order: int) -> int:
    return order if cls.match else CATCH_ALL


def own_seeds(config: Config) -> dict[str, ClassRecord]:
    """Seeds that no file defines: a later node with a data directory may be the first to need them."""
    return {
        name: record for name, record in seeds(config).items() if record.order < 0 or record.order == LAST
    }


def record_of(cls: RoomClass, order: int, version: int = FIRST_VERSION) -> ClassRecord:
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
    """Returns the class of a record; fields that an older version did not write get the defaults of this version."""
    return msgspec.convert(record.definition, RoomClass)


def ordered(classes: Mapping[str, ClassRecord]) -> list[RoomClass]:
    """All classes in order of precedence, without the default class, which the data plane adds itself."""
    names = sorted(classes, key=lambda name: (classes[name].order, name))
    return [class_of(classes[name]) for name in names if classes[name].order != LAST]


def configured(classes: Mapping[str, ClassRecord]) -> tuple[RoomClass, ...]:
    """The cluster's classes as a configuration lists them: without internal classes, and without the default
    class, which the data plane adds."""
    existing = {name: record for name, record in classes.items() if 0 <= record.order < LAST}
    return tuple(ordered(existing))


def class_key(name: str) -> str:
    return f"{CLASSES}/{name}"


def differences(
    config: Config, cluster: ClusterRecord, classes: Mapping[str, ClassRecord]
) -> tuple[list[str], list[str]]:
    """Compares a node's configuration with the cluster's. A file without classes uses the cluster's.

    Args:
        config: Configuration of the node.
        cluster: Settings of the cluster.
        classes: Classes of the cluster, by name.

    Returns:
        Differences that prevent the start, and differences to warn of.
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
    """Version of all classes together: it grows with each change of any of them."""
    return sum(record.version for record in classes.values())


def applied(existing: Mapping[str, ClassRecord], given: Iterable[RoomClass]) -> list[Put]:
    """Writes that change the cluster's classes to the given ones; none for classes that are equal already.

    Raises:
        ClassChangeError: one would change a fixed setting, or take rooms of a class with a log, or is new and
            has no patterns, or there would be too many classes.
    """
    puts = []
    last_order = max((r.order for r in existing.values() if r.order < CATCH_ALL), default=-1)
    for cls in given:
        record = existing.get(cls.name)
        if record is None:
            if not cls.match:
                raise ClassChangeError(
                    f"class {cls.name} is new and has no `match`: all rooms that no other class matches would be its "
                    "own, for good",
                    hint=f'say which rooms are: match = ["{cls.name}:*"]; another class has all that are left',
                )
            last_order = max(last_order + 1, 0)
            new = record_of(cls, last_order, FIRST_VERSION + 1)
            _check_taken(existing, new.order, f"class {cls.name} is new")
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
            _check_taken(existing, record.order, f"class {cls.name} has other patterns")
        after = record_of(cls, record.order, record.version + 1)
        after = msgspec.structs.replace(after, hubs=record.hubs, rest=record.rest)
        puts.append(Put(class_key(cls.name), format_of(after)))
    added = {put.key.partition("/")[2] for put in puts} - existing.keys()
    count = len(configured(existing)) + len(added)
    if added and count > CLASSES_MAX:
        raise ClassChangeError(
            "the cluster would have too many classes",
            f"{count}, at most {CLASSES_MAX}",
            "one that is removed keeps its place: its rooms go on",
        )
    return puts


def removed(existing: Mapping[str, ClassRecord], name: str) -> Put | None:
    """The write that stops a class from getting new rooms; None: it is removed already.

    Raises:
        NoSuchClassError: there is none, or it is internal.
        ClassChangeError: it is the class that matches all.
    """
    record = existing.get(name)
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
    """Raises `ClassChangeError` if a fixed setting would change."""
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


def _check_taken(existing: Mapping[str, ClassRecord], order: int, what: str) -> None:
    """Raises `ClassChangeError` if the class could match rooms of a lower-ranked class with a log."""
    logged = [
        name
        for name, record in sorted(existing.items())
        if record.order > order and class_of(record).is_logged
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
