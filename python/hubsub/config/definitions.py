"""The one definition of the configuration.

From these rows come the defaults, the environment names, the flags of
`hubsub serve`, `hubsub config check|show` and docs/reference/config.md. The
rows of `LIMITS` with owner `core` are the data plane's own, name by name
(a boundary test compares them).
"""

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal

from hubsub.config.kinds import (
    FLAG,
    SECRET,
    TEXT,
    WORDS,
    Bad,
    Kind,
    address,
    choice,
    count,
    millis,
    nearest,
    parse_words,
    size,
    within,
)
from hubsub.config.kinds import parse_count as _parse_count

KIB, MIB = 1 << 10, 1 << 20

SHARDS_MAX = 64
CLASSES_MAX = 1_000


@dataclass(frozen=True)
class Key:
    """One top-level key."""

    name: str
    kind: Kind
    default: object
    """As a source would give it; None where the node decides."""
    doc: str
    metavar: str = "TEXT"
    reload: bool = False
    """Whether SIGHUP takes a new value while running."""
    built: bool = True
    """False: accepted, and `hubsub serve` logs that this build does not act on it."""

    is_secret: bool = False
    """True: no flag, and nowhere shown."""

    @property
    def env(self) -> str:
        return f"HUBSUB_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Limit:
    """One named limit of the table `[limits]`."""

    name: str
    default: int
    doc: str
    low: int = 0
    owner: Literal["core", "control"] = "core"
    high: int = 2**53
    reload: bool = True
    """False: what it bounds is made at the start, and SIGHUP takes no new value."""

    @property
    def kind(self) -> Kind:
        if self.name.endswith(("_ms", "_ms_min", "_ms_max")):
            return millis(self.low, self.high)
        return (size if "bytes" in self.name else count)(self.low, self.high)

    @property
    def env(self) -> str:
        return f"HUBSUB_LIMITS_{self.name.upper()}"


@dataclass(frozen=True)
class ClassKey:
    """One key of a `[[class]]` table."""

    name: str
    kind: Kind
    default: object
    doc: str


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


def _parse_coordinator(raw: object) -> str:
    if isinstance(raw, str):
        scheme, is_url, _ = raw.partition("://")
        others = entry_points(group="hubsub.discovery").names
        if raw == "embedded" or (is_url and (scheme in ("etcd", "zookeeper") or scheme in others)):
            return raw
    raise Bad("is not known", "embedded, etcd://HOST:PORT,… or zookeeper://HOST:PORT,…")


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
    Key("mqtt", address(1883), None, "Listener for MQTT clients.", "ADDR", built=False),
    Key(
        "ws",
        address(4000),
        None,
        "Listener for browsers: WebSocket with Phoenix channels.",
        "ADDR",
        built=False,
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
        Kind("embedded | etcd://HOST:PORT,… | zookeeper://HOST:PORT,…", _parse_coordinator),
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
"""Where clients of rooms come; a node of a cluster without the role `edge` has none of them."""

LISTENERS: tuple[str, ...] = (*CLIENT_LISTENERS, "http", "link")

LIMITS: tuple[Limit, ...] = (
    Limit("connections_max", 1_000_000, "Open client connections; the descriptor limit may allow fewer.", 1),
    Limit("handshake_ms", 10_000, "Time a connection has to send its first whole command.", 1),
    Limit("frame_bytes_max", 64 * MIB, "Bytes of one command, arguments and framing together.", 1_024),
    Limit("frame_args_max", 1_048_576, "Arguments of one command.", 8),
    Limit("inline_bytes_max", 64 * KIB, "Bytes of one inline command.", 64),
    Limit("topic_bytes_max", 65_535, "Bytes of a topic.", 1, high=65_535),
    Limit("pattern_bytes_max", 1_024, "Bytes of a pattern.", 1),
    Limit(
        "subscriptions_per_client_max",
        100_000,
        "Subscriptions of one client: topics, patterns and shard channels together.",
        1,
    ),
    Limit("publishes_per_minute_max", 0, "Publishes a minute of one client; 0 for no limit."),
    Limit(
        "rooms_max",
        10_000_000,
        "Rooms in the node's memory. The node's own that its log knows come back beyond it.",
        1,
    ),
    Limit("room_creations_per_second_max", 0, "Rooms made in a second on one shard; 0 for no limit."),
    Limit(
        "pending_per_client_max",
        4_096,
        "Requests of one client that wait for an answer; past it its socket is not read.",
        1,
    ),
    Limit(
        "mailbox_bytes_max",
        16 * MIB,
        "Bytes waiting for another shard; past it publishers into it are not read.",
        1_024,
        reload=False,
    ),
    Limit(
        "output_bytes_max",
        32 * MIB,
        "Output of one subscriber: past it, its room's slow-subscriber policy holds.",
        1_024,
    ),
    Limit(
        "output_soft_bytes",
        8 * MIB,
        "Output of one subscriber that may stand for `output_soft_ms`; 0 for no soft limit.",
    ),
    Limit("output_soft_ms", 60_000, "How long output may stay above `output_soft_bytes`."),
    Limit(
        "output_shard_bytes_max",
        1024 * MIB,
        "Output of all clients of one shard: past it every subscriber with output is over its limit.",
        1_024,
    ),
    Limit(
        "reply_bytes_max", 64 * MIB, "Unread replies of one client: past it its socket is not read.", 1_024
    ),
    Limit("transaction_commands_max", 1_048_576, "Commands that one MULTI may queue.", 1),
    Limit("transaction_bytes_max", 64 * MIB, "Bytes that the commands of one MULTI may hold.", 1_024),
    Limit("history_reply_records_max", 10_000, "Records of one HISTORY reply.", 1),
    Limit(
        "history_reply_bytes_max",
        8 * MIB,
        "Payload bytes of one HISTORY reply; more are fetched with AFTER.",
        1_024,
    ),
    Limit("history_shard_bytes_max", 1024 * MIB, "Memory of all history rings of one shard."),
    Limit(
        "log_tail_bytes_max",
        64 * MIB,
        "Memory for the latest records of one hub with a log; older ones are read from the disk.",
        reload=False,
    ),
    Limit(
        "log_pending_bytes_max",
        64 * MIB,
        "Bytes that wait for the journal; past it publishers into rooms with a log are not read.",
        1_024,
        reload=False,
    ),
    Limit(
        "log_unwritten_bytes_max",
        64 * MIB,
        "Bytes that are safe in the journal and not in segments yet; past it the journal waits.",
        1_024,
        reload=False,
    ),
    Limit("log_journal_bytes", 64 * MIB, "Size of a journal file.", 64 * KIB, reload=False),
    Limit(
        "log_segment_bytes",
        64 * MIB,
        "A segment is sealed when it is so long.",
        64 * KIB,
        high=2048 * MIB,
        reload=False,
    ),
    Limit("log_checkpoint_bytes", 64 * MIB, "Bytes between two checkpoints of the log.", 1_024, reload=False),
    Limit("log_checkpoint_ms", 10_000, "Time between two checkpoints of the log.", 1, reload=False),
    Limit(
        "log_reserve_bytes",
        64 * MIB,
        "Space of the log's disk that a file keeps for what was acknowledged. While it is not all there, "
        "the disk counts as full.",
        reload=False,
    ),
    Limit("log_open_files_max", 512, "Segments and indexes open at once.", 1, reload=False),
    Limit("log_streams_max", 16, "Streams of records (`GET /v1/hubs/{hub}/records`) open at once.", 1),
    Limit("log_stream_idle_ms", 60_000, "A stream of records that nobody reads for so long is closed.", 1),
    Limit(
        "producer_window_records",
        262_144,
        "Latest records of one hub with a log among which a producer's repeats are found.",
        1,
        reload=False,
    ),
    Limit(
        "producer_window_bytes",
        64 * MIB,
        "Latest bytes of one hub's log among which a producer's repeats are found.",
        1_024,
        reload=False,
    ),
    Limit(
        "route_cache_topics_max",
        65_536,
        "Topics without subscribers whose room a shard remembers.",
        1,
        reload=False,
    ),
    Limit("pattern_cache_topics_max", 16_384, "Topics whose matching patterns a shard remembers.", 1),
    Limit("pool_bytes_max", 16 * MIB, "Idle buffer memory that a shard keeps for reuse."),
    Limit("tcp_keepalive_ms", 60_000, "Idle time after which TCP probes a peer; 0 for none."),
    Limit(
        "tcp_user_timeout_ms",
        120_000,
        "Time that sent bytes may stay unacknowledged before the peer counts as dead; 0 for the system's.",
    ),
    Limit("link_handshake_ms", 3_000, "Time from connect to welcome of a link between two nodes.", 1),
    Limit("link_heartbeat_ms", 100, "Time between two pings of a link.", 1),
    Limit(
        "link_suspect_ms",
        500,
        "Silence of a link after which the peer is suspected; at least twice `link_heartbeat_ms`.",
        1,
    ),
    Limit(
        "link_silence_ms", 5_000, "Silence after which a link is given up; more than `link_suspect_ms`.", 1
    ),
    Limit(
        "link_live_window_bytes",
        8 * MIB,
        "Bytes of records that a peer may send over one link ahead of their being handled.",
        1_024,
    ),
    Limit("link_reads_window_bytes", 4 * MIB, "Likewise, of answers to reads.", 1_024),
    Limit(
        "link_urgent_queue_bytes_max",
        MIB,
        "Bytes of urgent frames that wait for a link, or one frame that is longer.",
        1_024,
    ),
    Limit(
        "link_live_queue_bytes_max",
        8 * MIB,
        "Bytes of records that wait for a link, or one frame that is longer.",
        1_024,
    ),
    Limit("link_reads_queue_bytes_max", 8 * MIB, "Likewise, of answers to reads.", 1_024),
    Limit(
        "link_output_bytes_max",
        256 * KIB,
        "Output of a link that waits for its socket, and a frame more.",
        1_024,
    ),
    Limit("link_redial_ms_min", 100, "Wait before a peer is dialed a second time; it doubles from there.", 1),
    Limit("link_redial_ms_max", 5_000, "The longest wait between two attempts to dial a peer.", 1),
    Limit("link_stable_ms", 10_000, "A link that stood for so long makes the next wait the shortest again."),
    Limit(
        "lead_ms",
        1_000,
        "From the time before it is asked for to the end of a lead, the right to lead ephemeral hubs; a leader that is "
        "not heard is replaced after so long. The same on all nodes of a cluster.",
        100,
        high=60_000,
        reload=False,
    ),
    Limit(
        "lead_silence_ms",
        500,
        "A controller, and any node, that was not heard for so long is not heard; below two thirds of `lead_ms`, and "
        "at least twice `link_heartbeat_ms`. The same on all nodes of a cluster.",
        20,
        high=60_000,
        reload=False,
    ),
    Limit(
        "lead_guard_ms",
        50,
        "What the controller waits behind the end of a lead, beside a hundredth of it for clocks: longer than any turn "
        "of a shard. The same on all nodes of a cluster.",
        10,
        "control",
        60_000,
        reload=False,
    ),
    Limit("drain_ms", 5_000, "Time that a stopping node gives its clients to take their output."),
    Limit(
        "control_events_max",
        65_536,
        "Events waiting for the control plane; further ones are counted and dropped.",
        64,
    ),
    Limit(
        "control_requests_max",
        10_000,
        "Requests of the control plane that wait for a shard; further ones are refused.",
        1,
        "control",
    ),
    Limit(
        "request_timeout_ms",
        5_000,
        "Time for a REST request to come, and then to wait for the data plane.",
        1,
        "control",
    ),
    Limit(
        "http_connections_max", 1_024, "Open HTTP connections; further ones are answered 503.", 1, "control"
    ),
    Limit("http_body_bytes_max", 16 * MIB, "Bytes of one HTTP request's body.", 1_024, "control"),
    Limit("http_batch_records_max", 10_000, "Records of one `POST /v1/publish`.", 1, "control"),
    Limit("http_page_max", 1_000, "Entries of one page of a listing.", 1, "control"),
    Limit("http_queries_max", 64, "Queries of data pipelines whose progress is remembered.", 1, "control"),
    Limit(
        "idempotency_keys_max",
        10_000,
        "Idempotency keys whose answers are remembered, oldest out.",
        1,
        "control",
    ),
    Limit("idempotency_bytes_max", 16 * MIB, "Bytes of the answers that are remembered.", 1_024, "control"),
    Limit(
        "idempotency_ms", 600_000, "How long an answer is remembered for its Idempotency-Key.", 0, "control"
    ),
    Limit(
        "stage_bytes_max",
        1024 * MIB,
        "Disk for rows that Spark has sent and not committed, or that are being moved into their rooms; also "
        "what is left of those before. While what must be kept is so much, further rows are refused.",
        1_024,
        "control",
        reload=False,
    ),
    Limit("stage_ms", 3_600_000, "A stage that is not committed for so long is forgotten.", 1, "control"),
    Limit("http_stage_bytes_max", 256 * MIB, "Bytes of one stage, as Arrow.", 1_024, "control"),
    Limit("http_stages_max", 10_000, "Stages that are not committed at once.", 1, "control"),
    Limit(
        "load_sample_ms",
        10_000,
        "Time between load samples, which a node with a data directory publishes to `$stats/load`; 0 for none.",
        0,
        "control",
    ),
    Limit(
        "busiest_log_ms",
        60_000,
        "Time between the log lines that name the busiest clients; 0 for none.",
        0,
        "control",
    ),
)

CLASS_KEYS: tuple[ClassKey, ...] = (
    ClassKey("name", TEXT, None, "Name of the class; unique."),
    ClassKey(
        "match",
        WORDS,
        (),
        "Patterns of room names; none matches all. With a `+` level or ending in `#` a pattern is an MQTT filter, "
        "else a Redis glob; `mqtt:` or `glob:` in front decides.",
    ),
    ClassKey("room", TEXT, "topic", "`topic`, or a template such as `devices/+` that yields a topic's room."),
    ClassKey(
        "device",
        TEXT,
        None,
        "Which part of a topic is the device: a template such as `devices/{device}/#`, with `+` for any level, `/#` "
        "at the end for all below, or `*` at the end for any text. It fills the column `device` for who reads the "
        "log. Default: no part.",
    ),
    ClassKey(
        "durability",
        choice("ephemeral", "replicated", "durable"),
        "ephemeral",
        "When a publish is acknowledged: `ephemeral` at once, kept in memory only; `replicated` from memory, "
        "and logged; `durable` when it is on disk. The last two need `data` and `history.bytes`.",
    ),
    ClassKey("members", count(1, 9), 1, "Nodes that hold a room. One node holds all rooms for now."),
    ClassKey(
        "history",
        Kind("table of messages, bytes, age, archive_wait", lambda raw: raw),
        None,
        "What a room remembers: `messages` a room, `bytes` a hub, `age`; one of the first two is needed. "
        "In a class with a log `bytes` must be there, and not below `limits.log_segment_bytes`. With `archive_wait` "
        "what is over `bytes` and `age` is kept until it is archived, while a hub has no more bytes than that in all. "
        "Default: nothing.",
    ),
    ClassKey(
        "on_slow",
        choice("disconnect", "catch-up", "drop-oldest", "conflate"),
        None,
        "What happens at a subscriber's output limit. Default: `catch-up` where there is a history, "
        "else `disconnect`.",
    ),
    ClassKey(
        "on_gap",
        choice("continue", "disconnect"),
        None,
        "What a subscriber meets behind a gap that its protocol has no words for. Default: `continue` in an "
        "ephemeral class, else `disconnect`.",
    ),
    ClassKey("placement", choice("ring", "least-busy"), "least-busy", "Which hub a new room goes to."),
    ClassKey(
        "on_partition", choice("pause", "serve"), "pause", "What a room does while its cluster is split."
    ),
    ClassKey(
        "payload_bytes_max",
        size(0),
        64 * MIB,
        "Largest payload of a publish, in bytes; the frame limit holds too.",
    ),
    ClassKey(
        "idle_ms",
        millis(),
        0,
        "Time without publish and subscriber after which a room with history is forgotten; "
        "0: when its history is empty, unless it was created by name. Not for a class with a log.",
    ),
    ClassKey(
        "commit_delay_ms",
        millis(0, 60_000),
        0,
        "Delays each acknowledgement: for tests of what a disk will do.",
    ),
)
