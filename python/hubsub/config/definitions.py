"""The definition of the configuration: its keys. `limits` has the named limits, `class_keys` the keys of a class.

These entries give the defaults, the environment names, the flags of `hubsub serve`,
`hubsub config check|show` and docs/reference/config.md.
"""

import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from ipaddress import ip_network

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
from hubsub.config.matching import parse_pattern
from hubsub.errors import without_secrets

SHARDS_MAX = 64
CLASSES_MAX = 1_000


@dataclass(frozen=True)
class Key:
    """A key at the top level of a file or in one of its tables."""

    name: str
    kind: Kind
    default: object
    """In the form of a source; None if the node decides."""
    doc: str
    metavar: str = "TEXT"
    reload: bool = False
    """Whether SIGHUP applies a new value to a running node."""
    is_secret: bool = False
    """Whether the value has no flag and is never shown."""
    table: str = ""
    """The table in a file, if any; the key there is `name` without the table's name as prefix."""

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


KEYS: tuple[Key, ...] = (
    Key("node", TEXT, None, "Name of this node, unique in its cluster. Default: the host's name.", "NAME"),
    Key(
        "data",
        TEXT,
        None,
        "Directory of what the node keeps: its log, and positions across restarts. Default: it keeps nothing.",
        "DIR",
    ),
    Key(
        "memory",
        Kind("size such as 4GiB, or percentage such as 50%", memory.parse),
        memory.DEFAULT,
        "Memory of the whole node, or its share of what the machine or the control group has. Of it each pool takes a "
        "share: limits of `[limits]` that say so and that nobody set.",
        "SIZE",
        reload=True,
    ),
    Key(
        "shards",
        Kind(f"number up to {SHARDS_MAX}, or auto", _parse_shards, lambda v: "auto" if v is None else v),
        "auto",
        "Data-plane threads. `auto`: one a CPU that the process may use.",
        "N",
    ),
    Key(
        "role",
        Kind("edge, hub, or both", _parse_roles, lambda v: ",".join(v) if isinstance(v, tuple) else v),
        "edge,hub",
        "What this node of a cluster does: `edge` serves clients, `hub` holds rooms. Without `edge` it has no "
        "listeners for clients but `http`. `ws` and `ts` are other words for them.",
        "ROLES",
    ),
    Key(
        "zone",
        TEXT,
        "",
        "Where this node is, such as a rack or a data centre: members of a hub are in different ones where it can be.",
        "NAME",
    ),
    Key("advertise", TEXT, None, "Host that clients and peers are told. Default: the bound address.", "HOST"),
    Key("redis", address(3221), "127.0.0.1:3221", "Listener for Redis clients.", "ADDR"),
    Key("redis_cluster", address(3223), None, "Listener for Redis cluster clients.", "ADDR"),
    Key("mqtt", address(1883), None, "Listener for MQTT clients.", "ADDR"),
    Key(
        "ws",
        address(4000),
        None,
        "Listener for WebSockets: Phoenix channels at `/socket/websocket`, MQTT at `/mqtt`; and for networks without "
        "them: `/socket/longpoll`, and server-sent events at `/v1/rooms/{room}/events`.",
        "ADDR",
    ),
    Key(
        "ws_origins",
        Kind("list of origins", _parse_origins, WORDS.show),
        (),
        "Origins of pages that may open WebSockets, such as `https://chat.example`; `*` is any. Who says none, or "
        "the address that it connects to, is no page of another's, and may.",
        "ORIGIN,…",
    ),
    Key(
        "hosts",
        Kind("list of names", _parse_hosts, WORDS.show),
        (),
        "Names by which clients call `http` and `ws`, such as `hub.example`, beside addresses, `advertise`, names that "
        "these listeners have, the machine's and those that nobody can register; `*` is any. Who calls the node by "
        "another one, and says no origin, may be a page whose name was turned to it.",
        "NAME,…",
    ),
    Key(
        "trusted_proxies",
        Kind("list of networks", _parse_proxies, WORDS.show),
        (),
        "Addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` the REST API believes, such "
        "as `127.0.0.1` or `10.0.0.0/24`. Default: none, who connects is the client.",
        "ADDR,…",
    ),
    Key("http", address(3220), "127.0.0.1:3220", "Listener for the REST API and metrics.", "ADDR"),
    Key(
        "link", address(3222), None, "Listener for links from other nodes; it needs `cluster_secret`.", "ADDR"
    ),
    Key(
        "cluster_secret",
        SECRET,
        None,
        "What the nodes of a cluster know and nobody else; the same on all of them. It is never shown, and is no "
        "flag, since other users of a machine can see those.",
        is_secret=True,
    ),
    Key(
        "raft",
        address(3224),
        None,
        "Listener of the embedded coordinator, for the other nodes'. Default: beside `link`, where that is set.",
        "ADDR",
    ),
    Key(
        "join",
        WORDS,
        (),
        "`raft` listeners of nodes whose cluster this node joins. A name stands for all its addresses.",
        "ADDR,…",
    ),
    Key(
        "coordinator",
        Kind("embedded | etcd://HOST:PORT,… | zookeeper://HOST:PORT,…", _parse_coordinator, _show_url),
        "embedded",
        "Where the cluster keeps its nodes, classes and rooms.",
        "URL",
    ),
    Key(
        "insecure_open",
        FLAG,
        False,
        "Allows listeners that other machines can reach although there are no users yet.",
    ),
    Key(
        "mqtt_strict",
        FLAG,
        True,
        "Whether an MQTT client that has more messages unanswered than `mqtt_receive_max` is disconnected; else they "
        "are counted and taken.",
    ),
    Key(
        "mqtt_long_ids",
        FLAG,
        False,
        "Whether client ids of MQTT 3.1 may have more than 23 characters.",
    ),
    Key(
        "mqtt_wills_recorded",
        FLAG,
        False,
        "Whether the will of an MQTT client without a session is recorded before CONNACK, as a session is, where "
        "sessions are: then it is published although the client's node is killed.",
    ),
    Key(
        "phoenix_topics",
        Kind("list of patterns", _parse_topics, WORDS.show),
        ("*",),
        "Topics that browsers may join as Phoenix channels, or read as server-sent events: those that one of these "
        "matches, each an MQTT filter or a glob as a class's `match`. Empty: none.",
        "PATTERN,…",
        table="phoenix",
    ),
    Key(
        "inflight_store",
        Kind(
            "log | memory | disk | redis://[USER][:PASSWORD@]HOST[:PORT][/DB]",
            _parse_inflight_store,
            _show_url,
        ),
        "log",
        "What keeps sessions of MQTT clients beyond their process: `log`, the node's own rooms, as far as `data` keeps "
        "them; `memory`, nothing; `disk`, a file in `data`; or a Redis server, also `unix:///PATH`.",
        "URL",
    ),
    Key("hash_tags", FLAG, True, "Whether `{tag}` in a topic names its room."),
    Key(
        "log_level",
        choice("debug", "info", "warning", "error"),
        "info",
        "Log lines below this level are left out.",
        "LEVEL",
        reload=True,
    ),
    Key(
        "log_format",
        choice("auto", "text", "json"),
        "auto",
        "`auto`: text on a terminal, JSON lines elsewhere.",
        "FORMAT",
    ),
)

CLIENT_LISTENERS: tuple[str, ...] = ("redis", "redis_cluster", "mqtt", "ws")
"""Listeners for clients of rooms; a node of a cluster has them only with the role `edge`."""

LISTENERS: tuple[str, ...] = (*CLIENT_LISTENERS, "http", "link")
