//! What rooms tell of themselves, one by one and page by page.
//!
//! Who wants a page gets it by and by: a pattern may pass a million rooms and match none, and the shard has others to
//! serve. Each turn goes past a bounded number of rooms, in the order of their names, from where the last one came to.
//! A room that comes or goes meanwhile is in the page or not, as it was when the walk passed its name.

use super::{RoomHandle, Rooms, name_at, seconds};
use crate::Now;
use crate::counts::Counts;
use hubsub_types::class::ClassIndex;
use hubsub_types::names::Glob;
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

/// A page of rooms that is being filled: see the module.
pub struct Page {
    /// It goes on here, or behind it.
    from: Vec<u8>,
    is_behind: bool,
    glob: Option<Glob>,
    limit: usize,
    /// Those so far, in the order of their names.
    pub found: Vec<RoomInfo>,
    /// Whether that is all.
    pub is_whole: bool,
}

impl Page {
    /// Rooms behind a name that match a pattern, so many at most.
    #[must_use]
    pub fn new(glob: Option<&[u8]>, after: Option<&[u8]>, limit: usize) -> Page {
        let glob = glob.map(Glob::new);
        let prefix = glob.as_ref().map_or(&[][..], Glob::literal_prefix);
        let after = after.filter(|&after| after >= prefix);
        let (from, is_behind) = (after.unwrap_or(prefix).to_vec(), after.is_some());
        Page { from, is_behind, glob, limit, found: Vec::new(), is_whole: false }
    }

    fn prefix(&self) -> &[u8] {
        self.glob.as_ref().map_or(&[], Glob::literal_prefix)
    }
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

    /// Goes on with a page, past so many rooms at most; past how many it went.
    pub fn fill(&self, page: &mut Page, rooms_max: usize, shard: ShardId, now: Now) -> usize {
        let (slots, mut passed, mut last) = (&self.slots, 0, None);
        let name_of = |index: u32| name_at(slots, index);
        let mut places = self.ordered.from(&page.from, page.is_behind, name_of);
        page.is_whole = page.limit == 0;
        while !page.is_whole && passed < rooms_max {
            let Some(index) = places.next().filter(|&index| name_of(index).starts_with(page.prefix())) else {
                page.is_whole = true;
                break;
            };
            passed += 1;
            last = Some(index);
            let (generation, room) = (slots[index as usize].0, self.at(index));
            let handle = RoomHandle { index, generation };
            let is_wanted = page.glob.as_ref().is_none_or(|glob| glob.matches(&room.name));
            if is_wanted && !self.hubs.get(room.hub).is_relayed && !self.is_gone(handle) {
                page.found.extend(self.info(handle, shard, now));
                page.is_whole = page.found.len() >= page.limit;
            }
        }
        drop(places);
        if let Some(last) = last {
            (page.from, page.is_behind) = (name_of(last).to_vec(), true);
        }
        passed
    }
}
