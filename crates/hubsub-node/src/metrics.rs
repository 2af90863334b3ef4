//! Counters and gauges of a shard. The shard alone writes them, with plain
//! stores; anybody may read them at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter or gauge with a single writer.
#[derive(Default)]
pub struct Metric(AtomicU64);

impl Metric {
    /// Adds, as the only writer.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Sets.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Reads.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ShardMetrics {
    /// Bytes were written to a client.
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
        /// The metrics of one shard, on cache lines of its own.
        #[derive(Default)]
        #[repr(align(128))]
        pub struct ShardMetrics { $($(#[doc = $doc])+ pub $name: Metric,)+ }

        impl ShardMetrics {
            /// All as `(name, value)`, in the order of their definition.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }
        }
    };
}

metrics! {
    /// Open client connections.
    connections;
    /// Connections accepted since the start.
    connections_accepted_total;
    /// Connections refused because `connections_max` was reached or the descriptors left are reserved.
    connections_refused_total;
    /// Connections closed because they sent no whole command within `handshake_ms`.
    handshake_timeouts_total;
    /// Connections closed for input that was not Redis's protocol.
    protocol_errors_total;
    /// Accept calls that failed for want of descriptors or memory.
    accept_errors_total;
    /// Commands executed.
    commands_total;
    /// Lists of clients and topics that Redis's commands asked for, and that were longer than reply_bytes_max.
    listings_refused_total;
    /// Records published by clients of this shard.
    published_total;
    /// Records put into connections' output.
    delivered_total;
    /// Bytes read from clients.
    bytes_in_total;
    /// Bytes written to clients.
    bytes_out_total;
    /// Reads from sockets.
    reads_total;
    /// Writes to sockets.
    writes_total;
    /// Turns of the loop.
    turns_total;
    /// Time in socket calls, in ns, extrapolated from a sample of the turns.
    socket_ns_total;
    /// Time in parsing, routing and encoding, in ns, extrapolated likewise.
    routing_ns_total;
    /// Records that slow subscribers lost by `drop-oldest` and `conflate`.
    dropped_total;
    /// Records that a catching-up subscriber no longer found in history.
    gap_records_total;
    /// Connections closed at their output limit.
    slow_closed_total;
    /// Times a subscription fell back to history.
    catch_ups_total;
    /// Groups that share records, with a member anywhere.
    groups;
    /// Records that were given to members of groups here.
    shares_given_total;
    /// Times that a record for a group was given anew: nobody took it, or who took it was lost.
    shares_given_again_total;
    /// Records for a group that nobody took.
    shares_lost_total;
    /// Records of groups that keep their place which were not acknowledged in their time.
    consumers_given_again_total;
    /// Records that history did not have any more when their group came to them.
    consumers_missed_total;
    /// Records that came while the window of their group was full: it reads them later.
    consumers_full_total;
    /// Records that went to the dead letters of a group.
    consumers_buried_total;
    /// Listings that wait for their next turn.
    listings;
    /// Rooms and topics that listings went past.
    listing_names_total;
    /// Turns in which listings went past any.
    listing_turns_total;
    /// Connections whose reading was paused to hold back their publishes.
    pauses_total;
    /// Publishes refused by a limit.
    publishes_refused_total;
    /// Subscriptions refused by a limit.
    subscriptions_refused_total;
    /// Rooms refused by a limit.
    rooms_refused_total;
    /// Records that left history by age, number or bytes.
    history_expired_total;
    /// Output waiting for clients, in bytes.
    output_bytes;
    /// Replies among that.
    reply_bytes;
    /// Input of clients that is no whole command yet or must wait, in bytes.
    input_bytes;
    /// Clients closed because the shard's unread replies were above their limit and these had most.
    reply_debtors_closed_total;
    /// Likewise, of unfinished input.
    input_debtors_closed_total;
    /// Idle buffers kept for reuse, in bytes.
    pool_bytes;
    /// Memory of what waits for clients, in bytes: what several wait for counts once, and each has a place in its queue.
    waiting_bytes;
    /// Memory of connections, in bytes, without what they send and wait for.
    connections_bytes;
    /// Memory of the table of rooms here, in bytes, without what they remember.
    rooms_bytes;
    /// Memory of the table of topics and routes here, in bytes.
    topics_bytes;
    /// Mail waiting for this shard, in bytes.
    mailbox_bytes;
    /// Rooms in memory whose hub is here.
    rooms;
    /// Rooms that the logs of the hubs here know, in memory or not.
    rooms_logged;
    /// Topics and routes known here.
    topics;
    /// Topics with subscribers on any shard whose hub is here.
    channels;
    /// Shard channels likewise.
    shard_channels;
    /// Patterns with subscribers, on any shard.
    patterns;
    /// Steps that globs take at most to search a byte of a topic, all together.
    patterns_search;
    /// Memory of patterns and groups on this shard, which has all.
    patterns_bytes;
    /// Subscriptions that are catching up.
    cursors;
    /// Publishes waiting for a shard that is behind.
    stalled;
    /// Records that wait for the log, not yet committed.
    unlogged;
    /// Questions to the log for which the readers had no place.
    log_reads_held;
    /// Bytes read from links.
    links_bytes_in_total;
    /// Bytes written to links.
    links_bytes_out_total;
    /// Attempts to connect to a peer, an address each.
    links_dialed_total;
    /// Connections to the listener of links that were refused.
    links_refused_total;
    /// Connections to the listener of links that ended before they had proved anything, and were not refused: port
    /// scans, checks of load balancers, and those that made room for others.
    links_strangers_total;
    /// Questions and answers of control planes for which there was no room.
    links_control_dropped_total;
    /// Connections of browsers that were let in.
    phoenix_connections;
    /// Browsers that were not let in.
    phoenix_refused_total;
    /// Messages of browsers.
    phoenix_messages_total;
    /// Events that browsers published, of all that `published_total` counts.
    phoenix_published_total;
    /// Browsers that were silent for too long.
    phoenix_silent_total;
    /// Members of rooms that are connections of this shard.
    presence_members;
    /// Rooms with members of this node, or that somebody here watches.
    presence_rooms;
    /// Joins as a member, or to be told who is there, that were refused.
    presence_refused_total;
    /// Members that were counted as they came and are not listed.
    presence_unlisted_total;
    /// Records of who came and went that are not known to be in a log yet.
    presence_records_waiting;
    /// Those that will never be in one.
    presence_records_lost_total;
    /// Publishes of connections that were not counted as publishers of a room, as too many are remembered.
    publishers_uncounted_total;
    /// What nodes said of members, as heard here.
    presence_words_total;
    /// Streams of events.
    events_connections;
    /// Sessions of long polls, of all that `phoenix_connections` counts.
    longpoll_sessions;
    /// Requests at the listener of WebSockets whose page, or the name by which they call the node, is not welcome.
    pages_refused_total;
    /// Requests at the listener of WebSockets, for streams of events and the like, that were not served.
    events_refused_total;
    /// Connections of MQTT clients that were taken in.
    mqtt_connections;
    /// MQTT clients whose CONNECT was refused.
    mqtt_refused_total;
    /// Subscriptions of MQTT clients.
    mqtt_subscriptions;
    /// Packets of MQTT clients.
    mqtt_packets_total;
    /// Packets to MQTT clients.
    mqtt_packets_sent_total;
    /// Bytes read from MQTT clients, of all that `bytes_in_total` counts.
    mqtt_bytes_in_total;
    /// Bytes written to MQTT clients, of all that `bytes_out_total` counts.
    mqtt_bytes_out_total;
    /// Messages published by MQTT clients of this shard, of all that `published_total` counts.
    mqtt_published_total;
    /// Records put into the output of MQTT clients, of all that `delivered_total` counts.
    mqtt_delivered_total;
    /// Records that an MQTT client was not sent: their time was over, they are longer than it takes, or MQTT cannot
    /// say their topic.
    mqtt_unsent_total;
    /// Clients whose will could not be recorded as they connected, although `mqtt_wills_recorded` asks for that.
    mqtt_wills_unrecorded_total;
    /// Wills that were published.
    mqtt_wills_total;
    /// Bytes of long messages that MQTT clients announced and that have not come whole.
    mqtt_large_bytes;
    /// Long messages of MQTT clients that were refused, since too many were under way.
    mqtt_large_refused_total;
    /// MQTT clients that were silent for too long.
    mqtt_silent_total;
    /// MQTT clients whose client id another one took over.
    mqtt_taken_over_total;
    /// Sessions of MQTT clients that outlive their connections.
    mqtt_sessions;
    /// Those of them without a connection.
    mqtt_sessions_absent;
    /// Those that lack a subscription that was refused, and ask for it again.
    mqtt_sessions_lacking;
    /// Subscriptions of theirs that were refused.
    mqtt_session_refusals_total;
    /// Messages that wait for absent clients.
    mqtt_session_queued;
    /// Memory of these, in bytes.
    mqtt_session_queued_bytes;
    /// Messages that were queued for absent clients.
    mqtt_session_queued_total;
    /// Messages for absent clients that gave way to later ones.
    mqtt_session_dropped_total;
    /// Rows that say what a session is.
    mqtt_session_rows_total;
    /// Entries of what happened to sessions since their rows.
    mqtt_session_entries_total;
    /// What could not be recorded of sessions.
    mqtt_session_unwritten_total;
    /// Sessions that have ended and are recorded yet, since what keeps them is away: they are ended there when it is back.
    mqtt_session_ends_pending;
    /// Sessions that have ended and stay recorded, as too many of them could not be ended there.
    mqtt_session_ends_lost_total;
    /// Sessions that the process before left.
    mqtt_sessions_adopted_total;
    /// Sessions of which what was recorded is damaged.
    mqtt_sessions_damaged_total;
    /// Times that a session was not taken in whose holder is gone, since there are `mqtt_sessions_max`.
    mqtt_sessions_unadopted_total;
    /// Sessions to which nobody came back in time.
    mqtt_sessions_expired_total;
    /// Sockets of MQTT clients that were told why their connection ends and closed at once, as there were too many.
    mqtt_parting_closed_total;
    /// Messages of MQTT clients above `mqtt_receive_max` that were taken all the same.
    mqtt_receive_exceeded_total;
    /// Retained messages that the hubs here keep.
    retained_messages;
    /// Their memory.
    retained_bytes;
    /// Messages that are published and delivered, and not kept, although they were to be.
    retained_refused_total;
    /// Times that a hub's retained messages could not be read for a subscriber.
    retained_unread_total;
    /// MQTT clients to which retained messages come later, since the leader of their hub is not reached.
    retained_unread;
    /// Records in history.
    history_records;
    /// Bytes in history.
    history_bytes;
}
