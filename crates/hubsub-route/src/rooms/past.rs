//! What rooms remember: keeping, reading, forgetting.

use super::{Room, RoomHandle, Rooms, seconds};
use crate::Now;
use crate::cursors::{Range, Read};
use crate::history::Entry;
use crate::record::Record;
use hubsub_types::{Position, Seq};
use std::sync::Arc;

/// The answer to HISTORY.
#[derive(Clone, Debug, Default)]
pub struct HistoryPart {
    /// Whether `after` was a position of this epoch that history still reaches.
    pub recovered: bool,
    /// Before the oldest record kept: what a reader may start after.
    pub start: Position,
    /// Oldest first.
    pub records: Vec<Arc<Record>>,
}

/// What is asked of a room's history.
#[derive(Clone, Debug)]
pub struct HistoryQuery {
    /// The room.
    pub room: Vec<u8>,
    /// Records at most.
    pub count: u64,
    /// Read on from here; none: the last `count`.
    pub after: Option<Position>,
    /// Only of this topic.
    pub topic: Option<Vec<u8>>,
}

impl Rooms {
    /// Keeps a record that has its position.
    pub fn remember(&mut self, handle: RoomHandle, record: Arc<Record>) {
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        let class = usize::from(room.class);
        let (entry, weight) = (Entry { room: handle, seq: record.position.seq }, record.weight() as u64);
        room.ring.get_or_insert_default().push(record);
        self.ledgers[class].kept(entry, weight);
        let Some(history) = self.classes.classes()[class].history else { return };
        if history.messages > 0 {
            while self.at(handle.index).ring.as_ref().is_some_and(|r| r.len() as u64 > history.messages) {
                self.drop_oldest(handle);
            }
        }
        if history.bytes > 0 {
            while self.ledgers[class].bytes > history.bytes && self.drop_oldest_of(class) {}
        }
        while self.history_size().0 > self.history_bytes_max {
            let largest = (0..self.ledgers.len()).max_by_key(|&i| self.ledgers[i].bytes);
            if !largest.is_some_and(|class| self.drop_oldest_of(class)) {
                break;
            }
        }
        let slots = &self.slots;
        self.ledgers[class].tidy(|entry| is_kept(slots, entry));
    }

    /// A cursor's next records.
    #[must_use]
    pub fn range(&self, read: &Read) -> Range {
        let room = self.find_of_topic(&read.topic).and_then(|h| self.get(h));
        let Some(room) = room.filter(|r| r.epoch == read.next.epoch) else { return Range::gone() };
        let first = room.first_seq();
        let mut range = Range { next: read.next.seq.max(first), at_end: true, ..Range::default() };
        if first > read.next.seq {
            range.gap = Some((read.next.seq, Seq(first.0 - 1)));
        }
        let (start, mut bytes) = (range.next, 0);
        for record in room.ring.iter().flat_map(|ring| ring.from(start)) {
            if bytes >= read.bytes_max {
                range.at_end = false;
                break;
            }
            range.next = record.position.seq.next();
            if record.namespace == read.namespace && record.topic() == &*read.topic {
                bytes += record.weight();
                range.records.push(Arc::clone(record));
            }
        }
        range
    }

    /// Records for HISTORY, bounded by number and bytes.
    #[must_use]
    pub fn history(&self, query: &HistoryQuery) -> HistoryPart {
        let Some(room) = self.find(&query.room).and_then(|h| self.get(h)) else {
            return HistoryPart { recovered: query.after.is_none(), ..HistoryPart::default() };
        };
        let first = room.first_seq();
        let start = Position { epoch: room.epoch, seq: Seq(first.0 - 1) };
        let known = |p: Position| p.epoch == room.epoch && p.seq >= start.seq && p.seq <= room.seq;
        let mut part = HistoryPart { recovered: query.after.is_none_or(known), start, records: Vec::new() };
        let Some(ring) = &room.ring else { return part };
        let wanted = |r: &&Arc<Record>| query.topic.as_ref().is_none_or(|t| *t == r.topic());
        let count = query.count.min(self.history_reply_records_max);
        let mut bytes = 0;
        let mut fits = |r: &&Arc<Record>| {
            bytes += r.payload().len() as u64;
            bytes <= self.history_reply_bytes_max || bytes == r.payload().len() as u64
        };
        match query.after {
            Some(after) if part.recovered => {
                let records = ring.from(after.seq.next()).filter(wanted).take(count as usize);
                part.records = records.take_while(&mut fits).cloned().collect();
            }
            Some(_) => {}
            None => {
                let records = ring.from(first).rev().filter(wanted).take(count as usize);
                part.records = records.take_while(&mut fits).cloned().collect();
                part.records.reverse();
            }
        }
        part
    }

    /// Looks at up to `budget` rooms: drops what is too old, forgets who is
    /// idle. Called at a steady interval; goes on where it stopped.
    pub fn sweep(&mut self, now: Now, budget: usize) {
        for _ in 0..budget.min(self.slots.len()) {
            self.swept = (self.swept + 1) % self.slots.len();
            let (generation, Some(room)) = &self.slots[self.swept] else { continue };
            let handle = RoomHandle { index: self.swept as u32, generation: *generation };
            let class = self.classes.get(room.class);
            let (idle_ms, age_ms) = (class.idle_ms, class.history.map_or(0, |h| h.age_ms));
            if age_ms > 0 {
                let oldest_us = now.wall_us.saturating_sub(age_ms * 1000);
                let is_old = |room: &Room| {
                    room.ring.as_ref().and_then(|r| r.first()).is_some_and(|r| r.timestamp_us < oldest_us)
                };
                while is_old(self.at(handle.index)) {
                    self.drop_oldest(handle);
                }
            }
            let room = self.at(handle.index);
            let unused_ms = u64::from(seconds(now).saturating_sub(room.used_s)) * 1000;
            let is_due = if idle_ms > 0 { unused_ms >= idle_ms } else { room.is_forgettable() };
            if room.is_idle() && is_due {
                while !self.at(handle.index).is_empty() {
                    self.drop_oldest(handle);
                }
                self.forget(handle);
            }
        }
    }

    pub(super) fn drop_oldest(&mut self, handle: RoomHandle) {
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        let class = usize::from(room.class);
        if let Some(ring) = room.ring.as_mut().filter(|r| !r.is_empty()) {
            let bytes = ring.pop();
            self.ledgers[class].dropped(bytes);
            self.expired += 1;
        }
    }

    /// Drops the oldest record of a class's hub; false if there was none.
    fn drop_oldest_of(&mut self, class: usize) -> bool {
        while let Some(entry) = self.ledgers[class].oldest() {
            if is_kept(&self.slots, &entry) {
                self.drop_oldest(entry.room);
                return true;
            }
        }
        false
    }
}

fn is_kept(slots: &[(u32, Option<Room>)], entry: &Entry) -> bool {
    let (generation, room) = &slots[entry.room.index as usize];
    let ring = room.as_ref().filter(|_| *generation == entry.room.generation).and_then(|r| r.ring.as_ref());
    ring.and_then(|r| r.first()).is_some_and(|first| first.position.seq <= entry.seq)
}
