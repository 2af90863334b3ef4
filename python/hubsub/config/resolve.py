"""Raw configuration in, resolved configuration out.

Sources are read raw, in order of precedence: flags, environment, file,
defaults. Each value is parsed once by its definition, relations are checked,
and the result is frozen. Everything that is wrong is collected and reported at
once.
"""

import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from hubsub.config.definitions import (
    CLASS_KEYS,
    CLASSES_MAX,
    CLIENT_LISTENERS,
    KEYS,
    LIMITS,
    LISTENERS,
    SHARDS_MAX,
)
from hubsub.config.kinds import (
    HIDDEN,
    Bad,
    Kind,
    Secret,
    cpus,
    is_loopback,
    nearest,
    parse_count,
    parse_duration,
    parse_size,
    split_address,
    within,
)
from hubsub.config.matching import check_device, parse_pattern, parse_template, strange_room
from hubsub.errors import ConfigError, Problem

HISTORY_BYTES_MIN = 1_024
"""A record in memory weighs up to some hundred bytes without its payload: less would keep none."""

Source = Literal["default", "file", "environment", "flag"]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a room remembers; 0 means no limit."""

    messages: int = 0
    bytes: int = 0
    age_ms: int = 0
    archive_wait: int = 0
    """Bytes of a hub up to which what is not archived is kept beyond the others; 0: it is not."""


class RoomClass(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved room class; the keys are those of `[[class]]`."""

    name: str
    match: tuple[str, ...] = ()
    room: str = "topic"
    device: str | None = None
    durability: str = "ephemeral"
    members: int = 1
    history: History | None = None
    on_slow: str = "disconnect"
    on_gap: str = "continue"
    placement: str = "least-busy"
    on_partition: str = "pause"
    payload_bytes_max: int = 64 << 20
    idle_ms: int = 0
    commit_delay_ms: int = 0

    @property
    def is_logged(self) -> bool:
        """Whether its records go into the log."""
        return self.durability != "ephemeral"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved configuration: all that the rest of the program sees.

    Addresses are `HOST:PORT` or None for off; times are ms, sizes bytes.
    """

    node: str
    data: str | None
    shards: int
    role: tuple[str, ...]
    zone: str
    advertise: str | None
    redis: str | None
    redis_cluster: str | None
    mqtt: str | None
    ws: str | None
    http: str | None
    link: str | None
    raft: str | None
    cluster_secret: Secret | None
    join: tuple[str, ...]
    coordinator: str
    insecure_open: bool
    hash_tags: bool
    log_level: str
    log_format: str
    limits: Mapping[str, int]
    classes: tuple[RoomClass, ...]
    sources: Mapping[str, Source]
    """Key (`limits.NAME` for a limit) to where its value came from."""

    @property
    def is_clustered(self) -> bool:
        """Whether it is to be a node of a cluster: all that makes one needs a listener for links."""
        return self.link is not None

    @property
    def all_classes(self) -> tuple[RoomClass, ...]:
        """The node's own classes, if it keeps anything, before those of the configuration."""
        return (*system_classes(self.data, self.limits), *self.classes)

    def core_limits(self) -> dict[str, int]:
        """The limits that the data plane keeps."""
        return {limit.name: self.limits[limit.name] for limit in LIMITS if limit.owner == "core"}


OWN = ("$stage", "$queries", "$stats")
"""The node's own classes, and the first level of their rooms."""

RESERVED = "$"
"""Names that begin with it are the node's own."""

PUBLIC = "$stats"
"""The one of the node's own classes whose rooms anybody may read."""

QUERIES_BYTES = 64 << 20
"""Of the records that say how far each query's batches are: some 300,000 of them."""

STATS_BYTES = 64 << 20
STATS_AGE_MS = 7 * 86_400_000
"""What the node says of itself is of use for a while; the bound that holds on a busy node is that of bytes."""


def system_classes(data: str | None, limits: Mapping[str, int]) -> tuple[RoomClass, ...]:
    """The node's own classes: none without a data directory.

    Those of stages forget nothing by age: what a batch still needs must not go while a node is down.
    """
    if not data:
        return ()
    least = limits["log_segment_bytes"]

    def own(name: str, room: str, durability: str, size: int, age_ms: int = 0) -> RoomClass:
        # A log removes whole segments, and not the one that it writes.
        history = History(bytes=max(size, least) + least, age_ms=age_ms)
        return RoomClass(
            name=name,
            match=(f"{name}/#",),
            room=room,
            durability=durability,
            history=history,
            on_slow="catch-up",
            # In a cluster a record for each room would stay there for each stage that ever was.
            placement="ring",
            payload_bytes_max=2**32,
        )

    return (
        own("$stage", "$stage/+/+", "durable", limits["stage_bytes_max"]),
        own("$queries", "$queries/+", "durable", QUERIES_BYTES),
        own("$stats", "topic", "durable", STATS_BYTES, STATS_AGE_MS),
    )


def load(
    path: str | Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Reads and resolves the configuration.

    Args:
        path: TOML file; default: `HUBSUB_CONFIG`, else none.
        flags: Values by key that beat all others; None counts as not given. `limits` may be a
            list of `NAME=VALUE`.
        environ: Environment; default: the process's.

    Raises:
        ConfigError: with every problem found.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get("HUBSUB_CONFIG") or None
    file = read_file(path) if path else {}
    try:
        return resolve(file, flags or {}, environ)
    except ConfigError as error:
        raise ConfigError(error.problems, path) from None


def read_file(path: str | Path) -> dict[str, Any]:
    """The raw content of a TOML file."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError([Problem("config", str(path), f"cannot be read ({error.strerror})")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("config", str(path), f"is not TOML ({error})")]) from None


def resolve(file: Mapping[str, Any], flags: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Raw values of each source as one resolved configuration."""
    problems: list[Problem] = []
    sources: dict[str, Source] = {}
    _unknown(problems, file, [*(key.name for key in KEYS), "limits", "class"], "")

    values: dict[str, Any] = {}
    for key in KEYS:
        raw, source = key.default, "default"
        for candidate, name in (
            (file.get(key.name), "file"),
            (environ.get(key.env), "environment"),
            (flags.get(key.name), "flag"),
        ):
            if candidate is not None and candidate != "":
                raw, source = candidate, name
        sources[key.name] = source  # type: ignore[assignment]
        where = _named(key.name, key.env, sources)
        values[key.name] = None if raw is None else _parse(problems, where, key.kind, raw, key.is_secret)

    limits = _limits(problems, sources, file, flags, environ)
    classes = _classes(problems, file.get("class", []))
    _relations(problems, values, limits, sources)
    _links(problems, values, limits, sources)
    _cluster(problems, values, sources)
    _logs(problems, values["data"], limits, [cls for cls in classes if cls.is_logged])
    if problems:
        raise ConfigError(problems)
    values["node"] = values["node"] or socket.gethostname()
    values["shards"] = values["shards"] or min(cpus(), SHARDS_MAX)
    return Config(
        **values, limits=MappingProxyType(limits), classes=tuple(classes), sources=MappingProxyType(sources)
    )


def room_classes(tables: object, config: Config) -> tuple[RoomClass, ...]:
    """Classes from tables as `[[class]]` of a file has them, for nodes that run.

    Args:
        tables: A list of objects.
        config: Of one of those nodes, whose limits hold.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[Problem] = []
    classes = _classes(problems, tables)
    _logs(problems, config.data or "elsewhere", config.limits, [cls for cls in classes if cls.is_logged])
    if problems:
        raise ConfigError(problems)
    return tuple(classes)


def _parse(problems: list[Problem], name: str, kind: Kind, raw: object, is_secret: bool = False) -> Any:
    try:
        return kind.parse(raw)
    except Bad as bad:
        problems.append(Problem(name, HIDDEN if is_secret else raw, bad.reason, bad.hint))
        return None


def _named(name: str, env: str, sources: Mapping[str, Source]) -> str:
    """A key as a problem names it: who looks for it in a file is told if it stands in the environment."""
    return f"{name}, from {env}" if sources[name] == "environment" else name


def _unknown(problems: list[Problem], table: Mapping[str, Any], names: list[str], prefix: str) -> None:
    strange = [name for name in table if name not in names]
    problems.extend(Problem(prefix + name, None, "is no key", nearest(name, names)) for name in strange)


def _table(problems: list[Problem], name: str, raw: object, kind: type) -> Any:
    if isinstance(raw, kind):
        return raw
    problems.append(
        Problem(name, raw, "must be a table", f"write [{name}]" if kind is dict else f"write [[{name}]]")
    )
    return kind()


def _limits(
    problems: list[Problem],
    sources: dict[str, Source],
    file: Mapping[str, Any],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
) -> dict[str, int]:
    names = [limit.name for limit in LIMITS]
    table = _table(problems, "limits", file.get("limits", {}), dict)
    given: dict[str, str] = {}
    pairs = flags.get("limits") or ()
    for pair in pairs if isinstance(pairs, list | tuple) else ():
        name, equals, value = str(pair).partition("=")
        if equals:
            given[name] = value
        else:
            problems.append(Problem("--limit", pair, "must be NAME=VALUE"))
    _unknown(problems, table, names, "limits.")
    _unknown(problems, given, names, "--limit ")

    limits: dict[str, int] = {}
    for limit in LIMITS:
        raw: object = limit.default
        source: Source = "default"
        candidates: tuple[tuple[object, Source], ...] = (
            (table.get(limit.name), "file"),
            (environ.get(limit.env), "environment"),
            (given.get(limit.name), "flag"),
        )
        for candidate, name_of_source in candidates:
            if candidate is not None and candidate != "":
                raw, source = candidate, name_of_source
        sources[f"limits.{limit.name}"] = source
        value = _parse(problems, _named(f"limits.{limit.name}", limit.env, sources), limit.kind, raw)
        limits[limit.name] = limit.default if value is None else value
    return limits


def _classes(problems: list[Problem], raw: object) -> list[RoomClass]:
    tables = _table(problems, "class", raw, list)
    if len(tables) > CLASSES_MAX:
        problems.append(Problem("class", len(tables), f"there may be at most {CLASSES_MAX} classes"))
        return []
    classes: list[RoomClass] = []
    for index, table in enumerate(tables):
        cls = _class(problems, index, _table(problems, "class", table, dict))
        if cls is not None:
            if cls.name in (c.name for c in classes):
                problems.append(Problem(f"class {cls.name}", None, "has the name of a class before it"))
            classes.append(cls)
    return classes


def _class(problems: list[Problem], index: int, table: Mapping[str, Any]) -> RoomClass | None:
    before = len(problems)
    name = table.get("name")
    where = f"class {name}" if isinstance(name, str) and name else f"class number {index + 1}"
    if where != f"class {name}":
        problems.append(Problem(f"{where}, name", name, "must be a text that is not empty"))
    elif isinstance(name, str) and name.startswith(RESERVED):
        problems.append(
            Problem(f"{where}, name", name, f"begins with {RESERVED}, as the node's own classes do")
        )
    _unknown(problems, table, [key.name for key in CLASS_KEYS], f"{where}, ")
    values: dict[str, Any] = {}
    for key in CLASS_KEYS:
        raw = table.get(key.name, key.default)
        values[key.name] = None if raw is None else _parse(problems, f"{where}, {key.name}", key.kind, raw)
    if values["history"] is not None:
        values["history"] = _history(problems, f"{where}, history", values["history"])
    is_logged = values["durability"] in ("replicated", "durable")
    if is_logged and (values["history"] is None or values["history"].bytes == 0):
        problems.append(
            Problem(
                f"{where}, durability",
                values["durability"],
                "needs `history.bytes`, the size of its log",
                'such as history = { bytes = "1GiB", age = "7d" }',
            )
        )
    if values["history"] is not None and values["history"].archive_wait:
        _archive_wait(problems, f"{where}, history.archive_wait", values["history"], is_logged)
    if is_logged and values["idle_ms"]:
        problems.append(
            Problem(
                f"{where}, idle_ms",
                values["idle_ms"],
                "is for rooms without a log: those with one leave memory by themselves",
                "history.age says how long records are kept, and a room without records is forgotten",
            )
        )
    if values["on_gap"] is None:
        values["on_gap"] = "disconnect" if is_logged else "continue"
    if values["on_slow"] is None:
        values["on_slow"] = "disconnect" if values["history"] is None else "catch-up"
    elif values["on_slow"] == "catch-up" and values["history"] is None:
        problems.append(Problem(f"{where}, on_slow", "catch-up", "needs a `history` to catch up from"))
    if values["device"] is not None:
        try:
            check_device(values["device"])
        except Bad as bad:
            problems.append(Problem(f"{where}, device", values["device"], bad.reason, bad.hint))
    _names(problems, where, values)
    return RoomClass(**values) if len(problems) == before else None


def _history(problems: list[Problem], where: str, raw: object) -> History | None:
    if not isinstance(raw, dict):
        problems.append(Problem(where, raw, "must be a table", 'such as { messages = 1000, age = "7d" }'))
        return None
    kinds = {
        "messages": Kind("number", within(parse_count, 1, 2**53)),
        "bytes": Kind("size", within(parse_size, HISTORY_BYTES_MIN, 2**53)),
        "age": Kind("time", within(parse_duration, 1, 2**53)),
        "archive_wait": Kind("size", within(parse_size, 1, 2**53)),
    }
    _unknown(problems, raw, list(kinds), f"{where}.")
    values = {k: _parse(problems, f"{where}.{k}", kind, raw[k]) or 0 for k, kind in kinds.items() if k in raw}
    if "messages" not in raw and "bytes" not in raw:
        problems.append(Problem(where, raw, "needs `messages` or `bytes`", "memory must have a bound"))
    return History(
        messages=values.get("messages", 0),
        bytes=values.get("bytes", 0),
        age_ms=values.get("age", 0),
        archive_wait=values.get("archive_wait", 0),
    )


def _archive_wait(problems: list[Problem], where: str, history: History, is_logged: bool) -> None:
    if not is_logged:
        what, hint = "is for classes with a log", 'durability = "durable"; others are kept in memory only'
        problems.append(Problem(where, history.archive_wait, what, hint))
    elif history.archive_wait < history.bytes:
        what = f"must not be below history.bytes ({history.bytes})"
        hint = "it is all that a hub may have: what is kept anyway, and what waits for the archive"
        problems.append(Problem(where, history.archive_wait, what, hint))


def _names(problems: list[Problem], where: str, values: Mapping[str, Any]) -> None:
    """Patterns and template: each can be read, and the class matches the rooms that it yields."""
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


def _logs(
    problems: list[Problem], data: str | None, limits: Mapping[str, int], logged: list[RoomClass]
) -> None:
    """What the log of these classes needs."""
    if logged and not data:
        what = f"class {logged[0].name} is {logged[0].durability}"
        hint = 'a directory of this node alone: data = "DIR", or --data DIR'
        problems.append(Problem("data", None, f"is needed: {what}", hint))
    least = limits["log_segment_bytes"]
    for cls in logged:
        assert cls.history is not None, "a class with a log has one"
        if cls.history.bytes < least:
            # Whole segments are removed, and never the one that is written to.
            problems.append(
                Problem(
                    f"class {cls.name}, history.bytes",
                    cls.history.bytes,
                    f"must not be below limits.log_segment_bytes ({least}), which a log has at least",
                    "so much or more, for each hub of the class; or a smaller limits.log_segment_bytes",
                )
            )


def _relations(
    problems: list[Problem], values: Mapping[str, Any], limits: dict[str, int], sources: Mapping[str, Source]
) -> None:
    """What must hold between values. A limit that nobody set follows a larger one that was lowered."""
    for small, large in (
        ("inline_bytes_max", "frame_bytes_max"),
        ("topic_bytes_max", "frame_bytes_max"),
        ("pattern_bytes_max", "frame_bytes_max"),
        ("output_bytes_max", "output_shard_bytes_max"),
        ("output_soft_bytes", "output_bytes_max"),
    ):
        if limits[small] <= limits[large]:
            continue
        if sources[f"limits.{small}"] == "default":
            limits[small] = limits[large]
        else:
            reason = f"must not be above limits.{large} ({limits[large]})"
            where = _named(f"limits.{small}", f"HUBSUB_LIMITS_{small.upper()}", sources)
            problems.append(Problem(where, limits[small], reason))
    for name in LISTENERS:
        address = values[name]
        if name == "link":
            continue  # Who connects there proves the cluster's secret.
        if address is not None and not values["insecure_open"] and not is_loopback(address):
            problems.append(
                Problem(
                    _named(name, f"HUBSUB_{name.upper()}", sources),
                    address,
                    "other machines could reach this listener, and there are no users yet",
                    "bind 127.0.0.1, or allow it with --insecure-open",
                )
            )


def _links(
    problems: list[Problem], values: Mapping[str, Any], limits: dict[str, int], sources: Mapping[str, Source]
) -> None:
    """What links between nodes need."""
    heartbeat, suspect = limits["link_heartbeat_ms"], limits["link_suspect_ms"]
    lead, silence = limits["lead_ms"], limits["lead_silence_ms"]
    for name, holds, reason in (
        (
            "link_heartbeat_ms",
            2 * heartbeat <= suspect,
            f"must not be above half of link_suspect_ms ({suspect})",
        ),
        (
            "link_silence_ms",
            suspect < limits["link_silence_ms"],
            f"must be above link_suspect_ms ({suspect})",
        ),
        (
            "link_redial_ms_max",
            limits["link_redial_ms_min"] <= limits["link_redial_ms_max"],
            f"must not be below link_redial_ms_min ({limits['link_redial_ms_min']})",
        ),
        (
            "lead_silence_ms",
            3 * silence < 2 * lead,
            f"must be below two thirds of lead_ms ({lead}), so that a lead can be asked for once more",
        ),
        (
            "link_heartbeat_ms",
            2 * heartbeat <= silence,
            f"must not be above half of lead_silence_ms ({silence})",
        ),
    ):
        if not holds:
            where = _named(f"limits.{name}", f"HUBSUB_LIMITS_{name.upper()}", sources)
            problems.append(Problem(where, limits[name], reason))
    is_given = sources["cluster_secret"] != "default"
    if values["link"] is not None and not is_given:
        hint = "the same on all nodes: cluster_secret in the file, or HUBSUB_CLUSTER_SECRET"
        problems.append(Problem("cluster_secret", None, "is needed, since `link` is set", hint))


def _cluster(problems: list[Problem], values: dict[str, Any], sources: Mapping[str, Source]) -> None:
    """What makes a node one of a cluster; nothing is said of values that were refused themselves."""

    def where(name: str) -> str:
        return _named(name, f"HUBSUB_{name.upper()}", sources)

    link, raft, coordinator = values["link"], values["raft"], values["coordinator"]
    is_outside = coordinator not in ("embedded", None)
    reason = (
        "coordinator" if is_outside else "raft" if raft is not None else "join" if values["join"] else None
    )
    if link is None and reason is not None:
        hint = "where other nodes reach this one, such as --link 0.0.0.0:3222"
        problems.append(
            Problem(where("link"), None, f"is needed, since `{reason}` makes this a node of a cluster", hint)
        )
    if is_outside and raft is not None:
        hint = "leave it out, or use the embedded coordinator"
        problems.append(Problem(where("raft"), raft, "is a listener of the embedded coordinator alone", hint))
    if is_outside and values["join"]:
        hint = "leave it out: nodes with this `coordinator` find each other there"
        problems.append(
            Problem(
                where("join"), ",".join(values["join"]), "is a way to the embedded coordinator alone", hint
            )
        )
    if link is not None and "edge" not in (values["role"] or ("edge",)):
        for name in CLIENT_LISTENERS:
            if sources[name] == "default":
                values[name] = None
            elif values[name] is not None:
                hint = f'leave it out, or write {name} = "off"; clients come to nodes of the role `edge`'
                reason = "a node of a cluster that has not the role `edge` serves no clients"
                problems.append(Problem(where(name), values[name], reason, hint))
    if link is not None and link == raft and split_address(link)[1]:
        problems.append(Problem(where("raft"), raft, "must be another address than `link`", "another port"))
    advertise = values["advertise"]
    if advertise is not None and not is_loopback(f"{advertise}:0"):
        for name in ("link", "raft"):
            if values[name] is not None and is_loopback(values[name]):
                hint = "bind it to 0.0.0.0 or to that host's address, or advertise 127.0.0.1"
                reason = (
                    f"other machines cannot reach it, and are told that it is at {advertise} (`advertise`)"
                )
                problems.append(Problem(where(name), values[name], reason, hint))
