//! The states of all folders on a shard, apart from its connections.

use super::events::Event;
use crate::io::classes::ClassesNow;
use crate::io::log_lines::LogLines;
use crate::io::metrics::ShardMetrics;
use crate::io::node_info::NodeInfo;
use crate::io::report::Report;
use crate::link::state::Led;
use crate::link::{Links, PeerTable};
use crate::log::LogEnd;
use crate::mqtt::state::store_thread::StoreEnd;
use crate::presence::state::Members;
use crate::redis::state::Roster;
use crate::shard::state::listings::Listings;
use crate::{http, link, mqtt, phoenix};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{Limits, ShardId};
use std::sync::Arc;

/// Connects a shard to the rest of its node.
pub struct Handles {
    pub shard: ShardId,
    pub control: Arc<dyn Report<Event>>,
    pub lines: Arc<LogLines>,
    pub of_links: Arc<dyn Report<link::Event>>,
    pub metrics: Arc<ShardMetrics>,
    /// `None` if no class has a log.
    pub log: Option<LogEnd>,
    /// `None` if there is no separate store of sessions.
    pub store: Option<StoreEnd>,
    pub peer_table: Arc<PeerTable>,
    pub classes: Arc<ClassesNow>,
}

pub struct States {
    pub mqtt: mqtt::state::State,
    pub phoenix: phoenix::state::State,
    pub http: http::state::State,
    pub presence: Members,
    pub links: Links,
    /// The ephemeral hubs that this shard leads.
    pub led: Led,
    /// `None` if no class has a log.
    pub log: Option<LogEnd>,
    /// The nodes that are announced to cluster clients.
    pub roster: Arc<Roster>,
    pub listings: Listings,
    /// On shard 0: rooms that were requested from the control plane, with the deadline of the response, in
    /// ms, and whether a place is wanted if there is none.
    pub(crate) asked: HashMap<Box<[u8]>, (u64, bool), RandomState>,
}

impl States {
    pub fn new(info: &NodeInfo, limits: &Limits, shards: u16, handles: Handles) -> States {
        let Handles { shard, of_links: control, metrics, log, store, peer_table, .. } = handles;
        let of_links = (crate::link::limits(limits), crate::link::timing(limits));
        States {
            mqtt: mqtt::state::State::new(store),
            phoenix: phoenix::state::State::new(info, limits),
            http: http::state::State::default(),
            presence: Members::new(shard, info, limits.presence_listed_max),
            links: Links::new(shard, shards, of_links, peer_table, control, metrics),
            led: Led::default(),
            log,
            roster: Arc::default(),
            listings: Listings::default(),
            asked: HashMap::default(),
        }
    }
}
