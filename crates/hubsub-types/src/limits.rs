//! Every bound of the data plane, by name. The control plane's configuration
//! (`python/hubsub/config/definitions.py`) sets all of them from its own definitions; the
//! defaults here serve the node that runs without Python and the tests, and a
//! boundary test holds the two lists against each other.

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident = $default:expr;)+) => {
        /// The named limits of a node. 0 means "no limit" only where said.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Limits { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl Default for Limits {
            fn default() -> Self { Limits { $($name: $default,)+ } }
        }

        impl Limits {
            /// Names, in the order of their definition.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Sets one limit by name; false if there is none of that name.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return false,
                }
                true
            }

            /// All limits as `(name, value)`, in the order of their definition.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

limits! {
    /// Open client connections of the node; the descriptor limit may allow fewer.
    connections_max = 1_000_000;
    /// Descriptors of the process that clients leave free, for the log's files, links and the coordinator; at most half
    /// of those that are free at its start.
    descriptors_reserved = 2_048;
    /// Time a connection has to send its first whole command, in ms.
    handshake_ms = 10_000;
    /// Bytes of one command, arguments and framing together.
    frame_bytes_max = 64 * MIB;
    /// Arguments of one command.
    frame_args_max = 1_048_576;
    /// Bytes of one inline command.
    inline_bytes_max = 64 * KIB;
    /// Bytes of a topic; at most 65,535.
    topic_bytes_max = 65_535;
    /// Bytes of a pattern.
    pattern_bytes_max = 1_024;
    /// Patterns of one client.
    patterns_per_client_max = 1_000;
    /// Distinct patterns that have subscribers, in the whole cluster.
    patterns_max = 100_000;
    /// Steps that all globs take together to search one byte of a topic: one each for a text between two stars, and as many
    /// as it is long for anything else there.
    patterns_search_max = 10_000;
    /// Memory of patterns and their compiled forms on one shard, each of which has all; past it there are no new ones.
    patterns_bytes_max = 64 * MIB;
    /// Subscriptions of one client: topics, patterns and shard channels together; and as many to who is in rooms.
    subscriptions_per_client_max = 100_000;
    /// Bytes of the names of one client's subscriptions together; and as many of those to who is in rooms.
    subscription_bytes_per_client_max = 16 * MIB;
    /// Bytes of the names of subscriptions on one shard: of each topic once, and of all that MQTT clients, their sessions
    /// and browsers keep themselves.
    subscription_bytes_shard_max = 512 * MIB;
    /// Groups that share messages, in the whole cluster; and named consumers that a shard remembers.
    groups_max = 10_000;
    /// Publishes a minute of one client; 0 for no limit.
    publishes_per_minute_max = 0;
    /// Bytes of one message of a browser, however it is cut into frames.
    phoenix_message_bytes_max = MIB;
    /// Topics that one connection of a browser has joined.
    phoenix_channels_max = 100;
    /// Joins of one connection of a browser in a second.
    phoenix_joins_per_second_max = 500;
    /// Time that a browser may be silent, in ms; it says every 30 s that it is there.
    phoenix_silence_ms = 60_000;
    /// Members of rooms that are connected to a node, in all rooms together.
    presence_members_max = 1_000_000;
    /// Members of one room that a node lists; the others are counted.
    presence_listed_max = 10_000;
    /// Bytes of a member's key and meta together.
    presence_member_bytes_max = KIB;
    /// Connections and rooms that they published to within a minute, which a shard remembers; others are not counted.
    publishers_shard_max = 250_000;
    /// Time that a request of a long poll waits for something to be said, in ms.
    longpoll_window_ms = 10_000;
    /// Sessions of long polls of the node.
    longpoll_sessions_max = 10_000;
    /// How often a stream of events says something where no record comes, in ms.
    events_heartbeat_ms = 15_000;
    /// Bytes of one packet of an MQTT client, which is told so.
    mqtt_packet_bytes_max = 2 * MIB;
    /// Bytes of long messages of MQTT clients that may be under way to one shard together; one always may.
    mqtt_large_bytes_max = 256 * MIB;
    /// Bytes of CONNECT, which anybody can send.
    mqtt_connect_bytes_max = 128 * KIB;
    /// Messages of QoS 1 and 2 that an MQTT client may have unanswered: its Receive Maximum.
    mqtt_receive_max = 1_024;
    /// Messages of QoS 1 and 2 to an MQTT client that may be unacknowledged; fewer where it takes fewer.
    mqtt_inflight_max = 256;
    /// Retained messages that a node keeps.
    retained_messages_max = 1_000_000;
    /// Their memory: topics, payloads and headers, and some 200 bytes each.
    retained_bytes_max = 512 * MIB;
    /// Bytes of retained messages that are read at once, and for all clients of a shard in a millisecond.
    retained_page_bytes = 16 * KIB;
    /// Topic aliases of an MQTT client, each way; 0 for none.
    mqtt_topic_aliases_max = 32;
    /// The longest keep alive of an MQTT client, in s; 0 leaves it to the client.
    mqtt_keep_alive_s_max = 0;
    /// Time that other nodes have to let go of a client id that an MQTT client brings here, in ms.
    mqtt_takeover_ms = 5_000;
    /// Sockets of a shard whose MQTT client was told why its connection ends and may not have read it yet; for one too
    /// many the oldest is closed.
    mqtt_parting_max = 256;
    /// Time that one of them has to read it, in ms.
    mqtt_parting_ms = 3_000;
    /// Time that a member of a group has to acknowledge a record before another one gets it, in ms, where the group keeps
    /// its place.
    consumer_ack_ms = 30_000;
    /// How often a record is given before it goes to the dead letters; 0 for ever.
    consumer_tries_max = 16;
    /// Records of a group that keeps its place which members have and have not acknowledged, or which are acknowledged
    /// above one that is not; a Redis client alone has as many of all its groups.
    consumer_window_records = 1_024;
    /// Bytes of those that members have, but for one.
    consumer_window_bytes = 4 * MIB;
    /// Sessions of MQTT clients that outlive their connections, of all shards together.
    mqtt_sessions_max = 1_000_000;
    /// The longest that one does, in s; 0 for none.
    mqtt_session_expiry_s_max = 7 * 86_400;
    /// How long one does before 5.0, where clients cannot say it, in s.
    mqtt_session_expiry_s = 86_400;
    /// Messages that wait for an absent client; the oldest give way.
    mqtt_session_queue_messages_max = 1_000;
    /// Their memory, in bytes.
    mqtt_session_queue_bytes_max = MIB;
    /// Time after which a session that has gone on in logs is recorded, in ms.
    mqtt_session_snapshot_ms = 1_000;
    /// Bytes that wait for the store of sessions, where that is a file or a server; one request always may.
    inflight_store_bytes_max = 64 * MIB;
    /// Time that a server of sessions has to answer, in ms.
    inflight_store_timeout_ms = 2_000;
    /// Rooms in the node's memory; the node's own that its log knows come back beyond it.
    rooms_max = 10_000_000;
    /// Bytes of their names.
    room_names_bytes_max = 1024 * MIB;
    /// Rooms made in a second on one shard; 0 for no limit.
    room_creations_per_second_max = 0;
    /// Requests of one client that wait for an answer; past it its socket is not read.
    pending_per_client_max = 4_096;
    /// Bytes waiting for another shard; past it publishers into it are not read.
    mailbox_bytes_max = 16 * MIB;
    /// Output of one subscriber: past it, its room's slow-subscriber policy holds.
    output_bytes_max = 32 * MIB;
    /// Output of one subscriber that may stand for `output_soft_ms`; 0 for no soft limit.
    output_soft_bytes = 8 * MIB;
    /// How long output may stay above `output_soft_bytes`, in ms.
    output_soft_ms = 60_000;
    /// Records that wait for all clients of one shard: past it every subscriber with output is over its limit.
    output_shard_bytes_max = 1024 * MIB;
    /// Unread replies of one client: past it its socket is not read. A list of clients or topics that alone is longer is
    /// refused.
    reply_bytes_max = 64 * MIB;
    /// Unread replies of all clients of one shard: past it those with most are closed.
    reply_shard_bytes_max = 1024 * MIB;
    /// Unfinished or paused input of all clients of one shard, MULTI's commands included: past it those with most are closed.
    input_shard_bytes_max = 1024 * MIB;
    /// Commands that one MULTI may queue.
    transaction_commands_max = 1_048_576;
    /// Bytes that the commands of one MULTI may hold.
    transaction_bytes_max = 64 * MIB;
    /// Records of one HISTORY reply.
    history_reply_records_max = 10_000;
    /// Rooms and topics that a turn of a shard goes past for listings, all together.
    listing_turn_names_max = 256;
    /// Payload bytes of one HISTORY reply; more are fetched with AFTER.
    history_reply_bytes_max = 8 * MIB;
    /// Memory of all history rings of one shard.
    history_shard_bytes_max = 1024 * MIB;
    /// Memory for the latest records of one hub with a log; older ones are read from the disk.
    log_tail_bytes_max = 64 * MIB;
    /// Time after which a record of a hub with a log leaves memory, in ms; 0: it stays while there is room.
    log_tail_idle_ms = 300_000;
    /// Bytes that wait for the journal; past it publishers into rooms with a log are not read.
    log_pending_bytes_max = 64 * MIB;
    /// Bytes that are safe in the journal and not in segments yet; past it the journal waits.
    log_unwritten_bytes_max = 64 * MIB;
    /// Size of a journal file.
    log_journal_bytes = 64 * MIB;
    /// A segment is sealed when it is so long; below 4 GiB.
    log_segment_bytes = 64 * MIB;
    /// Bytes between two checkpoints of the log.
    log_checkpoint_bytes = 64 * MIB;
    /// Time between two checkpoints of the log, in ms.
    log_checkpoint_ms = 10_000;
    /// Free space of the log's disk below which it takes no more.
    log_reserve_bytes = 64 * MIB;
    /// Segments and indexes open at once.
    log_open_files_max = 512;
    /// Streams of records that are open at once.
    log_streams_max = 16;
    /// A stream that nobody asks for anything for so long is closed, in ms.
    log_stream_idle_ms = 60_000;
    /// Latest records of one hub with a log among which a producer's repeats are found.
    producer_window_records = 262_144;
    /// Latest bytes of one hub's log among which a producer's repeats are found.
    producer_window_bytes = 64 * MIB;
    /// Topics without subscribers whose room a shard remembers.
    route_cache_topics_max = 65_536;
    /// Topics whose matching patterns a shard remembers.
    pattern_cache_topics_max = 16_384;
    /// Idle buffer memory that a shard keeps for reuse.
    pool_bytes_max = 16 * MIB;
    /// Idle time after which TCP probes a peer, in ms; 0 for none.
    tcp_keepalive_ms = 60_000;
    /// Time that sent bytes may stay unacknowledged before the peer counts as dead, in ms; 0 for the system's.
    tcp_user_timeout_ms = 120_000;
    /// Time from connect to welcome of a link between two nodes, in ms.
    link_handshake_ms = 3_000;
    /// Time between two pings of a link, in ms.
    link_heartbeat_ms = 100;
    /// Silence of a link after which the peer is suspected, in ms; at least two pings.
    link_suspect_ms = 500;
    /// Silence after which a link is given up, in ms; more than `link_suspect_ms`.
    link_silence_ms = 5_000;
    /// Bytes of records that a peer may send over one link ahead of their being handled.
    link_live_window_bytes = 8 * MIB;
    /// Likewise, of answers to reads.
    link_reads_window_bytes = 4 * MIB;
    /// Bytes of urgent frames that wait for a link, or one frame that is longer.
    link_urgent_queue_bytes_max = MIB;
    /// Bytes of records that wait for a link, or one frame that is longer.
    link_live_queue_bytes_max = 8 * MIB;
    /// Likewise, of answers to reads.
    link_reads_queue_bytes_max = 8 * MIB;
    /// Output of a link that waits for its socket, and a frame more.
    link_output_bytes_max = 256 * KIB;
    /// Wait before a peer is dialed a second time, in ms; it doubles from there.
    link_redial_ms_min = 100;
    /// The longest wait between two attempts to dial a peer, in ms.
    link_redial_ms_max = 5_000;
    /// A link that stood for so long makes the next wait the shortest again, in ms.
    link_stable_ms = 10_000;
    /// From the time before it is asked for to the end of a lead, the right to lead ephemeral hubs, in ms.
    lead_ms = 1_000;
    /// A controller that was not heard for so long is not heeded any more, in ms; below two thirds of `lead_ms`.
    lead_silence_ms = 500;
    /// Time that a stopping node gives its clients to take their output, in ms.
    drain_ms = 5_000;
    /// Events waiting for the control plane; what clients ask of it beyond them is refused.
    control_events_max = 65_536;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_set_by_its_name() {
        let mut limits = Limits::default();
        for (i, name) in Limits::NAMES.iter().enumerate() {
            assert!(limits.set(name, i as u64));
        }
        let values: Vec<u64> = limits.entries().into_iter().map(|(_, v)| v).collect();
        assert_eq!(values, (0..Limits::NAMES.len() as u64).collect::<Vec<_>>());
        assert!(!limits.set("no_such_limit", 1));
    }
}
