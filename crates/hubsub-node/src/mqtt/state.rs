//! The state of MQTT on a shard, apart from its connections.

use super::retained::Event;
use super::session_cursors::Ends;
use super::store::StoreEnd;
use ahash::RandomState;
use hashbrown::HashSet;
use hubsub_mqtt::{Encodings, LongMessages, Pace, Readings, Sessions};
use hubsub_route::claims::{Claims, Holder};
use hubsub_types::ConnKey;

pub struct State {
    /// Client ids that belong to this shard.
    pub claims: Claims,
    /// The number of the last claim of a client id.
    pub(super) claimed: u64,
    /// Sessions without a connection.
    pub sessions: Sessions,
    /// Whether the node is about to leave its cluster, and accepts no clients.
    pub is_leaving: bool,
    /// Whether all sessions were recorded since `is_leaving`.
    pub(crate) has_parted: bool,
    /// Sessions of other nodes that are being restored.
    pub readings: Readings,
    /// `None` if there is no separate store of sessions.
    pub store: Option<StoreEnd>,
    /// Connections to move to the holders of their sessions.
    pub called: Vec<(ConnKey, Holder)>,
    /// Number of accepted clients.
    pub clients: usize,
    /// Encodings of the record that is being delivered.
    pub(crate) cache: Encodings,
    pub long_messages: LongMessages,
    pub subscriptions: usize,
    /// Events of retained-message reads in this turn.
    pub retained: Vec<(ConnKey, Event)>,
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
    #[must_use]
    pub fn new(store: Option<StoreEnd>) -> State {
        State {
            claims: Claims::default(),
            claimed: 0,
            sessions: Sessions::default(),
            is_leaving: false,
            has_parted: false,
            readings: Readings::default(),
            store,
            called: Vec::new(),
            cache: Encodings::default(),
            clients: 0,
            long_messages: LongMessages::default(),
            subscriptions: 0,
            retained: Vec::new(),
            retained_asked: 0,
            unread: HashSet::default(),
            rows_pace: Pace::default(),
            ends: Vec::new(),
        }
    }
}
