//! The state of MQTT on a shard, apart from its connections, and what it queues and mails.

pub mod mail;
pub mod store_thread;
pub mod work;

use crate::io::metrics::ShardMetrics;
use ahash::RandomState;
use hashbrown::HashSet;
use hubsub_mqtt::{Encodings, LongMessages, Pace, Readings, Sessions};
use hubsub_route::Answer;
use hubsub_route::claims::{Claims, Holder};
use hubsub_types::{ConnKey, ErrorCode, HubId};
use store_thread::StoreEnd;

/// The reply to a log-end request: its number and the last offset per hub.
pub type Ends = (u32, Result<Vec<(HubId, u64)>, ErrorCode>);

/// An event of a read of retained messages.
pub enum Retained {
    /// A subscription is confirmed: read its retained entries.
    Due(Box<[u8]>),
    /// The answer to the request of this number.
    Came(u32, Answer),
}

#[derive(Default)]
pub struct State {
    /// Client ids that belong to this shard.
    pub claims: Claims,
    /// The number of the last claim of a client id.
    pub claimed: u64,
    pub sessions: Sessions,
    /// Whether the node is about to leave its cluster, and accepts no clients.
    pub is_leaving: bool,
    /// Whether all sessions were recorded since `is_leaving`.
    pub(crate) has_parted: bool,
    /// Sessions of other nodes that are being restored.
    pub readings: Readings,
    /// `None` if there is no separate store of sessions.
    pub store: Option<StoreEnd>,
    pub called: Vec<(ConnKey, Holder)>,
    pub clients: usize,
    /// Encodings of the record that is being delivered.
    pub(crate) cache: Encodings,
    pub long_messages: LongMessages,
    pub subscriptions: usize,
    /// Events of retained-message reads in this turn.
    pub retained: Vec<(ConnKey, Retained)>,
    /// The number of the last retained-message read.
    pub retained_asked: u32,
    /// Clients that get some retained messages later.
    pub unread: HashSet<ConnKey, RandomState>,
    /// Limits concurrent reads of retained messages.
    pub rows_pace: Pace,
    /// Log ends that were learned in this turn, for sessions.
    pub ends: Vec<(ConnKey, Ends)>,
}

impl State {
    pub fn new(store: Option<StoreEnd>) -> State {
        State { store, ..State::default() }
    }

    pub fn show_sessions(&self, metrics: &ShardMetrics) {
        let sessions = &self.sessions;
        metrics.mqtt_sessions.set((sessions.connected + sessions.offline()) as u64);
        metrics.mqtt_sessions_offline.set(sessions.offline() as u64);
        metrics.mqtt_session_queued.set(sessions.queued as u64);
        metrics.mqtt_session_queued_bytes.set(sessions.queued_bytes as u64);
    }
}
