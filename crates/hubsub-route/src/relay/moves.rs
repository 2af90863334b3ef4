//! State of a shard while rooms are moved (docs/protocol/moves.md): as an edge the rooms that it leaves, as a
//! home the shards that leave rooms which were here.

use super::parked::Parked;
use crate::{Attach, Ticket};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::ShardId;
use hubsub_types::class::ClassIndex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Moves {
    /// Rooms that this shard leaves, and their homes: it sends no requests until all are answered.
    pub leaving: HashMap<Arc<[u8]>, ShardId, RandomState>,
    /// Shards that leave rooms that were here, or have to.
    pub leavers: BTreeMap<(Arc<[u8]>, ShardId), Leaver>,
    /// Refused subscriptions that follow a room, with the time of their retry, in ms.
    pub refused: VecDeque<(u64, Attach)>,
    /// Classes with skipped records that match patterns of this shard.
    pub lacks: BTreeSet<ClassIndex>,
}

#[derive(Debug, Default)]
pub struct Leaver {
    /// Whether it has sent `Leave`: it sends nothing more before `Left`.
    pub is_asked: bool,
    pub back: BTreeMap<u64, Parked>,
}

impl Leaver {
    #[must_use]
    pub fn take(self) -> Vec<(Ticket, Arc<crate::Record>)> {
        self.back.into_values().map(|parked| (parked.ticket, parked.record)).collect()
    }
}
