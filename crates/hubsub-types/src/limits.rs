//! Every limit of the data plane, by name. The control plane's configuration
//! (`python/hubsub/config/definitions.py`) sets all of them from its own definitions. The defaults here are
//! for tests and for a node that runs without Python; a boundary test compares the two lists.

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident = $default:expr;)+) => {
        /// The named limits of a node. 0 means "no limit" only where documented.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Limits { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl Default for Limits {
            fn default() -> Self { Limits { $($name: $default,)+ } }
        }

        impl Limits {
            /// Names, in order of definition.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Sets one limit by name; returns false if the name is unknown.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return false,
                }
                true
            }

            /// All limits as `(name, value)`, in order of definition.
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
    /// Descriptors of the process that clients leave free, for the log's files, links and the coordinator; at
    /// most half of those free at its start.
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
    /// Steps that all globs together take to search one byte of a topic: per part between two stars, 1 for
    /// literal text and its length for anything else.
    patterns_search_max = 10_000;
    /// Memory of patterns and their compiled forms on one shard, each of which has all; new ones are refused
    /// above it.
    patterns_bytes_max = 64 * MIB;
    /// Subscriptions of one client: topics, patterns and shard channels together; the same number again for
    /// presence subscriptions.
    subscriptions_per_client_max = 100_000;
    /// Total bytes of the names of one client's subscriptions; the same again for presence subscriptions.
    subscription_bytes_per_client_max = 16 * MIB;
    /// Bytes of the names of subscriptions on one shard: each topic once, plus the names that MQTT clients,
    /// their sessions and browsers store themselves.
    subscription_bytes_shard_max = 512 * MIB;
    /// Groups that share messages, in the whole cluster; also named consumers that a shard remembers.
    groups_max = 10_000;
    /// Publishes a minute of one client; 0 for no limit.
    publishes_per_minute_max = 0;
    /// Bytes of one message of a browser, all its frames together.
    phoenix_message_bytes_max = MIB;
    /// Topics that one browser connection has joined.
    phoenix_channels_max = 100;
    /// Joins of one browser connection in a second.
    phoenix_joins_per_second_max = 500;
    /// Time without input after which a browser connection is closed, in ms; its heartbeat is every 30 s.
    phoenix_silence_ms = 60_000;
    /// Presence members connected to a node, in all rooms together.
    presence_members_max = 1_000_000;
    /// Members of one room that a node lists; the others are only counted.
    presence_listed_max = 10_000;
    /// Bytes of a member's key and meta together.
    presence_member_bytes_max = KIB;
    /// Pairs of a connection and a room that it published to within a minute, which a shard remembers; others
    /// are not counted.
    publishers_shard_max = 250_000;
    /// Time that a long-poll request waits for a message, in ms.
    longpoll_window_ms = 10_000;
    /// Long-poll sessions of the node.
    longpoll_sessions_max = 10_000;
    /// Interval of the heartbeat of an event stream without records, in ms.
    events_heartbeat_ms = 15_000;
    /// Bytes of one packet of an MQTT client: the Maximum Packet Size in CONNACK.
    mqtt_packet_bytes_max = 2 * MIB;
    /// Bytes of long messages that the MQTT clients of one shard may have in flight together; one always may
    /// be.
    mqtt_large_bytes_max = 256 * MIB;
    /// Bytes of CONNECT, which unauthenticated peers can send.
    mqtt_connect_bytes_max = 128 * KIB;
    /// Receive Maximum of an MQTT client: unacknowledged QoS 1 and 2 messages from it.
    mqtt_receive_max = 1_024;
    /// Unacknowledged QoS 1 and 2 messages to an MQTT client; fewer if its Receive Maximum is lower.
    mqtt_inflight_max = 256;
    /// Retained messages of a node.
    retained_messages_max = 1_000_000;
    /// Memory of retained messages: topics, payloads and headers, and some 200 bytes each.
    retained_bytes_max = 512 * MIB;
    /// Bytes of retained messages read at once, and for all clients of a shard per millisecond.
    retained_page_bytes = 16 * KIB;
    /// Topic aliases of an MQTT client, in each direction; 0 for none.
    mqtt_topic_aliases_max = 32;
    /// The longest keep alive of an MQTT client, in s; 0 leaves it to the client.
    mqtt_keep_alive_s_max = 0;
    /// Time for other nodes to release a client id that an MQTT client connects with here, in ms.
    mqtt_takeover_ms = 5_000;
    /// Sockets of a shard in a lingering close, whose MQTT client may not have read the reason yet; above it
    /// the oldest is closed.
    mqtt_parting_max = 256;
    /// Duration of a lingering close of an MQTT client, in ms.
    mqtt_parting_ms = 3_000;
    /// Time for a member of a group with a stored cursor to acknowledge a record before another one gets it,
    /// in ms.
    consumer_ack_ms = 30_000;
    /// Deliveries of a record before it is dead-lettered; 0 for no limit.
    consumer_tries_max = 16;
    /// Records of a group with a stored cursor that are delivered but unacknowledged, or acknowledged at a
    /// position after such a record; a single Redis client has the same limit for all its groups.
    consumer_window_records = 1_024;
    /// Bytes of the records delivered but unacknowledged; one record may exceed it.
    consumer_window_bytes = 4 * MIB;
    /// Sessions of MQTT clients that outlive their connections, on all shards together.
    mqtt_sessions_max = 1_000_000;
    /// Longest session expiry, in s; 0 for none.
    mqtt_session_expiry_s_max = 7 * 86_400;
    /// Session expiry of clients before MQTT 5.0, which cannot set one, in s.
    mqtt_session_expiry_s = 86_400;
    /// Messages queued for an offline client; the oldest are dropped.
    mqtt_session_queue_messages_max = 1_000;
    /// Memory of the messages queued for an offline client, in bytes.
    mqtt_session_queue_bytes_max = MIB;
    /// Time after which the progress of a session in logs is recorded, in ms.
    mqtt_session_snapshot_ms = 1_000;
    /// Bytes queued for the session store, if it is a file or a server; one request is always accepted.
    inflight_store_bytes_max = 64 * MIB;
    /// Time for a session server to reply, in ms.
    inflight_store_timeout_ms = 2_000;
    /// Rooms in the node's memory; the node's internal rooms in its log are restored even above it.
    rooms_max = 10_000_000;
    /// Bytes of the names of rooms.
    room_names_bytes_max = 1024 * MIB;
    /// Rooms created per second on one shard; 0 for no limit.
    room_creations_per_second_max = 0;
    /// Requests of one client that wait for a reply; above it its socket is not read.
    pending_per_client_max = 4_096;
    /// Bytes queued for another shard; above it publishers to that shard are not read.
    mailbox_bytes_max = 16 * MIB;
    /// Output of one subscriber; above it the slow-subscriber policy of its room applies.
    output_bytes_max = 32 * MIB;
    /// Output of one subscriber allowed for at most `output_soft_ms`; 0 for no soft limit.
    output_soft_bytes = 8 * MIB;
    /// How long output may stay above `output_soft_bytes`, in ms.
    output_soft_ms = 60_000;
    /// Records queued for all clients of one shard; above it every subscriber with output is over its limit.
    output_shard_bytes_max = 1024 * MIB;
    /// Unread replies of one client; above it its socket is not read. A list of clients or topics that is
    /// longer on its own is refused.
    reply_bytes_max = 64 * MIB;
    /// Unread replies of all clients of one shard; above it the clients with most are closed.
    reply_shard_bytes_max = 1024 * MIB;
    /// Unfinished or paused input of all clients of one shard, including MULTI's commands; above it the
    /// clients with most are closed.
    input_shard_bytes_max = 1024 * MIB;
    /// Commands that one MULTI may queue.
    transaction_commands_max = 1_048_576;
    /// Bytes of the commands queued by one MULTI.
    transaction_bytes_max = 64 * MIB;
    /// Records of one HISTORY reply.
    history_reply_records_max = 10_000;
    /// Rooms and topics that one turn of a shard scans for all listings together.
    listing_turn_names_max = 256;
    /// Payload bytes of one HISTORY reply; more are fetched with AFTER.
    history_reply_bytes_max = 8 * MIB;
    /// Memory of all history rings of one shard.
    history_shard_bytes_max = 1024 * MIB;
    /// Memory for the latest records of one hub with a log; older ones are read from the disk.
    log_tail_bytes_max = 64 * MIB;
    /// Time after which a record of a hub with a log leaves memory, in ms; 0: it stays while there is space.
    log_tail_idle_ms = 300_000;
    /// Bytes queued for the journal; above it publishers to rooms with a log are not read.
    log_pending_bytes_max = 64 * MIB;
    /// Bytes synced in the journal and not yet in segments; above it the journal waits.
    log_unwritten_bytes_max = 64 * MIB;
    /// Size of a journal file.
    log_journal_bytes = 64 * MIB;
    /// Length at which a segment is sealed; below 4 GiB.
    log_segment_bytes = 64 * MIB;
    /// Bytes between two checkpoints of the log.
    log_checkpoint_bytes = 64 * MIB;
    /// Time between two checkpoints of the log, in ms.
    log_checkpoint_ms = 10_000;
    /// Free space of the log's disk below which publishes are refused.
    log_reserve_bytes = 64 * MIB;
    /// Segments and indexes open at once.
    log_open_files_max = 512;
    /// Record streams open at once.
    log_streams_max = 16;
    /// Time without requests after which a record stream is closed, in ms.
    log_stream_idle_ms = 60_000;
    /// Latest records of one hub with a log that are checked for duplicates of a producer.
    producer_window_records = 262_144;
    /// Latest bytes of one hub's log that are checked for duplicates of a producer.
    producer_window_bytes = 64 * MIB;
    /// Topics without subscribers whose room a shard caches.
    route_cache_topics_max = 65_536;
    /// Topics whose matching patterns a shard caches.
    pattern_cache_topics_max = 16_384;
    /// Idle buffer memory that a shard pools.
    pool_bytes_max = 16 * MIB;
    /// Idle time after which TCP probes a peer, in ms; 0 for none.
    tcp_keepalive_ms = 60_000;
    /// Time that sent bytes may stay unacknowledged before the peer counts as dead, in ms; 0 for the system's
    /// default.
    tcp_user_timeout_ms = 120_000;
    /// Time from connect to welcome of a link between two nodes, in ms.
    link_handshake_ms = 3_000;
    /// Time between two pings of a link, in ms.
    link_heartbeat_ms = 100;
    /// Silence of a link after which the peer is suspected, in ms; at least two pings.
    link_suspect_ms = 500;
    /// Silence after which a link is closed, in ms; more than `link_suspect_ms`.
    link_silence_ms = 5_000;
    /// Bytes of records that a peer may send over one link before they are handled.
    link_live_window_bytes = 8 * MIB;
    /// Bytes of replies to reads that a peer may send over one link before they are handled.
    link_reads_window_bytes = 4 * MIB;
    /// Bytes of urgent frames queued for a link; a single longer frame is accepted.
    link_urgent_queue_bytes_max = MIB;
    /// Bytes of records queued for a link; a single longer frame is accepted.
    link_live_queue_bytes_max = 8 * MIB;
    /// Bytes of replies to reads queued for a link; a single longer frame is accepted.
    link_reads_queue_bytes_max = 8 * MIB;
    /// Output of a link that waits for its socket; one frame may exceed it.
    link_output_bytes_max = 256 * KIB;
    /// Wait before the second dial attempt to a peer, in ms; it doubles from there.
    link_redial_ms_min = 100;
    /// Longest wait between two dial attempts to a peer, in ms.
    link_redial_ms_max = 5_000;
    /// Uptime of a link after which the next wait is the shortest again, in ms.
    link_stable_ms = 10_000;
    /// Length of a leader lease (the right to lead ephemeral hubs), in ms from before its request is sent.
    lead_ms = 1_000;
    /// Silence after which a controller is no longer acknowledged, in ms; below two thirds of `lead_ms`.
    lead_silence_ms = 500;
    /// Time for clients to read their output when a node stops, in ms.
    drain_ms = 5_000;
    /// Events queued for the control plane; above it requests of clients that need it are refused.
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
