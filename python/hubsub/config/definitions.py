"""The keys of a configuration, read from `hubsub/tables/keys.toml`, and the kinds of their values.

They give the defaults, the environment names, the flags of `hubsub serve`, `hubsub config check|show` and
docs/reference/config.md. `limits` has the named limits, `class_keys` the keys of a class.
"""

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from ipaddress import ip_network
from typing import Final

import msgspec

from hubsub.config import memory
from hubsub.config.kinds import (
    FLAG,
    SECRET,
    TEXT,
    WORDS,
    Bad,
    Kind,
    address,
    choice,
    nearest,
    parse_words,
    within,
)
from hubsub.config.kinds import parse_count as _parse_count
from hubsub.config.limits import rows
from hubsub.config.matching import parse_pattern
from hubsub.errors import without_secrets

SHARDS_MAX = 64
CLASSES_MAX = 1_000


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key at the top level of a file or in one of its tables; the fields are explained in the file."""

    name: str
    doc: str
    kind_name: str = msgspec.field(name="kind", default="text")
    default: str | bool | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    port: int = 0
    metavar: str = "TEXT"
    reload: bool = False
    table: str = ""

    @property
    def kind(self) -> Kind:
        match self.kind_name:
            case "choice":
                return choice(*self.choices)
            case "address":
                return address(self.port)
        return KINDS[self.kind_name]

    @property
    def is_secret(self) -> bool:
        """Whether the value has no flag and is never shown."""
        return self.kind is SECRET

    @property
    def in_file(self) -> str:
        """Name of the key in a file, such as `phoenix.topics`."""
        return f"{self.table}.{self.name.removeprefix(self.table + '_')}" if self.table else self.name

    @property
    def env(self) -> str:
        return f"HUBSUB_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def _parse_shards(raw: object) -> int | None:
    if raw in ("auto", None):
        return None
    try:
        return within(_parse_count, 1, SHARDS_MAX)(raw)
    except Bad as bad:
        raise Bad(bad.reason, "such as 4, or auto") from None


def _parse_roles(raw: object) -> tuple[str, ...]:
    aliases = {"ws": "edge", "ts": "hub"}
    roles = tuple(dict.fromkeys(aliases.get(role, role) for role in parse_words(raw)))
    for role in roles:
        if role not in ("edge", "hub"):
            raise Bad(
                f"has an unknown role {role!r}",
                nearest(role, ["edge", "hub", "ws", "ts"]) or "edge, hub or both",
            )
    if not roles:
        raise Bad("must name a role", "edge, hub or both")
    return roles


def _parse_topics(raw: object) -> tuple[str, ...]:
    topics = parse_words(raw)
    for topic in topics:
        parse_pattern(topic)
    return topics


def _parse_origins(raw: object) -> tuple[str, ...]:
    origins = parse_words(raw)
    for origin in origins:
        if re.fullmatch(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]+", origin) is None:
            raise Bad("must be as browsers say origins", "SCHEME://HOST[:PORT] without a path, or *")
    return origins


def _parse_hosts(raw: object) -> tuple[str, ...]:
    hosts = parse_words(raw)
    for host in hosts:
        if re.fullmatch(r"[^\s:/?#@\[\]]*[^\s:/?#@\[\].]", host) is None or not host.isascii():
            raise Bad("must be names as browsers say them", "such as hub.example, without a port; or *")
    return hosts


def _parse_proxies(raw: object) -> tuple[str, ...]:
    proxies = parse_words(raw)
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError:
            raise Bad("must be addresses or networks", "such as 10.0.0.7 or 10.0.0.0/24") from None
    return proxies


def _parse_coordinator(raw: object) -> str:
    if isinstance(raw, str):
        scheme, is_url, _ = raw.partition("://")
        others = entry_points(group="hubsub.discovery").names
        if raw == "embedded" or (is_url and (scheme in ("etcd", "zookeeper") or scheme in others)):
            return raw
    raise Bad("is not known", "embedded, etcd://HOST:PORT,… or zookeeper://HOST:PORT,…")


def _parse_inflight_store(raw: object) -> str:
    if isinstance(raw, str):
        scheme, is_url, rest = raw.partition("://")
        if raw in ("log", "memory", "disk") or (is_url and scheme in ("redis", "unix") and rest):
            return raw
    raise Bad("is not known", "log, memory, disk, redis://HOST:PORT/DB or unix:///PATH")


def _show_url(value: object) -> str:
    return without_secrets(str(value))


KINDS: Final[Mapping[str, Kind]] = {
    "text": TEXT,
    "words": WORDS,
    "flag": FLAG,
    "secret": SECRET,
    "memory": Kind("size such as 4GiB, or percentage such as 50%", memory.parse),
    "shards": Kind(
        f"number up to {SHARDS_MAX}, or auto", _parse_shards, lambda v: "auto" if v is None else v
    ),
    "roles": Kind("edge, hub, or both", _parse_roles, lambda v: ",".join(v) if isinstance(v, tuple) else v),
    "origins": Kind("list of origins", _parse_origins, WORDS.show),
    "hosts": Kind("list of names", _parse_hosts, WORDS.show),
    "proxies": Kind("list of networks", _parse_proxies, WORDS.show),
    "patterns": Kind("list of patterns", _parse_topics, WORDS.show),
    "coordinator": Kind(
        "embedded | etcd://HOST:PORT,… | zookeeper://HOST:PORT,…", _parse_coordinator, _show_url
    ),
    "inflight_store": Kind(
        "log | memory | disk | redis://[USER][:PASSWORD@]HOST[:PORT][/DB]", _parse_inflight_store, _show_url
    ),
}
"""Kinds of keys by name, but for choices and addresses."""

KEYS: Final = tuple(msgspec.convert(row, Key) for row in rows("keys"))
"""All keys, in the order of the reference page."""

CLIENT_LISTENERS: tuple[str, ...] = ("redis", "redis_cluster", "mqtt", "ws")
"""Listeners for clients of rooms; a node of a cluster has them only with the role `edge`."""

LISTENERS: tuple[str, ...] = (*CLIENT_LISTENERS, "http", "link")
