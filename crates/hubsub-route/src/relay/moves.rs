//! What a shard keeps while rooms are moved (docs/protocol/moves.md): as an edge the rooms that it leaves, as
//! a home the shards that leave rooms which were here.

use super::state::Parked;
use crate::{Attach, Ticket};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::ShardId;
use hubsub_types::class::ClassIndex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub struct Moves {
    /// Rooms that this shard leaves, and the home that it leaves: nothing is asked until that one has said that all
    /// before is answered.
    pub leaving: HashMap<Arc<[u8]>, ShardId, RandomState>,
    /// Shards that leave rooms that were here, or are to.
    pub leavers: BTreeMap<(Arc<[u8]>, ShardId), Leaver>,
    /// Subscriptions that follow a room and were refused: when they are asked for again, in ms.
    pub refused: VecDeque<(u64, Attach)>,
    /// Classes with records that were passed over and matched patterns of this shard.
    pub lacks: BTreeSet<ClassIndex>,
}

/// A shard that leaves a room.
#[derive(Debug, Default)]
pub struct Leaver {
    /// Whether it has said so: it sends nothing more before it is answered.
    pub is_asked: bool,
    /// Publishes that it gets back, by their number.
    pub back: BTreeMap<u64, Parked>,
}

impl Leaver {
    /// What it gets back, in order.
    #[must_use]
    pub fn take(self) -> Vec<(Ticket, Arc<crate::Record>)> {
        self.back.into_values().map(|parked| (parked.ticket, parked.record)).collect()
    }
}
