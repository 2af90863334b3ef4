"""The named limits of the table `[limits]`, for the data plane and the control plane.

`definitions` has the other keys.

Invariant: the names with owner `core` are exactly the data plane's limits (a boundary test compares them).
"""

from dataclasses import dataclass
from typing import Literal

from hubsub.config.kinds import Kind, count, millis, size

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limit:
    """A named limit of the table `[limits]`."""

    name: str
    default: int
    doc: str
    low: int = 0
    owner: Literal["core", "control"] = "core"
    high: int = 2**53
    reload: bool = True
    """Whether SIGHUP applies a new value; False if the limit takes effect only at the start."""

    @property
    def kind(self) -> Kind:
        if self.name.endswith(("_ms", "_ms_min", "_ms_max")):
            return millis(self.low, self.high)
        return (size if "bytes" in self.name else count)(self.low, self.high)

    @property
    def env(self) -> str:
        return f"HUBSUB_LIMITS_{self.name.upper()}"


LIMITS: tuple[Limit, ...] = (
    Limit("connections_max", 1_000_000, "Open client connections; the descriptor limit may allow fewer.", 1),
    Limit(
        "descriptors_reserved",
        2_048,
        "Descriptors of the process that clients leave free, for the log's files, links and the coordinator; at most "
        "half of those that are free at its start. `log_open_files_max` counts at most a quarter of it.",
        reload=False,
    ),
    Limit(
        "handshake_ms",
        10_000,
        "Time a connection has to send its first whole command, and a long poll to be asked with its token.",
        1,
    ),
    Limit("frame_bytes_max", 64 * MIB, "Bytes of one command, arguments and framing together.", 1_024),
    Limit("frame_args_max", 1_048_576, "Arguments of one command.", 8),
    Limit("inline_bytes_max", 64 * KIB, "Bytes of one inline command.", 64),
    Limit("topic_bytes_max", 65_535, "Bytes of a topic.", 1, high=65_535),
    Limit("pattern_bytes_max", 1_024, "Bytes of a pattern.", 1),
    Limit(
        "patterns_per_client_max",
        1_000,
        "Patterns of one client: of PSUBSCRIBE, and MQTT filters with a wildcard.",
        1,
    ),
    Limit(
        "patterns_max",
        100_000,
        "Distinct patterns that have subscribers, in the whole cluster: who would begin one more is refused.",
        1,
    ),
    Limit(
        "patterns_search_max",
        10_000,
        "Work of all globs for a byte of a topic: 1 for each that has a text between two stars (`*a*`), and the length "
        "of what is there if that has `?` or `[…]`. Other patterns take none; past it those with work are refused.",
        1,
    ),
    Limit(
        "patterns_bytes_max",
        64 * MIB,
        "Memory of patterns and their compiled forms on a shard, each of which has all: past it new ones are refused.",
        1,
    ),
    Limit(
        "subscriptions_per_client_max",
        100_000,
        "Subscriptions of one client: topics, patterns and shard channels together; and as many to who is in rooms.",
        1,
    ),
    Limit(
        "subscription_bytes_per_client_max",
        16 * MIB,
        "Bytes of the names of one client's subscriptions together; and as many of those to who is in rooms.",
        1,
        high=2**32 - 1,
    ),
    Limit(
        "subscription_bytes_shard_max",
        512 * MIB,
        "Bytes of the names of subscriptions on one shard: of each topic once, and of all that MQTT clients, their "
        "sessions and browsers keep themselves. Past it nobody subscribes to more.",
        1,
    ),
    Limit(
        "groups_max",
        10_000,
        "Groups that share messages and have a member, of `$share` and of named consumers, in the whole cluster: a "
        "member of one more is refused. Of consumers without members a shard remembers no more; the others go on "
        "from their rows.",
        1,
    ),
    Limit("publishes_per_minute_max", 0, "Publishes a minute of one client; 0 for no limit."),
    Limit(
        "phoenix_message_bytes_max",
        MIB,
        "Bytes of one message of a browser on a Phoenix channel, however it is cut into frames.",
        1_024,
    ),
    Limit("phoenix_channels_max", 100, "Topics that one connection of a browser has joined.", 1),
    Limit("phoenix_joins_per_second_max", 500, "Joins of one connection of a browser in a second.", 1),
    Limit(
        "phoenix_silence_ms",
        60_000,
        "Time that a browser may be silent; it says every 30 s that it is there.",
        1,
    ),
    Limit(
        "presence_members_max",
        1_000_000,
        "Members of rooms that are connected to a node, in all rooms together; a join as one more is refused.",
        1,
    ),
    Limit(
        "presence_listed_max",
        10_000,
        "Members of one room that each node lists; the others are counted.",
        1,
        reload=False,
    ),
    Limit(
        "presence_member_bytes_max",
        KIB,
        "Bytes of a member's key and of what it says of itself, together.",
        2,
        high=65_536,
    ),
    Limit(
        "publishers_shard_max",
        250_000,
        "Connections and rooms that they published to within a minute, which a shard remembers; what is published by "
        "others meanwhile counts no publisher.",
    ),
    Limit(
        "longpoll_window_ms",
        10_000,
        "Time that a request of a long poll of a browser waits for something to be said.",
        1,
    ),
    Limit("longpoll_sessions_max", 10_000, "Sessions of browsers by long polls."),
    Limit(
        "events_heartbeat_ms",
        15_000,
        "How often a stream of server-sent events says something where no record comes.",
        1,
    ),
    Limit(
        "mqtt_packet_bytes_max",
        2 * MIB,
        "Bytes of one packet of an MQTT client, which is told so.",
        1_024,
        high=268_435_460,
    ),
    Limit(
        "mqtt_large_bytes_max",
        256 * MIB,
        "Bytes of messages above 2 MiB that MQTT clients may have under way to one shard together; one always may, "
        "another is refused.",
        1,
    ),
    Limit("mqtt_connect_bytes_max", 128 * KIB, "Bytes of a CONNECT of MQTT, which anybody can send.", 128),
    Limit(
        "mqtt_receive_max",
        1_024,
        "Messages of QoS 1 and 2 that an MQTT client may have unanswered; see `mqtt_strict`.",
        1,
        high=65_535,
    ),
    Limit(
        "mqtt_inflight_max",
        256,
        "Messages of QoS 1 and 2 to an MQTT client that may be unacknowledged; fewer where it takes fewer.",
        1,
        high=65_535,
    ),
    Limit(
        "retained_messages_max",
        1_000_000,
        "Retained messages that a node keeps; one topic more is refused.",
    ),
    Limit(
        "retained_bytes_max",
        512 * MIB,
        "Their memory: topics, payloads and headers, and some 200 bytes each.",
    ),
    Limit(
        "retained_page_bytes",
        16 * KIB,
        "Bytes of retained messages that are read at once, and for all clients of a shard in a millisecond.",
        1_024,
        high=MIB,
    ),
    Limit(
        "mqtt_topic_aliases_max", 32, "Topic aliases of an MQTT client, each way; 0 for none.", high=65_535
    ),
    Limit(
        "mqtt_keep_alive_s_max",
        0,
        "The longest keep alive of an MQTT client, in s; 0 leaves it to the client.",
        high=65_535,
    ),
    Limit(
        "mqtt_takeover_ms",
        5_000,
        "Time that other nodes have to let go of a client id which a client brings to this one: one that has died "
        "says nothing.",
    ),
    Limit(
        "mqtt_parting_max",
        256,
        "Sockets of a shard whose MQTT client was told why its connection ends and may not have read it yet; for one "
        "too many the oldest is closed.",
    ),
    Limit("mqtt_parting_ms", 3_000, "Time that one of them has to read it."),
    Limit(
        "inflight_store_bytes_max",
        64 * MIB,
        "Bytes that may wait for the store of sessions, where that is a file or a server; one request always may.",
        1_024,
        reload=False,
    ),
    Limit(
        "inflight_store_timeout_ms",
        2_000,
        "Time that a server of sessions has to answer; what waits for it is refused then.",
        1,
        reload=False,
    ),
    Limit(
        "consumer_ack_ms",
        30_000,
        "Time that a member of a group has to acknowledge a record before another one gets it, where the group keeps "
        "its place: in classes with a log.",
        low=1,
    ),
    Limit(
        "consumer_tries_max",
        16,
        "How often a record is given to members of a group before it goes to the dead letters; 0 for ever.",
    ),
    Limit(
        "consumer_window_records",
        1_024,
        "Records of a group that keeps its place which members have and have not acknowledged, or which are "
        "acknowledged above one that is not; a Redis client alone has as many of all its groups.",
        1,
    ),
    Limit("consumer_window_bytes", 4 * MIB, "Bytes of those that members have, but for one.", 1),
    Limit(
        "mqtt_sessions_max",
        1_000_000,
        "Sessions of MQTT clients that outlive their connections; a shard has its share of them.",
        1,
    ),
    Limit(
        "mqtt_session_expiry_s_max",
        7 * 86_400,
        "The longest that an MQTT session outlives its connection, in s; 0 for none.",
        high=2**32 - 1,
    ),
    Limit(
        "mqtt_session_expiry_s",
        86_400,
        "How long it does before 5.0, where clients cannot say it, in s; within `mqtt_session_expiry_s_max`.",
        high=2**32 - 1,
    ),
    Limit(
        "mqtt_session_queue_messages_max",
        1_000,
        "Messages of QoS 1 and 2 that wait for one absent MQTT client; the oldest give way.",
        1,
    ),
    Limit("mqtt_session_queue_bytes_max", MIB, "Their memory, likewise.", 1_024),
    Limit(
        "mqtt_session_snapshot_ms",
        1_000,
        "How old the record of where an MQTT session stands in logs gets, in ms: what its client has acknowledged"
        " since then of QoS 1 comes again after a node died.",
        1,
    ),
    Limit(
        "rooms_max",
        10_000_000,
        "Rooms in the node's memory. The node's own that its log knows come back beyond it.",
        1,
    ),
    Limit(
        "room_names_bytes_max",
        1024 * MIB,
        "Bytes of the names of rooms in the node's memory, parted among its shards; past it there are no new ones.",
        1,
    ),
    Limit(
        "placed_rooms_class_max",
        4_000_000,
        'Rooms of one class that have a record in the coordinator: those of classes with `placement = "least-busy"`, '
        "and pinned ones.",
        1,
        "control",
        reload=False,
    ),
    Limit(
        "room_records_bytes_max",
        900 * MIB,
        "Bytes of the records of rooms in the coordinator, of all classes together; beyond it no room gets a new one. "
        "At most nine tenths of the embedded coordinator's store (1 GiB): the rest is for the cluster itself.",
        4_096,
        "control",
        reload=False,
    ),
    Limit(
        "room_record_idle_ms",
        600_000,
        "How long nobody has used a room of a class in memory, in ms, before its record in the coordinator is "
        "removed: nobody subscribes, and no record of it is kept. 0: records stay.",
        0,
        "control",
        reload=False,
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
        "Records that wait for all clients of one shard: past it every subscriber with output is over its limit.",
        1_024,
    ),
    Limit(
        "reply_bytes_max",
        64 * MIB,
        "Unread replies of one client: past it its socket is not read. A list of clients or topics that alone is "
        "longer is refused.",
        1_024,
    ),
    Limit(
        "reply_shard_bytes_max",
        1024 * MIB,
        "Unread replies of all clients of one shard: past it those with most are closed, and nobody else is.",
        1_024,
    ),
    Limit(
        "input_shard_bytes_max",
        1024 * MIB,
        "Memory of what all clients of one shard sent that is no whole command, request or message yet, waits since "
        "they are held back, or is queued by MULTI: past it those with most are closed.",
        1_024,
    ),
    Limit("transaction_commands_max", 1_048_576, "Commands that one MULTI may queue.", 1),
    Limit("transaction_bytes_max", 64 * MIB, "Bytes that the commands of one MULTI may hold.", 1_024),
    Limit("history_reply_records_max", 10_000, "Records of one HISTORY reply.", 1),
    Limit(
        "listing_turn_names_max",
        256,
        "Rooms and topics that a turn of a shard goes past for listings, all together.",
        1,
    ),
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
        "log_tail_idle_ms",
        300_000,
        "A record of a hub with a log leaves memory after so long, and is read from the disk; 0: it stays while there "
        "is room for it.",
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
        "Events waiting for the control plane; what clients ask of it beyond them is refused.",
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
    Limit(
        "http_bodies_bytes_max",
        128 * MIB,
        "Bytes of the bodies and long heads of all HTTP requests that come or are at work; further ones get 503.",
        1_024,
        "control",
    ),
    Limit("http_batch_records_max", 10_000, "Records of one `POST /v1/publish`.", 1, "control"),
    Limit("http_page_max", 1_000, "Entries of one page of a listing.", 1, "control"),
    Limit(
        "console_listeners_max",
        32,
        "Open streams of the console's events, one a page; further ones are answered 503.",
        1,
        "control",
    ),
    Limit(
        "console_slow_ms",
        5_000,
        "Time that a listener to the console's events may take for what it was sent before it is closed.",
        1,
        "control",
    ),
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
        "mqtt_session_entries_bytes_max",
        256 * MIB,
        "Disk for what happened to MQTT sessions since their rows, and for messages that wait for them, of each hub of "
        "`$queue`; the oldest give way, in whole segments.",
        1_024,
        "control",
        reload=False,
    ),
    Limit(
        "load_sample_ms",
        10_000,
        "Time between load samples, which a node with a data directory publishes to `$stats/load`; 0 for none.",
        0,
        "control",
    ),
    Limit(
        "sys_interval_ms",
        10_000,
        "Time between the values that a node with a listener for MQTT tells of itself in `$SYS/broker/…`; 0 for none.",
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
