//! State of shard 0 for patterns in the cluster: the version of the node's own set and its holders, and the
//! versions of other nodes' sets that this node's shards hold.

use crate::counts::NODES_MAX;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{NodeId, ShardId};
use std::collections::VecDeque;
use std::sync::Arc;

pub type Counted = (Arc<[u8]>, u32);

/// A node's set of patterns, or changes of it, for this node's shards.
#[derive(Clone, Debug, Default)]
pub struct PatternChange {
    pub node: NodeId,
    pub session: u64,
    /// Version of the set with this change.
    pub version: u64,
    /// Whether these are all.
    pub is_whole: bool,
    /// Whether its link has ended, so that its patterns are removed.
    pub is_lost: bool,
    /// Patterns with their subscribers there; 0: the pattern is removed.
    pub patterns: Arc<[Counted]>,
}

#[derive(Debug, Default)]
pub struct PatternPeer {
    /// Distinguishes the link from earlier ones.
    pub session: u64,
    /// The version of this node's set that it holds.
    pub holds: u64,
    /// A set that is arriving: its version, the announced number of patterns, and those received.
    pub coming: Option<(u64, u32, Vec<Counted>)>,
    /// The version of its set that was received completely last.
    pub version: Option<u64>,
    /// By shard of this node, the version of its set that the shard holds.
    pub held: Vec<Option<u64>>,
    /// The version whose holding was last reported to it.
    pub told: Option<u64>,
}

/// The exchange of patterns with other nodes; on shard 0.
#[derive(Debug, Default)]
pub struct PatternSets {
    pub version: u64,
    /// Nodes whose link for patterns is up.
    pub peers: HashMap<NodeId, PatternPeer, RandomState>,
    /// Subscriptions that wait until all these nodes hold a version: version, shard, and number there.
    pub waiting: VecDeque<(u64, ShardId, u32)>,
    sessions: u64,
}

impl PatternSets {
    pub fn up(&mut self, node: NodeId, shards: u16) {
        self.sessions += 1;
        let held = vec![None; usize::from(shards)];
        let peer = PatternPeer { session: self.sessions, held, ..PatternPeer::default() };
        if self.peers.len() < usize::from(NODES_MAX) || self.peers.contains_key(&node) {
            self.peers.insert(node, peer);
        }
    }

    /// The lowest version of this node's set that a node holds; `u64::MAX` if there are no nodes.
    pub fn held_by_all(&self) -> u64 {
        self.peers.values().map(|peer| peer.holds).min().unwrap_or(u64::MAX)
    }
}

impl PatternPeer {
    /// The version of its set that all shards hold.
    pub fn held(&self) -> Option<u64> {
        self.held.iter().copied().min().flatten()
    }
}
