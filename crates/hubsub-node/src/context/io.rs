//! The I/O context of a shard: connections and their output, timers, mail, metrics. It carries out the
//! broker's decisions (`fanout`) and commands' replies (`reply`), and writes everything at the end of the
//! turn (`flush`).

use super::conn::{Conn, Flags};
use super::encoding::{Encoded, VARIANTS};
use super::events::Event;
use super::internal_client::InternalClient;
use super::mail::Mail;
use super::scatter_gather::ScatterGather;
use super::states::{Handles, States};
use crate::io::access::Access;
use crate::io::classes::ClassesNow;
use crate::io::inbox::Mailer;
use crate::io::listener::ListenerKind;
use crate::io::log_lines::{Level, LogLines};
use crate::io::metrics::ShardMetrics;
use crate::io::node_info::NodeInfo;
use crate::io::output::Output;
use crate::io::report::Report;
use crate::io::slab::Slab;
use crate::io::wheel::Wheel;
use hubsub_route::Now;
use hubsub_route::claims::Token;
use hubsub_types::{ConnKey, Limits, ShardId};
use std::sync::Arc;

/// The purpose of a timer.
pub enum Timer {
    /// The time for a connection's first command is over.
    Handshake(ConnKey),
    /// A connection's output has been above the soft limit for too long.
    SoftLimit(ConnKey),
    /// The time of a closing connection to take its output is over.
    Linger(ConnKey),
    /// The pause of a listener is over.
    Accept(ListenerKind),
    Silence(ConnKey),
    /// The time of other nodes to release a client id for this claim is over.
    Claim(Box<(Box<str>, Token)>),
    Heartbeat(ConnKey),
    /// A stream of server-sent events may be idle.
    Beat(ConnKey),
    /// A long poll may have reached its deadline.
    Window(ConnKey),
    /// An HTTP connection may have been idle for too long.
    Idle(ConnKey),
    /// An offline session may have to expire or publish its will.
    Session(ConnKey),
    /// The session cursors must be recorded.
    Snapshot(ConnKey),
    /// Periodic work of a room with members.
    Presence(Box<Arc<[u8]>>),
    /// Retry of the join or leave record with this reference.
    PresenceRecord(u64),
    /// The occupancy of a room may have to be published.
    Occupancy(Box<Arc<[u8]>>),
    /// Once a second: retention, gauges.
    Housekeeping,
}

/// Kinds of log lines that are limited to one per second.
#[derive(Clone, Copy)]
pub enum Once {
    Accept,
    /// `connections_max` is reached, or only reserved descriptors are left.
    Full,
    /// A peer used another protocol.
    WrongProtocol,
    /// The origin check refused a request.
    Page,
}

/// Number of variants of `Once`.
const ONCE: usize = 4;

/// Number of arenas of a turn: one per record encoding for Redis clients, browsers and event streams, one for
/// MQTT packets with several receivers, and one for replies.
pub const ARENAS: usize = VARIANTS + 2;

/// Arena of MQTT packets with several receivers.
pub const PACKETS: u8 = VARIANTS as u8;

/// Arena of replies, and of MQTT packets with one receiver.
pub const REPLIES: u8 = VARIANTS as u8 + 1;

/// A turn whose arenas exceed this many bytes writes before it continues.
pub const TURN_BYTES: usize = 256 * 1024;

pub struct Io {
    /// The states of the protocols and of the other folders above.
    pub states: States,
    pub shard: ShardId,
    pub info: Arc<NodeInfo>,
    pub limits: Limits,
    pub access: Access,
    pub now: Now,
    pub conns: Slab<Conn>,
    pub mailer: Mailer<Mail>,
    /// The node's classes; `classes_seen` is the version that the broker has: see [`crate::io::classes`].
    pub classes: Arc<ClassesNow>,
    pub(crate) classes_seen: u64,
    /// Whether this turn involved the log, so that more input is expected shortly.
    pub expects_more: bool,
    /// Scatter-gather requests whose responses are incomplete.
    pub scatter_gather: ScatterGather,
    pub own: InternalClient,
    /// Long-poll sessions that got output in this turn.
    pub(crate) polled: Vec<ConnKey>,
    /// Connections whose awaited response has arrived.
    pub answered: Vec<ConnKey>,
    /// Input of long polls in this turn.
    pub posted: Vec<(ConnKey, Vec<u8>)>,
    pub timers: Wheel<Timer>,
    pub control: Arc<dyn Report<Event>>,
    pub lines: Arc<LogLines>,
    pub metrics: Arc<ShardMetrics>,
    /// This turn's encoded bytes.
    pub(crate) arenas: [Vec<u8>; ARENAS],
    /// This turn's encoded bytes in individually shared frames.
    pub(crate) frame_bytes: usize,
    /// Encodings of the record that is being delivered.
    pub(crate) encoded: Encoded,
    /// Connections with pieces to write.
    pub(crate) dirty: Vec<ConnKey>,
    /// Connections to close at the end of the turn.
    pub(crate) closing: Vec<ConnKey>,
    /// Whether any subscription of this shard catches up.
    pub(crate) lagging: bool,
    /// Connections whose output has room again, recorded while any lags or has slots.
    pub(crate) drained: Vec<ConnKey>,
    #[allow(clippy::vec_box, reason = "a connection holds the box that the pool gives it")]
    pub(crate) pool: Vec<Box<Output>>,
    /// Bytes of output that sockets did not take, of all connections.
    pub(crate) output_bytes: usize,
    /// The part of `output_bytes` that is replies, which count only against `reply_shard_bytes_max`.
    pub(crate) reply_bytes: usize,
    /// Bytes of incomplete or waiting commands, and of commands between MULTI and EXEC.
    pub(crate) input_bytes: usize,
    /// Per kind of limited log line: the time of the next one, in s.
    pub(crate) quiet_until_s: [u32; ONCE],
}

/// Approximate memory of a pooled output, in bytes.
const OUTPUT_BYTES: usize = 512;

impl Io {
    pub fn new(info: Arc<NodeInfo>, limits: Limits, now: Now, mailer: Mailer<Mail>, handles: Handles) -> Io {
        let (shard, classes) = (handles.shard, Arc::clone(&handles.classes));
        let (control, lines) = (Arc::clone(&handles.control), Arc::clone(&handles.lines));
        let metrics = Arc::clone(&handles.metrics);
        Io {
            states: States::new(&info, &limits, mailer.shards(), handles),
            shard,
            info,
            limits,
            access: Access,
            now,
            conns: Slab::default(),
            mailer,
            classes,
            classes_seen: 0,
            expects_more: false,
            scatter_gather: ScatterGather::default(),
            own: InternalClient::default(),
            polled: Vec::new(),
            answered: Vec::new(),
            posted: Vec::new(),
            timers: Wheel::new(now.mono_ms),
            lines,
            control,
            metrics,
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

    /// Whether the log lags, or log reads wait for a reader.
    pub fn waits_for_log(&self) -> bool {
        self.states.log.as_ref().is_some_and(|log| log.is_behind() || log.has_waiting())
    }

    /// The node's clock, in s.
    pub fn second(&self) -> u32 {
        (self.now.mono_ms / 1000) as u32
    }

    /// Adds a connection and starts its `handshake_ms`.
    pub fn add(&mut self, conn: Conn) -> ConnKey {
        let key = self.conns.insert(conn);
        if self.limits.handshake_ms > 0 {
            self.timers.set(self.now.mono_ms + self.limits.handshake_ms, Timer::Handshake(key));
        }
        key
    }

    /// Closes a connection at the end of the turn, dropping its output.
    pub fn close_now(&mut self, key: ConnKey) {
        self.mark_closing(key, Flags::CLOSE_NOW);
    }

    /// Closes a connection whose time to take its output is over; not one that took over its slot.
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

    /// Writes a log line about a connection, at most one a second per message.
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
        self.lines.log_of_client(level, message, fields);
    }

    /// Bytes of records that are queued for subscribers.
    #[inline]
    pub(crate) fn record_bytes(&self) -> usize {
        self.output_bytes.saturating_sub(self.reply_bytes)
    }

    /// Returns an idle output to the pool.
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

    /// Frees idle outputs above the limit, which a reload may have lowered.
    pub(crate) fn trim_pool(&mut self) {
        let outputs_max = self.limits.pool_bytes_max as usize / OUTPUT_BYTES;
        if self.pool.len() > outputs_max {
            self.pool.truncate(outputs_max);
            self.pool.shrink_to_fit();
        }
    }

    /// Memory of idle outputs and arenas, in bytes.
    pub fn pool_bytes(&self) -> usize {
        self.pool.len() * OUTPUT_BYTES + self.arenas.iter().map(Vec::capacity).sum::<usize>()
    }
}
