//! What rooms tell of themselves, one by one and page by page.

use super::{RoomHandle, Rooms, seconds};
use crate::Now;
use crate::counts::Counts;
use hubsub_types::class::ClassIndex;
use hubsub_types::{Position, Seq, ShardId};
use std::sync::Arc;

/// What a room tells of itself.
#[derive(Clone, Debug)]
pub struct RoomInfo {
    /// Its name.
    pub name: Arc<[u8]>,
    /// Index of its class.
    pub class: ClassIndex,
    /// Which of the class's hubs it belongs to.
    pub hub: u16,
    /// The shard of that.
    pub shard: ShardId,
    /// Its epoch and last seq.
    pub position: Position,
    /// Its oldest record kept, or the next one.
    pub first_seq: Seq,
    /// Records kept.
    pub history: u64,
    /// Bytes kept.
    pub history_bytes: u64,
    /// Exact subscribers of all its topics.
    pub subscribers: u64,
    /// Topics with subscribers.
    pub topics: u64,
    /// Time since it was last used, in s.
    pub idle_s: u32,
}

impl Rooms {
    /// What a room tells of itself.
    #[must_use]
    pub fn info(&self, handle: RoomHandle, shard: ShardId, now: Now) -> Option<RoomInfo> {
        let room = self.get(handle)?;
        let others = || room.others.iter().flat_map(|o| o.values());
        Some(RoomInfo {
            name: Arc::clone(&room.name),
            class: self.hubs.get(room.hub).class,
            hub: self.hubs.get(room.hub).index,
            shard,
            position: Position { epoch: room.epoch, seq: room.seq },
            first_seq: room.first_seq(),
            history: room.ring.as_ref().map_or(0, |r| r.len() as u64),
            history_bytes: room.ring.as_ref().map_or(0, |r| r.bytes()),
            subscribers: room.own.total() + others().map(Counts::total).sum::<u64>(),
            topics: u64::from(!room.own.is_zero()) + others().count() as u64,
            idle_s: seconds(now).saturating_sub(room.used_s),
        })
    }

    /// Up to `limit` rooms in order of name, behind `after`, that `matches` wants.
    #[must_use]
    pub fn page(
        &self,
        after: Option<&[u8]>,
        limit: usize,
        matches: impl Fn(&[u8]) -> bool,
    ) -> Vec<RoomHandle> {
        let mut rooms: Vec<(&[u8], RoomHandle)> = Vec::new();
        for (index, (generation, room)) in (0u32..).zip(&self.slots) {
            let Some(room) = room else { continue };
            let handle = RoomHandle { index, generation: *generation };
            if self.hubs.get(room.hub).is_relayed {
                continue;
            }
            if after.is_none_or(|after| *room.name > *after) && matches(&room.name) && !self.is_gone(handle) {
                rooms.push((&room.name, handle));
            }
        }
        if rooms.len() > limit && limit > 0 {
            rooms.select_nth_unstable_by(limit - 1, |a, b| a.0.cmp(b.0));
        }
        rooms.truncate(limit);
        rooms.sort_unstable_by(|a, b| a.0.cmp(b.0));
        rooms.into_iter().map(|(_, handle)| handle).collect()
    }
}
