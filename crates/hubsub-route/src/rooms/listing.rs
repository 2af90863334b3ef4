//! Information on rooms, one by one and in pages.
//!
//! A page is filled over several turns: a pattern may pass a million rooms and match none, and the shard has
//! other work. Each turn examines a bounded number of rooms in the order of their names, and continues where
//! the last one stopped. A room that is created or removed meanwhile is listed as it was when the walk passed
//! its name.

use super::{RoomHandle, Rooms, name_at, seconds};
use crate::Now;
use crate::counts::Counts;
use hubsub_types::class::ClassIndex;
use hubsub_types::names::Glob;
use hubsub_types::{Position, Seq, ShardId};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct RoomInfo {
    pub name: Arc<[u8]>,
    pub class: ClassIndex,
    pub hub: u16,
    pub shard: ShardId,
    pub position: Position,
    /// Seq of its oldest record in history, or of the next one.
    pub first_seq: Seq,
    pub history: u64,
    pub history_bytes: u64,
    /// Exact number of subscribers of all its topics.
    pub subscribers: u64,
    pub topics: u64,
    /// Time since it was last used, in s.
    pub idle_s: u32,
}

pub struct Page {
    /// The walk continues at this name, or after it.
    from: Vec<u8>,
    is_behind: bool,
    glob: Option<Glob>,
    limit: usize,
    /// Rooms found so far, in the order of their names.
    pub found: Vec<RoomInfo>,
    pub is_whole: bool,
}

impl Page {
    /// A page of at most `limit` rooms after a name that match a pattern.
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
    pub fn info(&self, handle: RoomHandle, shard: ShardId, now: Now) -> Option<RoomInfo> {
        let room = self.get(handle)?;
        let others = || room.others.iter().flat_map(|o| o.values());
        Some(RoomInfo {
            name: Arc::clone(&room.name),
            class: self.hubs.get(room.hub).class,
            hub: self.hubs.get(room.hub).index,
            shard,
            position: room.position(),
            first_seq: room.first_seq(),
            history: room.ring.as_ref().map_or(0, |r| r.len() as u64),
            history_bytes: room.ring.as_ref().map_or(0, |r| r.bytes()),
            subscribers: room.own.total() + others().map(Counts::total).sum::<u64>(),
            topics: u64::from(!room.own.is_zero()) + others().count() as u64,
            idle_s: seconds(now).saturating_sub(room.used_s),
        })
    }

    /// Continues to fill a page, past at most `rooms_max` rooms; returns how many it passed.
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
