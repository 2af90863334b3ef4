//! Counters and gauges of a shard. Only the shard writes them, with plain stores; any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter or gauge with a single writer.
#[derive(Default)]
pub struct Metric(AtomicU64);

impl Metric {
    /// Adds `n`. Only the owning shard may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ShardMetrics {
    /// Counts bytes written to a client.
    #[inline]
    pub fn count_written(&self, bytes: usize, to_mqtt: bool) {
        self.bytes_out_total.add(bytes as u64);
        if to_mqtt {
            self.mqtt_bytes_out_total.add(bytes as u64);
        }
    }
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        /// The metrics of one shard, on separate cache lines.
        #[derive(Default)]
        #[repr(align(128))]
        pub struct ShardMetrics { $($(#[doc = $doc])+ pub $name: Metric,)+ }

        impl ShardMetrics {
            /// All metrics as `(name, value)`, in order of definition.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

metrics! {
    /// Client connections that are open.
    connections;
    /// Connections accepted since the start.
    connections_accepted_total;
    /// Connections refused because `connections_max` was reached or the descriptors left are reserved.
    connections_refused_total;
    /// Connections closed because they sent no whole command within `handshake_ms`.
    handshake_timeouts_total;
    /// Connections closed for input that was not Redis's protocol.
    protocol_errors_total;
    /// Accept calls that failed for lack of descriptors or memory.
    accept_errors_total;
    /// Redis commands executed for clients.
    commands_total;
    /// Lists of clients and topics that Redis commands requested and that were longer than `reply_bytes_max`.
    listings_refused_total;
    /// Records published by clients of this shard.
    published_total;
    /// Records added to connections' output.
    delivered_total;
    /// Bytes read from clients.
    bytes_in_total;
    /// Bytes written to clients.
    bytes_out_total;
    /// Read calls on client sockets.
    reads_total;
    /// Write calls on client sockets.
    writes_total;
    /// Iterations of the event loop.
    turns_total;
    /// Time in socket calls, in ns, extrapolated from a sample of the turns.
    socket_ns_total;
    /// Time in parsing, routing and encoding, in ns, extrapolated from a sample of the turns.
    routing_ns_total;
    /// Records that slow subscribers lost by `drop-oldest` and `conflate`.
    dropped_total;
    /// Records that a catching-up subscriber no longer found in history.
    gap_records_total;
    /// Connections closed at their output limit.
    slow_closed_total;
    /// Times a subscription fell back to history.
    catch_ups_total;
    /// Groups that share records and have a member on any shard or node.
    groups;
    /// Records delivered to members of groups here.
    shares_delivered_total;
    /// Redeliveries of a record to a group because nobody took it or its receiver was lost.
    shares_redelivered_total;
    /// Records for a group that nobody took.
    shares_lost_total;
    /// Records of groups with a persisted position that were not acknowledged in time.
    consumers_redelivered_total;
    /// Records that were gone from history when their group reached them.
    consumers_missed_total;
    /// Records that arrived while their group's window was full; the group reads them later.
    consumers_full_total;
    /// Records sent to the dead letters of a group.
    consumers_dead_lettered_total;
    /// Listings that wait for the next turn.
    listings;
    /// Rooms and topics that listings scanned.
    listing_names_total;
    /// Turns in which listings scanned any name.
    listing_turns_total;
    /// Times that a connection's reading was paused to throttle its publishes.
    pauses_total;
    /// Publishes refused by a limit.
    publishes_refused_total;
    /// Subscriptions refused by a limit.
    subscriptions_refused_total;
    /// Rooms refused by a limit.
    rooms_refused_total;
    /// Records removed from history by age, number or bytes.
    history_expired_total;
    /// Queued output for clients, in bytes.
    output_bytes;
    /// The part of `output_bytes` that is replies.
    reply_bytes;
    /// Input of clients that is an incomplete command or must wait, in bytes.
    input_bytes;
    /// Clients closed because the shard's unread replies exceeded their limit and these clients had the most.
    reply_debtors_closed_total;
    /// Clients closed because the shard's unfinished input exceeded its limit and these clients had the most.
    input_debtors_closed_total;
    /// Idle buffers kept for reuse, in bytes.
    pool_bytes;
    /// Memory of queued output, in bytes: bytes that several clients share count once, plus each queue's
    /// entries.
    waiting_bytes;
    /// Memory of connections, in bytes, without their input and output.
    connections_bytes;
    /// Memory of the table of rooms here, in bytes, without their history.
    rooms_bytes;
    /// Memory of the table of topics and routes here, in bytes.
    topics_bytes;
    /// Queued mail for this shard, in bytes.
    mailbox_bytes;
    /// Rooms in memory whose hub is here.
    rooms;
    /// Rooms in the logs of the hubs here, in memory or not.
    rooms_logged;
    /// Topics and routes known here.
    topics;
    /// Topics whose hub is here and that have subscribers on any shard.
    channels;
    /// Shard channels whose hub is here and that have subscribers on any shard.
    shard_channels;
    /// Patterns with subscribers on any shard.
    patterns;
    /// Upper bound of the steps that all globs together take per byte of a topic.
    patterns_search;
    /// Memory of patterns and groups on this shard, which has all of them, in bytes.
    patterns_bytes;
    /// Subscriptions that are catching up.
    cursors;
    /// Publishes that wait for a shard that lags.
    stalled;
    /// Records passed to the log but not committed yet.
    unlogged;
    /// Log reads that wait because all readers are busy.
    log_reads_blocked;
    /// Bytes read from links.
    links_bytes_in_total;
    /// Bytes written to links.
    links_bytes_out_total;
    /// Connection attempts to peers, one per address.
    links_dialed_total;
    /// Refused connections to the link listener.
    links_refused_total;
    /// Connections to the link listener that ended before they authenticated and were not refused: port
    /// scans, health checks of load balancers, and those evicted to make room.
    links_unauthenticated_total;
    /// Requests and responses of control planes that were dropped for lack of room.
    links_control_dropped_total;
    /// Accepted connections of browsers.
    phoenix_connections;
    /// Refused connections of browsers.
    phoenix_refused_total;
    /// Messages received from browsers.
    phoenix_messages_total;
    /// Events published by browsers, included in `published_total`.
    phoenix_published_total;
    /// Browsers closed because they were silent for too long.
    phoenix_silent_total;
    /// Members of rooms that are connections of this shard.
    presence_members;
    /// Rooms with members on this node, or with watchers on this shard.
    presence_rooms;
    /// Refused requests to join as a member or to watch members.
    presence_refused_total;
    /// Members that were over the listing limit when they joined: counted but not listed.
    presence_unlisted_total;
    /// Join and leave records that are not confirmed by a log yet.
    presence_records_waiting;
    /// Join and leave records that could not be logged.
    presence_records_lost_total;
    /// Publishes that did not count their connection as a publisher of the room, because too many are
    /// tracked.
    publishers_uncounted_total;
    /// Presence messages received from nodes.
    presence_messages_total;
    /// Open streams of server-sent events.
    events_connections;
    /// Long-poll sessions, included in `phoenix_connections`.
    longpoll_sessions;
    /// Requests at the WebSocket listener refused for their origin or `Host` name.
    origins_refused_total;
    /// Requests at the WebSocket listener, such as those for event streams, that were not served.
    events_refused_total;
    /// Accepted connections of MQTT clients.
    mqtt_connections;
    /// MQTT clients whose CONNECT was refused.
    mqtt_refused_total;
    /// Subscriptions of MQTT clients.
    mqtt_subscriptions;
    /// Packets received from MQTT clients.
    mqtt_packets_total;
    /// Packets sent to MQTT clients.
    mqtt_packets_sent_total;
    /// Bytes read from MQTT clients, included in `bytes_in_total`.
    mqtt_bytes_in_total;
    /// Bytes written to MQTT clients, included in `bytes_out_total`.
    mqtt_bytes_out_total;
    /// Messages published by MQTT clients of this shard, included in `published_total`.
    mqtt_published_total;
    /// Records added to the output of MQTT clients, included in `delivered_total`.
    mqtt_delivered_total;
    /// Records not sent to an MQTT client: expired, longer than its maximum packet size, or with a topic that
    /// MQTT cannot represent.
    mqtt_unsent_total;
    /// Clients whose will could not be recorded when they connected, although `mqtt_wills_recorded` requires
    /// it.
    mqtt_wills_unrecorded_total;
    /// Wills that were published.
    mqtt_wills_total;
    /// Announced bytes of long messages from MQTT clients that have not arrived completely.
    mqtt_large_bytes;
    /// Long messages of MQTT clients that were refused because too many were in flight.
    mqtt_large_refused_total;
    /// MQTT clients closed because they were silent for too long.
    mqtt_silent_total;
    /// MQTT clients whose client id another client took over.
    mqtt_taken_over_total;
    /// Sessions of MQTT clients that outlive their connections.
    mqtt_sessions;
    /// The part of `mqtt_sessions` without a connection.
    mqtt_sessions_offline;
    /// Sessions that miss a subscription because it was refused, and retry it.
    mqtt_sessions_incomplete;
    /// Refused subscriptions of sessions.
    mqtt_session_refusals_total;
    /// Messages queued for offline sessions.
    mqtt_session_queued;
    /// Memory of the messages queued for offline sessions, in bytes.
    mqtt_session_queued_bytes;
    /// Messages that were queued for offline sessions.
    mqtt_session_queued_total;
    /// Messages for offline sessions that were dropped in favour of later ones.
    mqtt_session_dropped_total;
    /// Entries written with the full state of a session.
    mqtt_session_snapshots_total;
    /// Entries written with changes of a session since its full state.
    mqtt_session_entries_total;
    /// Changes of sessions that could not be recorded.
    mqtt_session_unwritten_total;
    /// Ended sessions whose record still exists because its store is unreachable; it is deleted once the
    /// store is back.
    mqtt_session_ends_pending;
    /// Ended sessions whose record stays, because too many deletions were pending.
    mqtt_session_ends_lost_total;
    /// Sessions restored from the previous process.
    mqtt_session_takeovers_total;
    /// Sessions whose record is damaged.
    mqtt_sessions_damaged_total;
    /// Times that a session of a lost holder was not taken over because `mqtt_sessions_max` was reached.
    mqtt_session_takeovers_failed_total;
    /// Sessions that expired before their client came back.
    mqtt_sessions_expired_total;
    /// Sockets in lingering close that were closed early because there were too many.
    mqtt_lingering_closed_total;
    /// Messages of MQTT clients that were accepted above `mqtt_receive_max`.
    mqtt_receive_exceeded_total;
    /// Retained messages of the hubs here.
    retained_messages;
    /// Memory of the retained messages, in bytes.
    retained_bytes;
    /// Messages that were delivered but not retained although they were flagged to be.
    retained_refused_total;
    /// Times that a hub's retained messages could not be read for a subscriber.
    retained_unread_total;
    /// MQTT clients that get retained messages later because the leader of their hub is unreachable.
    retained_unread;
    /// Number of records in history.
    history_records;
    /// Memory of records in history, in bytes.
    history_bytes;
}
