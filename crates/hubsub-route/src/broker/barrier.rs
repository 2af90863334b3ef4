//! Flush barriers of a shard ([`super::settle`]), and the responses that they wait for.
//!
//! Invariant: each requested response reduces its barrier once: that of a node whose link ends counts as given.

use crate::requests::Asker;
use hubsub_message::AskId;
use hubsub_types::{NodeId, ShardId};
use std::collections::BTreeMap;

/// A barrier: waits until all entries that were in flight are written.
struct Barrier {
    /// Responses that are still missing.
    left: usize,
    then: Then,
}

pub(super) enum Then {
    Asker(Asker),
    /// A shard, for which this one requests the other nodes.
    Shard(ShardId, u32),
    Node(NodeId, AskId),
}

#[derive(Default)]
pub(super) struct Barriers {
    by_number: BTreeMap<u32, Barrier>,
    last: u32,
    /// Requests to nodes, with the barrier to which each belongs.
    pub(super) asked: BTreeMap<AskId, (NodeId, u32)>,
}

impl Barriers {
    pub(super) fn begin(&mut self, left: usize, then: Then) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.by_number.insert(self.last, Barrier { left, then });
        self.last
    }

    /// A response has arrived; returns the requester if it was the last one.
    pub(super) fn reduce(&mut self, number: u32) -> Option<Then> {
        let barrier = self.by_number.get_mut(&number)?;
        barrier.left -= 1;
        if barrier.left > 0 { None } else { Some(self.by_number.remove(&number)?.then) }
    }
}
