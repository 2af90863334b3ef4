"""Resolves the raw configuration.

The sources, in order of precedence, are flags, environment, file, defaults. Each value is parsed once by its
definition (`raw`, `classes`), relations are checked (`checks`), and the result is frozen (`model`). All
problems are collected and reported together.
"""

import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubsub.config import memory
from hubsub.config.checks import Checks, logs
from hubsub.config.classes import room_classes_of
from hubsub.config.definitions import KEYS, SHARDS_MAX
from hubsub.config.kinds import cpus
from hubsub.config.limits import LIMITS
from hubsub.config.model import Config, RoomClass, Source
from hubsub.config.raw import named, parse, table_of, unknown
from hubsub.errors import ConfigError, Problem


def load(
    path: str | Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    shards: int | None = None,
) -> Config:
    """Reads and resolves the configuration.

    Args:
        path: TOML file; default: `HUBSUB_CONFIG`, else none.
        flags: Values by key, which override all other sources; None counts as not set. `limits` may be a
            list of `NAME=VALUE`. Default: none.
        environ: Environment; default: the process's.
        shards: Number of shards among which the memory is divided, from 1; default: the configured number.
            For a running node, pass the number that it started with.

    Returns:
        The resolved configuration.

    Raises:
        ConfigError: Has every problem found.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get("HUBSUB_CONFIG") or None
    file = read_file(path) if path else {}
    try:
        return resolve(file, flags or {}, environ, shards)
    except ConfigError as error:
        raise ConfigError(error.problems, path) from None


def read_file(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: The file cannot be read or parsed.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError([Problem("config", str(path), f"cannot be read ({error.strerror})")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("config", str(path), f"is not TOML ({error})")]) from None


def resolve(
    file: Mapping[str, Any],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    shards: int | None = None,
) -> Config:
    """Resolves raw values.

    Args:
        file: Content of the TOML file.
        flags: Values by key, as in `load`.
        environ: Environment variables.
        shards: As in `load`.

    Returns:
        The resolved configuration.

    Raises:
        ConfigError: Has every problem found.
    """
    problems: list[Problem] = []
    sources: dict[str, Source] = {}
    tables = {key.table for key in KEYS if key.table}
    tops = [key.name for key in KEYS if not key.table]
    unknown(problems, file, [*tops, *tables, "limits", "class"], "")
    given = {name: file.get(name) for name in tops}
    for name in sorted(tables):
        table = table_of(problems, name, file.get(name, {}), dict)
        names = {key.in_file.partition(".")[2]: key.name for key in KEYS if key.table == name}
        unknown(problems, table, list(names), f"{name}.")
        given |= {key: table.get(short) for short, key in names.items()}

    values: dict[str, Any] = {}
    for key in KEYS:
        raw, sources[key.name] = _chosen(
            key.default, given[key.name], environ.get(key.env), flags.get(key.name)
        )
        where = named(key.name, key.env, sources, key.in_file)
        values[key.name] = None if raw is None else parse(problems, where, key.kind, raw, key.is_secret)

    limits = _limits(problems, sources, file, flags, environ)
    classes = room_classes_of(problems, file.get("class", []))
    values["shards"] = values["shards"] or min(cpus(), SHARDS_MAX)
    shards = shards or values["shards"]
    if values["memory"] is not None:
        memory.share(limits, sources, values["memory"], shards)
    checks = Checks(problems, values, limits, sources)
    checks.sums(shards)
    checks.listeners()
    checks.links()
    checks.stores()
    checks.cluster()
    logs(problems, values["data"], limits, [cls for cls in classes if cls.is_logged])
    if problems:
        raise ConfigError(problems)
    values["node"] = values["node"] or socket.gethostname()
    return Config(
        **values, limits=MappingProxyType(limits), classes=tuple(classes), sources=MappingProxyType(sources)
    )


def room_classes(tables: object, config: Config) -> tuple[RoomClass, ...]:
    """Parses `[[class]]` tables for running nodes.

    Args:
        tables: A list of tables.
        config: Configuration of one of those nodes, for its limits.

    Returns:
        The classes, in the order of the tables.

    Raises:
        ConfigError: Has every problem found.
    """
    problems: list[Problem] = []
    classes = room_classes_of(problems, tables)
    logs(problems, config.data or "elsewhere", config.limits, [cls for cls in classes if cls.is_logged])
    if problems:
        raise ConfigError(problems)
    return tuple(classes)


def _chosen(default: object, file: object, environment: object, flag: object) -> tuple[object, Source]:
    candidates: tuple[tuple[object, Source], ...] = (
        (flag, "flag"),
        (environment, "environment"),
        (file, "file"),
    )
    return next((found for found in candidates if found[0] not in (None, "")), (default, "default"))


def _limits(
    problems: list[Problem],
    sources: dict[str, Source],
    file: Mapping[str, Any],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
) -> dict[str, int]:
    names = [limit.name for limit in LIMITS]
    table = table_of(problems, "limits", file.get("limits", {}), dict)
    given: dict[str, str] = {}
    pairs = flags.get("limits") or ()
    for pair in pairs if isinstance(pairs, list | tuple) else ():
        name, equals, value = str(pair).partition("=")
        if equals:
            given[name] = value
        else:
            problems.append(Problem("--limit", pair, "must be NAME=VALUE"))
    unknown(problems, table, names, "limits.")
    unknown(problems, given, names, "--limit ")

    limits: dict[str, int] = {}
    for limit in LIMITS:
        raw, sources[f"limits.{limit.name}"] = _chosen(
            limit.default, table.get(limit.name), environ.get(limit.env), given.get(limit.name)
        )
        value = parse(problems, named(f"limits.{limit.name}", limit.env, sources), limit.kind, raw)
        limits[limit.name] = limit.default if value is None else value
    return limits
