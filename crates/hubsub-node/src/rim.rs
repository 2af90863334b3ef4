//! The shard's edge to the world: connections and their output, timers, mail,
//! metrics. It carries out what the broker decides (`fanout`), what commands
//! answer (`reply`), and writes it all at the end of the turn (`flush`).

use crate::access::Access;
use crate::classes::ClassesNow;
use crate::conn::{Conn, Flags};
use crate::control::{Control, Level};
use crate::fanout::Encoded;
use crate::gather::Gatherings;
use crate::inbox::Mailer;
use crate::led::Led;
use crate::link::{Board, Links};
use crate::listener::Door;
use crate::listings::Listings;
use crate::log::LogEnd;
use crate::metrics::ShardMetrics;
use crate::mqtt::{LongMessages, Readings, Sessions, StoreEnd};
use crate::node::NodeInfo;
use crate::output::Output;
use crate::own::Own;
use crate::presence::Members;
use crate::redis::cluster::Roster;
use crate::slab::Slab;
use crate::wheel::Wheel;
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_route::Now;
use hubsub_route::claims::{Claims, Holder, Token};
use hubsub_types::{ConnKey, Limits, ShardId};
use hubsub_wire::phoenix;
use std::rc::Rc;
use std::sync::Arc;

/// What a timer was set for.
pub enum Timer {
    /// A connection has had its time for a first command.
    Handshake(ConnKey),
    /// A connection's output has been above the soft limit for its time.
    SoftLimit(ConnKey),
    /// A connection that was to end when its output is written has had its time.
    Linger(ConnKey),
    /// Accepting was paused at one listener.
    Accept(Door),
    /// An MQTT client may have been silent for too long.
    Silence(ConnKey),
    /// Nodes have had their time to let go of a client id, for that claim.
    Claim(Box<(Box<str>, Token)>),
    /// A browser may have been silent for too long.
    Heartbeat(ConnKey),
    /// A stream of events may have been still for a while.
    Beat(ConnKey),
    /// A request of a long poll may have waited for as long as it may.
    Window(ConnKey),
    /// A connection of requests may have had none for too long.
    Idle(ConnKey),
    /// Something of an absent session may be due.
    Session(ConnKey),
    /// Where a session stands in logs is to be recorded.
    Snapshot(ConnKey),
    /// Something may be due in a room with members.
    Presence(Box<Arc<[u8]>>),
    /// That who came or went under this reference may be recorded now.
    PresenceRecord(u64),
    /// It may be due to tell how many are in a room.
    Occupancy(Box<Arc<[u8]>>),
    /// Once a second: retention, gauges.
    Housekeeping,
}

/// Log lines that come at most once a second.
#[derive(Clone, Copy)]
pub enum Once {
    /// Accepting failed.
    Accept,
    /// `connections_max` is reached, or only descriptors that are reserved are left.
    Full,
    /// A peer spoke another protocol.
    Stranger,
    /// A page was not welcome.
    Page,
}

/// How many kinds of `Once` there are.
const ONCE: usize = 4;

/// Arenas of a turn: one for each way to encode a record for Redis clients, browsers and streams of events, packets of
/// MQTT that many clients get, replies.
pub const ARENAS: usize = 11;

/// The arena of packets of MQTT that many clients get.
pub const PACKETS: u8 = 9;

/// The arena of replies, and of packets of one client.
pub const REPLIES: u8 = 10;

/// Bytes in the arenas past which a turn writes before it goes on.
pub const TURN_BYTES: usize = 256 * 1024;

/// What connects a shard to the rest of its node.
pub struct Ends {
    /// Which shard.
    pub shard: ShardId,
    /// To the control plane.
    pub control: Arc<Control>,
    /// Read by the control plane.
    pub metrics: Arc<ShardMetrics>,
    /// To the log, if any class has one.
    pub log: Option<LogEnd>,
    /// To the store of sessions, if there is one of its own.
    pub store: Option<StoreEnd>,
    /// What the node knows of its peers.
    pub board: Arc<Board>,
    /// The classes of the node.
    pub classes: Arc<ClassesNow>,
}

/// See the module.
pub struct Rim {
    /// Which shard.
    pub shard: ShardId,
    /// What the node says of itself.
    pub info: Arc<NodeInfo>,
    /// The limits in force.
    pub limits: Limits,
    /// The nodes that cluster clients are told of.
    pub roster: Arc<Roster>,
    /// Who may do what.
    pub access: Access,
    /// The time of this turn.
    pub now: Now,
    /// All connections.
    pub conns: Slab<Conn>,
    /// Mail to other shards.
    pub mailer: Mailer,
    /// To the log, if any class has one.
    pub log: Option<LogEnd>,
    /// The classes of the node, and which of them the broker has: see [`crate::classes`].
    pub classes: Arc<ClassesNow>,
    pub(crate) classes_seen: u64,
    /// Links to other nodes.
    pub links: Links,
    /// The ephemeral hubs that this shard leads.
    pub led: Led,
    /// Whether this turn had to do with a log, so that more of it comes in a moment.
    pub expects_more: bool,
    /// Questions whose answers are still coming.
    pub gatherings: Gatherings,
    /// Listings that it works off.
    pub listings: Listings,
    /// MQTT's client ids that belong to this shard.
    pub claims: Claims,
    /// The number of the last claim for one of them.
    claimed: u64,
    /// Sessions without a connection.
    pub sessions: Sessions,
    /// Whether its node is about to leave its cluster, and takes no MQTT clients any more.
    pub is_leaving: bool,
    /// Whether all sessions are recorded as they are then.
    pub(crate) has_parted: bool,
    /// Sessions that are read, which other nodes had.
    pub readings: Readings,
    /// To the store of sessions, if there is one of its own.
    pub store: Option<StoreEnd>,
    /// Connections that are called to their sessions, which are there.
    pub called: Vec<(ConnKey, Holder)>,
    /// Who is in rooms.
    pub presence: Members,
    /// The node's own client.
    pub own: Own,
    /// Connections of MQTT clients that were taken in.
    pub mqtt_clients: usize,
    /// Connections of browsers that were let in.
    pub phoenix_clients: usize,
    /// Streams of events.
    pub events_clients: usize,
    /// Sessions of long polls.
    pub polled_clients: usize,
    /// Those that were told something in this turn.
    pub(crate) polled: Vec<ConnKey>,
    /// Connections whose request waited for its answer and has it.
    pub answered: Vec<ConnKey>,
    /// What pages sent by long polls in this turn.
    pub posted: Vec<(ConnKey, Vec<u8>)>,
    /// What holds for all browsers.
    pub phoenix_rules: Rc<phoenix::Rules>,
    /// Long messages of MQTT clients that are under way.
    pub long_messages: LongMessages,
    /// Their subscriptions.
    pub mqtt_subscriptions: usize,
    /// What happened in this turn to reads of what topics kept.
    pub retained: Vec<(ConnKey, crate::mqtt::Retained)>,
    /// The number of the last question for what topics kept.
    pub retained_asked: u32,
    /// Clients to which some of what topics keep comes later.
    pub unread: HashSet<ConnKey, RandomState>,
    /// How much of that is read at once.
    pub rows_pace: crate::mqtt::Pace,
    /// What was learned in this turn of where logs end, for sessions.
    pub ends: Vec<(ConnKey, crate::mqtt::Ends)>,
    /// Timers.
    pub timers: Wheel<Timer>,
    /// Of shard 0: rooms that the control plane was asked for, until when the answer is awaited, in ms, and whether a
    /// place is wanted where there is none.
    pub(crate) asked: HashMap<Box<[u8]>, (u64, bool), RandomState>,
    /// Events for the control plane.
    pub control: Arc<Control>,
    /// Counters.
    pub metrics: Arc<ShardMetrics>,
    /// This turn's encoded bytes.
    pub(crate) arenas: [Vec<u8>; ARENAS],
    /// This turn's encoded bytes that are shared one by one.
    pub(crate) frame_bytes: usize,
    /// Encodings of the record that is being delivered.
    pub(crate) encoded: Encoded,
    /// Connections with pieces to write.
    pub(crate) dirty: Vec<ConnKey>,
    /// Connections to close at the end of the turn.
    pub(crate) closing: Vec<ConnKey>,
    /// Whether any subscription of this shard catches up.
    pub(crate) lagging: bool,
    /// Connections whose output has room again, while any lags or has slots.
    pub(crate) drained: Vec<ConnKey>,
    /// Outputs to use again.
    #[allow(clippy::vec_box, reason = "a connection holds the box that the pool gives it")]
    pub(crate) pool: Vec<Box<Output>>,
    /// Output of all connections that their sockets did not take.
    pub(crate) output_bytes: usize,
    /// Replies among that, which count against `reply_shard_bytes_max` alone.
    pub(crate) reply_bytes: usize,
    /// What clients sent that is no whole command yet, or must wait, and commands between MULTI and EXEC.
    pub(crate) input_bytes: usize,
    /// When each kind of limited log line may come again, in s.
    pub(crate) quiet_until_s: [u32; ONCE],
}

/// Memory of a pooled output, near enough for the pool's limit.
const OUTPUT_BYTES: usize = 512;

impl Rim {
    /// A shard's rim without connections.
    #[must_use]
    pub fn new(info: Arc<NodeInfo>, limits: Limits, now: Now, mailer: Mailer, ends: Ends) -> Rim {
        let (control, metrics) = (Arc::clone(&ends.control), Arc::clone(&ends.metrics));
        let presence = Members::new(ends.shard, &info, limits.presence_listed_max);
        let of_links = (crate::link::limits(&limits), crate::link::timing(&limits));
        let links = Links::new(ends.shard, mailer.shards(), of_links, ends.board, control, metrics);
        Rim {
            phoenix_rules: crate::phoenix::rules(&info, &limits),
            shard: ends.shard,
            info,
            links,
            led: Led::default(),
            limits,
            roster: Arc::default(),
            access: Access,
            now,
            conns: Slab::default(),
            mailer,
            log: ends.log,
            classes: ends.classes,
            classes_seen: 0,
            expects_more: false,
            gatherings: Gatherings::default(),
            listings: Listings::default(),
            claims: Claims::default(),
            claimed: 0,
            sessions: Sessions::default(),
            readings: Readings::default(),
            is_leaving: false,
            has_parted: false,
            store: ends.store,
            called: Vec::new(),
            presence,
            own: Own::default(),
            mqtt_clients: 0,
            phoenix_clients: 0,
            events_clients: 0,
            polled_clients: 0,
            polled: Vec::new(),
            answered: Vec::new(),
            posted: Vec::new(),
            long_messages: LongMessages::default(),
            mqtt_subscriptions: 0,
            retained: Vec::new(),
            retained_asked: 0,
            unread: HashSet::default(),
            rows_pace: crate::mqtt::Pace::default(),
            ends: Vec::new(),
            timers: Wheel::new(now.mono_ms),
            asked: HashMap::default(),
            control: ends.control,
            metrics: ends.metrics,
            arenas: Default::default(),
            frame_bytes: 0,
            encoded: Encoded::default(),
            dirty: Vec::new(),
            closing: Vec::new(),
            lagging: false,
            drained: Vec::new(),
            pool: Vec::new(),
            output_bytes: 0,
            reply_bytes: 0,
            input_bytes: 0,
            quiet_until_s: [0; ONCE],
        }
    }

    /// Whether a log line of this kind may be written now.
    pub fn limited_log(&mut self, kind: Once) -> bool {
        let (second, until_s) = (self.second(), &mut self.quiet_until_s[kind as usize]);
        let may = second >= *until_s;
        if may {
            *until_s = second + 1;
        }
        may
    }

    /// The name of another claim of a client id.
    pub fn new_token(&mut self) -> Token {
        self.claimed += 1;
        // Claims of one shard differ by their number, those of a node by the shard, and nodes by their run.
        let number = u64::from(self.shard.0) << 48 | self.claimed;
        let run = self.info.run_id.get(..15).and_then(|run| u64::from_str_radix(run, 16).ok());
        Token { at_us: self.now.wall_us, run: run.unwrap_or_default(), number }
    }

    /// Whether the log is behind, or questions to it wait for a reader.
    pub fn waits_for_log(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_behind() || log.has_waiting())
    }

    /// The node's clock in s.
    #[must_use]
    pub fn second(&self) -> u32 {
        (self.now.mono_ms / 1000) as u32
    }

    /// Adds a connection, which has `handshake_ms` for its first command.
    pub fn add(&mut self, conn: Conn) -> ConnKey {
        let key = self.conns.insert(conn);
        if self.limits.handshake_ms > 0 {
            self.timers.set(self.now.mono_ms + self.limits.handshake_ms, Timer::Handshake(key));
        }
        key
    }

    /// Closes a connection at the end of the turn, whatever it still had to get.
    pub fn close_now(&mut self, key: ConnKey) {
        self.mark_closing(key, Flags::CLOSE_NOW);
    }

    /// Closes a connection that had its time for its output; not one that has its place now.
    pub fn end_lingering(&mut self, key: ConnKey) {
        if self.conns.get(key).is_some_and(|conn| conn.flags.any(Flags::LINGERS)) {
            self.close_now(key);
        }
    }

    /// Closes a connection once it has taken its output.
    pub fn close_soon(&mut self, key: ConnKey) {
        self.mark_closing(key, Flags::CLOSE_SOON);
    }

    fn mark_closing(&mut self, key: ConnKey, how: Flags) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.flags.set(how, true);
        if !conn.flags.any(Flags::LISTED) {
            conn.flags.set(Flags::LISTED, true);
            self.closing.push(key);
        }
    }

    /// A log line about a connection, at most one a second of each kind.
    pub fn log_conn(
        &self,
        level: Level,
        message: &'static str,
        key: ConnKey,
        mut fields: Vec<(&'static str, String)>,
    ) {
        if let Some(conn) = self.conns.get(key) {
            fields.push(("conn", conn.id.to_string()));
            if let Some(peer) = conn.io.peer() {
                fields.push(("peer", peer.to_string()));
            }
        }
        fields.push(("shard", self.shard.0.to_string()));
        self.control.log_of_client(level, message, fields);
    }

    /// Gives an output that is idle back to the pool.
    pub(crate) fn release_idle_output(&mut self, index: u32) {
        let Some(conn) = self.conns.at_mut(index) else { return };
        if conn.output.as_ref().is_some_and(|o| o.is_idle())
            && let Some(mut output) = conn.output.take()
            && self.pool.len() * OUTPUT_BYTES < self.limits.pool_bytes_max as usize
        {
            output.recycle();
            self.pool.push(output);
        }
    }

    /// Frees the idle outputs above the limit, which a reload may have lowered.
    pub(crate) fn trim_pool(&mut self) {
        let outputs_max = self.limits.pool_bytes_max as usize / OUTPUT_BYTES;
        if self.pool.len() > outputs_max {
            self.pool.truncate(outputs_max);
            self.pool.shrink_to_fit();
        }
    }

    /// Memory of idle outputs and arenas.
    #[must_use]
    pub fn pool_bytes(&self) -> usize {
        self.pool.len() * OUTPUT_BYTES + self.arenas.iter().map(Vec::capacity).sum::<usize>()
    }
}
