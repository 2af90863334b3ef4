//! What the first shard of a node keeps of patterns in the cluster: the version of the node's own
//! set and who holds it, and how far this node's shards hold those of others.

use crate::counts::NODES_MAX;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{NodeId, ShardId};
use std::collections::VecDeque;
use std::sync::Arc;

/// A pattern, and how many subscribe to it on a node.
pub type Counted = (Arc<[u8]>, u32);

/// A set of patterns of a node, or changes of it, on its way to this node's shards.
#[derive(Clone, Debug)]
pub struct PatternChange {
    /// Whose.
    pub node: NodeId,
    /// Which of the links that it had.
    pub session: u64,
    /// Of the set with this change.
    pub version: u64,
    /// Whether these are all.
    pub is_whole: bool,
    /// Whether its link has ended, so that its patterns are not known any more.
    pub is_lost: bool,
    /// Patterns with their subscribers there; 0: none any more.
    pub patterns: Arc<[Counted]>,
}

/// A node that patterns are exchanged with.
#[derive(Debug)]
pub struct PatternPeer {
    /// Told apart from earlier links.
    pub session: u64,
    /// It holds this node's set up to this version.
    pub holds: u64,
    /// Its set while that comes: its version, how many are announced, and those that came.
    pub coming: Option<(u64, u32, Vec<Counted>)>,
    /// The version of its set that came last, once it has come whole.
    pub version: Option<u64>,
    /// By shard of this node, the version of its set that is held there.
    pub held: Vec<Option<u64>>,
    /// What it was told is held.
    pub told: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct PatternSets {
    /// Of this node's own set.
    pub version: u64,
    /// Nodes whose link for patterns stands.
    pub peers: HashMap<NodeId, PatternPeer, RandomState>,
    /// Subscriptions that wait until all of them hold a version: its shard and its number there.
    pub waiting: VecDeque<(u64, ShardId, u32)>,
    /// Links so far.
    sessions: u64,
}

impl PatternSets {
    /// A node's link for patterns stands.
    pub fn up(&mut self, node: NodeId, shards: u16) {
        self.sessions += 1;
        let peer = PatternPeer {
            session: self.sessions,
            holds: 0,
            coming: None,
            version: None,
            held: vec![None; usize::from(shards)],
            told: None,
        };
        if self.peers.len() < usize::from(NODES_MAX) || self.peers.contains_key(&node) {
            self.peers.insert(node, peer);
        }
    }

    /// The lowest version of this node's set that some node holds; all do if there is none.
    #[must_use]
    pub fn held_by_all(&self) -> u64 {
        self.peers.values().map(|peer| peer.holds).min().unwrap_or(u64::MAX)
    }
}

impl PatternPeer {
    /// The version of its set that all shards hold.
    #[must_use]
    pub fn held(&self) -> Option<u64> {
        self.held.iter().copied().min().flatten()
    }
}
